package importer

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/zeebo/xxh3"

	"millrace/ingest/files"
	"millrace/wal/durable"
)

// stateVersion is the version of states, and of how rows become requests; other versions are refused.
const stateVersion = 4

// state is how far a file has come: one small file in the State directory, replaced as a whole. What is in it was
// already on the server's disk.
type state struct {
	Version int `json:"version"`

	Name     string    `json:"name"`
	Path     string    `json:"path"`               // where it was last found
	RawPath  []byte    `json:"raw_path,omitempty"` // Path, if that isn't UTF-8, which JSON can't hold
	Hash     string    `json:"hash"`
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"`
	ETag     string    `json:"etag,omitempty"` // for an object

	// What decides how rows become requests, as it was when the file was begun.
	Begun              time.Time    `json:"begun"` // also the time of events that have none
	Kind               files.Kind   `json:"kind"`
	Format             files.Format `json:"format"`
	Lanes              int          `json:"lanes"`
	Objects            int          `json:"objects"`
	RequestBytes       int          `json:"request_bytes"`
	Bulk               bool         `json:"bulk,omitempty"`
	UpdateExistingOnly bool         `json:"update_existing_only"`
	APIKey             string       `json:"api_key"` // a hash: kept answers belong to a key

	Saved time.Time `json:"saved"`
	// Since is when the first of what may be on the server, and is not noted here, was sent at the earliest; zero:
	// Saved is.
	Since time.Time `json:"since"`
	// Settled says that there is nothing of that kind: the last run has ended with an answer to each of its requests.
	Settled bool           `json:"settled,omitempty"`
	Done    bool           `json:"done"`
	Next    files.Position `json:"next"`  // all rows before it are answered
	Acked   []int64        `json:"acked"` // by lane: the last row that is answered
	Refused int64          `json:"refused_bytes"`
	Counts  Counts         `json:"counts"`
}

// states are the states in a directory.
type states struct {
	dir    string
	byName map[string][]*state
}

const stateEnding = ".state"

func openStates(dir string) (*states, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	s := &states{dir: dir, byName: map[string][]*state{}}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), stateEnding) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		one := new(state)
		if err := durable.UnsealText(text, one); err != nil {
			return nil, fmt.Errorf("state %q: %w", path, err)
		}
		if one.Version != stateVersion {
			return nil, fmt.Errorf("state %q: it has version %d, this program knows %d",
				path, one.Version, stateVersion)
		}
		if one.RawPath != nil {
			one.Path = string(one.RawPath)
			one.Name = nameOf(one.Path)
		}
		s.byName[one.Name] = append(s.byName[one.Name], one)
	}
	return s, nil
}

// unchanged reports whether a file was completed in its current state, as far as that is known without reading it.
func (s *states) unchanged(f *found) bool {
	for _, one := range s.byName[f.name()] {
		if one.Done && one.Path == f.path && one.Size == f.size &&
			one.Modified.Equal(f.modified) && one.ETag == f.etag() {
			return true
		}
	}
	return false
}

// of returns the state of a file with that content; nil: it wasn't begun.
func (s *states) of(name, hash string) *state {
	for _, one := range s.byName[name] {
		if one.Hash == hash {
			return one
		}
	}
	return nil
}

// leftOff returns the state of the file that was last begun at a path, if it wasn't completed: some of its rows may be
// on the server.
func (s *states) leftOff(f *found) (last *state) {
	for _, one := range s.byName[f.name()] {
		if one.Path == f.path && (last == nil || one.Saved.After(last.Saved)) {
			last = one
		}
	}
	if last == nil || last.Done {
		return nil
	}
	return last
}

// hasLater reports whether another file of the same name was worked on since.
func (s *states) hasLater(than *state) bool {
	return slices.ContainsFunc(s.byName[than.Name], func(one *state) bool { return one.Saved.After(than.Saved) })
}

func (s *states) add(one *state) { s.byName[one.Name] = append(s.byName[one.Name], one) }

// forget has it that a file wasn't begun.
func (s *states) forget(one *state) error {
	s.byName[one.Name] = slices.DeleteFunc(s.byName[one.Name], func(other *state) bool { return other == one })
	return os.Remove(filepath.Join(s.dir, one.fileName()))
}

// save writes a state durably.
func (s *states) save(one *state) error {
	one.Version, one.Saved, one.RawPath = stateVersion, time.Now().UTC(), nil
	if !utf8.ValidString(one.Path) {
		one.RawPath = []byte(one.Path)
	}
	return durable.ReplaceFile(filepath.Join(s.dir, one.fileName()), durable.SealText(one), 0o600)
}

// fileName begins with the file's name, for people who look.
func (one *state) fileName() string {
	base := strings.ToValidUTF8(one.Name[:min(len(one.Name), 100)], "")
	return fmt.Sprintf("%s.%016x%s", base, xxh3.HashString(one.Name+"\x00"+one.Hash), stateEnding)
}

// keeps is how long a server certainly knows a request by its Idempotency-Key: 24 hours, less one for the time under
// way.
const keeps = 23 * time.Hour

// resume checks that a file can be continued.
func (one *state) resume(o *Options) error {
	switch {
	case one.Kind != o.Kind:
		return fmt.Errorf("its import began as %s: resume it with the same --kind", one.Kind)
	case one.UpdateExistingOnly != o.UpdateExistingOnly:
		return errors.New("its import began with another --update-existing-only")
	case one.APIKey != hashOfKey(o.Key):
		return errors.New("its import began with another API key, and the server remembers requests by key: resume " +
			"it with that key; another --state starts from the beginning, and rows imported before may count twice")
	// Deletions may be done twice; attributes may say `inc`, and events count.
	case !o.Late && !one.Settled && one.Kind != files.Deletions && time.Since(one.since()) > keeps:
		return fmt.Errorf("its import stopped with unanswered requests of %s: the server may have forgotten "+
			"them since, and part of the file could be applied twice; --late resumes all the same",
			one.since().Format(time.RFC3339))
	}
	return nil
}

func (one *state) since() time.Time { return cmp.Or(one.Since, one.Saved) }

func hashOfKey(key string) string { return hashText(xxh3.HashString128(key)) }

func hashText(h xxh3.Uint128) string {
	b := h.Bytes()
	return hex.EncodeToString(b[:])
}

// hashReader hashes what is read through it, and in the end the rest.
type hashReader struct {
	files.Source
	hash *xxh3.Hasher
	read int64
}

func (h *hashReader) Read(p []byte) (int, error) {
	n, err := h.Source.Read(p)
	_, _ = h.hash.Write(p[:n]) // never fails
	h.read += int64(n)
	return n, err
}

// sum returns the hash of the file. It reads what was not read, from the beginning to the end if necessary.
func (h *hashReader) sum(size int64) (string, error) {
	if h.read != size {
		h.hash.Reset()
		if _, err := io.Copy(h.hash, io.NewSectionReader(h.Source, 0, size)); err != nil {
			return "", err
		}
	}
	return hashText(h.hash.Sum128()), nil
}
