package importer

import (
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// bar shows on a terminal how far a file is, with rate and time left; elsewhere nothing.
type bar struct {
	out io.Writer
	bar *progressbar.ProgressBar
}

func newBar(out io.Writer) *bar { return &bar{out: out} }

func (b *bar) begin(what string, total int64, unit string) {
	if b.stop(); b.out == nil {
		return
	}
	b.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(b.out), progressbar.OptionSetWidth(30),
		progressbar.OptionSetDescription(what),
		progressbar.OptionShowIts(), progressbar.OptionShowCount(), progressbar.OptionSetItsString(unit),
		progressbar.OptionSetPredictTime(true),
		progressbar.OptionThrottle(200*time.Millisecond), progressbar.OptionClearOnFinish())
	b.bar.StartWithoutRender() // else time counts from the first frame, whose rate would be endless
}

func (b *bar) add(n int) {
	if b.bar != nil {
		_ = b.bar.Add(n)
	}
}

func (b *bar) set(n int64) {
	if b.bar != nil {
		_ = b.bar.Set64(n)
	}
}

func (b *bar) stop() {
	if b.bar != nil {
		_ = b.bar.Clear()
		b.bar = nil
	}
}

// inPlaceOfBar writes messages to a terminal, each over the bar, which is drawn again below.
type inPlaceOfBar struct{ out io.Writer }

func (w inPlaceOfBar) Write(p []byte) (int, error) {
	if _, err := w.out.Write(append([]byte("\r\x1b[K"), p...)); err != nil {
		return 0, err
	}
	return len(p), nil
}
