package files

import (
	"bytes"
	"io"
	"math"
	"slices"
	"sort"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"

	"millrace/ingest/grammar"
)

// Notes are what Check has found out about the lines of a file of NDJSON, so that rows need not be taken apart again
// when they become objects: where the object is, whose it is, and what it has. They cover the first part of a file, as
// far as they fit, and apply only to the text that was checked: each piece has its hash.
//
// Whatever isn't plain is only noted as a row, and is taken apart like one that wasn't noted. So a single place decides
// what rows become; the notes of plain rows are compared with it (FuzzRows).
type Notes struct {
	max    int
	bytes  int
	pieces []notedPiece
}

// NewNotes returns notes that take at most about maxBytes. The note of a line takes noteBytes.
func NewNotes(maxBytes int) *Notes { return &Notes{max: maxBytes} }

const noteBytes = 32

// notedPiece is a run of whole lines.
type notedPiece struct {
	at    Position
	size  int
	hash  uint64
	lines []note
}

// note is the note of one line. Places are indexes into the piece. It has 32 bytes and no pointers, so the collector
// has nothing to look for in it.
type note struct {
	user     uint64
	from, to uint32 // the object, or the JSON string that contains it
	who      uint32 // the identifier beside the object
	whoBytes uint16 // 0: there is none
	form     noteForm
	kind     uint8  // 1 + its index in Kinds, 0: the line doesn't say one
	next     uint32 // where the next line begins
	facts    noteFacts
}

// noteForm is what a line is.
type noteForm uint8

const (
	noteBlank  noteForm = iota // no row
	noteRow                    // has to be taken apart
	noteObject                 // is an object as it is
	noteQuoted                 // has an object as a string
)

// noteFacts are the facts of the object that affect what else must be put into it.
type noteFacts uint8

const (
	noteMembers noteFacts = 1 << iota // it has members
	noteTime
	noteExisting
	noteSvcID   // the identifier is one
	noteUpdated // there is a column updated_at
)

// add adds the notes of the piece after the existing ones. It returns false when no more of them fit.
func (n *Notes) add(p *piece, at Position) bool {
	if n == nil || p.notes == nil || n.bytes+noteBytes*cap(p.notes) > n.max {
		return false
	}
	n.bytes += noteBytes * cap(p.notes)
	n.pieces = append(n.pieces, notedPiece{at: at, size: len(p.text), hash: p.hash, lines: p.notes})
	return true
}

// noter makes notes of lines.
type noter struct {
	piece   grammar.Checker
	other   grammar.Checker     // of other texts
	facts   facts               // of the object, wherever it is
	columns [columnCount][]byte // of the line
	object  []byte              // of the column payload; nil: it is not an object
	empty   bool                // there is a payload in which there is nothing
	twice   bool
	scratch []byte
}

// checkAndNote is check for pieces in which nothing is wrong. It returns false when that isn't certain.
func (p *piece) checkAndNote(n *noter, o Options) bool {
	if len(p.text) > math.MaxUint32 {
		return false
	}
	n.piece.Mark(p.text)
	p.notes = make([]note, 0, 16+len(p.text)/p.lineBytes*17/16)
	p.rows, p.lines = 0, 0
	for from := 0; from < len(p.text); {
		end, next := len(p.text), len(p.text)
		if k := bytes.IndexByte(p.text[from:], '\n'); k >= 0 {
			end, next = from+k, from+k+1
			p.lines++
		}
		if end-from > o.MaxRowBytes {
			return false
		}
		p.notes = append(p.notes, note{})
		one := &p.notes[len(p.notes)-1]
		n.note(one, p.text[:end], from)
		if one.form == noteRow && !n.isReadable(p.text[from:end], o.Strict) {
			return false
		}
		if one.form != noteBlank {
			p.rows++
		}
		one.next = uint32(next)
		from = next
	}
	if cap(p.notes) > len(p.notes)*5/4 {
		p.notes = slices.Clone(p.notes) // they are kept, so they take no more room than they need
	}
	p.hash = xxh3.Hash(p.text)
	return true
}

