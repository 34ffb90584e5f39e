// Package refused keeps refused objects: each object of /users/track that was refused, or of which a value was left
// out, with reason, rule, key, time and, unless that is turned off, the object as it was sent. It is for people who
// look for the reason why their data don't arrive, and want to repair and resend them; nothing that was acknowledged
// depends on it.
//
// Invariants
//   - No sender of objects waits for it: Offer copies entries into a queue that is bounded in bytes. What doesn't fit
//     is dropped, and counted.
//   - One goroutine writes, removes, and answers whatever has to see everything that was offered before.
//   - The files are a ring: the oldest are removed when they are too old, or take too much space. What was written in
//     the last second may be lost with the machine. A file that a crash has torn at its end loses that end; a damaged
//     file loses what follows the damage.
//   - What Erase and Remove remove is off the disk when they return.
package refused

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
)

// ErrClosed is returned after Close.
var ErrClosed = errors.New("refused objects are not kept any more: the server stops")

// Options of a Store. The zero value of a field means its default.
type Options struct {
	Dir string // belongs to the Store
	// Retention and MaxBytes bound what is kept. Defaults 7 days, 256 MiB.
	Retention time.Duration
	MaxBytes  int64
	// WithoutEntries takes no further entries. Those that are there expire as always, and can be read and erased.
	WithoutEntries bool
	// WithoutObjects keeps the reason of a refusal, and nothing that a client has sent except the names in the text.
	WithoutObjects bool
	// MaxObjectBytes bounds an object that is kept; of a longer one the rest of the entry is kept. Default 64 KiB.
	MaxObjectBytes int
	// QueueBytes bounds what waits to be written. Default 4 MiB.
	QueueBytes int64
	Now        func() int64 // Unix ms; default: the system's clock
	Logger     *slog.Logger // default: slog.Default()
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.Retention = cmp.Or(o.Retention, 7*24*time.Hour)
	o.MaxBytes = cmp.Or(o.MaxBytes, 256<<20)
	o.MaxObjectBytes = cmp.Or(o.MaxObjectBytes, 64<<10)
	o.QueueBytes = cmp.Or(o.QueueBytes, 4<<20)
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	o.Logger = cmp.Or(o.Logger, slog.Default())
}

// Validate reports the first wrong option.
func (o *Options) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("refused: Dir is not set")
	case o.Retention < time.Hour:
		return fmt.Errorf("refused: Retention is %s, want at least 1h", o.Retention)
	case o.MaxBytes < 1<<20:
		return fmt.Errorf("refused: MaxBytes is %d, want at least 1 MiB", o.MaxBytes)
	case o.MaxObjectBytes < 1 || o.MaxObjectBytes > maxObjectBytes:
		return fmt.Errorf("refused: MaxObjectBytes is %d, want 1 to %d", o.MaxObjectBytes, maxObjectBytes)
	case o.QueueBytes < 1<<10:
		return fmt.Errorf("refused: QueueBytes is %d, want at least 1 KiB", o.QueueBytes)
	}
	return nil
}

// maxObjectBytes is more than a body has room for.
const maxObjectBytes = 256 << 20

// maxFaults is how many faults of one object are kept: the first ones.
const maxFaults = 100

// segments is the least number of files in a full ring: one of them is removed at a time.
const segments = 32

// Store keeps entries.
type Store struct {
	options Options
	queue   chan item
	queued  atomic.Int64 // bytes in queue
	closing chan struct{}
	once    sync.Once
	ended   chan struct{}

	// The fields below belong to the writer.
	ring    []*segment // oldest first; the last one may be open
	last    uint64     // Seq
	failing int64      // Unix ms of the last failure to write; 0: none
	dirty   bool
	claims  map[uint64]int64 // by Seq: Unix ms until which

	bytes atomic.Int64 // of all files
	count atomic.Int64 // entries in them
}

// item is an element of the queue: entries to write, or something to do after everything that came before.
type item struct {
	entries []Entry
	bytes   int64
	do      func()
}

