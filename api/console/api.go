package console

import (
	"net/http"
	"strings"

	"millrace/api/admin/answers"
	"millrace/api/openapi"
)

// documentPath is where the page about the public API is, for the frame that shows it.
const (
	apiPath      = "/console/api"
	documentPath = apiPath + "/document"
)

// documentPolicy lets the page have its style, and nothing else; the console's page shows it in a frame.
const documentPolicy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'self'"

// showAPI serves GET /console/api.
func (c *Console) showAPI(v *visit) error { return v.render("api", "API", documentPath) }

// showDocument serves GET /console/api/document.
func (c *Console) showDocument(v *visit) error {
	h := v.w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", documentPolicy)
	h.Set("X-Frame-Options", "SAMEORIGIN")
	_, _ = v.w.Write(c.options.Document())
	return nil
}

const tryPath = workspacePath + "/try"

// operation is an operation of the public API, ready to be tried.
type operation struct{ openapi.Operation }

// Name is what the list of operations calls it.
func (o operation) Name() string { return o.Method + " " + o.Path }

// triedAnswer is what the public API has answered.
type triedAnswer struct{ answers.TriedAnswer }

// Text is the text that belongs to the status.
func (a *triedAnswer) Text() string { return http.StatusText(a.Status) }

// IsGood says whether the request was accepted.
func (a *triedAnswer) IsGood() bool { return a.Status < http.StatusBadRequest }

type tryData struct {
	Operations   []operation
	Chosen       operation
	Target, Body string
	Answer       *triedAnswer // nil: nothing was sent
}

// showTry serves GET …/try: a request of the public API to be filled in, of the operation that the address names.
func (c *Console) showTry(v *visit) error {
	data, err := v.tryData(v.r.FormValue("operation"))
	if err != nil {
		return err
	}
	if v.r.Method == http.MethodPost { // it was not sent: the page shows again what was written, except the key
		data.Target, data.Body = v.form("target"), v.r.PostForm.Get("body")
	}
	return v.render("try", "Try it", data)
}

// tryData makes the form of an operation; an empty or unknown name stands for the first one.
func (v *visit) tryData(name string) (*tryData, error) {
	var data tryData
	var err error
	if data.Operations, err = listOf[operation](v, "/admin/operations"); err != nil {
		return nil, err
	}
	for i, o := range data.Operations {
		if i == 0 || o.Name() == name {
			data.Chosen = o
		}
	}
	data.Target, data.Body = data.Chosen.Target, data.Chosen.Example
	return &data, nil
}

// sendTry serves POST …/try: it sends the request, with the key that was pasted, and shows the answer.
func (c *Console) sendTry(v *visit) error {
	data, err := v.tryData(v.form("operation"))
	if err != nil {
		return err
	}
	data.Target, data.Body = v.form("target"), v.r.PostForm.Get("body")
	body := map[string]string{"method": data.Chosen.Method, "target": data.Target, "key": v.form("key"),
		"body": strings.TrimSpace(data.Body)}
	data.Answer = new(triedAnswer)
	if err := v.call(http.MethodPost, v.of("requests"), body, data.Answer); err != nil {
		return v.retry(err, c.showTry)
	}
	return v.render("try", "Try it", data)
}
