package quorum

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/durable"
	"millrace/wal/pause"
	"millrace/wal/quorum/disk"
	"millrace/wal/quorum/host"
	"millrace/wal/quorum/store"
)

// Log is one group's log on this node. It is a replica.Log. A position is the entry's index in raft times 65536, plus
// the record's number in the entry. The methods are safe for concurrent use.
type Log struct {
	opts      Options
	host      *host.Host
	ways      *host.Group // those of this group into the host; nil before Start
	self      Node
	proposer  uint64 // random number of this Log and process
	lock      *os.File
	identity  identity
	store     *store.Store
	writing   *disk.Watch // of what the store writes
	trying    *disk.Watch // of what is written to try the disk
	highWater *store.HighWater
	markers   *markers
	machine   *machine
	metrics   *groupMetrics
	node      atomic.Pointer[instance] // nil before Start

	passed   passed
	room     wal.Room
	newcomer newcomer
	changes  atomic.Int32 // number of changes of the members that are under way
	// stoodDown says that the disk hangs and another node shall lead (lead.go).
	stoodDown atomic.Bool
	heeding   sync.Mutex
	leaveDisk func() // ends the calls of heedDisk

	mu           sync.Mutex // guards all fields below
	wake         sync.Cond  // the proposer waits on it
	queue        queue
	leads        bool // Append takes records
	reign        *reign
	confirmation confirmation
	transferring bool
	epoch        uint64 // number of the latest report of the leadership
	closing      bool
	failure      error // wraps wal.ErrFailed
	trimmed      uint64
	holds        map[string]uint64

	leadership leadership
	swapping   sync.Mutex     // held while one instance replaces another, and during Close
	proposed   chan struct{}  // closed when the proposer has returned
	stop       chan struct{}  // closed by Close
	loops      sync.WaitGroup // listen, tellOwner, serve, keep, confirm, transfer
	closed     bool
	election   atomic.Pointer[election] // the last one that Stand has seen
}

// identity is the file GROUP: it says whose log this is. It exists once the log has been created, so a log that lacks
// its other parts is damaged, not new.
type identity struct {
	Version int    `json:"version"`
	Group   uint32 `json:"group"`
	Node    Node   `json:"node"`
	// Base is the index after which the group began: there never was an entry up to it. 0 means unknown, because the
	// node came later.
	Base uint64 `json:"base"`
	// Newcomer: see newcomer.go.
	Newcomer bool `json:"newcomer,omitempty"`
}

const (
	identityName    = "GROUP"
	identityVersion = 1
	logDir          = "log"

	// firstBase is the base of a new group without a state from elsewhere; with such a state, the base is higher. It
	// leaves room for an entry before the first: raft takes index 0 for "none", and 1 for "without any before it".
	firstBase = 2
)

// Open opens the log, or creates it, and serves nothing yet: the caller replays (Replay), then calls Start. Errors:
// wal.ErrCorrupt when something is damaged or missing, or an error of the file system.
func Open(o Options) (*Log, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	l := &Log{
		opts: o, host: o.Host, self: o.Host.Node(), proposer: rand.Uint64(),
		room: wal.Room{Floor: wal.Floor{MinFreeBytes: o.MinFreeBytes, MinFreePercent: o.MinFreePercent},
			Logger: o.Logger.With("group", o.Group)},
		holds: map[string]uint64{}, proposed: make(chan struct{}), stop: make(chan struct{}),
		leadership: leadership{wake: make(chan struct{}, 1)},
	}
	l.wake.L = &l.mu
	l.queue.flying = map[uint64]*proposal{}
	l.machine = &machine{l: l}
	if err := l.open(); err != nil {
		l.release()
		return nil, fmt.Errorf("open the log of group %d in %q: %w", o.Group, o.Dir, err)
	}
	return l, nil
}

func (l *Log) path(name string) string { return filepath.Join(l.opts.Dir, name) }

