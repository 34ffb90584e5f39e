package loadtest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/valyala/fasthttp"

	"millrace/loadtest/body"
)

// Report is what a run measured. Figures leave the warm-up out; UnknownRequests and Unexpected include it, since they
// are faults. Sizes are those of bodies as sent (compressed, if so), without headers.
type Report struct {
	Options Options   `json:"options"`
	Started time.Time `json:"started"`
	Go      string    `json:"go"`
	CPUs    int       `json:"cpus"`

	Seconds           float64          `json:"seconds"`  // from the end of the warm-up to the last answer
	Requests          int64            `json:"requests"` // answered
	RequestsPerSecond float64          `json:"requests_per_second"`
	Acked             int64            `json:"acknowledged"` // of them 2xx
	Accepted          map[string]int64 `json:"accepted"`     // objects, by array, as counted in the answers
	Objects           int64            `json:"objects"`      // sum of Accepted
	ObjectsPerSecond  float64          `json:"objects_per_second"`
	Statuses          map[string]int64 `json:"statuses"`
	TurnedAway        int64            `json:"turned_away"` // attempts answered 503 that had no effect, as it says
	Unsent            int64            `json:"unsent"`      // attempts without a connection
	Cut               int64            `json:"cut"`         // attempts without an answer
	// open loop: intended, dropped because the backlog was full
	MissedSends   int64            `json:"missed_sends"`
	ErrorEntries  int64            `json:"error_entries"`
	ErrorTexts    map[string]int64 `json:"error_texts,omitempty"`
	BytesSent     int64            `json:"bytes_sent"`
	BytesReceived int64            `json:"bytes_received"`

	Latency  Latency `json:"latency_ms"`          // of acknowledged requests
	Rejected Latency `json:"rejected_latency_ms"` // of other answers

	UnknownRequests   int64    `json:"unknown_requests"` // given up without an answer, or answered 5xx that leaves it open
	Unexpected        int64    `json:"unexpected"`       // answers that differ from what the bodies call for
	UnexpectedSamples []string `json:"unexpected_samples,omitempty"`

	Verification *Discrepancies `json:"verification,omitempty"`
}

// Latency is a distribution in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean"`
	P50   float64 `json:"p50"`
	P90   float64 `json:"p90"`
	P99   float64 `json:"p99"`
	P999  float64 `json:"p99_9"`
	Max   float64 `json:"max"`
}

func latencyOf(h *hdrhistogram.Histogram) Latency {
	if h.TotalCount() == 0 {
		return Latency{}
	}
	ms := func(us int64) float64 { return float64(us) / 1000 }
	return Latency{Count: h.TotalCount(), Mean: h.Mean() / 1000, P50: ms(h.ValueAtQuantile(50)),
		P90: ms(h.ValueAtQuantile(90)), P99: ms(h.ValueAtQuantile(99)),
		P999: ms(h.ValueAtQuantile(99.9)), Max: ms(h.Max())}
}

// figures are one worker's counts.
type figures struct {
	latency, rejected *hdrhistogram.Histogram
	longest           int64 // microseconds that the histograms hold
	statuses          [600]int64
	requests, acked   int64
	accepted          body.Mix
	unsent, cut       int64
	turnedAway        int64
	errors            int64
	texts             map[string]int64
	sent, received    int64
	last              time.Time // of the answers

	unknown    int64
	unexpected int64
	samples    []string
}

// maxTexts bounds how many different texts of errors entries are counted one by one.
const maxTexts = 50

// init makes histograms of microseconds, with three digits, up to the longest time that an exchange may last, including
// the wait before it in an open loop.
func (f *figures) init(timeout time.Duration) {
	f.longest = (timeout + time.Minute).Microseconds()
	f.latency = hdrhistogram.New(1, f.longest, 3)
	f.rejected = hdrhistogram.New(1, f.longest, 3)
	f.texts = map[string]int64{}
}

func (f *figures) answered(status int, end outcome, took time.Duration, now time.Time, a answer, sent, received int) {
	f.requests++
	f.last = now
	f.statuses[min(max(status, 0), len(f.statuses)-1)]++
	f.sent += int64(sent)
	f.received += int64(received)
	f.errors += int64(a.errors)
	h := f.rejected
	if end == turnedAway {
		f.turnedAway++
	}
	if end == acked {
		h = f.latency
		f.acked++
		for i, n := range a.accepted {
			f.accepted[i] += n
		}
	}
	if err := h.RecordValue(min(max(took.Microseconds(), 1), f.longest)); err != nil {
		panic("BUG: " + err.Error())
	}
}

func (f *figures) lost(end outcome, measured bool) {
	switch {
	case !measured:
	case end == unsent:
		f.unsent++
	default:
		f.cut++
	}
}

func (f *figures) errorText(text []byte) {
	if _, known := f.texts[string(text)]; !known && len(f.texts) >= maxTexts {
		text = []byte("(others)")
	}
	f.texts[string(text)]++
}

func (f *figures) differs(format string, a ...any) {
	f.unexpected++
	if len(f.samples) < maxSamples {
		f.samples = append(f.samples, fmt.Sprintf(format, a...))
	}
}

