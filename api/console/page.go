package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"millrace/api/admin/answers"
	"millrace/api/console/signin"
	"millrace/api/control/document"
	"millrace/ingest/field"
	"millrace/shard/cluster/placement"
)

//go:embed templates/*.html
var templateFiles embed.FS

//go:embed static/*
var staticFiles embed.FS

// pages are the templates by their names, each within the frame. They are read when somebody asks for a page: most
// processes of the program are commands.
var pages = sync.OnceValue(func() map[string]*template.Template {
	frame := template.Must(template.New("frame.html").Funcs(helpers).ParseFS(templateFiles, "templates/frame.html",
		"templates/parts.html"))
	all := map[string]*template.Template{}
	names, err := fs.Glob(templateFiles, "templates/*.html")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	for _, file := range names {
		name := strings.TrimSuffix(strings.TrimPrefix(file, "templates/"), ".html")
		all[name] = template.Must(template.Must(frame.Clone()).ParseFS(templateFiles, file))
	}
	return all
})

// helpers are what templates call besides the methods of a visit.
var helpers = template.FuncMap{
	"path":   answers.Path,
	"number": number,
	"size":   size,
	"ago":    func(now, then int64) string { return ago(time.Duration(now-then) * time.Millisecond) },
	"time":   func(millis int64) string { return time.UnixMilli(millis).UTC().Format("2006-01-02 15:04:05 UTC") },
	"millis": millis,
	"short":  field.Short[string],
	"join":   strings.Join,
	"rowsOf": rowsOf,
	"lastOf": func(g placement.GroupStatus) int { return g.First + g.Count - 1 }, // of a group's partitions

	"says": says, "changedState": changedState, "placeOf": placeOf, "isSendable": isSendable,
}

// textRow is one text, in all languages.
type textRow struct {
	ID     string
	Source string
	Texts  []string // in the order of the message's translations; empty: the text has no such translation
}

// rowsOf are the texts of a message side by side.
func rowsOf(m document.Message) (rows []textRow) {
	ids := map[string]bool{}
	for id := range m.Source {
		ids[id] = true
	}
	for _, t := range m.Translations {
		for id := range t.Map {
			ids[id] = true
		}
	}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		row := textRow{ID: id, Source: m.Source[id]}
		for _, t := range m.Translations {
			row.Texts = append(row.Texts, t.Map[id])
		}
		rows = append(rows, row)
	}
	return rows
}

// says lists what an entry says was changed, and its details, in one line.
func says(e answers.AuditEntry) string {
	text := ""
	if len(e.Changed) > 0 {
		text = "changed " + strings.Join(e.Changed, ", ")
	}
	if len(e.Details) > 0 {
		details, err := json.Marshal(e.Details)
		if err == nil {
			text = strings.TrimSpace(text + " " + string(details))
		}
	}
	return text
}

// changedState names the group whose state was changed, or else the kind of state.
func changedState(c answers.ConsentChange) string {
	switch {
	case c.GroupName != "":
		return c.GroupName
	case c.GroupID != "":
		return c.GroupID
	}
	return strings.ReplaceAll(c.State, "_", " ")
}

// placeOf is the element as the answer of its request has named it.
func placeOf(e answers.RefusedEntry) string {
	if e.Array == "" {
		return "the request"
	}
	return fmt.Sprintf("%s[%d]", e.Array, e.Index)
}

// isSendable says whether an object may be sent again: values that were left out of an event or purchase would count
// twice.
func isSendable(e answers.RefusedEntry) bool {
	return e.Array == "attributes" || e.Array != "" && e.IsRefused
}

