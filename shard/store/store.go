// Package store is the Pebble database of which hot state is a cache. Its own write-ahead log is off: what it has not
// flushed is in our log. Nothing else opens Pebble or builds its keys. Key space:
//
//	s<name>                        facts of the store: format version, secret; stamp of the newest record; how far the
//	                               event log has been packed; whether there is a log of its own beside it
//	c<document key>                control documents, owned by partition 0
//	e<number, big endian>          entries: profiles, directory rows, tombstones, kept answers
//	e<partition, 0…0><kind><id>    a partition's books: applied position, outbox, inbox, deferred records, trails,
//	                               block list, kept answers, dropped ops
//
// So a partition is one contiguous range of keys, which a checkpoint writes in one batch and a cluster ships as one
// snapshot.
package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/profile"
)

// Store is an open database.
type Store struct {
	DB     *pebble.DB // used for batches, and to copy all files
	Secret [32]byte   // for the hash that numbers are made with
	HasLog bool       // NoteLog was called before the store was opened
	LogID  uint64     // what it was called with; 0 if it noted only that there is a log
	events *events
	own    *Cache // nil: the store shares one
}

// Version is the version of everything in the store. 16: changes of users who aren't in memory are ops of record
// version 6.
const Version = 16

// Options are the options for opening a store.
type Options struct {
	FS     vfs.FS
	Dir    string       // has nothing but this store
	Logger *slog.Logger // gets Pebble's messages, too
	// New says that the store may be made, with this secret.
	New    bool
	Secret [32]byte
	// Limits are the limits of profiles that changes are folded into.
	Limits *profile.Limits
	// Cache is shared with other stores; nil: the store has its own, of CacheBytes.
	Cache      *Cache
	CacheBytes int64 // of blocks; see NewCache
	// MemTableBytes is how many bytes are collected before they are written out.
	MemTableBytes int64
	// Note gets the numbers of users who had better be read from now on. Pebble's goroutines call it.
	Note func(number uint64)
	// OnFailure is called when the store can't be written any more.
	OnFailure func(error)
}

// Open opens a store, or makes one.
func Open(opts Options) (*Store, error) {
	events := newEvents(opts.Logger, opts.OnFailure)
	o := &pebble.Options{
		FS: syncedFS{tableFS{opts.FS}, events}, DisableWAL: true, FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: uint64(opts.MemTableBytes), MemTableStopWritesThreshold: maxMemTables, L0CompactionThreshold: 8,
		L0StopWritesThreshold: 32,
		LBaseMaxBytes:         4 * opts.MemTableBytes, MaxOpenFiles: maxOpenFiles, Logger: events,
		Merger: NewMerger(opts.Limits, opts.Note),
	}
	cache, own := opts.Cache, (*Cache)(nil)
	if cache == nil {
		own = NewCache(opts.CacheBytes, opts.MemTableBytes, maxOpenFiles)
		cache = own
	}
	o.Cache, o.FileCache = cache.blocks, cache.files
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].BlockSize = 16 << 10
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings {
		c := pebble.DBCompressionFastest
		for i := range len(c.Levels) - 1 { // tables on these levels are rewritten soon, and few beside the last
			c.Levels[i] = sstable.NoCompression
		}
		return c
	})
	l := pebble.MakeLoggingEventListener(events)
	quiet := pebble.EventListener{
		BackgroundError: events.backgroundError, DiskSlow: l.DiskSlow, WriteStallBegin: l.WriteStallBegin,
		WriteStallEnd: l.WriteStallEnd,
		// Pebble's own listener ends the process: one bad block must not keep the server from starting.
		// The read that met the block fails instead.
		DataCorruption: events.damaged,
	}
	o.EventListener = &quiet
	o.EnsureDefaults()
	db, err := openPebble(opts.Dir, o, events)
	if err != nil {
		own.Close()
	}
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "merger name"): // Pebble has no error for this; facts would have found it
		return nil, fmt.Errorf("%w: open %q: %w: it is for the version that wrote it", ErrStore, opts.Dir, err)
	default:
		return nil, fmt.Errorf("%w: open %q: %w", ErrStore, opts.Dir, err)
	}
	s := &Store{DB: db, events: events, own: own}
	if err := s.facts(opts.New, opts.Secret); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// openPebble returns an error where Pebble panics or hangs: when the disk fails while it opens.
