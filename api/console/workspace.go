package console

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"millrace/api/admin/answers"
	"millrace/api/control/document"
)

const (
	settingsPath = workspacePath + "/settings"
	appsPath     = workspacePath + "/apps"
)

// Here returns a path of the workspace's pages, for templates.
func (v *visit) Here(segments ...string) string { return v.at(segments...) }

// settingsData is what the page of the settings shows.
type settingsData struct {
	document.Settings
	Length, Limits string // as the form has them: of arrays at most; the workspace's own rate limits, one a line
	Effective      []limit
	Apps           []document.App
	MoreApps       string // where their next page begins
	Plans          []string
	Tag            string
}

// limit is the rate limit of a bucket, and whether the workspace has a limit of its own there.
type limit struct {
	Bucket, Limit string
	IsOwn         bool
}

// fill fills in what the form has: what the settings are, or else what the person has sent and could not be saved.
func (d *settingsData) fill(v *visit) {
	if v.Tried(v.at("settings")) {
		d.Name, d.Plan, d.Currency = v.Sent("name"), v.Sent("plan"), v.Sent("currency")
		d.MultiLanguage = v.Sent("multi_language") != ""
		d.Length, d.Limits = v.Sent("max_custom_array_length"), v.Sent("rate_limits")
		return
	}
	var lines []string
	for bucket, limit := range d.RateLimits {
		lines = append(lines, bucket+"="+limit)
	}
	slices.Sort(lines)
	d.Length, d.Limits = strconv.Itoa(d.MaxArrayLength), strings.Join(lines, "\n")
}

// showSettings serves GET …/settings.
func (c *Console) showSettings(v *visit) error {
	data := settingsData{Plans: []string{"base", "mau"}}
	var shown answers.Workspace
	if err := v.call(http.MethodGet, v.of(), nil, &shown); err != nil {
		return err
	}
	data.Settings, data.Tag = shown.Settings, v.etag
	data.fill(v)
	for bucket, text := range shown.Limits {
		_, isOwn := data.RateLimits[bucket]
		data.Effective = append(data.Effective, limit{bucket, text, isOwn})
	}
	slices.SortFunc(data.Effective, func(a, b limit) int { return strings.Compare(a.Bucket, b.Bucket) })
	var err error
	if data.Apps, data.MoreApps, err = pageOf[document.App](v, v.of("apps"), shownPage,
		v.r.URL.Query().Get("apps")); err != nil {
		return err
	}
	return v.render("settings", "Settings", data)
}

// changeSettings serves POST …/settings. It does nothing when somebody else has changed the settings since the form was
// shown.
func (c *Console) changeSettings(v *visit) error {
	limits, err := limitsOf(v.form("rate_limits"))
	if err != nil {
		return v.retry(err, c.showSettings)
	}
	length, err := strconv.Atoi(v.form("max_custom_array_length"))
	if err != nil {
		return v.retry(bad("The maximum array length must be a number."), c.showSettings)
	}
	v.ifMatch = v.form("tag")
	err = v.call(http.MethodPatch, v.of(), map[string]any{"name": v.form("name"), "plan": v.form("plan"),
		"multi_language": v.form("multi_language") != "", "rate_limits": limits,
		"currency": v.form("currency"), "max_custom_array_length": length}, nil)
	if err != nil {
		return v.retry(err, c.showSettings)
	}
	return v.redirect(v.at("settings"), "settings")
}

// limitsOf reads lines such as users.track=3000/3s.
func limitsOf(text string) (map[string]string, error) {
	limits := map[string]string{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		bucket, limit, ok := strings.Cut(line, "=")
		if !ok {
			return nil, bad("Rate limits: %q: want one limit per line, such as users.track=3000/3s.", line)
		}
		limits[strings.TrimSpace(bucket)] = strings.TrimSpace(limit)
	}
	return limits, nil
}

// addApp serves POST …/apps.
func (c *Console) addApp(v *visit) error {
	body := map[string]string{"name": v.form("name")}
	if id := v.form("id"); id != "" {
		body["id"] = id
	}
	return v.change(http.MethodPost, v.of("apps"), body, c.showSettings, v.at("settings"), "app-added")
}

const keysPath = workspacePath + "/keys"

// key is an API key; its text is only in the answer that makes it.
type key struct{ answers.MadeKey }

type keysData struct {
	Keys        []key
	More        string // where the next page begins
	Permissions []string
	Made        *key
}

// showKeys serves GET …/keys.
func (c *Console) showKeys(v *visit) error { return v.showKeys(nil) }

func (v *visit) showKeys(made *key) error {
	list, more, err := pageOf[key](v, v.of("api_keys"), shownPage, v.r.URL.Query().Get("cursor"))
	if err != nil {
		return err
	}
	return v.render("keys", "API keys", keysData{list, more, v.c.options.Permissions, made})
}

// makeKey serves POST …/keys. Its answer shows the key, and nothing shows it again.
func (c *Console) makeKey(v *visit) error {
	permissions := v.r.PostForm["permission"]
	if len(permissions) == 0 {
		return v.retry(bad("Choose at least one permission."), c.showKeys)
	}
	networks := strings.FieldsFunc(v.form("ip_allowlist"), func(r rune) bool {
		return strings.ContainsRune(" ,\r\n\t",
			r)
	})
	made := new(key)
	err := v.call(http.MethodPost, v.of("api_keys"), map[string]any{"name": v.form("name"), "permissions": permissions,
		"ip_allowlist": networks}, made)
	if err != nil {
		return v.retry(err, c.showKeys)
	}
	return v.showKeys(made)
}

// rotateKey serves POST …/keys/{key}/rotate.
func (c *Console) rotateKey(v *visit) error {
	made := new(key)
	if err := v.call(http.MethodPost, v.of("api_keys", v.r.PathValue("key"), "rotate"), nil, made); err != nil {
		return v.retry(err, c.showKeys)
	}
	return v.showKeys(made)
}

// Sentence says in short what a key may do.
func (k key) Sentence() string {
	if slices.Contains(k.Permissions, "*") {
		return "everything"
	}
	if n := len(k.Permissions); n > 6 {
		return fmt.Sprintf("%s and %d more", strings.Join(k.Permissions[:5], ", "), n-5)
	}
	return strings.Join(k.Permissions, ", ")
}
