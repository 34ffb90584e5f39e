package admin

import (
	"bytes"
	"net/http"

	"github.com/VictoriaMetrics/metrics"
)

// serveMetrics answers with all metrics in the text format of Prometheus. In front of each family is its type, which
// readers other than Prometheus need to make one thing of a histogram's lines.
func serveMetrics(w http.ResponseWriter, _ *http.Request) {
	var all bytes.Buffer
	metrics.WritePrometheus(&all, true)
	metrics.WriteFDMetrics(&all) // how many files are open, and may be
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(byFamily(all.Bytes()))
}

// byFamily puts the lines of each family together, after its type. The library writes the type, and help without a
// text, wherever it comes to a family, which it does for each label of what is written line by line, and in each group
// of a cluster. Totals are counters, also those that others count and a gauge shows.
func byFamily(text []byte) []byte {
	var names []string
	families := map[string][]byte{}
	name := ""
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("# HELP ")) {
			continue
		}
		if is, ok := bytes.CutPrefix(line, []byte("# TYPE ")); ok {
			if total, ok := bytes.CutSuffix(line, []byte("_total gauge\n")); ok {
				line = append(bytes.Clone(total), "_total counter\n"...)
			}
			before, _, _ := bytes.Cut(is, []byte(" "))
			if name = string(before); families[name] != nil {
				continue
			}
			names = append(names, name)
		}
		families[name] = append(families[name], line...)
	}
	b := families[""]
	for _, name := range names {
		b = append(b, families[name]...)
	}
	return b
}