// isReadable reports whether a line that isn't plain is UTF-8 and, if that is asked for, an object.
func (n *noter) isReadable(line []byte, strict bool) bool {
	text := bytes.TrimSpace(line)
	return utf8.Valid(text) && (!strict || len(text) > 0 && text[0] == '{' && n.other.IsValid(text))
}

// note makes the note of a line, which goes from an index of its piece to the end of text, in one, which is empty. A
// note is filled in where it stays: whoever copies what was just written in parts waits until it has left the
// processor, which was a tenth of a note.
func (n *noter) note(one *note, text []byte, from int) {
	i := grammar.Blanks(text, from)
	if i == len(text) || text[i] != '{' && len(bytes.TrimSpace(text[i:])) == 0 {
		return
	}
	one.form = noteRow
	if text[i] != '{' {
		return
	}
	n.facts = facts{} // one by one: together they would be copied
	n.columns = [columnCount][]byte{}
	n.object, n.twice, n.empty = nil, false, false
	end := n.members(&n.piece, text, i, false)
	if end < 0 || grammar.Blanks(text, end) < len(text) {
		return
	}
	payload, kind, number := n.columns[columnPayload], n.columns[columnKind], uint8(0)
	if kind != nil && isString(kind) {
		number = kindNumber(kind[1 : len(kind)-1])
	}
	if payload == nil {
		if number == 0 && !n.empty && n.facts.isNamed() {
			n.fill(one, text, text[i:end])
		}
		return
	}
	alone := n.columns[columnAliasName] == nil && n.columns[columnAliasLabel] == nil &&
		n.columns[columnEmail] == nil && n.columns[columnPhone] == nil
	switch {
	case n.twice || !alone || kind != nil && number == 0:
		return
	case n.object != nil:
		n.fill(one, text, n.object)
	default:
		n.fillQuoted(one, text, payload)
	}
	switch {
	case one.form == noteRow:
	case n.noteWho(one, text):
		one.kind = number
	default:
		*one = note{form: noteRow}
	}
}

// kindNumber returns one plus the index of the kind of that name, 0 when there is none.
func kindNumber(name []byte) uint8 { return uint8(slices.Index(Kinds, Kind(name)) + 1) }

// members skips the object at begin and notes its members. The object is the line, or its payload, which is inner.
func (n *noter) members(c *grammar.Checker, text []byte, begin int, inner bool) int {
	i := grammar.Blanks(text, begin+1)
	if i < len(text) && text[i] == '}' {
		return i + 1
	}
	for {
		from := i
		if i = c.String(text, i); i < 0 {
			return -1
		}
		name := text[from+1 : i-1]
		if i = grammar.Blanks(text, i); i == len(text) || text[i] != ':' {
			return -1
		}
		i = grammar.Blanks(text, i+1)
		value, of := i, columnNone
		if !inner {
			of = columnOf(name)
		}
		switch {
		case i == len(text):
			return -1
		case text[i] == '"':
			i = c.String(text, i)
		case text[i] <= '9':
			i = grammar.Number(text, i)
		case text[i] == '{' && of == columnPayload && n.object == nil:
			n.facts = facts{}
			if i = n.members(c, text, i, true); i > 0 {
				n.object = text[value:i]
			}
		default:
			i = c.Value(text, i)
		}
		if i < 0 {
			return -1
		}
		if inner || n.object == nil {
			n.facts.note(name, text[value:i], value-begin)
		}
		switch {
		case of == columnNone:
		case !isNothing(text[value:i]):
			n.twice = n.twice || n.columns[of] != nil
			n.columns[of] = text[value:i]
		case of == columnPayload:
			n.empty = true
		}
		if i = grammar.Blanks(text, i); i == len(text) {
			return -1
		}
		switch text[i] {
		case '}':
			return i + 1
		case ',':
			i = grammar.Blanks(text, i+1)
		default:
			return -1
		}
	}
}

