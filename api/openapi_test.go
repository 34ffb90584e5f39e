package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/stretchr/testify/require"

	"millrace/api/openapi"
	"millrace/api/ratelimit"
)

// specification is the document as kin-openapi reads it. It is loaded and proved as 3.1; for the validation of values
// it is then called 3.0: for a 3.1 document the library compiles a schema anew for each value, and where that fails, as
// it does for every schema with a $ref, silently falls back to the validator that it has for 3.0. That one knows what
// the document uses of 3.1 (lists of types, const); TestWrongAnswersAreCaught is the proof.
var specification = sync.OnceValues(func() (*openapi3.T, error) {
	text := bytes.ReplaceAll(openapi.JSON(), []byte(`"`+openapi.AnyOf+`":`), []byte(`"anyOf":`))
	spec, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		return nil, err
	}
	if err := spec.Validate(context.Background(), openapi3.EnableMultiError()); err != nil {
		return nil, err
	}
	spec.OpenAPI = "3.0.3"
	openapi3.SchemaErrorDetailsDisabled = true
	openapi3.DefineStringFormatValidator("uuid", openapi3.NewRegexpFormatValidator(openapi3.FormatOfStringForUUIDOfRFC4122))
	openapi3filter.RegisterBodyDecoder("application/scim+json", openapi3filter.JSONBodyDecoder)
	openapi3filter.RegisterBodyDecoder("text/html", openapi3filter.PlainBodyDecoder)
	return spec, nil
})

// checkDocumented holds an answer against the document: status, headers, media type, body; and the request too, when
// all of it was taken. Paths and methods that aren't routes are not documented.
func (d *door) checkDocumented(request *http.Request, body string, a answer) {
	d.t.Helper()
	if err := d.documented(request, body, a); err != nil {
		d.t.Errorf("not as documented: %s %s %.300s\n%d %.1000s\n%v", request.Method, request.URL, body, a.status, a.body, err)
	}
}

func (d *door) documented(request *http.Request, body string, a answer) error {
	spec, err := specification()
	if err != nil {
		return err
	}
	resource := d.router.find([]byte(request.URL.EscapedPath()))
	if resource == nil {
		return nil
	}
	rt := resource.method([]byte(request.Method))
	if rt == nil {
		return nil
	}
	item := spec.Paths.Value(rt.path)
	if item == nil || item.GetOperation(rt.method) == nil {
		return nil // TestDocumentAndRouter says so
	}
	input := &openapi3filter.RequestValidationInput{
		Request:    request.Clone(context.Background()),
		PathParams: map[string]string{},
		Route:      &routers.Route{Spec: spec, Path: rt.path, PathItem: item, Method: rt.method, Operation: item.GetOperation(rt.method)},
		Options: &openapi3filter.Options{IncludeResponseStatus: true, MultiError: true, SkipSettingDefaults: true,
			AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, ExcludeResponseBody: request.Method == http.MethodHead},
	}
	for segment := range strings.SplitSeq(rt.path, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			input.PathParams[strings.TrimSuffix(name, "}")] = rt.param(request.URL.EscapedPath(), segment)
		}
	}
	err = openapi3filter.ValidateResponse(context.Background(), &openapi3filter.ResponseValidationInput{RequestValidationInput: input, Status: a.status,
		Header: a.header, Body: io.NopCloser(strings.NewReader(a.body)), Options: input.Options})
	if err != nil || a.status >= 300 || strings.Contains(a.body, `"errors":`) || strings.Contains(a.body, `"warnings":`) || strings.Contains(a.body, `_errors":[[`) || request.Header.Get("Content-Encoding") != "" {
		return err
	}
	// A form's fields have names that the customer's template gave them, for which the library's decoders want a schema
	// each.
	input.Options.ExcludeRequestBody = rt.page
	input.Request.Body = io.NopCloser(bytes.NewReader([]byte(body)))
	if rt.scim { // a page that is no number counts as left out, which its type can't say
		query := input.Request.URL.Query()
		for _, name := range []string{"startIndex", "count"} {
			if _, err := strconv.Atoi(query.Get(name)); err != nil {
				query.Del(name)
			}
		}
		input.Request.URL.RawQuery = query.Encode()
	}
	return openapi3filter.ValidateRequest(context.Background(), input)
}