func openPebble(dir string, o *pebble.Options, events *events) (db *pebble.DB, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fatal{fmt.Sprint(p), []any{p}}
			}
		}()
		db, err = pebble.Open(dir, o)
	}()
	select {
	case <-done:
		return db, err
	case <-events.dead:
		return nil, events.err
	}
}

// facts reads, or on the first start writes, the format version and the secret with which package identity hashes. A
// store that has lost them (one with a truncated manifest looks like an empty store) must not get others: users would
// be there under numbers that nothing leads to.
func (s *Store) facts(isNew bool, secret [32]byte) error {
	v, err := s.Get([]byte("sfacts"))
	if err != nil {
		return err
	}
	if v == nil && !isNew {
		return fmt.Errorf("%w: it is empty although there is a log; its files are damaged", ErrStore)
	}
	if v == nil {
		s.Secret = secret
		v = binary.LittleEndian.AppendUint32(nil, Version)
		if err := s.DB.Set([]byte("sfacts"), append(v, secret[:]...), pebble.NoSync); err != nil {
			return fmt.Errorf("%w: %w", ErrStore, err)
		}
		return s.Flush()
	}
	if len(v) != 4+len(secret) || binary.LittleEndian.Uint32(v) != Version {
		return fmt.Errorf("%w: its format is version %d, this program reads %d: it is for the version that wrote it",
			ErrStore, binary.LittleEndian.Uint32(append(v, 0, 0, 0, 0)), Version)
	}
	copy(s.Secret[:], v[4:])
	log, err := s.Get([]byte("slog"))
	s.HasLog = log != nil
	if len(log) == 8 { // a single byte said that there is a log, before logs had ids
		s.LogID = binary.LittleEndian.Uint64(log)
	}
	return err
}

// NoteLog notes, durably, which log is beside the store. From then on a directory without it has lost it.
func (s *Store) NoteLog(id uint64) error {
	if err := s.DB.Set([]byte("slog"), binary.LittleEndian.AppendUint64(nil, id), pebble.NoSync); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return s.Flush()
}

// Stamp is the latest stamp of records at the last checkpoint, 0 when there was none.
func (s *Store) Stamp() (int64, error) {
	v, err := s.Get([]byte("sstamp"))
	if err != nil || len(v) != 8 {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(v)), nil
}

// SaveStamp puts the latest stamp of records into a batch.
func SaveStamp(batch *pebble.Batch, stamp int64) error {
	return batch.Set([]byte("sstamp"), binary.LittleEndian.AppendUint64(nil, uint64(stamp)), nil)
}

// Packed is the position up to which the event log has been packed at least; ok is false when none was saved.
func (s *Store) Packed() (position uint64, ok bool, err error) {
	v, err := s.Get([]byte("spacked"))
	if err != nil || len(v) != 8 {
		return 0, false, err
	}
	return binary.LittleEndian.Uint64(v), true, nil
}

// SavePacked puts how far the event log has been packed into a batch: the event log's files have that on disk already.
func SavePacked(batch *pebble.Batch, position uint64) error {
	return batch.Set([]byte("spacked"), binary.LittleEndian.AppendUint64(nil, position), nil)
}

// failed wraps an error of Pebble. That of a damaged block has a second line, which only carries details for programs.
func failed(doing string, err error) error {
	text := strings.TrimSuffix(err.Error(), "\n<corruption detail carrier>")
	return fatal{fmt.Sprintf("%v: %s: %s", ErrStore, doing, text), []any{ErrStore, err}}
}

// Get is a copy of the value of a key; nil when there is none.
func (s *Store) Get(key []byte) ([]byte, error) {
	return appendValue(s.DB, []byte{}, key)
}

// appendValue appends the value of a key; nil when there is none.
func appendValue(from pebble.Reader, dst, key []byte) ([]byte, error) {
	v, closer, err := from.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, failed("read", err)
	}
	defer closer.Close()
	return append(dst, v...), nil
}

// Entry appends the value at a number to dst, operands folded: an entry, or a mixed value; nil when there is none. A v
// that isn't nil means the store as it was at that View.
func (s *Store) Entry(v *View, dst []byte, number uint64) ([]byte, error) {
	var reader pebble.Reader = s.DB
	if v != nil {
		v.mu.RLock()
		defer v.mu.RUnlock()
		if v.isClosed {
			return nil, ErrViewClosed
		}
		reader = v.snapshot
	}
	var k [9]byte
	return appendValue(reader, dst, AppendEntryKey(k[:0], number))
}