func (l *Log) open() (err error) {
	if err := wal.MakeDir(nil, l.opts.Dir); err != nil {
		return err
	}
	if l.lock, err = durable.Lock(l.path("LOCK")); err != nil {
		return err
	}
	l.markers = &markers{l: l, path: l.path(markerName), sending: map[uint64]int{}}
	b, err := os.ReadFile(l.path(identityName))
	switch {
	case errors.Is(err, fs.ErrNotExist) && l.opts.MustExist:
		err = corrupt("%w", err)
	case errors.Is(err, fs.ErrNotExist):
		err = l.create()
	case err == nil:
		err = l.reopen(b)
	}
	if err != nil {
		return err
	}
	l.newcomer.is.Store(l.identity.Newcomer)
	m := l.markers.cur
	l.store.SetMarker(m.Index, m.Term, false)
	if err := l.findLast(); err != nil {
		return err
	}
	l.pass(m.entry())
	return nil
}

// create makes a new log. It removes what a crash has left of an earlier attempt: nobody has heard of such a log before
// the file GROUP exists.
func (l *Log) create() (err error) {
	if err := os.RemoveAll(l.path(logDir)); err != nil {
		return err
	}
	if err := wal.MakeDir(nil, l.path(logDir)); err != nil {
		return err
	}
	id := identity{Version: identityVersion, Group: l.opts.Group, Node: l.self, Newcomer: len(l.opts.Voters) == 0}
	var m marker
	if len(l.opts.Voters) > 0 {
		id.Base = firstBase
		if l.opts.Base > 0 {
			id.Base = max(indexOf(l.opts.Base)+1, firstBase+1)
		}
		m = marker{Version: markerVersion, Index: id.Base, Term: 1, ConfigurationIndex: id.Base}
		for _, n := range l.opts.Voters {
			m.Configuration.Servers = append(m.Configuration.Servers, raft.Server{ID: idOf(n), Address: addressOf(n)})
		}
	}
	if l.highWater, err = store.CreateHighWater(l.path(store.HighWaterName), m.Index); err != nil {
		return err
	}
	if err := l.openStore(); err != nil {
		return err
	}
	// A group begins as if it had a snapshot of what was before it: of nothing, or of the state that was made
	// elsewhere.
	if m.Index > 0 {
		if err := l.store.SetUint64([]byte("CurrentTerm"), m.Term); err != nil {
			return err
		}
		if err := l.markers.save(m); err != nil {
			return err
		}
	} else if err := os.Remove(l.path(markerName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l.identity = id
	return durable.ReplaceFile(l.path(identityName), durable.SealText(id), 0o644)
}

func (l *Log) openStore() (err error) {
	l.store, err = store.Open(l.path(logDir), l.opts.SegmentBytes, l.opts.KeepBytes, l.opts.CacheBytes,
		newLogger(l.opts.Logger), l.highWater, l.fail)
	if err != nil {
		return err
	}
	l.writing, l.trying = l.opts.Disk.Watch(l.opts.DiskTimeout), l.opts.Disk.Watch(l.opts.DiskTimeout)
	l.store.Around = func(isEntries bool) (after func()) {
		l.writing.Begin()
		if isEntries && l.opts.hooks.write != nil {
			l.opts.hooks.write()
		}
		return l.writing.End
	}
	return nil
}

// reopen opens an existing log, and refuses one that has less than this node has promised.
func (l *Log) reopen(b []byte) (err error) {
	if err := durable.UnsealText(b, &l.identity); err != nil {
		return corrupt("file %s: %w", identityName, err)
	}
	switch id := l.identity; {
	case id.Version != identityVersion:
		return fmt.Errorf("it has format %d, and this program knows %d", id.Version, identityVersion)
	case id.Group != l.opts.Group || id.Node != l.self:
		return fmt.Errorf("it is that of group %d on node %d", id.Group, id.Node)
	}
	if err := store.Check(l.path(logDir)); err != nil {
		return corrupt("%w", err)
	}
	if l.highWater, err = store.OpenHighWater(l.path(store.HighWaterName)); err != nil {
		return corrupt("%w", err)
	}
	if l.markers.cur, err = readMarker(l.markers.path); err != nil {
		return err
	}
	if err := l.openStore(); err != nil {
		return corrupt("%w", err)
	}
	return l.check()
}

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %w", wal.ErrCorrupt, fmt.Errorf(format, args...))
}

// check compares marker, log and high-water mark. It finishes what a crash during a restore has left unfinished.
func (l *Log) check() error {
	m := l.markers.cur
	first, err := l.store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.store.LastIndex()
	if err != nil {
		return err
	}
	if promised := l.highWater.Index(); max(last, m.Index) < promised {
		return corrupt("the log ends at entry %d, the snapshot at %d, and there were entries up to %d", last, m.Index,
			promised)
	}
	if first > m.Index+1 {
		return corrupt("the log begins at entry %d, behind the snapshot at %d", first, m.Index)
	}
	if last > 0 && last < m.Index {
		if !m.Restored {
			return corrupt("the log ends at entry %d, before the marker at %d", last, m.Index)
		}
		return l.store.CutFront(last) // the process ended before it could do that
	}
	for i := m.Index + 1; i <= last; i++ { // raft will read all of them, and panic on a bad one
		if err := l.store.GetLog(i, new(raft.Log)); err != nil {
			return corrupt("%w", err)
		}
	}
	return nil
}

// findLast finds the last record that Replay gives, so that DurablePosition is the position of a record. When there is
// no such record, but a state stands for what came before the log, DurablePosition is the end of that state: a barrier
// must not tell a node that lacks the state that it has everything.
func (l *Log) findLast() error {
	m := l.markers.cur
	first, err := l.store.FirstIndex()
	if err != nil {
		return err
	}
	for i := m.Index; first > 0 && i >= first; i-- {
		n, err := l.recordsOf(i)
		if err != nil {
			return corrupt("%w", err)
		}
		if n > 0 {
			l.passed.position.Store(position(i, n-1))
			return nil
		}
	}
	if m.Index > firstBase || m.Restored {
		l.passed.position.Store(endOf(m.Index))
	}
	return nil
}

func (l *Log) recordsOf(index uint64) (int, error) {
	var e raft.Log
	if err := l.store.GetLog(index, &e); err != nil || e.Type != raft.LogCommand {
		return 0, err
	}
	h, err := openEntry(e.Data)
	return h.records, err
}

// Start makes this node take part in the group.
func (l *Log) Start() error {
	ways, err := l.host.OpenGroup(l.opts.Group)
	if err != nil {
		return err
	}
	l.checkDisk()
	l.metrics = newGroupMetrics(l)
	l.swapping.Lock()
	defer l.swapping.Unlock()
	l.ways = ways
	if err := l.join(); err != nil {
		l.host.CloseGroup(l.opts.Group)
		l.metrics.close()
		l.metrics = nil
		return fmt.Errorf("start group %d: %w", l.opts.Group, err)
	}
	l.leaveDisk = l.opts.Disk.Join(l.heedDisk)
	l.loops.Go(l.tellOwner)
	l.loops.Go(func() { l.serve(ways.State) })
	l.loops.Go(l.keep)
	l.loops.Go(l.standWithoutVote)
	go l.propose()
	return nil
}

// forever is a very long time that raft can still double.
const forever = 100 * 365 * 24 * time.Hour

// join starts a raft with what is on disk.
func (l *Log) join() error {
	log := newLogger(l.opts.Logger).With("group", l.opts.Group)
	n := &instance{
		trans:  newTransport(l.host, l.opts.Group, l.ways.Raft, &l.newcomer.is, l.markers.entry, log),
		notify: make(chan bool, 16),
		seen:   make(chan raft.Observation, 16),
		done:   make(chan struct{}),
	}
	c := raft.DefaultConfig()
	c.LocalID, c.Logger, c.NotifyCh = idOf(l.self), log, n.notify
	c.HeartbeatTimeout, c.ElectionTimeout = l.timeouts()
	c.LeaderLeaseTimeout, c.CommitTimeout = l.opts.LeaseTimeout, l.opts.CommitTimeout
	c.MaxAppendEntries, c.BatchApplyCh = maxAppendEntries, true
	c.SnapshotInterval, c.SnapshotThreshold, c.TrailingLogs = forever, math.MaxUint64, 0 // the store decides what goes
	c.NoSnapshotRestoreOnStart, c.ShutdownOnRemove, c.NoLegacyTelemetry = true, false, true
	var err error
	logs := store.Logs{Store: l.store}
	if n.raft, err = raft.NewRaft(c, l.machine, logs, logs, l.markers, n.trans); err != nil {
		n.trans.close()
		return err
	}
	n.trans.raft.Store(n.raft)
	n.raft.RegisterObserver(raft.NewObserver(n.seen, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	}))
	l.node.Store(n)
	l.loops.Go(func() { l.listen(n) })
	return nil
}

