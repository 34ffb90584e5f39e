package call

import (
	"errors"

	"github.com/VictoriaMetrics/metrics"
	"github.com/valyala/fasthttp"

	"millrace/api/control"
	"millrace/shard"
)

// TextTooLarge is the text for a body that is larger than it may be.
const TextTooLarge = "Request Entity Too Large"

// Failure is what an error of the engine means to the caller.
type Failure struct {
	err        error
	Status     int
	RetryAfter int // seconds; 0 for no header
	Text       string
	// Done says that the request may have been done, in part or whole. Otherwise nothing was done.
	Done    bool
	refused *metrics.Counter // nil: the engine counts them
}

// failures has all known errors. Everything else is a neutral 500 and a log line.
var failures = []Failure{
	{err: shard.ErrBusy, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 1,
		Text: "The service is busy. Please try again later."},
	{err: control.ErrNoRoom, Status: fasthttp.StatusBadRequest,
		Text: "There is no room for this: workspaces, centers and translations take as much memory as they may."},
	{err: control.ErrConflict, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 1,
		Text: "The service is busy. Please try again later.", refused: refusedConflict},
	{err: shard.ErrDiskFull, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 30,
		Text:    "The service can't store more data at the moment. Please try again later.",
		refused: refusedDiskFull},
	{err: shard.ErrTooLarge, Status: fasthttp.StatusRequestEntityTooLarge, Text: TextTooLarge},
	{err: shard.ErrClosed, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 1,
		Text: "The service is stopping. Please try again later.", refused: refusedStopping},
	{err: shard.ErrFailed, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 5,
		Text: "The service has failed. Whether the data were stored is unknown; please try again later.", Done: true,
		refused: refusedFailed},
	// In a cluster.
	{err: shard.ErrUnknown, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 2,
		Text: "A part of the service was lost meanwhile. Whether the request was done, in part or whole, is unknown; " +
			"please try again later.", Done: true, refused: refusedUnknown},
	{err: shard.ErrUnavailable, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 2,
		Text:    "Too much of the service is out of reach at the moment. Nothing was done; please try again later.",
		refused: refusedUnavailable},
	{err: shard.ErrNotLeader, Status: fasthttp.StatusServiceUnavailable, RetryAfter: 1,
		Text:    "A part of the service is being handed over. Nothing was done; please try again later.",
		refused: refusedNotLeader},
}

// Requests that were refused because of an error of the engine. The engine itself counts those that its bounds refuse.
var (
	refusedConflict    = metrics.NewCounter(`millrace_refused_total{reason="conflict"}`)
	refusedDiskFull    = metrics.NewCounter(`millrace_refused_total{reason="disk full"}`)
	refusedStopping    = metrics.NewCounter(`millrace_refused_total{reason="stopping"}`)
	refusedFailed      = metrics.NewCounter(`millrace_refused_total{reason="failed"}`)
	refusedUnknown     = metrics.NewCounter(`millrace_refused_total{reason="unknown"}`)
	refusedUnavailable = metrics.NewCounter(`millrace_refused_total{reason="unavailable"}`)
	refusedNotLeader   = metrics.NewCounter(`millrace_refused_total{reason="not leader"}`)
)

// FailureOf returns the answer to an error of the engine, or nil when there is only a neutral 500. Of several that fit,
// it returns one that leaves open what was done.
func FailureOf(err error) (found *Failure) {
	for i := range failures {
		if f := &failures[i]; errors.Is(err, f.err) && (found == nil || f.Done && !found.Done) {
			found = f
		}
	}
	return found
}

// Count counts a request that gets this answer.
func (f *Failure) Count() {
	if f.refused != nil {
		f.refused.Inc()
	}
}
