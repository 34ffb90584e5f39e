// Package stream exports events (docs/streams.md): it reads the event log from where it stopped, in the order in which
// the events were applied, and writes the events that streams choose to their destinations. Which streams there are,
// and how far each has come, is in control documents.
//
// Invariants:
//   - A cursor moves only when the destination has confirmed, so nothing is missing: a file is renamed and its
//     directory synced, or the service has answered.
//   - Before any file of a delivery is visible, the cursor says which positions the delivery has (Pending). A delivery
//     that a crash interrupts is repeated with the same positions, so its files have the same names, and a directory or
//     bucket has each event once.
//   - A cursor is changed only if it still is as it was read. When two nodes both take themselves for a group's leader,
//     the change of one is refused, and both name the files of a pending delivery alike.
//   - No request waits for a stream. When a destination is down, its events stay in the event log until they expire
//     there.
//
// Ownership: the Manager has a carrier, which is one goroutine, for each stream and each event log that the stream
// reads. A carrier's fields belong to it, except for its status.
package stream

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"millrace/api/control"
	"millrace/api/stream/currents"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
)

// Part is an event log that streams read: that of a server that is alone, or of a group that this node leads.
type Part struct {
	Group  string // as in the ids of its events; empty: the server is alone
	Events *eventlog.Log
	Gate   Gate // nil: the server is alone
}

// Gate is where a cursor passes before it is stored. In a cluster it makes the cursors of a backup no further than the
// backup's logs.
type Gate interface {
	// Pass waits while a backup takes positions, and reports whether this node leads the group afterwards: where a
	// leader takes positions, no other node's cursors wait.
	Pass() bool
}

// Options of a Manager. The zero value of a field means its default.
type Options struct {
	Control *control.Control // required, and already started
	// Parts returns the event logs that this node is to read now. Required.
	Parts func() []Part
	// SvcID appends the svc_ids of events, and Users finds their users. Required.
	SvcID event.SvcIDFunc
	Users currents.Users
	// Dir contains the directories of workspaces, which streams may write to. Required.
	Dir string
	// HasRoom returns an error when nothing more may be written into a directory, because its disk is full, or too full
	// for that. Streams into directories wait until there is room. Default: there always is.
	HasRoom func(dir string) error
	// CredentialsDir has a directory for each workspace, with what its streams use at their destinations. Default:
	// credentials come from the environment alone.
	CredentialsDir string
	// Node distinguishes this node's unfinished files from those of other nodes that write to the same directories.
	Node string
	// FileBytes is the size, before encoding, at which a file ends, and FileAfter the time after which events are
	// written. Defaults 256 MiB, 1 min.
	FileBytes int64
	FileAfter time.Duration
	// MessageBytes is how many bytes of events a delivery of messages has; to Kafka it has four times as many while a
	// stream catches up. What has come goes out every MessageInterval. Defaults 1 MiB, 100 ms.
	MessageBytes    int64
	MessageInterval time.Duration
	// RequestTimeout bounds a request to an HTTP endpoint, and how long brokers of Kafka are tried without a break.
	// Default 30 s. Where no time bounds the whole, a destination fails when it is silent for twice as long.
	RequestTimeout time.Duration
	// RefusedBytes is how much a stream keeps of what its destination refuses for good; more holds the stream up.
	// Default 64 MiB.
	RefusedBytes int64
	// Interval is how often a carrier checks whether there is something to do. Default 1 s.
	Interval time.Duration
	// RetryAfter is how long a carrier waits after a first failure. The wait doubles with each further one, up to
	// MaxRetryAfter. Defaults 1 s, 1 min.
	RetryAfter, MaxRetryAfter time.Duration
	// Now is the time by which accepted events age. Default time.Now.
	Now    func() time.Time
	Logger *slog.Logger // default slog.Default()

	seats     *seats            // default: those of newSeats
	disk      disk              // default: the machine's
	transport http.RoundTripper // default: one for each destination
	kafka     []kgo.Opt         // in addition to those of a stream
	partBytes uint64            // of uploads to S3; default: by the size of the file
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.FileBytes = cmp.Or(o.FileBytes, 256<<20)
	o.FileAfter = cmp.Or(o.FileAfter, time.Minute)
	o.MessageBytes = cmp.Or(o.MessageBytes, 1<<20)
	o.MessageInterval = cmp.Or(o.MessageInterval, 100*time.Millisecond)
	o.RequestTimeout = cmp.Or(o.RequestTimeout, 30*time.Second)
	o.RefusedBytes = cmp.Or(o.RefusedBytes, 64<<20)
	o.Interval = cmp.Or(o.Interval, time.Second)
	o.RetryAfter = cmp.Or(o.RetryAfter, time.Second)
	o.MaxRetryAfter = cmp.Or(o.MaxRetryAfter, time.Minute)
	o.Node = cmp.Or(o.Node, "0")
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.HasRoom == nil {
		o.HasRoom = func(string) error { return nil }
	}
	o.seats = cmp.Or(o.seats, newSeats())
	if o.disk == nil {
		o.disk = machine{}
	}
}

// maxSilence is how long a destination may be silent before it counts as failed.
func (o *Options) maxSilence() time.Duration { return 2 * o.RequestTimeout }

// Validate reports the first setting that cannot work. It expects the defaults to be set.
func (o *Options) Validate() error {
	switch {
	case o.Control == nil || o.Parts == nil || o.SvcID == nil || o.Users == nil || o.Dir == "":
		return errors.New("stream: Control, Parts, SvcID, Users or Dir is not set")
	case o.MessageBytes < 1<<10 || o.MessageBytes > 1<<30 || o.RefusedBytes < 1<<10:
		return fmt.Errorf("stream: MessageBytes %d, RefusedBytes %d: want 1 KiB and more, and at most 1 GiB of "+
			"the first",
			o.MessageBytes, o.RefusedBytes)
	case o.FileBytes < 1<<10 || o.FileBytes > 16<<30:
		return fmt.Errorf("stream: FileBytes %d: want 1 KiB to 16 GiB", o.FileBytes)
	case o.MessageInterval < 0 || o.RequestTimeout < 0 || o.FileAfter < 0 || o.Interval < 0 || o.RetryAfter < 0 ||
		o.MaxRetryAfter < o.RetryAfter:
		return fmt.Errorf("stream: MessageInterval %v, RequestTimeout %v, FileAfter %v, Interval %v or RetryAfter %v "+
			"is negative, or MaxRetryAfter %v less than RetryAfter", o.MessageInterval, o.RequestTimeout, o.FileAfter,
			o.Interval, o.RetryAfter, o.MaxRetryAfter)
	}
	return nil
}
