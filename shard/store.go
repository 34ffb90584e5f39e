package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/identity"
)

// The store is the Pebble database that hot state is a cache of. Its own write-ahead log is off: what it has not
// flushed is in ours. Nothing else opens Pebble or builds its keys. Key space:
//
//	s<name>                        facts of the store: format version, secret; stamp of the newest record
//	c<document key>                control documents, owned by partition 0
//	e<number, big endian>          entries: profiles, directory rows, tombstones, kept answers
//	e<partition, 0…0><kind><id>    a partition's books: applied position, outbox, inbox, deferred records, trails, block list, kept answers, dropped
//	                               events
//
// so that a partition is one contiguous range of keys: what a checkpoint writes in one batch and a cluster ships as one
// snapshot.
type store struct {
	db     *pebble.DB
	secret [32]byte
	log    *slog.Logger
	events *storeEvents
	failed <-chan struct{} // the engine's; then cause says why
	cause  func() error
}

const storeVersion = 8

// StoreCache is what the stores of several engines share: the cache of blocks, and the files that are open. Close it
// behind the engines.
type StoreCache struct {
	blocks *pebble.Cache
	files  *pebble.FileCache
}

// NewStoreCache makes a cache of so many bytes of blocks, and of so many open files.
func NewStoreCache(bytes int64, files int) *StoreCache {
	return &StoreCache{pebble.NewCache(bytes), pebble.NewFileCache(min(runtime.GOMAXPROCS(0), maxFileShards), max(files, minOpenFiles))}
}

// maxFileShards: each shard of a file cache has a goroutine.
const (
	maxFileShards = 8
	minOpenFiles  = 64
)

// Close frees the cache once no engine uses it.
func (c *StoreCache) Close() {
	c.files.Unref()
	c.blocks.Unref()
}

// Kinds of a partition's books. Low numbers of a number's 56 bits are never an entry's (identity: never 0).
const (
	bookApplied  = 'a' // applied position, next outbox sequence, next deferred sequence
	bookInbox    = 'i' // last sequence taken from each sender
	bookOutbox   = 'o' // + sequence: a message not yet known to be applied
	bookDeferred = 'd' // + sequence: a record that waits
	bookMerges   = 'm' // who is pinned, and which merges wait
	bookApart    = 'n' // + number: one set apart
	bookAuditEnd = 'h' // of partition 0: sequence and hash of the last entry of the audit log
	// From bookLazy on, books may be large: they are read when somebody asks.
	bookLazy    = 't'
	bookTrail   = 't' // + number, position, ordinal and index: a change of a state of that profile or row
	bookAudit   = 'u' // of partition 0, + sequence: an entry of the audit log
	bookBlocked = 'v' // + workspace, number: an email that is on the block list
	bookAnswers = 'w' // + stamp, number: an answer that was kept there
	bookDropped = 'x' // + position, ordinal: an event of the log that had no effect
)

// ErrStore is wrapped by errors that the store's files cause: a damaged block, a version of another program.
var ErrStore = errors.New("state store")

