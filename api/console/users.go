package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/console/chart"
	"millrace/api/console/rights"
	"millrace/api/control/document"
)

const (
	usersPath = "/console/w/{workspace}/users"
	userPath  = usersPath + "/{user}"
)

// identifiers are what users are found by, with the words for them.
var identifiers = []identifierWords{
	{"external_id", "External ID"}, {"email", "Email"}, {"phone", "Phone"}, {"alias", "Alias"},
	{"svc_id", "Service ID"},
}

type identifierWords struct{ Name, Words string }

type usersData struct {
	Identifiers      []identifierWords
	By, Value, Label string
	IsAsked          bool
	Users            []*profile
	Count            int
}

// showUsers serves GET …/users: finds users by any of their identifiers.
func (c *Console) showUsers(v *visit) error {
	query := v.r.URL.Query()
	data := usersData{Identifiers: identifiers, By: query.Get("by"), Value: query.Get("value"),
		Label: query.Get("label")}
	if isOwn := data.By == "external_id" || data.By == "alias"; !isOwn || strings.TrimSpace(data.Value) == "" {
		data.Value = strings.TrimSpace(data.Value) // what customers make up may begin with a space
	}
	show := func(v *visit) error { return v.render("users", "Users", data) }
	if data.Value != "" {
		data.IsAsked = true
		ask := url.Values{data.By: {data.Value}}
		if data.By == "alias" {
			if data.Label == "" {
				data.IsAsked = false
				return v.retry(bad("Enter the alias label, too."), show)
			}
			ask = url.Values{"alias_label": {data.Label}, "alias_name": {data.Value}}
		}
		var found answers.FoundUsers
		if err := v.call(http.MethodGet, v.of("users")+"?"+ask.Encode(), nil, &found); err != nil {
			data.IsAsked = false
			return v.retry(err, show)
		}
		data.Count = found.Count
		for _, text := range found.Users {
			p, err := readProfile(text, v.may(rights.SeePersonal))
			if err != nil {
				return err
			}
			data.Users = append(data.Users, p)
		}
		if len(data.Users) == 1 && data.Count == 1 {
			return v.redirect(v.pathOf(data.Users[0].SvcID), "")
		}
	}
	return show(v)
}

// pathOf is the path of a user's page.
func (v *visit) pathOf(svcID string) string {
	return answers.Path("console", "w", v.At.ID, "users", svcID)
}

// userData is what the page of a user shows.
type userData struct {
	*profile
	Groups     []groupState
	MoreGroups int                     // where the next page of them begins; 0: there is none
	Trail      []answers.ConsentChange // the newest first
	MoreTrail  int
	Path       string
	MergedFrom []string // service ids
}

// groupState is a subscription group with the state of one user in it.
type groupState struct {
	document.Group
	State string // subscribed, unsubscribed, unknown
}

// showUser serves GET …/users/{user}.
func (c *Console) showUser(v *visit) error {
	var found answers.User
	if err := v.call(http.MethodGet, v.of("users", v.r.PathValue("user")), nil, &found); err != nil {
		return err
	}
	p, err := readProfile(found.User, v.may(rights.SeePersonal))
	if err != nil {
		return err
	}
	data := userData{profile: p, Path: v.pathOf(p.SvcID), MergedFrom: found.MergedFrom}
	groups, err := v.groups()
	if err != nil {
		return err
	}
	for _, g := range groups {
		state := strings.ToLower(p.groups[g.ID])
		if state == "" {
			state = "unknown"
		}
		if !g.Archived || state != "unknown" {
			data.Groups = append(data.Groups, groupState{g, state})
		}
	}
	var trail answers.Trail
	if err := v.call(http.MethodGet, v.of("trail")+"?"+url.Values{"svc_id": {p.SvcID}}.Encode(), nil,
		&trail); err != nil {
		return err
	}
	slices.Reverse(trail.Changes)
	data.Groups, data.MoreGroups = pageHere(v, "groups", data.Groups)
	data.Trail, data.MoreTrail = pageHere(v, "trail", trail.Changes)
	return v.render("user", p.Title(), data)
}

// groups lists the subscription groups of the workspace.
func (v *visit) groups() ([]document.Group, error) {
	return listOf[document.Group](v, v.of("subscription_groups"))
}

// downloadUser serves GET …/users/{user}/download: the profile as an export has it.
func (c *Console) downloadUser(v *visit) error {
	var found answers.User
	if err := v.call(http.MethodGet, v.of("users", v.r.PathValue("user"), "export"), nil, &found); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := json.Indent(&b, found.User, "", "  "); err != nil {
		return fmt.Errorf("show a profile: %w", err)
	}
	v.download("application/json", "user-"+v.r.PathValue("user")+".json")
	_, _ = v.w.Write(append(b.Bytes(), '\n'))
	return nil
}

