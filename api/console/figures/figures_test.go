package figures

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The lines of the metrics that the overview reads, whatever a workspace is called.
func TestReadSample(t *testing.T) {
	s := Read(7, []byte(`# HELP x
millrace_objects_total{workspace="a\"},b=",result="accepted"} 5
millrace_objects_total{workspace="a\"},b=",result="refused"} 2
millrace_objects_total{workspace="c",result="ignored"} 1
millrace_http_request_seconds_bucket{route="/a",le="0.002"} 4
millrace_http_request_seconds_bucket{route="/a",le="0.008"} 4
millrace_http_request_seconds_bucket{route="/a",le="+Inf"} 4
millrace_http_request_seconds_bucket{route="/b",le="0.002"} 4
millrace_http_request_seconds_bucket{route="/b",le="0.008"} 9
millrace_http_request_seconds_bucket{route="/b",le="+Inf"} 12
millrace_log_bytes{group="1"} 10
millrace_log_bytes{group="2"} 20
millrace_broken{a="b} 1
millrace_no_number x
go_goroutines 5
`))
	require.Equal(t, map[string]Objects{`a"},b=`: {5, 2, 0}, "c": {0, 0, 1}}, s.Objects)
	require.Equal(t, []bucket{{0.002, 8}, {0.008, 13}, {math.Inf(1), 16}}, s.buckets)
	require.Equal(t, map[string]float64{"millrace_log_bytes": 30}, s.Gauges)
	none := &Sample{}
	require.Equal(t, 1.0, Quantile(0.25, none, s))
	require.Equal(t, 2.0, Quantile(0.5, none, s))
	require.InDelta(t, 6.8, Quantile(0.75, none, s), 1e-9)
	require.Equal(t, 8.0, Quantile(0.99, none, s))
	require.Zero(t, Quantile(0.5, s, s))
	require.Zero(t, Quantile(0.5, none, none))
}

// The ring has an hour, and no more.
func TestRing(t *testing.T) {
	var r Ring
	for i := range 2 * MaxSamples {
		r.Add(&Sample{At: int64(i)})
	}
	all := r.All()
	require.Len(t, all, MaxSamples)
	require.Equal(t, int64(2*MaxSamples-1), all[len(all)-1].At)
	require.Equal(t, time.Hour.Milliseconds(), (all[len(all)-1].At-all[0].At)*Interval.Milliseconds())
}
