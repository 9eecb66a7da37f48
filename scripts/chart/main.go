// Command chart draws docs/images/figures.svg, the chart of start time, memory and writes
// beside etcd + kube-apiserver, and writes the tables of docs/figures.md, README.md and docs/datastore.md, from
// what scripts/bench has recorded in docs/figures:
//
//	go run ./scripts/chart
//
// scripts/figures records new figures and calls it.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

// chartFile is where the chart is, from the root of the repository.
const chartFile = "docs/images/figures.svg"

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "chart:", err)
		os.Exit(1)
	}
}

// run draws the chart and writes the tables of the repository at root.
func run(root string) error {
	files, err := output(root)
	if err != nil {
		return err
	}
	for name, content := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// output returns the files that come from the recorded figures, by name.
func output(root string) (map[string][]byte, error) {
	records := map[string]*record{}
	for _, name := range []string{"start", "footprint", "api", datastoresRecord} {
		file := "docs/figures/" + name + ".txt"
		f, err := os.Open(filepath.Join(root, file))
		if err != nil {
			return nil, fmt.Errorf("%w (scripts/figures records it)", err)
		}
		defer f.Close()
		if records[name], err = readRecord(f, file); err != nil {
			return nil, err
		}
	}
	drawn, err := draw(records)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{chartFile: drawn}
	for _, d := range documents {
		text, err := os.ReadFile(filepath.Join(root, d.file))
		if err != nil {
			return nil, err
		}
		if files[d.file], err = d.write(text, records); err != nil {
			return nil, err
		}
	}
	text, err := os.ReadFile(filepath.Join(root, datastoresFile))
	if err != nil {
		return nil, err
	}
	files[datastoresFile], err = writeDatastores(text, records[datastoresRecord])
	return files, err
}