// openStore opens e's store, or makes it with this secret when isNew. The engine fails when it can't be written any
// more.
func openStore(e *Replica, isNew bool, secret [32]byte) (*store, error) {
	fs, log := e.opts.FS, e.opts.Logger
	dir := fs.PathJoin(e.opts.Dir, "state")
	events := &storeEvents{log: log, fail: e.fail, dead: make(chan struct{})}
	o := &pebble.Options{
		FS: storeFS{fs, events}, DisableWAL: true, FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: uint64(e.opts.StoreMemTableBytes), MemTableStopWritesThreshold: 4, L0CompactionThreshold: 4, L0StopWritesThreshold: 32,
		LBaseMaxBytes: 4 * e.opts.StoreMemTableBytes, MaxOpenFiles: 1 << 12, Logger: events,
		Merger: newMerger(&e.opts.Limits, e.note),
	}
	if shared := e.opts.StoreCache; shared != nil {
		o.Cache, o.FileCache = shared.blocks, shared.files
	} else {
		o.Cache = pebble.NewCache(e.opts.StoreCacheBytes)
		defer o.Cache.Unref()
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
		o.Levels[i].BlockSize = 16 << 10
	}
	o.ApplyCompressionSettings(func() pebble.DBCompressionSettings {
		c := pebble.DBCompressionFastest
		for i := range len(c.Levels) - 2 { // what is there is rewritten soon
			c.Levels[i] = sstable.NoCompression
		}
		return c
	})
	l := pebble.MakeLoggingEventListener(events)
	quiet := pebble.EventListener{
		BackgroundError: events.backgroundError, DiskSlow: l.DiskSlow, WriteStallBegin: l.WriteStallBegin, WriteStallEnd: l.WriteStallEnd,
		// Pebble's own listener ends the process: one bad block must not keep the server from starting (FAULTS.md F5).
		// The read that met the block fails instead.
		DataCorruption: func(i pebble.DataCorruptionInfo) { log.Error("state store: damaged block", "detail", i.String()) },
	}
	o.EventListener = &quiet
	o.EnsureDefaults()
	db, err := openPebble(dir, o, events.dead, e.Failed)
	switch {
	case err == nil:
	case strings.Contains(err.Error(), "merger name"): // Pebble has no error to ask for; facts would have said so
		return nil, fmt.Errorf("%w: open %q: %w: it is for the version that wrote it", ErrStore, dir, err)
	default:
		return nil, fmt.Errorf("%w: open %q: %w", ErrStore, dir, err)
	}
	s := &store{db: db, log: log, events: events, failed: e.failure.failed, cause: e.Failed}
	if err := s.facts(isNew, secret); err != nil {
		_ = s.close()
		return nil, err
	}
	return s, nil
}

// openPebble returns an error where Pebble panics or stands still: when the disk fails while it opens.
func openPebble(dir string, o *pebble.Options, dead <-chan struct{}, cause func() error) (db *pebble.DB, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("%v", p)
			}
		}()
		db, err = pebble.Open(dir, o)
	}()
	select {
	case <-done:
		return db, err
	case <-dead:
		return nil, cause()
	}
}

// facts reads, or on the first start writes, the format version and the secret that identity hashes with. A store that
// has lost them (a manifest that is cut short looks like an empty store) must not get others: users would be there
// under numbers that nothing leads to.
func (s *store) facts(isNew bool, secret [32]byte) error {
	v, err := s.getCopy([]byte("sfacts"))
	if err != nil {
		return err
	}
	if v == nil && !isNew {
		return fmt.Errorf("%w: it is empty although there is a log; its files are damaged", ErrStore)
	}
	if v == nil {
		s.secret = secret
		v = binary.LittleEndian.AppendUint32(nil, storeVersion)
		if err := s.db.Set([]byte("sfacts"), append(v, secret[:]...), pebble.NoSync); err != nil {
			return fmt.Errorf("%w: %w", ErrStore, err)
		}
		return s.flush()
	}
	if len(v) != 4+len(secret) || binary.LittleEndian.Uint32(v) != storeVersion {
		return fmt.Errorf("%w: its format is version %d, this program reads %d: it is for the version that wrote it", ErrStore, binary.LittleEndian.Uint32(append(v, 0, 0, 0, 0)), storeVersion)
	}
	copy(s.secret[:], v[4:])
	return nil
}

// stamp is the stamp that records had come to at the last checkpoint, 0 before the first.
func (s *store) stamp() (int64, error) {
	v, err := s.getCopy([]byte("sstamp"))
	if err != nil || len(v) != 8 {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(v)), nil
}

func (s *store) getCopy(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read: %w", ErrStore, err)
	}
	defer closer.Close()
	return append([]byte{}, v...), nil
}

// value appends what the store has at a number to dst, operands folded: an entry, or a mixed value; nil when there is
// none. v: not the store as it is, but as it was.
func (s *store) value(v *view, dst []byte, number uint64) ([]byte, error) {
	var reader pebble.Reader = s.db
	if v != nil {
		v.mu.RLock()
		defer v.mu.RUnlock()
		if v.isClosed {
			return nil, errViewClosed
		}
		reader = v.snapshot
	}
	var k [9]byte
	value, closer, err := reader.Get(appendEntryKey(k[:0], number))
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%w: read entry: %w", ErrStore, err)
	}
	defer closer.Close()
	return append(dst, value...), nil
}

