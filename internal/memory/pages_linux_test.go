package memory

import "testing"

func TestDropProgram(t *testing.T) {
	resident := func() (bytes int64) {
		t.Helper()
		program, err := readOnlyProgram()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range program {
			bytes += kilobytes(m.text, "Rss:")
		}
		return bytes
	}
	before := resident()
	if before == 0 {
		t.Fatal("nothing of the program is resident: are its mappings found?")
	}
	if err := dropProgram(); err != nil {
		t.Fatal(err)
	}
	if after := resident(); after >= before {
		t.Errorf("got %d bytes resident, want fewer than the %d before", after, before)
	}
}