// maxAppendEntries is how many entries a follower gets at once.
const maxAppendEntries = 64

// leave shuts an instance down.
func (n *instance) leave() {
	n.left.Do(func() {
		ended := n.raft.Shutdown()
		n.trans.close() // raft waits for its requests
		_ = ended.Error()
		close(n.done)
	})
}

// rejoin removes the entries from index on, which are known to contradict what the group has committed, and starts a
// new raft with the rest.
func (l *Log) rejoin(index uint64) {
	l.swap(func() bool {
		last, err := l.store.LastIndex()
		if err != nil || last < index { // already done
			return false
		}
		l.opts.Logger.Warn("removing the end of the log, which contradicts the group's", "group", l.opts.Group,
			"from", index)
		return true
	}, func() error { return l.store.CutEnd(index) })
}

// renew replaces a raft that refuses all entries because of a transfer that it never ends.
func (l *Log) renew(n *instance) {
	l.swap(func() bool {
		if l.node.Load() != n || l.failed() != nil {
			return false
		}
		l.opts.Logger.Warn("starting raft anew, which doesn't end a transfer of the leadership", "group", l.opts.Group)
		return true
	}, func() error { return nil })
}

// swap ends the running raft, if it is due, and starts a new one with what is on disk. between is called when none
// runs.
func (l *Log) swap(due func() bool, between func() error) {
	l.swapping.Lock()
	defer l.swapping.Unlock()
	select {
	case <-l.stop:
		return
	default:
	}
	if !due() {
		return
	}
	l.node.Load().leave()
	l.loseAll()
	err := between()
	if err == nil {
		err = l.join()
	}
	if err != nil {
		_ = l.fail(err)
	}
}

