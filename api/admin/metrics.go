package admin

import (
	"bytes"
	"net/http"

	"github.com/VictoriaMetrics/metrics"
)

// serveMetrics answers with all metrics in the text format of Prometheus. In front of each family is its type, which
// readers other than Prometheus need to make one thing of a histogram's lines.
func serveMetrics(w http.ResponseWriter, _ *http.Request) {
	metrics.ExposeMetadata(true)
	var all bytes.Buffer
	metrics.WritePrometheus(&all, true)
	metrics.WriteFDMetrics(&all) // how many files are open, and may be
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(withTypes(all.Bytes()))
}

// withTypes puts right what the library writes of types: help without a text goes, and so does the type in front of
// every line but the first of a family that is written line by line. Totals are counters, also those that others count
// and a gauge shows.
func withTypes(text []byte) []byte {
	b, last := make([]byte, 0, len(text)), []byte(nil)
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("# HELP ")) || bytes.Equal(line, last) {
			continue
		}
		if bytes.HasPrefix(line, []byte("# TYPE ")) {
			last = line
		}
		if total, ok := bytes.CutSuffix(line, []byte("_total gauge\n")); ok {
			b = append(append(b, total...), "_total counter\n"...)
			continue
		}
		b = append(b, line...)
	}
	return b
}