// fill completes the note of a line with the object in it, whose facts are known, if it can be noted.
func (n *noter) fill(one *note, text, object []byte) {
	if n.facts.mergeAt != 0 {
		return
	}
	one.form = noteObject
	one.from = uint32(cap(text) - cap(object))
	one.to = one.from + uint32(len(object))
	one.user = n.facts.user()
	if n.facts.members {
		one.facts |= noteMembers
	}
	if n.facts.time {
		one.facts |= noteTime
	}
	if n.facts.existing {
		one.facts |= noteExisting
	}
	if n.columns[columnUpdatedAt] != nil {
		one.facts |= noteUpdated
	}
}

// fillQuoted is fill for a line whose payload is a string.
func (n *noter) fillQuoted(one *note, text, payload []byte) {
	var err error
	if n.scratch, err = jsontext.AppendUnquote(n.scratch[:0], payload); err != nil {
		return
	}
	object := bytes.TrimSpace(n.scratch)
	n.facts = facts{}
	if len(object) == 0 || object[0] != '{' || n.members(&n.other, object, 0, true) < len(object) {
		return
	}
	if n.fill(one, text, payload); one.form == noteObject {
		one.form = noteQuoted
	}
}

// noteWho adds the identifier beside the payload. It returns false when that can't be noted.
func (n *noter) noteWho(one *note, text []byte) bool {
	who := columnNone
	for _, c := range []column{columnExternalID, columnSvcID} {
		if n.columns[c] == nil {
			continue
		}
		if who != columnNone || len(n.columns[c]) > math.MaxUint16 {
			return false
		}
		who = c
	}
	if who == columnNone {
		return true
	}
	value := n.columns[who]
	one.who, one.whoBytes = uint32(cap(text)-cap(value)), uint16(len(value))
	one.user = hashOf(who, value)
	if who == columnSvcID {
		one.facts |= noteSvcID
	}
	return true
}

// NewReader is the function NewReader for the file that the notes are about.
func (n *Notes) NewReader(f Source, size int64, format Format, at Position, o Options) (Reader, error) {
	if n == nil || len(n.pieces) == 0 || format != NDJSON {
		return NewReader(f, size, format, at, o)
	}
	r := &notedLines{file: f, size: size, o: o, pieces: n.pieces, next: at}
	return r, r.find()
}

// notedLines reads lines by their notes, and the lines after those like any reader.
type notedLines struct {
	file Source
	size int64
	o    Options

	pieces []notedPiece // those that are left; the first one is current
	text   []byte       // of the current piece; nil: not read yet
	line   int          // index of the next one of its notes
	next   Position

	behind Reader // set when the notes are of no more use
}

// find finds the first row.
func (l *notedLines) find() error {
	if l.next.Offset == 0 {
		l.next = l.pieces[0].at
		return nil
	}
	k := sort.Search(len(l.pieces), func(k int) bool { return l.pieces[k].at.Offset > l.next.Offset }) - 1
	if k < 0 {
		return l.goOn()
	}
	l.pieces = l.pieces[k:]
	p := &l.pieces[0]
	l.line = sort.Search(len(p.lines), func(i int) bool { return p.at.Offset+int64(p.lines[i].next) > l.next.Offset })
	if p.at.Offset+int64(p.begin(l.line)) != l.next.Offset {
		return l.goOn()
	}
	return nil
}

// begin returns where a line begins in its piece.
func (p *notedPiece) begin(line int) int {
	if line == 0 {
		return 0
	}
	return int(p.lines[line-1].next)
}

// goOn leaves the rest to a reader without notes.
func (l *notedLines) goOn() (err error) {
	l.behind, err = NewReader(l.file, l.size, NDJSON, l.next, l.o)
	return err
}

