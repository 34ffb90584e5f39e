package refused

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"millrace/wal/durable"
)

// The files, oldest first, and what is known of each. All of it belongs to the writer.

// segment is a file of the ring. Another goroutine may read the file meanwhile.
type segment struct {
	path   string
	file   *os.File // nil: nothing more is added
	size   int64
	first  int64 // when its oldest and its newest entry came, Unix ms
	newest int64
	ids    []uint64 // of the identifiers that its objects name
	counts map[counted]*Count
	n      int // entries
}

const suffix = ".refused"

// load reads all files. A file that is torn at its end is cut there.
func (s *Store) load() error {
	if err := durable.MakeDir(nil, s.options.Dir, 0o700); err != nil {
		return err
	}
	unfinished, err := s.files(suffix + durable.Temporary)
	if err != nil {
		return err
	}
	for _, path := range unfinished { // they have objects of people who may be deleted by now
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	paths, err := s.files(suffix)
	if err != nil {
		return err
	}
	for _, path := range paths {
		g, err := s.loadSegment(path)
		if err != nil {
			return fmt.Errorf("refused objects: %w", err)
		}
		if g.n == 0 {
			_ = os.Remove(path)
			continue
		}
		s.ring = append(s.ring, g)
	}
	s.measure()
	return nil
}

// files returns the paths of the files whose names end so, sorted by name. A directory that can't be read is an error:
// what is in it would neither expire nor go with its users.
func (s *Store) files(ending string) (paths []string, err error) {
	all, err := os.ReadDir(s.options.Dir)
	for _, f := range all {
		if strings.HasSuffix(f.Name(), ending) {
			paths = append(paths, filepath.Join(s.options.Dir, f.Name()))
		}
	}
	return paths, err
}

func (s *Store) loadSegment(path string) (*segment, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	g := newSegment(path)
	end, err := eachFrame(text, func(e *stored) bool {
		g.note(e)
		s.last = max(s.last, e.Seq)
		return true
	})
	switch {
	case err != nil && len(text) > len(magic) && end == 0 && text[0] != 0:
		// zeros: not even the magic has reached the disk
		return nil, fmt.Errorf("%q is of another version, or no file of refused objects: %w", path, err)
	case err != nil:
		s.options.Logger.Warn("refused objects: the end of a file is lost", "file", path, "bytes", len(text)-end)
		if err := os.Truncate(path, int64(end)); err != nil {
			return nil, err
		}
	}
	g.size = int64(end)
	return g, nil
}

func newSegment(path string) *segment {
	return &segment{path: path, size: int64(len(magic)), counts: map[counted]*Count{}}
}

// note records an entry that is in the file.
func (g *segment) note(e *stored) {
	if g.n++; g.n == 1 {
		g.first = e.At
	}
	g.newest = max(g.newest, e.At)
	g.ids = append(g.ids, e.ids...)
	for _, f := range e.Faults {
		g.add(&e.Entry, f.Rule)
	}
}

// write adds entries to the newest file.
func (s *Store) write(entries []Entry) error {
	g, err := s.openSegment(s.next(entries[0].At))
	if err != nil {
		return err
	}
	var text []byte
	for i := range entries {
		e := stored{Entry: entries[i]}
		s.last = s.next(e.At)
		ids, all := identifiersOf(e.Workspace, e.Object)
		if !all { // it wouldn't be found when one of its users is deleted
			ids, e.Object = nil, nil
		}
		e.Seq, e.ids = s.last, ids
		text = appendFrame(text, &e.Entry, e.ids)
		g.note(&e)
	}
	n, err := g.file.Write(text)
	g.size += int64(n)
	if err != nil {
		return err
	}
	s.dirty = true
	kept.Add(len(entries))
	s.measure()
	if g.size >= s.options.MaxBytes/segments {
		s.seal()
	}
	s.expire()
	return nil
}

// seqBits is for how many entries of one millisecond there are numbers that begin with it; further entries use those of
// the next millisecond. So a number is not given out again, whatever was removed.
const seqBits = 12

// next returns the number of an entry that came at this time.
func (s *Store) next(at int64) uint64 { return max(s.last+1, uint64(max(at, 0))<<seqBits) }

// openSegment returns the file to which entries from this number on are added. Some time after a failure it tries
// again, and at once when the clock was put back, which would make that time longer.
func (s *Store) openSegment(seq uint64) (*segment, error) {
	now := s.options.Now()
	if g := s.open(); g != nil {
		if now-g.first < s.options.Retention.Milliseconds()/segments {
			return g, nil
		}
		s.seal() // so that old entries expire on time, and not with those that came days later
	}
	if since := now - s.failing; s.failing != 0 && 0 <= since && since < retryInterval.Milliseconds() {
		return nil, errWaiting
	}
	if err := durable.MakeDir(nil, s.options.Dir, 0o700); err != nil { // somebody may have removed it
		return nil, err
	}
	path := filepath.Join(s.options.Dir, fmt.Sprintf("%016x%s", seq, suffix))
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	g := newSegment(path)
	g.file = f
	s.ring = append(s.ring, g)
	if _, err := f.WriteString(magic); err != nil {
		return nil, err
	}
	s.failing = 0
	return g, durable.SyncDir(nil, s.options.Dir)
}

// errWaiting says that writing has failed a moment ago.
var errWaiting = errors.New("writing has failed a moment ago")

// open returns the newest file while entries are added to it, else nil.
func (s *Store) open() *segment {
	if n := len(s.ring); n > 0 && s.ring[n-1].file != nil {
		return s.ring[n-1]
	}
	return nil
}

// flush syncs what was written.
func (s *Store) flush() error {
	g := s.open()
	if g == nil || !s.dirty {
		return nil
	}
	s.dirty = false
	return g.file.Sync()
}

// seal ends the newest file.
func (s *Store) seal() {
	g := s.open()
	if g == nil {
		return
	}
	err := errors.Join(s.flush(), g.file.Close())
	if g.file = nil; err != nil {
		s.fail(err, 0)
	}
}

// abandon ends the newest file as it is, after a failure: what is complete in it stays.
func (s *Store) abandon() {
	g := s.open()
	if g == nil {
		return
	}
	_ = g.file.Close()
	g.file, s.dirty = nil, false
	if text, err := os.ReadFile(g.path); err == nil {
		if end, err := eachFrame(text, func(*stored) bool { return true }); err != nil {
			_ = os.Truncate(g.path, int64(end))
		}
	}
	s.ring = s.ring[:len(s.ring)-1]
	if again, err := s.loadSegment(g.path); err == nil && again.n > 0 {
		s.ring = append(s.ring, again)
	} else {
		_ = os.Remove(g.path)
	}
	s.measure()
}

// expire removes the oldest files while there is too much, or they are too old.
func (s *Store) expire() {
	total, before := s.bytes.Load(), s.options.Now()-s.options.Retention.Milliseconds()
	gone := 0
	for _, g := range s.ring {
		if g.newest >= before && total <= s.options.MaxBytes {
			break
		}
		if g.file != nil {
			s.seal()
		}
		if err := os.Remove(g.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.options.Logger.Error("refused objects: remove a file", "error", err)
			break
		}
		total -= g.size
		gone++
	}
	if gone > 0 {
		s.ring = slices.Delete(s.ring, 0, gone)
		s.measure()
	}
}

// measure counts what is kept.
func (s *Store) measure() {
	total, n := int64(0), 0
	for _, g := range s.ring {
		total, n = total+g.size, n+g.n
	}
	s.bytes.Store(total)
	s.count.Store(int64(n))
}

// Bytes and Entries say how much is kept.
func (s *Store) Bytes() int64   { return s.bytes.Load() }
func (s *Store) Entries() int64 { return s.count.Load() }

// rewrite removes the matching entries from a file, durably, and returns how many there were. What is behind damage
// goes with them, since it may match. The newest file goes on with what is left: otherwise there would be as many files
// as deletions.
func (s *Store) rewrite(at int, matches func(*stored) bool) (taken int, err error) {
	old := s.ring[at]
	text, err := os.ReadFile(old.path)
	if errors.Is(err, os.ErrNotExist) { // somebody has removed it
		s.put(at, newSegment(old.path))
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	g, rest := newSegment(old.path), []byte(magic)
	_, damage := eachFrame(text, func(e *stored) bool {
		if matches(e) {
			taken++
			return true
		}
		g.note(e)
		rest = append(rest, e.frame...)
		return true
	})
	switch {
	case damage != nil:
		s.options.Logger.Warn("refused objects: the end of a file is lost", "file", old.path)
	case taken == 0:
		return 0, nil
	}
	g.size = int64(len(rest))
	if g.n > 0 {
		err = durable.ReplaceFile(old.path, rest, 0o600)
	}
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) { // a deletion counts more than the rest
		s.options.Logger.Warn("refused objects: the disk has no room for what is left of a file: it is lost",
			"file", old.path, "entries", g.n, "error", err)
		dropped.Add(g.n)
		g = newSegment(old.path)
	}
	if g.n == 0 {
		err = errors.Join(os.Remove(old.path), durable.SyncDir(nil, s.options.Dir))
	}
	if err != nil {
		if old.file != nil {
			s.abandon() // it finds out which of the two files exists
		}
		return 0, err
	}
	s.put(at, g)
	return taken, nil
}

// put puts g in the place of a segment whose file no longer exists.
func (s *Store) put(at int, g *segment) {
	if old := s.ring[at]; old.file != nil {
		_ = old.file.Close()
		s.dirty = false
		g.open()
	}
	s.ring[at] = g
}

// open makes an existing file go on; if it can't, the next entries go into another file.
func (g *segment) open() {
	if g.n == 0 {
		return
	}
	if f, err := os.OpenFile(g.path, os.O_WRONLY|os.O_APPEND, 0); err == nil {
		g.file = f
	}
}

// removeWhere removes entries from all files that may have some.
func (s *Store) removeWhere(may func(*segment) bool, matches func(*stored) bool) (taken int, err error) {
	for i := range s.ring {
		if !may(s.ring[i]) {
			continue
		}
		n, err := s.rewrite(i, matches)
		if taken += n; err != nil {
			return taken, err
		}
	}
	s.ring = slices.DeleteFunc(s.ring, func(g *segment) bool { return g.n == 0 && g.file == nil })
	s.measure()
	return taken, nil
}

// paths returns the current files, newest first, complete as far as they were written.
func (s *Store) paths() (list []string) {
	for _, g := range slices.Backward(s.ring) {
		list = append(list, g.path)
	}
	return list
}

// seqOf returns the number after which a file's entries begin.
func seqOf(path string) (seq uint64) {
	_, _ = fmt.Sscanf(strings.TrimSuffix(filepath.Base(path), suffix), "%x", &seq)
	return seq
}

// add counts a fault.
func (g *segment) add(e *Entry, rule string) {
	of := counted{Hour: e.At - e.At%time.Hour.Milliseconds(), Workspace: e.Workspace, Key: e.Key, Rule: rule}
	c := Count{counted: of, LeftOut: 1}
	if e.IsRefused {
		c.Refused, c.LeftOut = 1, 0
	}
	addCount(g.counts, &c)
}
