package files

import (
	"bytes"
	"errors"
	"io"
	"runtime"
	"slices"
	"sync"
)

// Check reads a file from beginning to end and returns how many rows it has. Its errors are those of a Reader. It takes
// notes of NDJSON, unless notes is nil. It calls onWay now and then with the number of bytes checked; an error of onWay
// ends it.
func Check(f Source, size int64, format Format, o Options, notes *Notes, onWay func(offset int64) error) (
	rows int64, err error) {

	r, err := NewReader(f, size, format, Position{}, o)
	if err != nil {
		return 0, err
	}
	if l, ok := r.(*lines); ok {
		return l.checkAll(min(pieceBytes, toEnd(size)), notes, onWay)
	}
	for row := new(Row); ; rows++ {
		if err := r.Next(row); err == io.EOF {
			return rows, nil
		} else if err != nil {
			return rows, err
		}
		if rows%1024 == 0 {
			if err := onWay(r.Position().Offset); err != nil {
				return rows, err
			}
		}
	}
}

// pieceBytes is how much of a file one goroutine checks at a time. A piece grows until it contains a whole line.
const pieceBytes = 256 << 10

// checkAll checks the remaining lines, in pieces. Pieces are read one after the other and checked several at a time.
// Results are reported in the order of the file.
func (l *lines) checkAll(size int, notes *Notes, onWay func(offset int64) error) (rows int64, err error) {
	checkers := runtime.GOMAXPROCS(0)
	given := make(chan *piece)
	var all sync.WaitGroup
	defer all.Wait()
	defer close(given)
	for range checkers {
		all.Go(func() {
			n := new(noter)
			for p := range given {
				p.check(n, l.o)
				p.checked <- struct{}{}
			}
		})
	}
	behind, noting := Position{Row: 1, Line: 1, Offset: l.at}, notes != nil // all before it is known to be good
	know := func(p *piece) error {
		<-p.checked
		if fault, ok := errors.AsType[*Fault](p.err); ok && fault.Line > 0 {
			fault.Line += behind.Line - 1
		}
		noting = noting && notes.add(p, behind)
		behind.Row += p.rows
		behind.Line += p.lines
		behind.Offset += int64(len(p.text))
		if p.err != nil {
			return p.err
		}
		return onWay(behind.Offset)
	}
	var underWay []*piece // in the order of the file
	for rest, more := l.rest(), true; more; {
		p := &piece{checked: make(chan struct{}, 1)}
		if len(underWay) > checkers {
			p, underWay = underWay[0], underWay[1:]
			if err := know(p); err != nil {
				return behind.Row - 1, err
			}
		}
		if p.noting, p.lineBytes = noting, usualLineBytes; behind.Line > 1 {
			p.lineBytes = int(max(behind.Offset/(behind.Line-1), 1))
		}
		rest, more = p.fill(l.r, rest, size, l.max)
		underWay = append(underWay, p)
		given <- p
	}
	for _, p := range underWay {
		if err := know(p); err != nil {
			return behind.Row - 1, err
		}
	}
	return behind.Row - 1, nil
}

// usualLineBytes is the assumed length of a line before any is known.
const usualLineBytes = 200

// piece is a run of whole lines. It belongs to its checker from when it is given until checked is signalled.
type piece struct {
	text    []byte
	checked chan struct{}

	noting    bool
	lineBytes int // average length of a line in the pieces before

	rows, lines int64
	err         error  // the first fault, or what kept the text from being read to the end
	notes       []note // nil: there are none
	hash        uint64 // of text, if there are notes
}

// fill reads a piece, which begins with before, the rest of the previous piece. rest is what was read of the line after
// the piece; more is false when there is nothing left to read.
func (p *piece) fill(r io.Reader, before []byte, size, maxRow int) (rest []byte, more bool) {
	p.text, p.err = append(p.text[:0], before...), nil
	for {
		from := len(p.text)
		p.text = slices.Grow(p.text, max(size, from))
		n, err := io.ReadFull(r, p.text[from:cap(p.text)])
		p.text = p.text[:from+n]
		if err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, false
		}
		end := bytes.LastIndexByte(p.text, '\n') + 1
		switch {
		case err != nil:
			p.text, p.err = p.text[:end], err
			return nil, false
		case end > 0:
			p.text, rest = p.text[:end], p.text[end:]
			return rest, true
		case len(p.text) > maxRow:
			return nil, true // check reports that
		}
	}
}

// check finds the first fault of a piece, and takes notes of a piece that has none.
func (p *piece) check(n *noter, o Options) {
	if p.noting && p.checkAndNote(n, o) {
		return
	}
	p.notes = nil
	l := &lines{o: o, row: 1}
	l.window = window{max: o.MaxRowBytes, buf: p.text, to: len(p.text), line: 1, ended: true}
	var err error
	for row := new(Row); err == nil; {
		err = l.Next(row)
	}
	p.rows, p.lines = l.row-1, l.line-1
	if err != io.EOF {
		p.err = err
	}
}
