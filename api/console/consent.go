package console

import (
	"net/http"
	"net/url"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/console/rights"
	"millrace/api/control/document"
	"millrace/api/preference"
)

const (
	consentPath = workspacePath + "/consent"
	groupsPath  = workspacePath + "/groups"
	centersPath = workspacePath + "/centers"
	centerPath  = centersPath + "/{center}"
)

type consentData struct {
	Counts     *consentCounts // nil: nobody counts here
	Groups     []document.Group
	MoreGroups string // where the next page of the groups begins
	Centers    []document.PreferenceCenter
	Blocked    []answers.BlockedEmail
	Next       string // where the next page of the block list begins
	Channels   []string
}

// showConsent serves GET …/consent: groups, how many are in them, preference centers, block list.
func (c *Console) showConsent(v *visit) error {
	data := consentData{Channels: []string{"email", "sms", "whatsapp"}}
	var err error
	if data.Groups, data.MoreGroups, err = pageOf[document.Group](v, v.of("subscription_groups"), shownPage,
		v.r.URL.Query().Get("groups")); err != nil {
		return err
	}
	if data.Counts, err = v.consentCounts(); err != nil {
		return err
	}
	if data.Centers, err = listOf[document.PreferenceCenter](v, v.of("preference_centers")); err != nil {
		return err
	}
	var list answers.BlockList
	if err := v.call(http.MethodGet, v.of("blocklist")+"?"+url.Values{"limit": {"50"},
		"cursor": {v.r.URL.Query().Get("cursor")}}.Encode(), nil, &list); err != nil {
		return err
	}
	data.Blocked, data.Next = list.Emails, list.Next
	if !v.may(rights.SeePersonal) {
		for i := range data.Blocked {
			data.Blocked[i].Email = mask
		}
	}
	return v.render("consent", "Consent", data)
}

type centerData struct {
	document.PreferenceCenter
	Tag string
}

// readCenter reads the preference center of the path.
func (v *visit) readCenter() (data centerData, err error) {
	err = v.call(http.MethodGet, v.of("preference_centers", v.r.PathValue("center")), nil, &data.PreferenceCenter)
	data.Tag = v.etag
	return data, err
}

// showCenter serves GET …/centers/{center}: an editor of its HTML, and a preview.
func (c *Console) showCenter(v *visit) error {
	data, err := v.readCenter()
	if err != nil {
		return err
	}
	if v.Problem != "" { // so that what the person has written is not lost
		data.Title, data.PageHTML, data.ConfirmationHTML = v.Sent("title"), v.Sent("page"), v.Sent("confirmation")
	}
	return v.render("center", data.Name, data)
}

// previewPolicy keeps the customer's HTML from running code, loading from the console, sending forms, and being shown
// on other sites.
const previewPolicy = "sandbox; default-src 'none'; img-src https: data:; font-src https: data:; " +
	"style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'"

// previewCenter serves GET …/centers/{center}/preview: a page of the center as a user would see it who has nobody's
// address.
func (c *Console) previewCenter(v *visit) error {
	data, err := v.readCenter()
	if err != nil {
		return err
	}
	html := data.PageHTML
	if v.r.URL.Query().Has("saved") {
		html = data.ConfirmationHTML
	}
	groups, err := v.groups()
	if err != nil {
		return err
	}
	s := &preference.Subscriber{Address: "someone@example.com", Email: preference.Subscribed,
		Groups: map[string]string{}}
	for _, g := range groups {
		if !g.Archived {
			s.Groups[g.ID] = preference.Unknown
		}
	}
	h := v.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", previewPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	_, _ = v.w.Write(preference.Page{Title: data.Title}.Render(html, "#", s))
	return nil
}

