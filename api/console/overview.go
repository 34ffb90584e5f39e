package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/console/chart"
	"millrace/api/console/figures"
	"millrace/api/console/rights"
	"millrace/api/control"
)

// overviewData is what the overview shows.
type overviewData struct {
	Figures    []figure
	Charts     []chart.Chart
	Workspaces []workspaceRow
	Cluster    *clusterStatus
	Month      *month // nil: there are no counts
}

// figure is one number that is to be read at a glance.
type figure struct{ Name, Value, Note string }

// workspaceRow is a workspace with what has come for it in the last hour, and in the last month.
type workspaceRow struct {
	*control.Workspace
	Objects figures.Objects
	Keys    int
	Month   monthCount
}

// showOverview serves GET /console/: what comes in, and whether all is well. Who sees some workspaces only sees the
// figures of these.
func (c *Console) showOverview(v *visit) error {
	samples, now := c.samples.All(), c.options.Now()
	data := overviewData{}
	workspaces := v.Person.Rights.Workspaces(c.options.Control.Snapshot())
	for _, w := range workspaces {
		row := workspaceRow{Workspace: w, Objects: lastHour(samples, func(s *figures.Sample) figures.Objects {
			return s.Objects[w.ID]
		})}
		for _, k := range w.Keys {
			if k.RevokedAt == 0 {
				row.Keys++
			}
		}
		data.Workspaces = append(data.Workspaces, row)
	}
	var err error
	if data.Month, err = v.readMonth(data.Workspaces); err != nil {
		return err
	}
	if data.Month != nil {
		for i := range data.Workspaces {
			data.Workspaces[i].Month = data.Month.counts[data.Workspaces[i].ID]
		}
	}
	of := func(s *figures.Sample) (sum figures.Objects) {
		for _, w := range workspaces {
			o := s.Objects[w.ID]
			sum.Accepted, sum.Refused, sum.Ignored = sum.Accepted+o.Accepted, sum.Refused+o.Refused,
				sum.Ignored+o.Ignored
		}
		return sum
	}
	data.Charts = append(data.Charts, objectChart(samples, now, of))
	if v.Person.Rights.In("").Has(rights.SeeCompany) {
		data.Charts = append(data.Charts, latencyChart(samples, now))
		data.Figures = figuresOf(samples[len(samples)-1])
		if data.Cluster, err = v.readCluster(); err != nil {
			return err
		}
	}
	return v.render("overview", "Overview", data)
}

func figuresOf(s *figures.Sample) []figure {
	g := s.Gauges
	ready := figure{"Serving", "yes", "accepting requests"}
	if g["millrace_ready"] == 0 {
		ready = figure{"Serving", "no", "see /readyz"}
	}
	waiting := g["millrace_outbox_messages"] + g["millrace_merges_waiting"] + g["millrace_deferred_waiting_records"]
	return []figure{
		ready,
		{"Profiles", number(g["millrace_entries"]), "and addresses, in memory"},
		{"Waiting", number(waiting), size(g["millrace_inflight_bytes"]) + " in flight"},
		{"Memory", size(g["process_resident_memory_bytes"]), "of this process"},
		{"Log", size(g["millrace_log_bytes"]), "to replay after a crash, or to pack"},
		{"Events", size(g["millrace_eventlog_bytes"]), "packed, on disk"},
	}
}

// lastHour is what has come between the first and the last sample. A count that went back began anew.
func lastHour(samples []*figures.Sample, of func(*figures.Sample) figures.Objects) figures.Objects {
	return of(samples[len(samples)-1]).Minus(of(samples[0]))
}

// rates are the changes a second between samples, each with the time of the later one.
func rates(samples []*figures.Sample, of func(from, to *figures.Sample, seconds float64)) (times []int64) {
	for i := 1; i < len(samples); i++ {
		from, to := samples[i-1], samples[i]
		if seconds := float64(to.At-from.At) / 1000; seconds > 0 {
			of(from, to, seconds)
			times = append(times, to.At)
		}
	}
	return times
}