// render sends a page.
func (v *visit) render(name, title string, data any) error {
	v.Title, v.Data = title, data
	if v.Done == "" && v.status < http.StatusBadRequest {
		v.Done = doneTexts[v.r.URL.Query().Get("done")]
	}
	if v.Person == nil && v.formToken == "" {
		v.formToken = signin.StrangersForm(v.w, v.r)
	}
	var b bytes.Buffer
	if err := pages()[name].ExecuteTemplate(&b, "frame.html", v); err != nil {
		return fmt.Errorf("render %s: %w", name, err)
	}
	v.endTurn()
	if v.status == http.StatusServiceUnavailable {
		v.w.Header().Set("Retry-After", "1")
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(v.status)
	_, _ = v.w.Write(b.Bytes())
	return nil
}

// doneTexts are what pages say after a form has done something.
var doneTexts = map[string]string{
	"out":        "You are signed out.",
	"everywhere": "You are signed out everywhere.",

	"consent":         "Consent saved.",
	"sent-again":      "Object accepted.",
	"refusal-removed": "Removed from the list.",
	"settings":        "Settings saved.",
	"app-added":       "App added.",
	"app-removed":     "App removed. Profiles keep their existing data from it.",
	"workspace-added": "Workspace added.",
	"key-revoked":     "Key revoked. Requests that use it are now refused.",
	"count-stopped":   "Counting stopped.",
	"group-added":     "Group added.",
	"group-changed":   "Group renamed.",
	"group-archived":  "Group archived. Users keep their states in it.",
	"group-restored":  "Group restored, with all users' states.",
	"block-lifted":    "Address unblocked. It stays unsubscribed.",
	"center-added":    "Preference center added as a draft.",
	"center-changed":  "Preference center saved.",
	"other-out":       "The user is signed out everywhere.",
	"token-revoked":   "Token revoked.",
	"stream-paused":   "Stream paused. Events are kept for it no longer than the retention time.",
	"stream-resumed":  "Stream resumed.",
	"stream-rewound":  "Stream rewound.",
	"node-added":      "Node added.",
	"node-known":      "The node was already known. Its address is set if one was given; a drain is cancelled.",
	"node-drains":     "The node is draining: its groups move to other nodes.",
	"node-removed":    "Node removed.",
}

// signInPath is where strangers are led.
const signInPath = "/console/sign-in"

// fail answers with a page that says what went wrong. Strangers are led to the sign-in, and from there back.
func (c *Console) fail(v *visit, err error) {
	f, ok := errors.AsType[*fault](err)
	switch {
	case errors.Is(err, errStranger) && v.r.Method == http.MethodGet:
		http.Redirect(v.w, v.r, signInTo(v.r.URL.RequestURI()), http.StatusSeeOther)
		return
	case !ok:
		c.options.Logger.Error("a page of the console failed", "path", v.r.URL.Path, "error", err)
		f = &fault{http.StatusInternalServerError, "Something went wrong. See the server's log for details."}
	}
	v.status, v.Problem, v.Done = f.status, "", "" // the page says what went wrong, and nothing else
	if err := v.render("fault", http.StatusText(f.status), f.text); err != nil {
		c.options.Logger.Error("a page of the console failed", "path", v.r.URL.Path, "error", err)
		http.Error(v.w, f.text, f.status)
	}
}

// signInTo is the path of the sign-in that leads to a page.
func signInTo(next string) string { return signInPath + "?next=" + url.QueryEscape(next) }

// Back is, for a stranger, the path of the sign-in that leads back to the page with the form that was sent.
func (v *visit) Back() string {
	from, err := url.Parse(v.r.Referer())
	if err != nil || v.r.Method == http.MethodGet || from.Host != v.r.Host {
		return signInPath
	}
	return signInTo(from.RequestURI())
}

// stranger is a visit outside of the table of routes.
func (c *Console) stranger(w http.ResponseWriter, r *http.Request) *visit {
	return &visit{c: c, w: w, r: r, Person: c.whoIs(r), status: http.StatusOK}
}

// serveStatic serves style, code and icon. They change with the program only, whose pages name them with their version.
func serveStatic(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "public, max-age=86400")
	http.ServeFileFS(w, r, staticFiles, "static/"+r.PathValue("file"))
}

// Static is the path of a file with its version.
func (v *visit) Static(name string) string { return "/console/static/" + name + "?" + staticVersion }

var staticVersion = func() string {
	var b bytes.Buffer
	_ = fs.WalkDir(staticFiles, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			text, _ := staticFiles.ReadFile(name)
			b.Write(text)
		}
		return err
	})
	sum := sha256.Sum256(b.Bytes())
	return hex.EncodeToString(sum[:6])
}()

// Now is the time of the page, Unix ms.
func (v *visit) Now() int64 { return v.c.options.Now() }

// millis are the Unix ms of a time, however it comes; 0: none.
func millis(when any) int64 {
	switch when := when.(type) {
	case int64:
		return when
	case time.Time:
		if !when.IsZero() {
			return when.UnixMilli()
		}
	case string:
		if t, err := time.Parse(time.RFC3339, when); err == nil {
			return t.UnixMilli()
		}
	}
	return 0
}

// number writes a number with spaces between thousands, of 100 and more without decimals.
func number(n any) string {
	var f float64
	switch n := n.(type) {
	case int:
		f = float64(n)
	case int64:
		f = float64(n)
	case uint64:
		f = float64(n)
	case float64:
		f = n
	}
	digits := 0
	if f != float64(int64(f)) && f < 100 {
		digits = 1
	}
	whole, rest, _ := strings.Cut(strconv.FormatFloat(f, 'f', digits, 64), ".")
	for i := len(whole) - 3; i > 0 && whole[i-1] != '-'; i -= 3 {
		whole = whole[:i] + "\u202f" + whole[i:]
	}
	if rest != "" && rest != "0" {
		whole += "." + rest
	}
	return whole
}

// size writes a number of bytes.
func size(bytes float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for len(units) > 1 && bytes >= 1024 {
		bytes, units = bytes/1024, units[1:]
	}
	return number(bytes) + " " + units[0]
}

// ago writes a time that has passed, in one unit.
func ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return "just now"
	case d < time.Hour:
		return strconv.Itoa(int(d.Minutes())) + " min ago"
	case d < 48*time.Hour:
		return strconv.Itoa(int(d.Hours())) + " h ago"
	}
	return strconv.Itoa(int(d.Hours()/24)) + " days ago"
}

// download has the browser save what follows, and never show it. Unusual characters of the name are replaced.
func (v *visit) download(contentType, name string) {
	v.endTurn()
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.' {
			return r
		}
		return '_'
	}, name)
	h := v.w.Header()
	h.Set("Content-Type", contentType)
	h.Set("Content-Disposition", `attachment; filename="`+name+`"`)
	h.Set("Content-Security-Policy", "sandbox; default-src 'none'")
}