// View is the store as it was before a checkpoint's batch. A reader that holds changes which are in the batch reads the
// view, so that no change counts twice. Only checkpoints write entries, one batch after the other.
type View struct {
	mu       sync.RWMutex // held for reading by readers
	snapshot *pebble.Snapshot
	isClosed bool
}

// ErrViewClosed is returned when the batch is in the store by now, or will never be.
var ErrViewClosed = fmt.Errorf("%w: the view is closed", ErrStore)

// View is a view of the store as it is now.
func (s *Store) View() *View { return &View{snapshot: s.DB.NewSnapshot()} }

// Close ends the view: later readers get ErrViewClosed.
func (v *View) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.isClosed = true
	_ = v.snapshot.Close() // fails if it is closed already
}

// Flush makes what was written durable. Pebble retries a flush that fails without end, so Flush returns at the first
// failure.
func (s *Store) Flush() error {
	flushed, err := s.DB.AsyncFlush()
	if err != nil {
		return fmt.Errorf("%w: flush: %w", ErrStore, err)
	}
	select {
	case <-flushed:
		return nil
	case <-s.events.failed:
		return fmt.Errorf("flush: %w", s.events.err)
	}
}

// Dead is closed when Pebble has given up and holds its locks for good. Entries that are not resident can still be
// read.
func (s *Store) Dead() <-chan struct{} { return s.events.dead }

// Close closes the database, as far as that is possible.
func (s *Store) Close() error {
	defer s.own.Close()
	s.events.end()
	closed := make(chan error, 1)
	go func() { closed <- s.DB.Close() }()
	select {
	case err := <-closed:
		return err
	case <-s.events.dead: // Pebble would wait for goroutines that are stopped
		return nil
	}
}

// Documents calls f for every stored control document.
func (s *Store) Documents(f func(key string, doc []byte)) error {
	return s.Scan([]byte("c"), []byte("d"), func(k, v []byte) error {
		f(string(k[1:]), bytes.Clone(v))
		return nil
	})
}

// ErrEnough is returned by the function of a Scan to end it; Scan then returns it, too.
var ErrEnough = errors.New("enough")

// Scan calls f for each key from lower up to but excluding upper; the bytes are valid during the call.
func (s *Store) Scan(lower, upper []byte, f func(key, value []byte) error) error {
	r := s.Ranges()
	defer r.Close()
	return r.Scan(lower, upper, f)
}

// Ranges scans one range of keys after the other, in the store as it is at the first scan: making an iterator for each
// range takes longer than scanning a short one. It is for one goroutine.
type Ranges struct {
	store *Store
	it    *pebble.Iterator // nil: nothing was scanned yet
}

// Ranges makes a Ranges. The caller closes it.
func (s *Store) Ranges() *Ranges { return &Ranges{store: s} }

// Scan is Store.Scan.
func (r *Ranges) Scan(lower, upper []byte, f func(key, value []byte) error) error {
	return r.scan(lower, upper, (*pebble.Iterator).First, (*pebble.Iterator).Next, f)
}

// ScanDown is Scan from the last key down to the first.
func (r *Ranges) ScanDown(lower, upper []byte, f func(key, value []byte) error) error {
	return r.scan(lower, upper, (*pebble.Iterator).Last, (*pebble.Iterator).Prev, f)
}

func (r *Ranges) scan(
	lower, upper []byte, first, next func(*pebble.Iterator) bool, f func(key, value []byte) error,
) (err error) {
	if r.it != nil {
		r.it.SetBounds(lower, upper)
	} else if r.it, err = r.store.DB.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper}); err != nil {
		return failed("scan", err)
	}
	for ok := first(r.it); ok; ok = next(r.it) {
		v, err := r.it.ValueAndErr()
		if err != nil {
			return failed("scan", err)
		}
		if err := f(r.it.Key(), v); err != nil {
			return err
		}
	}
	if err := r.it.Error(); err != nil {
		return failed("scan", err)
	}
	return nil
}

// Close releases the store's state that was scanned.
func (r *Ranges) Close() {
	if r.it != nil {
		_ = r.it.Close() // Scan has returned its error
		r.it = nil
	}
}

// Size is about how many bytes the store's entries take on disk; their uncompressed size is unknown.
func (s *Store) Size() int64 {
	n, err := s.DB.EstimateDiskUsage([]byte("e"), []byte("f"))
	if err != nil {
		return math.MaxInt64
	}
	return int64(n) + int64(s.DB.Metrics().MemTable.Size)
}