// report adds up the figures of the workers.
func (r *run) report(now time.Time) *Report {
	o := r.o
	o.Body = r.generate
	p := &Report{Options: o, Started: r.started, Go: runtime.Version(), CPUs: runtime.NumCPU(),
		Accepted: map[string]int64{}, Statuses: map[string]int64{},
		ErrorTexts: map[string]int64{}, MissedSends: r.missed.Load()}
	var all figures
	all.init(o.Timeout)
	last := r.measure
	for _, w := range r.workers {
		f := &w.figures
		all.latency.Merge(f.latency)
		all.rejected.Merge(f.rejected)
		p.add(f)
		if f.last.After(last) {
			last = f.last
		}
	}
	p.Latency, p.Rejected = latencyOf(all.latency), latencyOf(all.rejected)
	// The run lasted to its end even when the last answer came before it; it lasted longer when answers came after.
	if end := r.end; now.After(end) && end.After(last) {
		last = end
	} else if now.Before(end) {
		last = now
	}
	p.Seconds = max(0, last.Sub(r.measure).Seconds())
	if p.Seconds > 0 {
		p.RequestsPerSecond = float64(p.Requests) / p.Seconds
		p.ObjectsPerSecond = float64(p.Objects) / p.Seconds
	}
	return p
}

func (p *Report) add(f *figures) {
	p.Requests += f.requests
	p.Acked += f.acked
	p.TurnedAway += f.turnedAway
	p.Unsent += f.unsent
	p.Cut += f.cut
	p.ErrorEntries += f.errors
	p.BytesSent += f.sent
	p.BytesReceived += f.received
	p.UnknownRequests += f.unknown
	p.Unexpected += f.unexpected
	for i, n := range f.accepted {
		p.Accepted[body.Array(i).String()] += int64(n)
		p.Objects += int64(n)
	}
	for status, n := range f.statuses {
		if n > 0 {
			p.Statuses[strconv.Itoa(status)] += n
		}
	}
	for text, n := range f.texts {
		p.ErrorTexts[text] += n
	}
	p.UnexpectedSamples = append(p.UnexpectedSamples,
		f.samples[:min(len(f.samples), maxSamples-len(p.UnexpectedSamples))]...)
}

// WriteJSON writes the report as indented JSON.
func (p *Report) WriteJSON(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(p)
}

// WriteText writes the report for people.
func (p *Report) WriteText(out io.Writer) error {
	t := &textWriter{out: out}
	o := &p.Options
	kind := "closed loop"
	if o.Rate > 0 {
		kind = fmt.Sprintf("open loop, %g requests/s", o.Rate)
	}
	t.line("target", "%s, %d connections, %s, seed %d", strings.Join(o.Targets, " "), o.Connections, kind, o.Body.Seed)
	if len(o.Corpus) > 0 {
		t.line("bodies", "%d from a corpus", len(o.Corpus))
	} else {
		t.line("bodies", "%d attributes, %d events, %d purchases; %d users, %s", o.Body.Mix[0],
			o.Body.Mix[1], o.Body.Mix[2], o.Body.Users, o.Body.Skew)
	}
	t.line("measured", "%.2f s after %v of warm-up", p.Seconds, o.Warmup)
	t.line("requests", "%d, %.1f/s", p.Requests, p.RequestsPerSecond)
	t.line("objects", "%d accepted, %.0f/s", p.Objects, p.ObjectsPerSecond)
	t.latency("latency", p.Latency)
	t.latency("rejected", p.Rejected)
	for _, status := range slices.Sorted(maps.Keys(p.Statuses)) {
		code, _ := strconv.Atoi(status)
		t.line("status "+status, "%d %s", p.Statuses[status], fasthttp.StatusMessage(code))
	}
	t.line("bytes", "%.1f MB sent, %.1f MB received (bodies)", float64(p.BytesSent)/1e6, float64(p.BytesReceived)/1e6)
	t.count("errors", p.ErrorEntries, "entries in answers")
	for _, text := range slices.Sorted(maps.Keys(p.ErrorTexts)) {
		t.line("", "%d × %s", p.ErrorTexts[text], text)
	}
	t.count("turned away", p.TurnedAway, "attempts that had no effect (503)")
	t.count("unsent", p.Unsent, "attempts without a connection")
	t.count("cut", p.Cut, "attempts without an answer")
	t.count("unknown", p.UnknownRequests, "requests whose outcome is not known")
	t.count("missed", p.MissedSends, "intended sends, dropped because the backlog was full")
	t.count("UNEXPECTED", p.Unexpected, "differences between answers and bodies")
	for _, s := range p.UnexpectedSamples {
		t.line("", "%s", s)
	}
	if p.Verification != nil {
		t.verification(p.Verification)
	}
	return t.err
}

// textWriter writes labelled lines and keeps the first error.
type textWriter struct {
	out io.Writer
	err error
}

func (t *textWriter) line(label, format string, a ...any) {
	if _, err := fmt.Fprintf(t.out, "%-12s "+format+"\n", append([]any{label}, a...)...); t.err == nil {
		t.err = err
	}
}

func (t *textWriter) count(label string, n int64, what string) {
	if n > 0 {
		t.line(label, "%d %s", n, what)
	}
}

func (t *textWriter) latency(label string, l Latency) {
	if l.Count > 0 {
		t.line(label, "p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f ms", l.P50, l.P90, l.P99, l.P999, l.Max)
	}
}

func (t *textWriter) verification(d *Discrepancies) {
	t.line("verified", "%s", d.String())
	for _, s := range d.Samples {
		t.line("", "%s", s)
	}
}
