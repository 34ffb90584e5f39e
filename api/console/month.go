package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"time"

	"millrace/api/admin"
	"millrace/api/console/chart"
)

// The last month of the overview is what the event log counts when it packs: events and purchases by the time when they
// were accepted.

const (
	monthDays  = 30
	day        = 24 * time.Hour
	shownNames = 12
)

// nameCount is how many events of a name there were, or purchases of a product.
type nameCount struct {
	admin.EventName
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
	var counts admin.EventCounts
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
func (m *month) addHours(counts *admin.EventCounts, titles map[string]string, end int64) {
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

func (m *month) addNames(counts *admin.EventCounts, titles map[string]string) {
	for _, n := range counts.Names {
		if title, seen := titles[n.Workspace]; seen {
			m.Names = append(m.Names, nameCount{n, title})
		}
	}
	slices.SortStableFunc(m.Names, func(a, b nameCount) int { return cmp.Compare(b.Count, a.Count) })
	m.Names = m.Names[:min(len(m.Names), shownNames)]
}