func objectChart(samples []*figures.Sample, now int64, of func(*figures.Sample) figures.Objects) chart.Chart {
	accepted, refused, ignored := chart.Line{Name: "accepted", Class: "a"}, chart.Line{Name: "refused", Class: "b"},
		chart.Line{Name: "values left out", Class: "c"}
	times := rates(samples, func(from, to *figures.Sample, seconds float64) {
		d := of(to).Minus(of(from))
		accepted.Values = append(accepted.Values, d.Accepted/seconds)
		refused.Values = append(refused.Values, d.Refused/seconds)
		ignored.Values = append(ignored.Values, d.Ignored/seconds)
	})
	return chart.OfHour("Objects", "per second", now, times, accepted, refused, ignored)
}

func latencyChart(samples []*figures.Sample, now int64) chart.Chart {
	p50, p99 := chart.Line{Name: "p50", Class: "a"}, chart.Line{Name: "p99", Class: "c"}
	times := rates(samples, func(from, to *figures.Sample, _ float64) {
		p50.Values, p99.Values = append(p50.Values, figures.Quantile(0.5, from, to)),
			append(p99.Values, figures.Quantile(0.99, from, to))
	})
	return chart.OfHour("Response time", "ms", now, times, p50, p99)
}

// The last month of the overview is what the event log counts when it packs: events and purchases by the time when they
// were accepted.

const (
	monthDays  = 30
	day        = 24 * time.Hour
	shownNames = 12
)

// nameCount is how many events of a name there were, or purchases of a product.
type nameCount struct {
	answers.EventName
	Title string // of the workspace
}

// month is what came in the last thirty days, in the workspaces that the person may see.
type month struct {
	Chart   chart.Chart
	Names   []nameCount // the most frequent ones
	Missing int         // groups of the cluster that this node doesn't have
	counts  map[string]monthCount
}

// monthCount is of one workspace.
type monthCount struct{ Events, Purchases int }

// readMonth asks for it; nil: there is none, and nobody waits for it who has a page that reloads itself.
func (v *visit) readMonth(rows []workspaceRow) (*month, error) {
	if isByItself(v.r) || len(rows) == 0 {
		return nil, nil
	}
	end := v.Now() - v.Now()%day.Milliseconds() + day.Milliseconds()
	since := time.UnixMilli(end).Add(-monthDays * day).UTC().Format(time.RFC3339)
	var counts answers.EventCounts
	err := v.call(http.MethodGet, "/admin/events/counts?"+url.Values{"since": {since}}.Encode(), nil, &counts)
	switch {
	case isNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	titles := map[string]string{}
	for _, row := range rows {
		titles[row.ID] = row.Name
	}
	m := &month{Missing: counts.Missing, counts: map[string]monthCount{}}
	m.addHours(&counts, titles, end)
	m.addNames(&counts, titles)
	return m, nil
}

// addHours draws the days, and counts by workspace.
func (m *month) addHours(counts *answers.EventCounts, titles map[string]string, end int64) {
	events := chart.Line{Name: "events", Class: "a", Values: make([]float64, monthDays)}
	purchases := chart.Line{Name: "purchases", Class: "c", Values: make([]float64, monthDays)}
	for _, h := range counts.Hours {
		at := monthDays - 1 - (end-1-millis(h.Hour))/day.Milliseconds()
		if _, seen := titles[h.Workspace]; !seen || at < 0 || at >= monthDays {
			continue
		}
		c := m.counts[h.Workspace]
		if h.Type == "purchase" {
			purchases.Values[at] += float64(h.Count)
			c.Purchases += h.Count
		} else {
			events.Values[at] += float64(h.Count)
			c.Events += h.Count
		}
		m.counts[h.Workspace] = c
	}
	m.Chart = chart.Bars("Events and purchases", "per day", "30 days", end, day, events, purchases)
}

func (m *month) addNames(counts *answers.EventCounts, titles map[string]string) {
	for _, n := range counts.Names {
		if title, seen := titles[n.Workspace]; seen {
			m.Names = append(m.Names, nameCount{n, title})
		}
	}
	slices.SortStableFunc(m.Names, func(a, b nameCount) int { return cmp.Compare(b.Count, a.Count) })
	m.Names = m.Names[:min(len(m.Names), shownNames)]
}