// view is the store as it was before a checkpoint's batch: who has changes in hand that are in the batch reads it, so
// that none counts twice. Only checkpoints write entries, one batch after the other.
type view struct {
	mu       sync.RWMutex // held for reading by who reads
	snapshot *pebble.Snapshot
	isClosed bool
}

// errViewClosed: the batch is in the store by now, or will never be.
var errViewClosed = fmt.Errorf("%w: the view is closed", ErrStore)

func (s *store) view() *view { return &view{snapshot: s.db.NewSnapshot()} }

func (v *view) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.isClosed = true
	_ = v.snapshot.Close() // fails for one that is closed
}

// flush makes what was written durable. Pebble tries a flush that fails again without end, so the failure ends the
// wait.
func (s *store) flush() error {
	flushed, err := s.db.AsyncFlush()
	if err != nil {
		return fmt.Errorf("%w: flush: %w", ErrStore, err)
	}
	select {
	case <-flushed:
		return nil
	case <-s.failed:
		return fmt.Errorf("%w: flush: %w", ErrStore, s.cause())
	}
}

// isDead: Pebble has given up and holds its locks for good. What is not resident can still be read.
func (s *store) isDead() bool {
	select {
	case <-s.events.dead:
		return true
	default:
		return false
	}
}

func (s *store) close() error {
	closed := make(chan error, 1)
	go func() { closed <- s.db.Close() }()
	select {
	case err := <-closed:
		return err
	case <-s.events.dead: // it would wait for what stands still
		return nil
	}
}

func appendEntryKey(dst []byte, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, 'e'), number)
}

func appendBookKey(dst []byte, partition uint8, kind byte, ids ...uint64) []byte {
	dst = append(appendEntryKey(dst, uint64(partition)<<56), kind)
	for _, id := range ids {
		dst = binary.BigEndian.AppendUint64(dst, id)
	}
	return dst
}

func documentKey(key string) []byte { return append([]byte("c"), key...) }

// documents calls f for every stored control document.
func (s *store) documents(f func(key string, doc []byte)) error {
	return s.scan([]byte("c"), []byte("d"), func(k, v []byte) error {
		f(string(k[1:]), bytes.Clone(v))
		return nil
	})
}

// scan calls f for each key from lower up to but excluding upper; the bytes are valid during the call.
func (s *store) scan(lower, upper []byte, f func(key, value []byte) error) error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return fmt.Errorf("%w: scan: %w", ErrStore, err)
	}
	defer it.Close()
	for ok := it.First(); ok; ok = it.Next() {
		v, err := it.ValueAndErr()
		if err != nil {
			return fmt.Errorf("%w: scan: %w", ErrStore, err)
		}
		if err := f(it.Key(), v); err != nil {
			return err
		}
	}
	if err := it.Error(); err != nil {
		return fmt.Errorf("%w: scan: %w", ErrStore, err)
	}
	return nil
}

// bounds is the range of keys of a partition.
func bounds(partition uint8) (lower, upper []byte) {
	lower = appendEntryKey(nil, uint64(partition)<<56)
	if partition == identity.Partitions-1 {
		return lower, []byte("f")
	}
	return lower, appendEntryKey(nil, uint64(partition+1)<<56)
}

// size is about how many bytes the store's entries take, uncompressed sizes unknown: what it says is the files' size.
func (s *store) size() int64 {
	n, err := s.db.EstimateDiskUsage([]byte("e"), []byte("f"))
	if err != nil {
		return math.MaxInt64
	}
	return int64(n) + int64(s.db.Metrics().MemTable.Size)
}

// books is what a partition keeps beside its entries.
type books struct {
	applied      uint64
	nextMessage  uint64 // sequence of the next message to any partition; the first is 1
	nextDeferred uint64
	inbox        [identity.Partitions]uint64 // last sequence taken from each sender
}

func (b *books) encodeApplied() []byte {
	v := binary.LittleEndian.AppendUint64(nil, b.applied)
	v = binary.LittleEndian.AppendUint64(v, b.nextMessage)
	return binary.LittleEndian.AppendUint64(v, b.nextDeferred)
}

func (b *books) encodeInbox() []byte {
	var v []byte
	for sender, seq := range b.inbox {
		if seq != 0 {
			v = binary.AppendUvarint(append(v, byte(sender)), seq)
		}
	}
	return v
}

