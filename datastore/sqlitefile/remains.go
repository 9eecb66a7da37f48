package sqlitefile

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// Remains calls do for everything in the pages of a database and its WAL that looks like a row of the log table,
// whether SQLite can read the page or not (https://sqlite.org/fileformat2.html). It may call do twice for a row, and
// for rows that were deleted, because a free page keeps its contents.
func Remains(path string, do func(id int64, key string)) error {
	for _, file := range []struct {
		path        string
		head, frame int64 // sizes of what comes before all pages, and before each
	}{{path, 0, 0}, {path + "-wal", 32, 24}} {
		f, err := os.Open(file.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		} else if err != nil {
			return err
		}
		defer f.Close()
		var page [pageSize]byte
		for at := file.head + file.frame; ; at += pageSize + file.frame {
			if _, err := f.ReadAt(page[:], at); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				continue // this page is lost
			}
			for i := range page {
				if id, key := rowIn(page[:], i); key != "" {
					do(id, key)
				}
			}
		}
	}
	return nil
}

// rowIn returns the id and the key of the row whose record begins at page[at], or no key. A record is a header
// with its size and the types of the columns, and then the columns. The id is before the record.
func rowIn(page []byte, at int) (id int64, key string) {
	size := int(page[at])
	if size < len("12345678") || at+size > len(page) || page[at+1] != 0 { // the id is NULL in the record
		return 0, ""
	}
	header := page[at+1 : at+size]
	var types []int
	for len(header) > 0 && len(types) < 9 {
		n, used := 0, 0
		for more := true; more && used < len(header) && used < 4; used++ {
			n, more = n<<7|int(header[used]&0x7f), header[used]&0x80 != 0
		}
		types, header = append(types, n), header[used:]
	}
	const keyColumn, valueColumn, columns = 1, 7, 8
	if len(types) != columns {
		return 0, ""
	}
	for i, n := range types[1:] {
		blob := n >= 12 && n%2 == 0
		switch i + 1 {
		case keyColumn:
			if !blob {
				return 0, ""
			}
		case valueColumn:
			if !blob && n != 0 {
				return 0, ""
			}
		default:
			if n < 1 || n > 9 || n == 7 { // integers
				return 0, ""
			}
		}
	}
	from := at + size
	to := from + (types[keyColumn]-12)/2
	if to > len(page) {
		return 0, ""
	}
	// The last byte of the id has no high bit, and all others have it.
	for i, shift := at-1, 0; i >= 0 && shift < 63 && (page[i] < 0x80) == (shift == 0); i, shift = i-1, shift+7 {
		id |= int64(page[i]&0x7f) << shift
	}
	return id, string(page[from:to])
}