// What a client needs of GET /openapi.json, and the page on the admin listener.
func TestDocumentIsServed(t *testing.T) {
	d := open(t, nil)
	a := d.call("GET", "/openapi.json", "", "")
	require.Equal(t, 200, a.status)
	require.Equal(t, string(openapi.JSON()), a.body)
	require.Equal(t, "application/json", a.header.Get("Content-Type"))
	require.Equal(t, "3.1.0", a.json(t)["openapi"])
	tag := a.header.Get("ETag")
	require.Regexp(t, `^"[0-9a-f]{24}"$`, tag)
	for have, status := range map[string]int{tag: 304, `"old", W/` + tag: 304, `"old"`: 200, "": 200} {
		a = d.call("GET", "/openapi.json", "", "", "If-None-Match", have)
		require.Equal(t, status, a.status, have)
		require.Equal(t, status == 304, a.body == "", have)
		require.Equal(t, tag, a.header.Get("ETag"))
	}
	require.Equal(t, 200, d.call("HEAD", "/openapi.json/", "", "").status)
	require.Equal(t, "GET, HEAD", d.call("POST", "/openapi.json", demoKey, "{}").header.Get("Allow"))

	status, _, page := d.admin("GET", "/docs", "", "")
	require.Equal(t, 200, status)
	require.Equal(t, string(openapi.Page()), page)
}

// What a test can't bring about at will is documented all the same: somebody else changes the preference center all the
// time.
func TestConflictsAreDocumented(t *testing.T) {
	d := open(t, nil)
	have := d.call("GET", "/preference_center/v1/nobody", demoKey, "")
	have.status, have.body = 409, `{"message":"The preference center was changed at the same time. Please try again."}`
	for _, to := range []string{"POST /preference_center/v1", "PUT /preference_center/v1/main", "POST /preference_center/v1/main"} {
		method, path, _ := strings.Cut(to, " ")
		request, err := http.NewRequest(method, "http://x"+path, nil)
		require.NoError(t, err)
		require.NoError(t, d.documented(request, "{}", have), to)
	}
}

