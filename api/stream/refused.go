package stream

import (
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"time"
)

// refusedFile keeps what a destination has refused for good, one JSON object per line, so that the stream can go on:
//
//	{"refused_at":"…","status":400,"answer":"…","event":{…}}
//
// When the file is full the stream is held up, because then it isn't single events that are wrong.
type refusedFile struct {
	folders *folders
	path    string
	limit   int64
	durable bool // its name is on disk
}

// refusedDir is the directory of these files, in the directory of a workspace.
const refusedDir = ".refused"

// refusedLine is a line of the file.
type refusedLine struct {
	RefusedAt time.Time       `json:"refused_at"`
	Status    int             `json:"status,omitempty"`
	Answer    string          `json:"answer,omitempty"`
	Event     json.RawMessage `json:"event"`
}

// add returns when a line is on disk; if it fails, the file stays as it was. A line that a crash has cut off is
// removed: its event is sent again, and refused again.
func (f *refusedFile) add(line refusedLine) (err error) {
	if err := f.folders.make(filepath.Dir(f.path)); err != nil {
		return err
	}
	file, size, err := f.folders.disk.Append(f.path)
	if err != nil {
		return err
	}
	defer func() {
		if closing := file.Close(); err == nil {
			err = closing
		}
	}()
	text, err := json.Marshal(line)
	if err != nil {
		return err
	}
	if size > 0 && size+int64(len(text)) > f.limit { // a single event always has room, whatever its size
		return fmt.Errorf("%s is full of events that were refused: see why, and move it away", f.path)
	}
	if err := write(file, append(text, '\n')); err != nil {
		if f, ok := file.(interface{ Truncate(size int64) error }); ok {
			_ = f.Truncate(size) // a full disk may have taken a part of the line, which is added again later
		}
		return err
	}
	if !f.durable || size == 0 { // a file that was moved away is created again
		if err := f.folders.disk.SyncDir(filepath.Dir(f.path)); err != nil {
			return err
		}
		f.durable = true
	}
	return nil
}

func write(file io.Writer, text []byte) error {
	if _, err := file.Write(text); err != nil {
		return err
	}
	if f, ok := file.(interface{ Sync() error }); ok {
		return f.Sync()
	}
	return nil
}
