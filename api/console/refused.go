package console

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/console/chart"
)

const (
	refusedPath = workspacePath + "/refused"
	refusalPath = refusedPath + "/{entry}"
)

// ruleCount is how often a rule was broken, by which keys, and when last.
type ruleCount struct {
	Rule             string
	Keys             []string
	Refused, LeftOut int
	Last             string
}

type refusedData struct {
	answers.RefusedPage
	IsOff       bool
	Rule, Array string
	Arrays      []string
	Counts      []ruleCount
	Chart       chart.Chart
	Missing     string // nodes that did not answer
}

// refusedPage is how many entries a page has.
const refusedPage = "50"

// showRefused serves GET …/refused.
func (c *Console) showRefused(v *visit) error {
	query := v.r.URL.Query()
	data := refusedData{Rule: query.Get("rule"), Array: query.Get("input_array"),
		Arrays: []string{"attributes", "events", "purchases", "request"}}
	ask := url.Values{"limit": {refusedPage}}
	v.passOn(ask, "rule", "input_array", "before")
	err := v.call(http.MethodGet, v.of("refused")+"?"+ask.Encode(), nil, &data.RefusedPage)
	f, _ := errors.AsType[*fault](err)
	switch {
	case isNotFound(err):
		data.IsOff = true
		return v.render("refused", "Refused", &data)
	case f != nil && f.status == http.StatusBadRequest: // a rule that there isn't: nothing matches
		v.Problem, v.status = f.text, f.status
	case err != nil:
		return err
	}
	var counts answers.RefusedCounts
	err = v.call(http.MethodGet, v.of("refused", "counts"), nil, &counts)
	if err != nil {
		return err
	}
	data.Missing = nodesText(append(data.RefusedPage.Missing, counts.Missing...))
	data.Counts, data.Chart = byRule(counts.Counts), refusedChart(counts.Counts, data.Rule, c.options.Now())
	return v.render("refused", "Refused", &data)
}

// nodesText names nodes, each once.
func nodesText(nodes []uint32) string {
	slices.Sort(nodes)
	var names []string
	for _, node := range slices.Compact(nodes) {
		names = append(names, strconv.FormatUint(uint64(node), 10))
	}
	return strings.Join(names, ", ")
}

// byRule adds up by rule, the one that was broken most often first.
func byRule(counts []answers.RefusedCount) (list []ruleCount) {
	at := map[string]int{}
	for _, c := range counts {
		i, ok := at[c.Rule]
		if !ok {
			i = len(list)
			at[c.Rule] = i
			list = append(list, ruleCount{Rule: c.Rule, Last: c.Hour})
		}
		list[i].Refused += c.Refused
		list[i].LeftOut += c.LeftOut
		if c.KeyName != "" && !slices.Contains(list[i].Keys, c.KeyName) {
			list[i].Keys = append(list[i].Keys, c.KeyName)
		}
	}
	slices.SortStableFunc(list, func(a, b ruleCount) int {
		return cmp.Compare(b.Refused+b.LeftOut, a.Refused+a.LeftOut)
	})
	return list
}

// refusedHours is how far back the chart goes: what is older is kept when somebody has set so, and listed.
const refusedHours = 7 * 24

// refusedChart draws how often a rule was broken in each hour; rule is empty for all.
func refusedChart(counts []answers.RefusedCount, rule string, now int64) chart.Chart {
	const hour = int64(time.Hour / time.Millisecond)
	end := now - now%hour + hour
	refused := chart.Line{Name: "refused", Class: "b", Values: make([]float64, refusedHours)}
	leftOut := chart.Line{Name: "values left out", Class: "c", Values: make([]float64, refusedHours)}
	for _, c := range counts {
		i := refusedHours - (end-millis(c.Hour))/hour
		if i >= 0 && i < refusedHours && (rule == "" || rule == c.Rule) {
			refused.Values[i] += float64(c.Refused)
			leftOut.Values[i] += float64(c.LeftOut)
		}
	}
	return chart.Bars("Refused objects", "per hour", "7 days", end, time.Hour, refused, leftOut)
}

// showRefusal serves GET …/refused/{entry}.
func (c *Console) showRefusal(v *visit) error {
	var r answers.RefusedEntry
	if err := v.call(http.MethodGet, v.of("refused", v.r.PathValue("entry")), nil, &r); err != nil {
		return err
	}
	if sent := v.r.PostForm.Get("object"); sent != "" {
		r.Object = sent
	}
	return v.render("refusal", "Refused", &r)
}

// sendRefusal serves POST …/refused/{entry}/send.
func (c *Console) sendRefusal(v *visit) error {
	v.endTurn() // it waits for others who send
	object := v.r.PostForm.Get("object")
	if !json.Valid([]byte(object)) {
		return v.retry(bad("The object is not valid JSON."), c.showRefusal)
	}
	var again answers.SentAgain
	body := map[string]any{"object": verbatim(object)}
	if err := v.call(http.MethodPost, v.of("refused", v.r.PathValue("entry"), "send"), body, &again); err != nil {
		return v.retry(err, c.showRefusal)
	}
	if again.Accepted {
		return v.redirect(v.at("refused"), "sent-again")
	}
	var said struct {
		Errors []struct {
			Type string `json:"type"`
		} `json:"errors"`
	}
	if err := json.Unmarshal(again.Answer, &said); err != nil {
		return fmt.Errorf("read why an object was refused again: %w", err)
	}
	text := "Refused again."
	for _, e := range said.Errors {
		text = "Refused again: " + sentence(e.Type)
	}
	return v.retry(bad("%s", text), c.showRefusal)
}

// verbatim is JSON that is passed on as it is.
type verbatim string

// MarshalJSON is of json.Marshaler.
func (t verbatim) MarshalJSON() ([]byte, error) { return []byte(t), nil }

// sendAllTime is how long objects that broke a rule are sent again while somebody waits for the page; after that the
// page says how many were sent, and that there are more.
const sendAllTime = 20 * time.Second

// sendAllRefused serves POST …/refused/send: all again that broke a rule.
func (c *Console) sendAllRefused(v *visit) error {
	v.endTurn() // it waits for others who send, and may take as long as sendAllTime
	ask := url.Values{"rule": {v.form("rule")}, "limit": {"200"}}
	accepted, refused, kept := 0, 0, 0
	for began := time.Now(); ; {
		var page answers.AllSentAgain
		if err := v.call(http.MethodPost, v.of("refused", "send")+"?"+ask.Encode(), nil, &page); err != nil {
			return v.retry(err, c.showRefused)
		}
		accepted, refused, kept = accepted+page.Accepted, refused+page.Refused, kept+page.Skipped
		if page.Next == "" || time.Since(began) > sendAllTime {
			v.Done = "Accepted: " + number(accepted) + ". Refused again: " + number(refused) +
				". Not sent, because the object is not kept: " + number(kept) + "."
			if page.Next != "" {
				v.Done += " There are more; send again to continue."
			}
			return c.showRefused(v)
		}
		ask.Set("before", page.Next)
	}
}
