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

	"millrace/api/admin"
	"millrace/api/console/chart"
)

const (
	refusedPath = workspacePath + "/refused"
	refusalPath = refusedPath + "/{entry}"
)

// refusal is an object that was refused, or of which values were left out.
type refusal struct{ admin.RefusedEntry }

// IsSendable says whether it may be sent again: values that were left out of an event or purchase would count twice.
func (r *refusal) IsSendable() bool { return r.Array == "attributes" || r.Array != "" && r.IsRefused }

// Where is the element as the answer of its request has named it.
func (r *refusal) Where() string {
	if r.Array == "" {
		return "the request"
	}
	return fmt.Sprintf("%s[%d]", r.Array, r.Index)
}

// ruleCount is how often a rule was broken, by which keys, and when last.
type ruleCount struct {
	Rule             string
	Keys             []string
	Refused, LeftOut int
	Last             string
}

type refusedData struct {
	Rule, Array string
	Arrays      []string
	Counts      []ruleCount
	Chart       chart.Chart
	Entries     []refusal
	Next        string // where the next page begins
	Missing     string // nodes that did not answer
	IsOff       bool
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
	var page struct {
		Refused []refusal `json:"refused"`
		Next    string    `json:"next"`
		Missing []int     `json:"missing_nodes"`
	}
	err := v.call(http.MethodGet, v.of("refused")+"?"+ask.Encode(), nil, &page)
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
	data.Entries, data.Next = page.Refused, page.Next
	counts, missing, err := v.countRefused()
	if err != nil {
		return err
	}
	data.Missing = nodesText(append(page.Missing, missing...))
	data.Counts, data.Chart = byRule(counts), refusedChart(counts, data.Rule, c.options.Now())
	return v.render("refused", "Refused", &data)
}

// countRefused reads the counts, those of the newest hour first; missing are the nodes that did not answer.
func (v *visit) countRefused() (counts []admin.RefusedCount, missing []int, err error) {
	var list struct {
		Counts  []admin.RefusedCount `json:"counts"`
		Missing []int                `json:"missing_nodes"`
	}
	err = v.call(http.MethodGet, v.of("refused", "counts"), nil, &list)
	return list.Counts, list.Missing, err
}

// nodesText names nodes, each once.
func nodesText(nodes []int) string {
	slices.Sort(nodes)
	var names []string
	for _, node := range slices.Compact(nodes) {
		names = append(names, strconv.Itoa(node))
	}
	return strings.Join(names, ", ")
}

// byRule adds up by rule, the one that was broken most often first.
func byRule(counts []admin.RefusedCount) (list []ruleCount) {
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
func refusedChart(counts []admin.RefusedCount, rule string, now int64) chart.Chart {
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
	var r refusal
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
	object := v.r.PostForm.Get("object")
	if !json.Valid([]byte(object)) {
		return v.retry(bad("The object is not valid JSON."), c.showRefusal)
	}
	var again struct {
		Accepted bool `json:"accepted"`
		Answer   struct {
			Errors []struct {
				Type string `json:"type"`
			} `json:"errors"`
		} `json:"answer"`
	}
	body := map[string]any{"object": verbatim(object)}
	if err := v.call(http.MethodPost, v.of("refused", v.r.PathValue("entry"), "send"), body, &again); err != nil {
		return v.retry(err, c.showRefusal)
	}
	if again.Accepted {
		return v.redirect(v.at("refused"), "sent-again")
	}
	text := "Refused again."
	for _, e := range again.Answer.Errors {
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
	ask := url.Values{"rule": {v.form("rule")}, "limit": {"200"}}
	accepted, refused, kept := 0, 0, 0
	for began := time.Now(); ; {
		var page struct {
			Accepted int    `json:"accepted"`
			Refused  int    `json:"refused"`
			NotKept  int    `json:"not_kept"`
			Next     string `json:"next"`
		}
		if err := v.call(http.MethodPost, v.of("refused", "send")+"?"+ask.Encode(), nil, &page); err != nil {
			return v.retry(err, c.showRefused)
		}
		accepted, refused, kept = accepted+page.Accepted, refused+page.Refused, kept+page.NotKept
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
