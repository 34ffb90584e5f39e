package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"millrace/ingest/files"
	"millrace/wal/durable"
)

// refusedEnding is the suffix of the names of refused files.
const refusedEnding = ".refused.ndjson"

// refusedFile has the rows of a file that were refused, with reasons: once repaired, they can be taken from there as
// they are.
type refusedFile struct {
	path   string
	file   refusedOutput // nil: not opened yet
	size   int64
	before int64 // size when this run began
}

// refusedOutput is the file itself.
type refusedOutput interface {
	io.WriterAt
	io.Closer
	Sync() error
}

// openRefused cuts a refused file to what its state knows of. What another file of the same name has left stays, apart
// from half a line at its end: when that other file goes on, the row comes again.
func openRefused(path string, s *state) (*refusedFile, error) {
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		s.Refused = 0
		return &refusedFile{path: path}, nil
	}
	file, err := durable.Lock(path) // before anything is read of it: another import may be writing
	if err != nil {
		return nil, fmt.Errorf("refused rows: %w", err)
	}
	info, err := file.Stat()
	if err == nil && (s.Refused < 0 || s.Refused > info.Size()) {
		s.Refused, err = endOfLines(file, info.Size())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &refusedFile{path: path, file: file, size: s.Refused, before: s.Refused}, nil
}

// endOfLines returns where a line can be added to a refused file of that size: behind its last whole line. A last line
// that lacks only its end, which an editor may have taken, gets it.
func endOfLines(file *os.File, size int64) (end int64, err error) {
	for n := min(size, 64<<10); n > 0; n = min(size, 2*n) {
		tail := make([]byte, n)
		if _, err := file.ReadAt(tail, size-n); err != nil {
			return 0, err
		}
		last := bytes.LastIndexByte(tail, '\n') + 1
		if last == 0 && n < size {
			continue
		}
		if tail = tail[last:]; !json.Valid(tail) { // nor is nothing at all
			return size - int64(len(tail)), nil
		}
		_, err := file.WriteAt([]byte("\n"), size)
		return size + 1, err
	}
	return 0, nil
}

// forget takes out what stands behind size, and will come again. A file that this import hasn't opened has nothing of
// it.
func (r *refusedFile) forget() error {
	if r.file == nil {
		return nil
	}
	if info, err := os.Stat(r.path); err != nil || info.Size() <= r.size {
		return nil
	}
	return os.Truncate(r.path, r.size)
}

// line is a line of a refused file. A row that was sent is its payload, or for a deletion its columns; otherwise text
// is the row as it was in the file.
type line struct {
	Line       int64           `json:"line"`
	Row        int64           `json:"row"`
	Reason     string          `json:"reason"`
	Kind       files.Kind      `json:"kind,omitempty"`
	ExternalID json.RawMessage `json:"external_id,omitempty"`
	SvcID      json.RawMessage `json:"svc_id,omitempty"`
	AliasName  json.RawMessage `json:"alias_name,omitempty"`
	AliasLabel json.RawMessage `json:"alias_label,omitempty"`
	Payload    json.RawMessage `json:"payload,omitempty"`
	Text       string          `json:"text,omitempty"`
}

func lineOf(o *outcome, s *refusal) line {
	l := line{Line: s.line, Row: s.row, Reason: s.reason}
	if int(s.kind) < len(files.Kinds) {
		l.Kind = files.Kinds[s.kind]
	}
	switch text := o.text(s.sent); {
	case s.fault != "" || !json.Valid(text):
		l.Text = string(text)
	case o.request.identifiers == "external_ids":
		l.ExternalID = text
	case o.request.identifiers == "svc_ids":
		l.SvcID = text
	case o.request.identifiers == "user_aliases":
		_ = json.Unmarshal(text, &l)
	default:
		l.Payload = text
	}
	return l
}

// append writes the rows of a request that were refused.
func (r *refusedFile) append(o *outcome) error {
	if len(o.refusals) == 0 {
		return nil
	}
	var text []byte
	for k := range o.refusals {
		b, err := json.Marshal(lineOf(o, &o.refusals[k]))
		if err != nil {
			return err
		}
		text = append(append(text, b...), '\n')
	}
	if err := r.open(); err != nil {
		return err
	}
	if _, err := r.file.WriteAt(text, r.size); err != nil { // a part of it is written over, or cut off by the next run
		return err
	}
	r.size += int64(len(text))
	return nil
}

// open opens the file, which no other import may write at the same time, or have written since this one began: each
// would write over the rows of the other.
func (r *refusedFile) open() error {
	if r.file != nil {
		return nil
	}
	file, err := durable.Lock(r.path)
	if err != nil {
		return fmt.Errorf("refused rows: %w", err)
	}
	if info, err := file.Stat(); err != nil || info.Size() != r.size {
		return errors.Join(err, fmt.Errorf("refused rows: %s has changed: does another import write there? "+
			"--refused-dir names another directory", r.path), file.Close())
	}
	r.file = file
	return durable.SyncDir(nil, filepath.Dir(r.path))
}

func (r *refusedFile) sync() error {
	if r.file == nil {
		return nil
	}
	return r.file.Sync()
}

func (r *refusedFile) close() error {
	if r.file == nil {
		return nil
	}
	return r.file.Close()
}