// fail ends the log. The first cause is kept. fail returns what Append returns from now on.
func (l *Log) fail(cause error) error {
	l.mu.Lock()
	if l.failure != nil || l.closing {
		defer l.mu.Unlock()
		return errors.Join(l.failure, cause)
	}
	l.failure = fmt.Errorf("%w: %w", wal.ErrFailed, cause)
	failure := l.failure
	l.endReign()
	l.mu.Unlock()
	failuresTotal.Inc()
	l.opts.Logger.Error("the log has failed; this node no longer takes part in the group", "group", l.opts.Group,
		"error", cause)
	go func() {
		if n := l.node.Load(); n != nil {
			_ = n.raft.Shutdown().Error()
			l.loseAll()
		}
	}()
	l.opts.OnFailure(failure)
	return failure
}

func (l *Log) failed() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failure
}

// closeTimeout is how long Close waits for the group to decide on the records that are under way.
const closeTimeout = 5 * time.Second

// Close waits until all accepted records are handed back or lost, and takes no further part in the group. A leader that
// can hand over calls Transfer before. Close returns the error of a log that has failed. A second Close returns nil.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	l.mu.Unlock()
	if n := l.node.Load(); n != nil {
		l.depart()
	}
	err := l.failed()
	if err == nil {
		err = l.highWater.Settle()
	}
	l.release()
	return err
}

