// Package shard is the engine: it orders the ops of requests in the log, applies them to the hot state of 256 virtual
// partitions once they are durable, and keeps that state in a Pebble store behind the log.
//
// This package is its upper side. The Coordinator makes a batch of a request, has package lookup find whom it names,
// carries its parts to the leaders, waits, and answers (commit.go describes the way). Below it is package replica: a
// range of partitions on one node, which knows no coordinator. Package machine defines what records do to these
// partitions.
//
// A node that is alone (Open) has a coordinator over one replica, which has all partitions and always leads, on a
// wal.Log. In a cluster (package cluster) each node has a coordinator, and replicas of some groups of partitions, on
// logs that a majority of nodes has.
//
// Invariants of both sides:
//   - Apply after durable, answer after apply. A reader never sees what a crash could take back, and every reader sees
//     what was answered.
//   - Everything that waits is bounded, and reserved before the log is touched; beyond a bound, ErrBusy comes at once.
//   - A failed write or fsync of the log, or of the store, is final: the engine stops acknowledging and says why.
package shard

import (
	"time"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/identity"
	"millrace/shard/lookup"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// Those names of the lower side that callers of the engine need. Packages that hold replicas (backup, cluster,
// eventlog) use them from there.
type (
	// Options configure a node that is alone.
	Options = replica.EngineOptions
	// Tap sees what is applied.
	Tap = replica.Tap
	// Watcher is a Tap's part for one worker.
	Watcher = replica.Watcher
	// Stats are figures for operators.
	Stats = replica.Stats
	// Outcome is what became of an element of a request that only apply can judge.
	Outcome = effect.Outcome
	// State is one subscription state.
	State = profile.State
	// StateChange is one entry of a trail.
	StateChange = books.StateChange
	// AuditEntry is a change of a control document.
	AuditEntry = books.AuditEntry
)

// Names of package lookup that callers need.
type (
	// Reads are the reads of one request.
	Reads = lookup.Reads
	// Room is where copies of profiles are counted.
	Room = lookup.Room
	// Identifier names users, or an address.
	Identifier = lookup.Identifier
	// Extent says what is read besides the entries that identifiers lead to.
	Extent = lookup.Extent
	// User is one profile as a read found it.
	User = lookup.User
	// Sharer is one of the users who share an address.
	Sharer = lookup.Sharer
	// SuppressionQuery asks for a part of a suppression list.
	SuppressionQuery = lookup.SuppressionQuery
	// Suppression is the place of an entry in its list.
	Suppression = lookup.Suppression
	// SuppressedAddress is an entry of a suppression list.
	SuppressedAddress = lookup.SuppressedAddress
	// Logged is what the event log has of the owner of an event.
	Logged = lookup.Logged
)

// What an Extent has.
const (
	OfUsers  = lookup.OfUsers
	OfEmails = lookup.OfEmails
	OfPhones = lookup.OfPhones
)

// The kinds of a State.
const (
	EmailState = profile.StateEmail  // email_subscribe
	GroupState = profile.StateGroup  // membership of a subscription group
	Bounce     = profile.StateBounce // hard bounce: the address is on the block list (service.md 4.8)
	Spam       = profile.StateSpam   // marked_email_as_spam_at
)

// Outcomes, see package effect.
const (
	Done       = effect.Done
	Nobody     = effect.Nobody
	Taken      = effect.Taken
	LabelTaken = effect.LabelTaken
	OutOfRange = effect.OutOfRange
	TooLarge   = effect.TooLarge
	NotArray   = effect.NotArray
	NotNumber  = effect.NotNumber
	NoMatch    = effect.NoMatch
)

// Errors of the engine, see package replica.
var (
	ErrBusy        = replica.ErrBusy
	ErrDiskFull    = replica.ErrDiskFull
	ErrTooLarge    = replica.ErrTooLarge
	ErrFailed      = replica.ErrFailed
	ErrNotLeader   = replica.ErrNotLeader
	ErrUnavailable = replica.ErrUnavailable
	ErrUnknown     = replica.ErrUnknown
	ErrClosed      = replica.ErrClosed
)

// NewCoordinator makes the coordinator of a node of a cluster.
func NewCoordinator(o CoordinatorOptions) *Coordinator {
	c := newCoordinator(o)
	c.nodes, c.hasher = o.Nodes, identity.NewHasher(o.Secret)
	c.read()
	return c
}

func newCoordinator(o CoordinatorOptions) *Coordinator {
	o.EnsureDefaults()
	c := &Coordinator{
		opts: o, clock: o.Clock, renames: lookup.NewRenames(), spread: xsync.NewMapOf[uint32, struct{}](),
	}
	c.batches.New = func() any { return newBatch(c) }
	return c
}

// sitOver makes c the coordinator of a node that is alone.
func (c *Coordinator) sitOver(r *replica.Replica) {
	c.nodes, c.sole, c.hasher = alone{c}, r, r.Hasher()
	c.read()
}

// read gives c what it reads with.
func (c *Coordinator) read() {
	c.Reader = lookup.NewReader(lookup.Options{
		Nodes: c.nodes, Hasher: c.hasher, Sole: c.sole, Reading: c.opts.Reading, Renames: c.renames,
	})
}

// Open opens a node that is alone: a coordinator over one replica with all partitions, on the data in Options.Dir. It
// recovers the store, and then applies the log behind it.
func Open(o Options) (*Coordinator, error) {
	if o.Patience <= 0 { // so that coordinator and replica have the same
		o.Patience = time.Minute
	}
	o.EnsureDefaults()
	co := CoordinatorOptions{
		Clock: o.Clock, MaxInflightBytes: o.MaxInflightBytes, MaxMergesWaiting: o.MaxMergesWaiting,
		Reading: o.Reading, Logger: o.Logger,
	}
	c := newCoordinator(co)
	onDocument := o.OnDocument
	o.OnDocument = func(key string, doc []byte) {
		if !c.TakeDocument(key) {
			onDocument(key, doc)
		}
	}
	r, err := replica.OpenOwn(replica.Options{
		EngineOptions: o, Count: identity.Partitions, Carrier: alone{c}, Readdress: c.Readdress,
		FlushAll: c.FlushAll,
	})
	if err != nil {
		return nil, err
	}
	c.sitOver(r)
	c.resumed = r.Resume()
	return c, nil
}

// Readdress addresses the ops of a deferred record as things stand, behind its own barrier.
func (c *Coordinator) Readdress(record []byte) (routed []byte, err error) {
	return c.Reader.Readdress(record, c.clock)
}

// alone is the Nodes of a coordinator over one replica that holds all partitions and always leads. There is no other
// node to call: whoever would read elsewhere does so because the replica closes.
type alone struct{ c *Coordinator }

func (a alone) GroupOf(uint8) int                             { return ControlGroup }
func (a alone) Self() NodeID                                  { return 0 }
func (a alone) Ready() error                                  { return a.c.sole.Ready() }
func (a alone) Leader(int, time.Time, bool) (NodeID, error)   { return 0, a.c.ended() }
func (a alone) Resigned(int, NodeID, uint64)                  {}
func (a alone) Replica(int) *replica.Replica                  { return a.c.sole }
func (a alone) Local(uint8) *replica.Replica                  { return a.c.sole }
func (a alone) Control() *replica.Replica                     { return a.c.sole }
func (a alone) Barrier() error                                { return nil }
func (a alone) BarrierOf(...uint8) error                      { return nil }
func (a alone) BarrierControl() error                         { return nil }
func (a alone) Spread()                                       {}
func (a alone) Take(NodeID, []*Part, int, time.Time)          { panic("BUG: there is no other node") }
func (a alone) Deliver([]replica.Message) error               { panic("BUG: there is no other group") }
func (a alone) Entry(uint64) ([]byte, error)                  { return nil, replica.ErrClosed }
func (a alone) TrailOf(uint64) (books.History, error)         { return books.History{}, replica.ErrClosed }
func (a alone) Flush(_ uint8, owner uint64) ([]uint64, error) { return a.c.sole.Flush(owner, nil) }

func (a alone) Release(_ NodeID, ref uint64, _ time.Time) (effect.Effects, error) {
	return a.c.sole.Release(ref, nil)
}

func (a alone) SuppressedPage(uint8, books.SuppressedQuery) ([]books.Suppression, books.Suppression, error) {
	return nil, books.Suppression{}, replica.ErrClosed
}
