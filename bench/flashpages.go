package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/bench/report"
)

// A walReader says what the commits in a WAL are about, and which pages they write
// (https://sqlite.org/fileformat2.html). It reads the file while the engine appends to it.
type walReader struct {
	path string

	mu      sync.Mutex // guards the fields below
	salts   [8]byte    // of the WAL that is being read; they change when it is restarted
	next    int        // first frame that was not read
	settled int        // first frame that the last poll did not find whole
	pages   map[uint32]bool
	lastRow int64 // newest row of the log table so far

	commits map[string]*walCommits
}

// walCommits are the commits of one kind.
type walCommits struct {
	number int
	frames map[string]int // by kind of page
}

const (
	walHeader   = 32
	frameHeader = 24
	dbPageSize  = 4096
)

// What a frame of the WAL has.
const (
	pageLeaf     = "leaf"     // of the log table
	pageInterior = "interior" // of the log table
	pageOverflow = "overflow" // or a page of the free list
	pageFirst    = "page 1"
	pagePointer  = "pointer map"
	pageTables   = "meta, lease"
)

var pageKinds = []string{pageLeaf, pageInterior, pageOverflow, pageFirst, pagePointer, pageTables}

// walCheckpoint stands for the pages that checkpoints copy from the WAL.
const walCheckpoint = "(checkpoint)"

func newWALReader(path string) *walReader {
	return &walReader{path: path, pages: map[uint32]bool{}, commits: map[string]*walCommits{}}
}

// follow polls the WAL until ctx ends. What it has at the beginning does not count.
func (r *walReader) follow(ctx context.Context) error {
	for range 3 { // the header, the frames, and those that were not read because they may have been half written
		if err := r.poll(); err != nil {
			return fmt.Errorf("read %s: %w", r.path, err)
		}
	}
	r.mu.Lock()
	clear(r.commits)
	r.mu.Unlock()
	for {
		if err := r.poll(); err != nil {
			return fmt.Errorf("read %s: %w", r.path, err)
		}
		if pause(ctx, time.Second) != nil {
			return nil
		}
	}
}

// poll reads the frames that were whole at the last poll: the newest ones may be half written.
func (r *walReader) poll() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	wal, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(wal) < walHeader {
		return nil
	}
	if err != nil {
		return err
	}
	if salts := [8]byte(wal[16:24]); salts != r.salts {
		if len(r.pages) > 0 {
			r.count(walCheckpoint).frames[walCheckpoint] += len(r.pages)
			r.count(walCheckpoint).number++
		}
		r.salts, r.next, r.settled, r.pages = salts, 0, 0, map[uint32]bool{}
		return nil
	}
	const frame = frameHeader + dbPageSize
	whole, begin := 0, r.next
	for n := r.next; walHeader+(n+1)*frame <= len(wal); n++ {
		at := wal[walHeader+n*frame:][:frame]
		if [8]byte(at[8:16]) != r.salts {
			break
		}
		if binary.BigEndian.Uint32(at[4:8]) == 0 {
			continue
		}
		whole = n + 1
		if whole > r.settled {
			break
		}
		if err := r.commit(wal[walHeader+begin*frame : walHeader+whole*frame]); err != nil {
			return err
		}
		begin, r.next = whole, whole
	}
	for n := r.next; walHeader+(n+1)*frame <= len(wal) && [8]byte(wal[walHeader+n*frame+8:][:8]) == r.salts; n++ {
		r.settled = n + 1
	}
	return nil
}

func (r *walReader) count(kind string) *walCommits {
	if r.commits[kind] == nil {
		r.commits[kind] = &walCommits{frames: map[string]int{}}
	}
	return r.commits[kind]
}

// commit counts the frames of one commit.
func (r *walReader) commit(frames []byte) error {
	kinds := map[string]int{}
	about := map[string]bool{}
	newest := r.lastRow
	for ; len(frames) > 0; frames = frames[frameHeader+dbPageSize:] {
		number, page := binary.BigEndian.Uint32(frames), frames[frameHeader:][:dbPageSize]
		r.pages[number] = true
		kind := r.kind(number, page)
		kinds[kind]++
		if kind != pageLeaf {
			continue
		}
		err := leafRows(page, func(row int64, key string) {
			if row > r.lastRow {
				newest = max(newest, row)
				about[resourceOf(key)] = true
			}
		})
		if err != nil {
			return fmt.Errorf("page %d: %w", number, err)
		}
	}
	r.lastRow = newest
	if len(about) > 1 {
		delete(about, resourceOf("/registry/leases/")) // they come with others
	}
	name := strings.Join(slices.Sorted(maps.Keys(about)), ", ")
	switch {
	case name != "":
	case kinds[pageLeaf]+kinds[pageInterior]+kinds[pageOverflow] > 0:
		name = "(compaction)"
	default:
		name = "(meta and lease tables)"
	}
	c := r.count(name)
	c.number++
	for kind, n := range kinds {
		c.frames[kind] += n
	}
	return nil
}

