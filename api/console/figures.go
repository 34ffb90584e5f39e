package console

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"millrace/wal/pause"
)

// The figures of the overview are those of /metrics, looked at every ten seconds and kept for an hour.

const (
	sampleInterval = 10 * time.Second
	maxSamples     = int(time.Hour/sampleInterval) + 1
)

// objects are counts of objects of /users/track.
type objects struct{ Accepted, Refused, Ignored float64 }

func (o objects) minus(p objects) objects {
	return objects{o.Accepted - p.Accepted, o.Refused - p.Refused, o.Ignored - p.Ignored}
}

// bucket counts requests that took up to so many seconds.
type bucket struct{ seconds, count float64 }

// sample is what the metrics said at one time. Immutable.
type sample struct {
	at      int64              // Unix ms
	objects map[string]objects // by workspace, since the start
	buckets []bucket           // of requests since the start, rising
	gauges  map[string]float64 // by name, over all labels
}

// shownGauges are those of the metrics that the overview shows as they are.
var shownGauges = []string{"millrace_ready", "millrace_entries", "millrace_outbox_messages", "millrace_merges_waiting",
	"millrace_deferred_waiting_records", "millrace_inflight_bytes", "millrace_log_bytes", "millrace_eventlog_bytes",
	"process_resident_memory_bytes"}

// ring keeps the samples of the last hour.
type ring struct {
	mu   sync.Mutex
	kept []*sample // in order of time
}

func (r *ring) add(s *sample) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.kept) == maxSamples {
		r.kept = slices.Delete(r.kept, 0, 1)
	}
	r.kept = append(r.kept, s)
}

func (r *ring) all() []*sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.kept)
}

// watch adds a sample now and then, until ctx ends.
func (c *Console) watch(ctx context.Context) {
	defer close(c.done)
	for range pause.Every(sampleInterval, ctx.Done()) {
		c.look()
	}
}

func (c *Console) look() { c.ring.add(readSample(c.options.Now(), c.options.Figures(nil))) }

// readSample reads the text of the metrics. Lines that the overview has no use for are passed over.
func readSample(now int64, text []byte) *sample {
	s := &sample{at: now, objects: map[string]objects{}, gauges: map[string]float64{}}
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
			_, upper, _ := strings.Cut(labels["vmrange"], "...")
			if seconds, err := strconv.ParseFloat(upper, 64); err == nil {
				buckets[seconds] += value
			}
		case slices.Contains(shownGauges, name):
			s.gauges[name] += value
		}
	}
	for _, seconds := range slices.Sorted(maps.Keys(buckets)) {
		s.buckets = append(s.buckets, bucket{seconds, buckets[seconds]})
	}
	return s
}

func (s *sample) addObjects(labels map[string]string, n float64) {
	o := s.objects[labels["workspace"]]
	switch labels["result"] {
	case "accepted":
		o.Accepted += n
	case "refused":
		o.Refused += n
	case "ignored":
		o.Ignored += n
	}
	s.objects[labels["workspace"]] = o
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

// quantile is the time that a share of the requests between two samples took at most, in milliseconds; 0 without any.
func quantile(share float64, from, to *sample) float64 {
	before := map[float64]float64{}
	for _, b := range from.buckets {
		before[b.seconds] = b.count
	}
	var sum float64
	for _, b := range to.buckets {
		sum += b.count - before[b.seconds]
	}
	wanted := share * sum
	for _, b := range to.buckets {
		if wanted -= b.count - before[b.seconds]; wanted <= 0 && sum > 0 {
			return b.seconds * 1000
		}
	}
	return 0
}