// A validator that lets everything pass would make all of the above worth nothing: each of these answers and requests
// is wrong in one place.
func TestWrongAnswersAreCaught(t *testing.T) {
	d := open(t, nil)
	good := d.track(demoKey, "a")
	require.Equal(t, 201, good.status)
	ask := func(method, path, body string, change func(*answer)) error {
		a := answer{status: good.status, header: good.header.Clone(), body: good.body}
		change(&a)
		request, err := http.NewRequest(method, "http://x"+path, nil)
		require.NoError(t, err)
		request.Header.Set("Content-Type", "application/json")
		return d.documented(request, body, a)
	}
	require.NoError(t, ask("POST", "/users/track", goodBody, func(*answer) {}))
	require.NoError(t, ask("POST", "/users/track", goodBody, func(a *answer) {
		a.body = `{"attributes_processed":1,"message":"success","errors":[{"type":"x","input_array":"events","index":0}]}`
	}))
	for name, change := range map[string]func(*answer){
		"status":            func(a *answer) { a.status = 200 },
		"media type":        func(a *answer) { a.header.Set("Content-Type", "text/plain") },
		"no media type":     func(a *answer) { a.header.Del("Content-Type") },
		"header":            func(a *answer) { a.header.Del("X-RateLimit-Limit") },
		"header's type":     func(a *answer) { a.header.Set("X-RateLimit-Reset", "soon") },
		"no body":           func(a *answer) { a.body = "" },
		"no JSON":           func(a *answer) { a.body = "{" },
		"no object":         func(a *answer) { a.body = "[]" },
		"missing member":    func(a *answer) { a.body = `{"attributes_processed":1}` },
		"anyOf":             func(a *answer) { a.body = `{"message":"success"}` },
		"additional member": func(a *answer) { a.body = `{"attributes_processed":1,"message":"success","more":1}` },
		"const":             func(a *answer) { a.body = `{"attributes_processed":1,"message":"Success"}` },
		"type":              func(a *answer) { a.body = `{"attributes_processed":"1","message":"success"}` },
		"null":              func(a *answer) { a.body = `{"attributes_processed":null,"message":"success"}` },
		"fraction":          func(a *answer) { a.body = `{"attributes_processed":1.5,"message":"success"}` },
		"minimum":           func(a *answer) { a.body = `{"attributes_processed":0,"message":"success"}` },
		"maximum":           func(a *answer) { a.body = `{"attributes_processed":1001,"message":"success"}` },
		"minItems":          func(a *answer) { a.body = `{"attributes_processed":1,"message":"success","errors":[]}` },
		"enum behind $ref": func(a *answer) {
			a.body = `{"attributes_processed":1,"message":"success","errors":[{"type":"x","input_array":"aliases","index":0}]}`
		},
		"member behind $ref": func(a *answer) {
			a.body = `{"attributes_processed":1,"message":"success","errors":[{"type":"x","index":0}]}`
		},
		"more behind $ref": func(a *answer) {
			a.body = `{"attributes_processed":1,"message":"success","errors":[{"type":"x","input_array":"events","index":0,"x":1}]}`
		},
		"failure": func(a *answer) { a.status, a.body = 401, `{"error":"no"}` },
	} {
		require.Error(t, ask("POST", "/users/track", goodBody, change), name)
	}
	for _, body := range []string{
		"", "[]", `{"attributes":{}}`, `{"attributes":[{}]}`, `{"attributes":[{"external_id":null}]}`, `{"attributes":[{"external_id":true}]}`,
		`{"attributes":[{"user_alias":{"alias_name":"a"}}]}`, `{"attributes":[{"external_id":"a","gender":5}]}`, `{"events":[{"external_id":"a","name":"e"}]}`,
		`{"purchases":[{"external_id":"a","product_id":"p","currency":"EUR","price":"1","time":"2026-01-31"}]}`,
		`{"attributes":[{"external_id":"a","subscription_groups":[{"subscription_group_id":"7","subscription_state":"subscribed"}]}]}`,
	} {
		require.Error(t, ask("POST", "/users/track", body, func(*answer) {}), body)
	}
	export := func(user string) error {
		return ask("POST", "/users/export/ids", `{"external_ids":["a"]}`, func(a *answer) { a.body = `{"users":[` + user + `],"message":"success"}` })
	}
	require.NoError(t, export(`{"created_at":"2026-01-31T09:30:01.204Z","custom_attributes":{"a":null}}`))
	for _, user := range []string{`{"created_at":"yesterday"}`, `{"created_at":1}`, `{"nickname":"x"}`, `{"custom_attributes":{}}`, `{"country":"de"}`, `null`,
		`{"subscription_groups":[{"id":"7","status":"Subscribed"}]}`, `{"subscription_groups":[{"id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","status":"subscribed"}]}`} {
		require.Error(t, export(user), user)
	}
}

// Every example of a request, sent to a server in the order of the document, gets the first 2xx that is documented for
// it.
func TestRequestExamplesWork(t *testing.T) {
	spec, err := specification()
	require.NoError(t, err)
	d := openEngine(t, t.TempDir())
	made := map[string]string{} // what the server has made and a path needs, by the name of the parameter
	for _, path := range documentedPaths(t) {
		item := spec.Paths.Value(path)
		for _, method := range []string{"POST", "GET", "PUT", "PATCH", "DELETE"} {
			operation := item.GetOperation(method)
			if operation == nil {
				continue
			}
			for _, example := range requestExamples(t, operation) {
				target, key, headers := exampleTarget(t, path, operation, made), demoKey, []string{"Content-Type", example.media}
				if strings.HasPrefix(path, "/scim/") {
					key, headers = scimToken, append(headers, "X-Request-Origin", scimOrigin)
				}
				a := d.call(method, target, key, example.body, headers...)
				require.Equal(t, firstSuccess(operation, example.name), a.status, "%s %s %s: %s", method, target, example.body, a.body)
				if example.body != "" {
					require.NotContains(t, a.body, `"errors"`, "%s %s %s", method, target, example.body)
				}
				remember(made, path, a)
			}
		}
	}
}

// remember keeps what later paths need.
func remember(made map[string]string, path string, a answer) {
	var v struct {
		ID  string `json:"id"`
		URL string `json:"preference_center_url"`
	}
	_ = json.Unmarshal([]byte(a.body), &v)
	if strings.HasPrefix(path, "/scim/") && a.status == 201 {
		made[path+"/{id}"] = v.ID
	}
	if v.URL != "" {
		made["/preferences/{token}"] = v.URL[strings.LastIndexByte(v.URL, '/')+1:]
	}
}