// resourceOf returns the resource of a key of the API server.
func resourceOf(key string) string {
	parts := strings.Split(strings.TrimPrefix(key, "/registry/"), "/")
	if len(parts) > 2 && parts[0] == "services" {
		return parts[1]
	}
	return parts[0]
}

// kind returns the kind of a page of the engine's database.
func (r *walReader) kind(number uint32, page []byte) string {
	// One page of the pointer map has the entries of the pages that follow it, five bytes each.
	const perMap = dbPageSize/5 + 1
	switch {
	case number == 1:
		return pageFirst
	case number >= 2 && (number-2)%perMap == 0:
		return pagePointer
	case number <= 5 && (page[0] == 0x0a || page[0] == 0x0d):
		return pageTables
	case page[0] == 0x0d:
		return pageLeaf
	case page[0] == 0x05:
		return pageInterior
	}
	return pageOverflow
}

var errNoLeaf = errors.New("no leaf of the log table")

// leafRows calls do with the id and the key of each row in a leaf of the log table.
func leafRows(page []byte, do func(row int64, key string)) error {
	cells := int(binary.BigEndian.Uint16(page[3:]))
	if page[0] != 0x0d || 8+2*cells > len(page) {
		return errNoLeaf
	}
	for n := range cells {
		at := int(binary.BigEndian.Uint16(page[8+2*n:]))
		if at >= len(page) {
			return errNoLeaf
		}
		cell := bytes.NewReader(page[at:])
		_, err := sqliteVarint(cell)
		row, err2 := sqliteVarint(cell)
		left := cell.Len()
		headerBytes, err3 := sqliteVarint(cell)
		_, err4 := sqliteVarint(cell) // the id is the row's
		key, err5 := sqliteVarint(cell)
		if err := errors.Join(err, err2, err3, err4, err5); err != nil {
			return err
		}
		body := len(page) - left + int(headerBytes)
		end := body + int(key-12)/2
		if key < 12 || end > len(page) {
			return errNoLeaf
		}
		do(int64(row), string(page[body:end]))
	}
	return nil
}

// sqliteVarint reads an integer as SQLite stores it: seven bits a byte, the highest first, and eight
// bits in a ninth byte.
func sqliteVarint(r io.ByteReader) (n uint64, err error) {
	for i := range 9 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		if i == 8 {
			return n<<8 | uint64(b), nil
		}
		n = n<<7 | uint64(b&0x7f)
		if b < 0x80 {
			break
		}
	}
	return n, nil
}

// table returns the commits of a time, as numbers in an hour.
func (r *walReader) table(took time.Duration) report.Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	table := report.Table{append([]string{"what is written, in an hour", "commits", "pages"}, pageKinds...)}
	hour := func(n int) string { return fmt.Sprintf("%.0f", float64(n)/took.Hours()) }
	total := walCommits{frames: map[string]int{}}
	line := func(name string, c *walCommits) {
		pages := c.frames[walCheckpoint]
		cells := []string{}
		for _, kind := range pageKinds {
			pages += c.frames[kind]
			cells = append(cells, hour(c.frames[kind]))
		}
		table = append(table, append([]string{name, hour(c.number), hour(pages)}, cells...))
	}
	for _, name := range slices.Sorted(maps.Keys(r.commits)) {
		c := r.commits[name]
		line(name, c)
		total.number += c.number
		for kind, n := range c.frames {
			total.frames[kind] += n
		}
	}
	line("all", &total)
	return table
}

// pages is the table of -pages.
func (w *flashCluster) pages() string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%d nodes, %s: pages that are written to the WAL, and copied from it by checkpoints\n", w.nodes, w.mode)
	w.wal.table(w.after.at.Sub(w.before.at)).Print(&text)
	return text.String()
}
