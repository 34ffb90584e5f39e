// Package figures keeps what the metrics of a process have said in the last hour, which is what the overview shows. It
// reads the text of the metrics, and knows nothing of pages.
package figures

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Interval is how long after another a sample is to be added to a Ring, so that it has those of an hour.
const Interval = 10 * time.Second

// MaxSamples is how many samples a Ring keeps.
const MaxSamples = int(time.Hour/Interval) + 1

// Objects are counts of objects of /users/track.
type Objects struct{ Accepted, Refused, Ignored float64 }

// Minus is what has come since p.
func (o Objects) Minus(p Objects) Objects {
	return Objects{o.Accepted - p.Accepted, o.Refused - p.Refused, o.Ignored - p.Ignored}
}

// bucket counts requests that took at most so many seconds.
type bucket struct{ seconds, count float64 }

// Sample is what the metrics said at one time. Immutable.
type Sample struct {
	At      int64              // Unix ms
	Objects map[string]Objects // by workspace, since the start
	Gauges  map[string]float64 // by name, over all labels
	buckets []bucket           // of requests since the start, rising
}

// shownGauges are those of the metrics that the overview shows as they are.
var shownGauges = []string{"millrace_ready", "millrace_entries", "millrace_outbox_messages", "millrace_merges_waiting",
	"millrace_deferred_waiting_records", "millrace_inflight_bytes", "millrace_log_bytes", "millrace_eventlog_bytes",
	"process_resident_memory_bytes"}

// Ring keeps the samples of the last hour. It is safe for concurrent use.
type Ring struct {
	mu   sync.Mutex
	kept []*Sample // in order of time
}

// Add adds the latest sample.
func (r *Ring) Add(s *Sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == MaxSamples {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.kept = append(r.kept, s)
}

// All returns the samples in order of time.
func (r *Ring) All() []*Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.kept)
}

// Read reads the text of the metrics. Lines that the overview has no use for are passed over.
func Read(now int64, text []byte) *Sample {
	s := &Sample{At: now, Objects: map[string]Objects{}, Gauges: map[string]float64{}}
	buckets := map[float64]float64{}
	for line := range bytes.Lines(text) {
		name, labels, value, ok := readLine(string(line))
		if !ok {
			continue
		}
		histogram, isBucket := strings.CutSuffix(name, "_bucket")
		switch {
		case name == "millrace_objects_total":
			s.addObjects(labels, value)
		case isBucket && histogram == "millrace_http_request_seconds":
			if seconds, err := strconv.ParseFloat(labels["le"], 64); err == nil {
				buckets[seconds] += value
			}
		case slices.Contains(shownGauges, name):
			s.Gauges[name] += value
		}
	}
	for _, seconds := range slices.Sorted(maps.Keys(buckets)) {
		s.buckets = append(s.buckets, bucket{seconds, buckets[seconds]})
	}
	return s
}

func (s *Sample) addObjects(labels map[string]string, n float64) {
	o := s.Objects[labels["workspace"]]
	switch labels["result"] {
	case "accepted":
		o.Accepted += n
	case "refused":
		o.Refused += n
	case "ignored":
		o.Ignored += n
	}
	s.Objects[labels["workspace"]] = o
}

// readLine reads name{a="b",c="d"} value; ok is false for what the overview has no use for.
func readLine(line string) (name string, labels map[string]string, value float64, ok bool) {
	if !strings.HasPrefix(line, "millrace_") && !strings.HasPrefix(line, "process_resident_memory_bytes") {
		return "", nil, 0, false
	}
	head, number, ok := cutLast(strings.TrimSpace(line), ' ')
	value, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil {
		return "", nil, 0, false
	}
	name, rest, _ := strings.Cut(head, "{")
	labels = map[string]string{}
	for rest = strings.TrimSuffix(rest, "}"); rest != ""; rest = strings.TrimPrefix(rest, ",") {
		key, behind, _ := strings.Cut(rest, "=")
		quoted, err := strconv.QuotedPrefix(behind)
		if err != nil {
			return "", nil, 0, false
		}
		labels[key], _ = strconv.Unquote(quoted)
		rest = behind[len(quoted):]
	}
	return name, labels, value, true
}

func cutLast(s string, separator byte) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, separator)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// Quantile is the time that a share of the requests between two samples took at most, in milliseconds; 0 without any.
// Within a bucket they count as evenly spread, as Prometheus has it; those beyond the last bound count as that bound.
func Quantile(share float64, from, to *Sample) float64 {
	before := map[float64]float64{}
	for _, b := range from.buckets {
		before[b.seconds] = b.count
	}
	came := func(b bucket) float64 { return b.count - before[b.seconds] }
	if len(to.buckets) == 0 || came(to.buckets[len(to.buckets)-1]) == 0 {
		return 0
	}
	wanted := share * came(to.buckets[len(to.buckets)-1])
	var below bucket
	for _, b := range to.buckets {
		n := came(b)
		if math.IsInf(b.seconds, 1) {
			break
		}
		if n >= wanted {
			return 1000 * (below.seconds + (b.seconds-below.seconds)*(wanted-below.count)/(n-below.count))
		}
		below = bucket{b.seconds, n}
	}
	return 1000 * below.seconds
}
