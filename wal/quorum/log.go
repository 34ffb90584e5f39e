package quorum

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/hashicorp/raft"

	"millrace/wal"
	"millrace/wal/pause"
	"millrace/wal/quorum/disk"
	"millrace/wal/quorum/host"
	"millrace/wal/quorum/marker"
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
	markers   *marker.Store
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
	holds        wal.Holds

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
		trans:  newTransport(l.host, l.opts.Group, l.ways.Raft, &l.newcomer.is, l.marked, log),
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

// Image is not for logs that several nodes share: it always returns errors.ErrUnsupported. The state of a replica is
// taken without its log, and fresh enough to need none (package backup, Send).
func (l *Log) Image(string, uint64, uint64) ([]wal.File, error) {
	return nil, fmt.Errorf("quorum: an image of the log: %w", errors.ErrUnsupported)
}

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