func (b *books) decode(kind byte, v []byte) error {
	switch kind {
	case bookApplied:
		if len(v) != 24 {
			return fmt.Errorf("%w: books of %d bytes", ErrStore, len(v))
		}
		b.applied, b.nextMessage, b.nextDeferred = binary.LittleEndian.Uint64(v), binary.LittleEndian.Uint64(v[8:]), binary.LittleEndian.Uint64(v[16:])
	case bookInbox:
		for len(v) > 0 {
			seq, n := binary.Uvarint(v[1:])
			if n <= 0 {
				return fmt.Errorf("%w: inbox is cut short", ErrStore)
			}
			b.inbox[v[0]] = seq
			v = v[1+n:]
		}
	}
	return nil
}

// load reads a whole partition: the books that are held in memory always, its entries when entry is given.
func (p *partition) load(s *store, entry func(number uint64, blob []byte) error) error {
	lower, upper := bounds(p.id)
	if err := s.scan(lower, appendBookKey(nil, p.id, bookLazy), p.loadBook); err != nil || entry == nil {
		return err
	}
	return s.scan(appendEntryKey(nil, uint64(p.id)<<56|1), upper, func(k, v []byte) error {
		return entry(binary.BigEndian.Uint64(k[1:]), v)
	})
}

func (p *partition) loadBook(k, v []byte) error {
	switch kind, ids := k[9], k[10:]; {
	case kind == bookOutbox && len(ids) == 8:
		m, err := parseMessage(bytes.Clone(v))
		if err != nil {
			return err
		}
		m.stored = true
		p.outbox = append(p.outbox, m)
		if m.token {
			p.tokens.Add(1)
		}
	case kind == bookDeferred && len(ids) == 8:
		d, err := decodeDeferred(binary.BigEndian.Uint64(ids), v)
		if err != nil {
			return err
		}
		p.deferred = append(p.deferred, d)
	case kind == bookMerges:
		return p.decodeHeld(v)
	case kind == bookApart && len(ids) == 8:
		p.apart.load(binary.BigEndian.Uint64(ids), v)
	default:
		return p.decode(kind, v)
	}
	return nil
}

// storeEvents sends what Pebble has to say to slog, and tells the engine when the store cannot be written any more.
type storeEvents struct {
	log  *slog.Logger
	fail func(error)
	die  sync.Once
	dead chan struct{} // closed by Fatalf: Pebble's goroutines stand still for good
}

func (l *storeEvents) Infof(f string, a ...any)  { l.log.Debug("state store: " + fmt.Sprintf(f, a...)) }
func (l *storeEvents) Errorf(f string, a ...any) { l.log.Error("state store: " + fmt.Sprintf(f, a...)) }

// Fatalf is called when Pebble cannot go on, for want of a manifest most of all, and must not return. The process has
// to end, but in the engine's way: with its reason and exit code.
func (l *storeEvents) Fatalf(f string, a ...any) {
	err := fmt.Errorf("%w: %s", ErrStore, fmt.Sprintf(f, a...))
	l.fail(err)
	l.die.Do(func() { close(l.dead) })
	select {}
}

// storeFS takes a directory that can't be synced for Fatalf: Pebble panics then, on a goroutine of its own.
type storeFS struct {
	vfs.FS
	events *storeEvents
}

type storeDir struct {
	vfs.File
	events *storeEvents
}

// Unwrap is for Pebble, which looks below wrappers.
func (fs storeFS) Unwrap() vfs.FS { return fs.FS }

// OpenDir opens a directory to sync it.
func (fs storeFS) OpenDir(name string) (vfs.File, error) {
	d, err := fs.FS.OpenDir(name)
	if err != nil {
		return nil, err
	}
	return storeDir{d, fs.events}, nil
}

// Sync does not return when it fails.
func (d storeDir) Sync() error {
	if err := d.File.Sync(); err != nil {
		d.events.Fatalf("%v", err)
	}
	return nil
}

// backgroundError: a flush or a compaction has failed. A damaged block is no reason to end: who needs it is told.
// Pebble's locks are held.
func (l *storeEvents) backgroundError(err error) {
	l.Errorf("background error: %s", err)
	if !pebble.IsCorruptionError(err) {
		l.fail(fmt.Errorf("%w: %w", ErrStore, err))
	}
}