// addCenter serves POST …/centers.
func (c *Console) addCenter(v *visit) error {
	if v.form("id") == "" { // the admin API would make one up
		return v.retry(bad("Enter a name."), c.showConsent)
	}
	body := map[string]string{"id": v.form("id"), "name": v.form("id"), "state": "draft",
		"preference_center_page_html": firstPage, "confirmation_page_html": firstConfirmation}
	return v.change(http.MethodPost, v.of("preference_centers"), body, c.showConsent, v.at("centers", v.form("id")),
		"center-added")
}

// What a new preference center begins with.
const (
	firstPage = "<h1>Your mail from us</h1>\n<form method=\"post\">\n" +
		"<label><input type=\"radio\" name=\"email_global_state\" value=\"subscribed\"> Send me mail</label>\n" +
		"<label><input type=\"radio\" name=\"email_global_state\" value=\"unsubscribed\"> Send me none</label>\n" +
		"<button>Save</button>\n</form>\n"
	firstConfirmation = "<h1>Saved</h1>\n"
)

// changeCenter serves POST …/centers/{center}.
func (c *Console) changeCenter(v *visit) error {
	v.ifMatch = v.form("tag")
	err := v.call(http.MethodPatch, v.of("preference_centers", v.r.PathValue("center")),
		map[string]string{"preference_center_title": v.form("title"), "state": v.form("state"),
			"preference_center_page_html": v.Sent("page"), "confirmation_page_html": v.Sent("confirmation")}, nil)
	if err != nil {
		return v.retry(err, c.showCenter)
	}
	return v.redirect(v.at("centers", v.r.PathValue("center")), "center-changed")
}

const countPath = workspacePath + "/consent/count"

// consentCounts is what is known of how many users have which state.
type consentCounts struct{ answers.Census }

// stateRow is a state, and how many users have which value of it.
type stateRow struct {
	answers.GroupCounts
	OptedIn int64
}

// share is a piece of a bar that shows parts of a whole: from X on, of a width of a hundred.
type share struct {
	Class, Name string
	N           int64
	X, Width    float64
	Percent     float64
}

// Shares are the pieces of the state's bar, with those alone who have said something: the rest is its ground.
func (s stateRow) Shares() (list []share) {
	all := s.OptedIn + s.Subscribed + s.Unsubscribed + s.Unknown
	x := 0.0
	for _, one := range []share{{Class: "optedin", Name: "opted in", N: s.OptedIn},
		{Class: "yes", Name: "subscribed", N: s.Subscribed}, {Class: "no", Name: "unsubscribed", N: s.Unsubscribed},
		{Class: "unknown", Name: "no choice", N: s.Unknown}} {
		if one.N == 0 {
			continue
		}
		one.X, one.Width = x, 100*float64(one.N)/float64(all)
		one.Percent = float64(int64(one.Width*10+0.5)) / 10
		x += one.Width
		list = append(list, one)
	}
	return list
}

// States are the rows of the table: the email state, then the first of the groups.
func (c *consentCounts) States() []stateRow {
	email := c.Counts.Email
	rows := []stateRow{{answers.GroupCounts{Channel: "email", StateCounts: email.StateCounts}, email.OptedIn}}
	for _, g := range c.Counts.Groups[:len(c.Counts.Groups)-c.Left()] {
		rows = append(rows, stateRow{GroupCounts: g})
	}
	return rows
}

// Left is how many groups the table doesn't show.
func (c *consentCounts) Left() int { return max(0, len(c.Counts.Groups)-shownPage) }

// Took is how long the count took, to the second.
func (c *consentCounts) Took() string {
	d := time.Duration(c.Counts.Took * float64(time.Second))
	if d < time.Second {
		return "less than a second"
	}
	return d.Round(time.Second).String()
}

// Percent is how much of the count that is under way is done.
func (c *consentCounts) Percent() int { return int(c.Running.Done * 100) }

// consentCounts asks what is known; nil: nobody counts on this server.
func (v *visit) consentCounts() (*consentCounts, error) {
	var counts consentCounts
	err := v.call(http.MethodGet, v.of("consent", "counts"), nil, &counts)
	if isNotFound(err) {
		return nil, nil
	}
	return &counts, err
}
