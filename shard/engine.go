// Package shard is the engine: it orders the ops of requests in the log, applies them to the hot state of 256 virtual
// partitions once they are durable, and keeps that state in a Pebble store behind the log.
//
// This package is its upper side. The Coordinator makes a batch of a request, looks up whom it names, carries its parts
// to the leaders, waits, and answers (commit.go describes the way). Below it is package replica: a range of partitions
// on one node, which knows no coordinator. Package machine defines what records do to these partitions.
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
	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/books"
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
	Outcome = replica.Outcome
	// State is one subscription state.
	State = profile.State
	// StateChange is one entry of a trail.
	StateChange = books.StateChange
	// AuditEntry is a change of a control document.
	AuditEntry = books.AuditEntry
)

// The kinds of a State.
const (
	EmailState = profile.StateEmail  // email_subscribe
	GroupState = profile.StateGroup  // membership of a subscription group
	Bounce     = profile.StateBounce // hard bounce: the address is on the block list (service.md 4.8)
	Spam       = profile.StateSpam   // marked_email_as_spam_at
)

// Outcomes, see package replica.
const (
	Done       = replica.Done
	Nobody     = replica.Nobody
	Taken      = replica.Taken
	LabelTaken = replica.LabelTaken
	OutOfRange = replica.OutOfRange
	TooLarge   = replica.TooLarge
	NotArray   = replica.NotArray
	NotNumber  = replica.NotNumber
	NoMatch    = replica.NoMatch
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

// CheckRestored is replica.CheckRestored.
func CheckRestored(fs vfs.FS, dir string) error { return replica.CheckRestored(fs, dir) }
