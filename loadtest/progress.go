package loadtest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/schollz/progressbar/v3"

	"millrace/wal/pause"
)

// live is what the progress bar reads of a worker while it works; alone on its cache lines.
type live struct {
	_        [64]byte
	requests atomic.Int64
	objects  atomic.Int64
	_        [64]byte
}

// showProgress draws a bar of the run's time, with its rates, until the returned function is called.
func (r *run) showProgress() (stop func()) {
	if r.o.Progress == nil {
		return func() {}
	}
	total := r.end.Sub(r.started)
	bar := progressbar.NewOptions64(total.Milliseconds(), progressbar.OptionSetWriter(r.o.Progress),
		progressbar.OptionSetWidth(30),
		progressbar.OptionClearOnFinish(), progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false))
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer bar.Clear()
		var requests, objects int64
		for range pause.Every(500*time.Millisecond, quit) {
			nowRequests, nowObjects := r.liveTotals()
			bar.Describe(fmt.Sprintf("%d requests/s, %d objects/s", 2*(nowRequests-requests), 2*(nowObjects-objects)))
			requests, objects = nowRequests, nowObjects
			bar.Set64(min(time.Since(r.started), total-time.Millisecond).Milliseconds())
		}
	}()
	return func() {
		close(quit)
		<-done
	}
}

func (r *run) liveTotals() (requests, objects int64) {
	for _, w := range r.workers {
		requests += w.live.requests.Load()
		objects += w.live.objects.Load()
	}
	return requests, objects
}