// Open opens the store in Options.Dir, creating it if necessary.
func Open(o Options) (*Store, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Store{options: o, queue: make(chan item, 1024), closing: make(chan struct{}), ended: make(chan struct{}),
		claims: map[uint64]int64{}}
	if err := s.load(); err != nil {
		return nil, err
	}
	go s.run()
	return s, nil
}

// Close writes what is queued, and ends the store.
func (s *Store) Close() error {
	s.once.Do(func() { close(s.closing) })
	<-s.ended
	return nil
}

// Offer gives entries to be kept; it sets Seq, and copies what they hold. It drops all but the first maxFaults faults
// of an object. It doesn't wait.
func (s *Store) Offer(entries ...Entry) {
	if s.options.WithoutEntries {
		return
	}
	size := int64(0)
	for i := range entries {
		e := &entries[i]
		e.Faults = e.Faults[:min(len(e.Faults), maxFaults)]
		size += e.memory(s.keeps(e))
	}
	if s.queued.Add(size) > s.options.QueueBytes {
		s.queued.Add(-size)
		dropped.Add(len(entries))
		return
	}
	own := slices.Clone(entries)
	for i := range own {
		e := &own[i]
		e.Faults, e.Size = slices.Clone(e.Faults), len(e.Object)
		if s.keeps(e) {
			e.Object = slices.Clone(e.Object)
		} else {
			e.Object = nil
		}
	}
	select {
	case s.queue <- item{entries: own, bytes: size}:
	default:
		s.queued.Add(-size)
		dropped.Add(len(entries))
	}
}

// keeps reports whether the object of an entry is kept.
func (s *Store) keeps(e *Entry) bool {
	return !s.options.WithoutObjects && e.Array != "" && len(e.Object) <= s.options.MaxObjectBytes
}

// do makes the writer call f, after everything that was offered before, and waits for it.
func (s *Store) do(f func() error) error {
	result := make(chan error, 1)
	select {
	case s.queue <- item{do: func() { result <- f() }}:
	case <-s.closing:
		return ErrClosed
	}
	select {
	case err := <-result:
		return err
	case <-s.ended:
		select {
		case err := <-result:
			return err
		default:
			return ErrClosed
		}
	}
}

// Pace of the writer.
const (
	syncInterval  = time.Second
	retryInterval = 10 * time.Second // after a failure to write
)

// run is the writer's goroutine.
func (s *Store) run() {
	defer close(s.ended)
	tick := time.NewTicker(syncInterval)
	defer tick.Stop()
	for {
		select {
		case it := <-s.queue:
			s.take(it)
		case <-tick.C:
			s.tend()
		case <-s.closing:
			for {
				select {
				case it := <-s.queue:
					s.take(it)
					continue
				default:
				}
				break
			}
			s.seal()
			return
		}
	}
}

func (s *Store) take(it item) {
	if it.do != nil {
		it.do()
		return
	}
	s.queued.Add(-it.bytes)
	if err := s.write(it.entries); err != nil {
		s.fail(err, len(it.entries))
	}
}

// tend does what is due at this time.
func (s *Store) tend() {
	if err := s.flush(); err != nil {
		s.fail(err, 0)
	}
	s.expire()
}

// fail records that entries could not be written. They are lost, as is what comes in the next seconds: a failing disk
// is not tried for each entry.
func (s *Store) fail(err error, entries int) {
	dropped.Add(entries)
	if errors.Is(err, errWaiting) {
		return
	}
	if s.failing == 0 {
		failures.Inc()
		s.options.Logger.Error("refused objects are not kept", "dir", s.options.Dir, "error", err)
	}
	s.failing = s.options.Now()
	s.abandon()
}

var (
	kept     = metrics.NewCounter("millrace_refused_kept_total")
	dropped  = metrics.NewCounter("millrace_refused_dropped_total")
	erased   = metrics.NewCounter("millrace_refused_erased_total")
	failures = metrics.NewCounter("millrace_refused_failures_total")
)
