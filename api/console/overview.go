package console

import (
	"net/http"

	"millrace/api/console/chart"
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
	Objects objects
	Keys    int
	Month   monthCount
}

// showOverview serves GET /console/: what comes in, and whether all is well. Who sees some workspaces only sees the
// figures of these.
func (c *Console) showOverview(v *visit) error {
	samples, now := c.ring.all(), c.options.Now()
	data := overviewData{}
	workspaces := v.Person.Rights.Workspaces(c.options.Control.Snapshot())
	for _, w := range workspaces {
		row := workspaceRow{Workspace: w, Objects: lastHour(samples, func(s *sample) objects {
			return s.objects[w.ID]
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
	of := func(s *sample) (sum objects) {
		for _, w := range workspaces {
			o := s.objects[w.ID]
			sum.Accepted, sum.Refused, sum.Ignored = sum.Accepted+o.Accepted, sum.Refused+o.Refused,
				sum.Ignored+o.Ignored
		}
		return sum
	}
	data.Charts = append(data.Charts, objectChart(samples, now, of))
	if v.Person.Rights.In("").Has(rights.SeeCompany) {
		data.Charts = append(data.Charts, latencyChart(samples, now))
		data.Figures = figuresOf(samples[len(samples)-1])
		if err := data.readCluster(v); err != nil {
			return err
		}
	}
	return v.render("overview", "Overview", data)
}

// readCluster leaves out what there is none of: a server may be alone.
func (d *overviewData) readCluster(v *visit) error {
	status := new(clusterStatus)
	err := v.call(http.MethodGet, "/admin/cluster", nil, status)
	switch {
	case isNotFound(err):
		return nil
	case err != nil:
		return err
	}
	d.Cluster = status
	return nil
}

func figuresOf(s *sample) []figure {
	g := s.gauges
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
func lastHour(samples []*sample, of func(*sample) objects) objects {
	return of(samples[len(samples)-1]).minus(of(samples[0]))
}

// rates are the changes a second between samples, each with the time of the later one.
func rates(samples []*sample, of func(from, to *sample, seconds float64)) (times []int64) {
	for i := 1; i < len(samples); i++ {
		from, to := samples[i-1], samples[i]
		if seconds := float64(to.at-from.at) / 1000; seconds > 0 {
			of(from, to, seconds)
			times = append(times, to.at)
		}
	}
	return times
}

func objectChart(samples []*sample, now int64, of func(*sample) objects) chart.Chart {
	accepted, refused, ignored := chart.Line{Name: "accepted", Class: "a"}, chart.Line{Name: "refused", Class: "b"},
		chart.Line{Name: "values left out", Class: "c"}
	times := rates(samples, func(from, to *sample, seconds float64) {
		d := of(to).minus(of(from))
		accepted.Values = append(accepted.Values, d.Accepted/seconds)
		refused.Values = append(refused.Values, d.Refused/seconds)
		ignored.Values = append(ignored.Values, d.Ignored/seconds)
	})
	return chart.OfHour("Objects", "per second", now, times, accepted, refused, ignored)
}

func latencyChart(samples []*sample, now int64) chart.Chart {
	p50, p99 := chart.Line{Name: "p50", Class: "a"}, chart.Line{Name: "p99", Class: "c"}
	times := rates(samples, func(from, to *sample, _ float64) {
		p50.Values, p99.Values = append(p50.Values, quantile(0.5, from, to)),
			append(p99.Values, quantile(0.99, from, to))
	})
	return chart.OfHour("Response time", "ms", now, times, p50, p99)
}