// Position returns the position of the next row, or of a blank line before it.
func (l *notedLines) Position() Position {
	if l.behind != nil {
		return l.behind.Position()
	}
	return l.next
}

// Next reads a line that isn't blank.
func (l *notedLines) Next(r *Row) error {
	for l.behind == nil {
		if len(l.pieces) == 0 {
			if err := l.goOn(); err != nil {
				return err
			}
			break
		}
		p := &l.pieces[0]
		if l.line == len(p.lines) {
			l.pieces, l.text, l.line = l.pieces[1:], l.text[:0], 0
			continue
		}
		if len(l.text) == 0 {
			if ok, err := l.read(p); err != nil {
				return err
			} else if !ok {
				continue
			}
		}
		one, from, at := &p.lines[l.line], p.begin(l.line), l.next
		l.line++
		l.next.Line++
		l.next.Offset = p.at.Offset + int64(one.next)
		if one.form != noteBlank {
			l.next.Row++
			r.take(at, one, l.text, l.text[from:one.next])
			return nil
		}
	}
	return l.behind.Next(r)
}

// read reads a piece. If its text isn't the one that was noted, the rest is read without notes; the caller's final
// check of the file reports the change.
func (l *notedLines) read(p *notedPiece) (ok bool, err error) {
	if cap(l.text) < p.size {
		l.text = make([]byte, p.size)
	}
	l.text = l.text[:p.size]
	if n, err := l.file.ReadAt(l.text, p.at.Offset); n < p.size && err != io.EOF {
		return false, err
	} else if n < p.size || xxh3.Hash(l.text) != p.hash {
		return false, l.goOn()
	}
	return true, nil
}

// take makes a row of a line that has a note.
func (r *Row) take(at Position, one *note, piece, line []byte) {
	if one.form == noteRow {
		r.reset(at, bytes.TrimSpace(line))
		r.line = r.Text
		return
	}
	r.Position, r.Fault, r.Text = at, "", bytes.TrimSpace(line)
	r.noted, r.piece = one, piece
}

// takeNoted makes the object by the row's note. It returns false when there is no note by which it could be made.
func (r *Row) takeNoted(o *Object, options *ObjectOptions) bool {
	one := r.noted
	if one == nil {
		return false
	}
	kind := options.Kind
	if one.kind != 0 {
		kind = Kinds[one.kind-1]
	}
	timeless := kind != Attributes && one.facts&noteTime == 0
	if kind == Deletions || timeless && one.facts&noteUpdated != 0 {
		r.reset(r.Position, r.Text)
		r.line = r.Text
		return false
	}
	isExisting := one.facts&noteExisting != 0
	o.Kind, o.User, o.IsConditional = kind, one.user, isExisting || options.UpdateExistingOnly
	object := r.piece[one.from:one.to]
	if one.form == noteQuoted {
		r.scratch, _ = jsontext.AppendUnquote(r.scratch[:0], object) // this has been checked before
		object = bytes.TrimSpace(r.scratch)
	}
	made := r.made[:0]
	switch {
	case one.whoBytes == 0:
	case one.facts&noteSvcID != 0:
		made = append(made, `,"svc_id":`...)
	default:
		made = append(made, `,"external_id":`...)
	}
	made = append(made, r.piece[one.who:one.who+uint32(one.whoBytes)]...)
	if timeless {
		made = append(append(append(made, `,"time":"`...), options.Time...), '"')
	}
	if options.UpdateExistingOnly && !isExisting {
		made = append(made, `,"_update_existing_only":true`...)
	}
	if len(made) == 0 {
		o.Text = object
		return true
	}
	made[0] = '{' // replaces the first comma
	if one.facts&noteMembers != 0 {
		made = append(made, ',')
	}
	r.made = append(made, object[1:]...)
	o.Text = r.made
	return true
}