// changeConsent serves POST …/users/{user}/consent.
func (c *Console) changeConsent(v *visit) error {
	change := struct {
		Email  string            `json:"email_subscribe,omitempty"`
		Groups map[string]string `json:"subscription_groups"`
	}{Email: v.form("email_subscribe"), Groups: map[string]string{}}
	for name := range v.r.PostForm {
		if id, ok := strings.CutPrefix(name, "group-"); ok && v.form(name) != "" {
			change.Groups[id] = v.form(name)
		}
	}
	if change.Email == "" && len(change.Groups) == 0 {
		return v.retry(bad("Choose at least one change."), c.showUser)
	}
	return v.change(http.MethodPatch, v.of("users", v.r.PathValue("user"), "states"), change, c.showUser,
		v.pathOf(v.r.PathValue("user")), "consent")
}

// deleteUser serves POST …/users/{user}/delete, and shows the proof: the entry of the audit log that stands in the same
// record.
func (c *Console) deleteUser(v *visit) error {
	if err := v.call(http.MethodDelete, v.of("users", v.r.PathValue("user")), nil, nil); err != nil {
		return v.retry(err, c.showUser)
	}
	entry, err := v.ownEntry()
	if err != nil {
		return err
	}
	return v.render("deleted", "Deleted", entry)
}

// showEvents serves GET …/users/{user}/events: the latest events that are kept.
func (c *Console) showEvents(v *visit) error {
	days := map[string]int{"1": 1, "30": 30}[v.r.URL.Query().Get("days")]
	if days == 0 {
		days = 7
	}
	since := time.UnixMilli(c.options.Now()).Add(-time.Duration(days) * 24 * time.Hour)
	query := url.Values{"workspace": {v.At.ID}, "user": {v.r.PathValue("user")},
		"since": {since.UTC().Format(time.RFC3339)}}
	end := c.options.Now()/eventPeriod.Milliseconds()*eventPeriod.Milliseconds() + eventPeriod.Milliseconds()
	counts := eventsOverTime{end: end, events: make([]float64, days*periodsADay),
		purchases: make([]float64, days*periodsADay)}
	w := &lastLines{answer: answer{header: http.Header{}}, each: counts.add}
	if err := v.pass(w, http.MethodGet, "/admin/events?"+query.Encode(), nil); err != nil {
		return err
	}
	if w.status >= http.StatusBadRequest {
		return w.fault()
	}
	data := struct {
		User, Path string
		Days       int
		Chart      chart.Chart
		Events     []*event
		IsCut      bool
	}{v.r.PathValue("user"), v.pathOf(v.r.PathValue("user")), days, counts.chart(days), nil, w.isCut}
	for i := range w.lines {
		e := new(event)
		if err := json.Unmarshal(w.lines[len(w.lines)-1-i], e); err != nil {
			return fmt.Errorf("read an event: %w", err)
		}
		data.Events = append(data.Events, e)
	}
	return v.render("events", "Events", data)
}

// Bars of the chart of a user's events.
const (
	periodsADay = 6
	eventPeriod = day / periodsADay
)

// eventsOverTime counts a user's events by the time when they happened.
type eventsOverTime struct {
	end               int64 // of the last period, Unix ms
	events, purchases []float64
}

func (t *eventsOverTime) add(line []byte) {
	var e struct {
		Type string    `json:"type"`
		Time time.Time `json:"time"`
	}
	if json.Unmarshal(line, &e) != nil {
		return
	}
	of := t.events
	if e.Type == "purchase" {
		of = t.purchases
	}
	if i := len(of) - 1 - int((t.end-1-e.Time.UnixMilli())/eventPeriod.Milliseconds()); i >= 0 && i < len(of) {
		of[i]++
	}
}

func (t *eventsOverTime) chart(days int) chart.Chart {
	span := strconv.Itoa(days) + " days"
	if days == 1 {
		span = "day"
	}
	return chart.Bars("Events and purchases", "per four hours", span, t.end, eventPeriod,
		chart.Line{Name: "events", Class: "a", Values: t.events},
		chart.Line{Name: "purchases", Class: "c", Values: t.purchases})
}

// event is one event as the event log shows it.
type event struct {
	Type       string          `json:"type"`
	Name       string          `json:"name"`
	Product    string          `json:"product_id"`
	Time       time.Time       `json:"time"`
	App        string          `json:"app_id"`
	Price      json.Number     `json:"price"`
	Quantity   json.Number     `json:"quantity"`
	Currency   string          `json:"currency"`
	Properties json.RawMessage `json:"properties"`
}

// Details are the event's properties as a person reads them.
func (e *event) Details() string {
	if e.Properties == nil {
		return ""
	}
	return plain(e.Properties)
}

// lastLines keeps the last lines of a long answer.
type lastLines struct {
	answer
	lines [][]byte
	rest  []byte
	isCut bool              // there were more
	each  func(line []byte) // is shown each line
}

// maxLines is how many events a page shows.
const maxLines = 200

func (l *lastLines) Write(p []byte) (int, error) {
	if l.WriteHeader(http.StatusOK); l.status >= http.StatusBadRequest {
		return l.answer.Write(p)
	}
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			l.rest = bytes.Clone(l.rest)
			return len(p), nil
		}
		l.each(line)
		if l.lines = append(l.lines, bytes.Clone(line)); len(l.lines) > maxLines {
			l.lines, l.isCut = l.lines[1:], true
		}
		l.rest = rest
	}
}

// Days are the spans of time that the page of events offers, in days.
func (v *visit) Days() []int { return []int{1, 7, 30} }