type requestExample struct{ name, media, body string }

// requestExamples are those of an operation's body, or one without a body.
func requestExamples(t *testing.T, operation *openapi3.Operation) (list []requestExample) {
	if operation.RequestBody == nil {
		return []requestExample{{}}
	}
	for _, media := range slices.Sorted(maps.Keys(operation.RequestBody.Value.Content))[:1] { // the others have the same
		examples := operation.RequestBody.Value.Content[media].Examples
		for _, name := range slices.Sorted(maps.Keys(examples)) {
			value := examples[name].Value.Value
			text, err := json.Marshal(value)
			require.NoError(t, err)
			if media == "application/x-www-form-urlencoded" {
				form := url.Values{}
				for k, v := range value.(map[string]any) {
					form.Set(k, fmt.Sprint(v))
				}
				text = []byte(form.Encode())
			}
			list = append(list, requestExample{name, media, string(text)})
		}
	}
	require.NotEmpty(t, list, operation.OperationID)
	return list
}

// documentedPaths are the paths in the order of the document, which the library forgets.
func documentedPaths(t *testing.T) []string {
	var whole struct {
		Paths json.RawMessage `json:"paths"`
	}
	require.NoError(t, json.Unmarshal(openapi.JSON(), &whole))
	decoder := json.NewDecoder(bytes.NewReader(whole.Paths))
	_, err := decoder.Token()
	require.NoError(t, err)
	var paths []string
	for decoder.More() {
		name, err := decoder.Token()
		require.NoError(t, err)
		paths = append(paths, name.(string))
		var skipped json.RawMessage
		require.NoError(t, decoder.Decode(&skipped))
	}
	return paths
}

// exampleTarget is the path with the examples of its parameters, or what was made for it.
func exampleTarget(t *testing.T, path string, operation *openapi3.Operation, made map[string]string) string {
	query, id := url.Values{}, made[path]
	for _, ref := range operation.Parameters {
		switch p := ref.Value; {
		case p.In == "path":
			require.NotNil(t, p.Example, "%s: %s has no example", path, p.Name)
			path = strings.Replace(path, "{"+p.Name+"}", url.PathEscape(cmp.Or(id, fmt.Sprint(p.Example))), 1)
		case p.In == "query" && p.Example != nil:
			if list, ok := p.Example.([]any); ok {
				for _, v := range list {
					query.Add(p.Name, fmt.Sprint(v))
				}
				continue
			}
			query.Set(p.Name, fmt.Sprint(p.Example))
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}

// firstSuccess is what an example gets. A form is answered by a redirect, one click by a page.
func firstSuccess(operation *openapi3.Operation, example string) int {
	if example == "form" {
		return 303
	}
	for status := 200; status < 300; status++ {
		if operation.Responses.Status(status) != nil {
			return status
		}
	}
	return 0
}

// Every route is in the document with its permission and its bucket, and everything in the document is a route.
// docs/http.md names every route too.
func TestDocumentAndRouter(t *testing.T) {
	protocol, err := os.ReadFile("../docs/http.md")
	require.NoError(t, err)
	spec, err := specification()
	require.NoError(t, err)
	d := open(t, nil)
	routes := map[string]route{}
	for _, rt := range d.routes() {
		routes[rt.method+" "+rt.path] = rt
		require.True(t, strings.Contains(string(protocol), rt.path), "docs/http.md lacks %s", rt.path)
	}
	for path, item := range spec.Paths.Map() {
		for method, operation := range item.Operations() {
			rt, ok := routes[method+" "+path]
			if !ok {
				t.Errorf("%s %s is documented and not served", method, path)
				continue
			}
			delete(routes, method+" "+path)
			permission, _ := operation.Extensions["x-permission"].(string)
			require.Equal(t, rt.permission, permission, path)
			limit, _ := operation.Extensions["x-rate-limit"].(map[string]any)
			if rt.bucket == ratelimit.None {
				require.Nil(t, limit, path)
			} else {
				require.Equal(t, map[string]any{"bucket": rt.bucket.String(), "limit": ratelimit.Defaults(false)[rt.bucket].String()}, limit, path)
			}
			require.Equal(t, rt.open, operation.Security != nil && len(*operation.Security) == 0, path)
		}
	}
	for name := range routes {
		t.Errorf("%s is served and not documented", name)
	}
}
