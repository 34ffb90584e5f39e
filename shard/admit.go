package shard

import "github.com/VictoriaMetrics/metrics"

// admitShare: the last of so many parts of Options.MaxInflightBytes is for those who were let in before and have not committed yet. It is more than a usual record.
const admitShare = 64

// Admit is nil when a change may be begun. Else it is what Commit would return if nothing ended meanwhile: that as much is under way as may be, or that the
// engine is closing or has failed. Whoever asks before it decodes a request sheds overload while that costs little; what is let in may still be refused.
func (e *Engine) Admit() error {
	if err := e.ended(); err != nil {
		return err
	}
	if m := e.opts.MaxInflightBytes; e.inflight.Load() > m-m/admitShare {
		refusedBusy.Inc()
		return ErrBusy
	}
	return nil
}

// reserve counts n bytes as under way, or refuses.
func (e *Engine) reserve(n int) error {
	if err := e.ended(); err != nil {
		return err
	}
	if e.inflight.Add(int64(n)) > e.opts.MaxInflightBytes {
		e.inflight.Add(-int64(n))
		refusedBusy.Inc()
		return ErrBusy
	}
	return nil
}

// ended is why no change is taken any more, nil as long as the engine is neither closing nor has failed. It asks about the store, too: the log may still take
// records when that has failed.
func (e *Engine) ended() error {
	if e.closing.Load() {
		return ErrClosed
	}
	return e.Failed()
}

var refusedBusy = metrics.NewCounter(`millrace_refused_total{reason="busy"}`)
