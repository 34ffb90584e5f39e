package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"millrace/ingest/grammar"
)

// window is the part of a text file that a reader looks at. It begins at the next row, and grows up to the bound of a
// row.
type window struct {
	r     io.Reader
	max   int
	buf   []byte
	from  int // buf[from:to] has been read and not taken
	to    int
	at    int64 // offset of from in the file
	line  int64 // of from
	ended bool
}

const windowBytes = 256 << 10

// open puts a window at the position of a row in a file of that size. It skips a byte-order mark of UTF-8.
func (w *window) open(f Source, size int64, at Position, maxRow int) error {
	*w = window{r: f, max: maxRow, at: at.Offset, line: max(at.Line, 1)}
	w.buf = make([]byte, min(windowBytes, maxRow+1, toEnd(size-at.Offset)))
	if _, err := f.Seek(at.Offset, io.SeekStart); err != nil {
		return err
	}
	if at.Offset > 0 {
		return nil
	}
	for w.to < 3 && !w.ended {
		if err := w.more(); err != nil {
			return err
		}
	}
	switch b := w.rest(); {
	case bytes.HasPrefix(b, []byte("\xef\xbb\xbf")):
		w.pass(3)
	case bytes.HasPrefix(b, []byte("\xff\xfe")), bytes.HasPrefix(b, []byte("\xfe\xff")):
		return &Fault{Line: 1, Column: 1, Text: "the file is UTF-16: want UTF-8"}
	case bytes.HasPrefix(b, []byte("\x1f\x8b")):
		return &Fault{Line: 1, Column: 1, Text: "the file is compressed with gzip: decompress it first"}
	}
	return nil
}

// toEnd is the size of a buffer that holds the last bytes of a file, and shows that there are no more.
func toEnd(bytes int64) int { return int(max(bytes, 0)) + 1 }

func (w *window) rest() []byte { return w.buf[w.from:w.to] }

// more reads on. A row that doesn't fit is a fault.
func (w *window) more() error {
	if w.to == len(w.buf) && w.from > 0 {
		w.to = copy(w.buf, w.rest())
		w.from = 0
	}
	if w.to == len(w.buf) {
		if w.to > w.max {
			return w.tooLong()
		}
		w.buf = append(w.buf, make([]byte, min(len(w.buf), w.max+1-len(w.buf)))...)
	}
	n, err := w.r.Read(w.buf[w.to:])
	w.to += n
	if errors.Is(err, io.EOF) {
		w.ended, err = true, nil
	}
	return err
}

func (w *window) tooLong() error {
	return &Fault{Line: w.line, Text: fmt.Sprintf("the row is longer than %d bytes", w.max)}
}

// pass takes n bytes.
func (w *window) pass(n int) {
	w.from += n
	w.at += int64(n)
}

// findByte returns the index of the first byte c at or after i in the rest, -1 when the file ends before. The rest may
// have moved.
func (w *window) findByte(c byte, i int) (int, error) {
	for {
		if k := bytes.IndexByte(w.rest()[i:], c); k >= 0 {
			return i + k, nil
		}
		i = len(w.rest())
		if w.ended {
			return -1, nil
		}
		if err := w.more(); err != nil {
			return 0, err
		}
	}
}

// checkText returns where a row that begins at the line isn't UTF-8.
func checkText(row []byte, line int64) error {
	at := grammar.InvalidUTF8(row)
	if at < 0 {
		return nil
	}
	before := row[:at]
	begin := bytes.LastIndexByte(before, '\n') + 1
	return &Fault{Line: line + int64(bytes.Count(before, []byte{'\n'})), Column: int64(at-begin) + 1,
		Text: "invalid UTF-8"}
}