// depart undoes Start.
func (l *Log) depart() {
	l.mu.Lock()
	l.closing = true
	l.queue.idle = false
	l.mu.Unlock()
	l.wake.Signal()
	if l.failed() == nil {
		_ = l.settle(context.Background(), closeTimeout)
	}
	close(l.stop)
	l.leaveDisk()
	l.swapping.Lock()
	l.node.Load().leave()
	l.swapping.Unlock()
	l.host.CloseGroup(l.opts.Group)
	l.loseAll()
	l.wake.Signal()
	<-l.proposed
	l.loseAll() // proposed too late for raft to see it
	l.loops.Wait()
	l.metrics.close()
}

// release frees what Open has acquired, as far as Open got.
func (l *Log) release() {
	if l.store != nil {
		if err := l.store.Close(); err != nil {
			l.opts.Logger.Debug("close", "group", l.opts.Group, "error", err)
		}
	}
	if l.highWater != nil {
		_ = l.highWater.Close()
	}
	if l.lock != nil {
		_ = l.lock.Close()
	}
}

// Stalled reports whether the quorum has not answered for longer than StallAfter.
func (l *Log) Stalled() bool {
	since, ok := l.waiting()
	return ok && time.Since(since) > l.opts.StallAfter
}

// DiskFull reports whether Append refuses records for lack of free space on this node.
func (l *Log) DiskFull() bool { return l.room.IsFull() }

// DiskHangs reports whether a write of this log has taken longer than StallAfter, or than DiskTimeout if that is less.
// When nothing else is written, one of the node's logs tries the disk every StallAfter.
func (l *Log) DiskHangs() bool {
	limit := l.opts.StallAfter
	if l.opts.DiskTimeout > 0 {
		limit = min(limit, l.opts.DiskTimeout)
	}
	return max(l.writing.Taken(), l.trying.Taken()) > limit
}

// Err returns the error that the log has failed with, which wraps wal.ErrFailed, or nil.
func (l *Log) Err() error { return l.failed() }

// keepInterval is how often the high-water mark is synced, the free space is checked, and the part of the log that
// nobody needs is dropped.
const keepInterval = time.Second

func (l *Log) keep() {
	for range pause.Every(keepInterval, l.stop) {
		if l.failed() != nil {
			continue
		}
		if err := l.keepMark(); err != nil {
			_ = l.fail(fmt.Errorf("sync the high-water mark: %w", err))
		}
		l.checkDisk()
		l.compact()
		l.settleIn()
	}
}

// keepMark syncs the high-water mark. If it is this log's turn to try the disk, the mark is written even if it is as
// before: otherwise only what is written next would show that the disk hangs.
func (l *Log) keepMark() error {
	if !l.opts.Disk.WantsTry(l.opts.StallAfter) {
		return l.highWater.Settle()
	}
	l.trying.Begin()
	defer l.trying.End()
	if l.opts.hooks.write != nil {
		l.opts.hooks.write()
	}
	return l.highWater.Renew()
}

func (l *Log) checkDisk() {
	free, total, err := l.opts.Disk.Space(keepInterval/2, func() (free, total uint64, err error) {
		return l.opts.FreeSpace(l.opts.Dir)
	})
	if err != nil { // unknown does not mean full; a disk that is gone shows at the next write
		l.opts.Logger.Debug("free space is unknown", "group", l.opts.Group, "error", err)
		return
	}
	l.room.Note(free, total)
}

var failuresTotal = metrics.NewCounter("millrace_quorum_failures_total")
