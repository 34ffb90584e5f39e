package main

import (
	"bufio"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorded is a request of the corpus: what clients of the public API send, and in part what the real service answered.
type recorded struct {
	Source  string            `json:"source"`
	Method  string            `json:"method"`
	Path    string            `json:"path"`
	Headers map[string]string `json:"headers"`
	Body    json.RawMessage   `json:"body"`
	RawBody string            `json:"raw_body"`
	Status  int               `json:"expect_status"`
	Answer  json.RawMessage   `json:"expect_body"` // of any shape
	Kind    string            `json:"kind"`
}

func readCorpus(t *testing.T) (list []recorded) {
	dir := os.Getenv("MILLRACE_CORPUS")
	if dir == "" {
		dir = "../../../shared/corpus"
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skipf("no corpus in %s; MILLRACE_CORPUS names its directory", dir)
	}
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var r recorded
			require.NoError(t, json.Unmarshal(lines.Bytes(), &r), name)
			list = append(list, r)
		}
		require.NoError(t, lines.Err())
		f.Close()
	}
	return list
}

// Every recorded request gets an answer in the shape of the contract: what the router has no path for, 404; and where
// the real service's own answer is known for what is served, its status and the members of its body. A new route is in
// this test by being in the router.
func TestCorpus(t *testing.T) {
	list := readCorpus(t)
	s := newSite(t, "--max-bad-keys-per-minute", "100000")
	// The subscription group of the recordings.
	recordedGroup := "    subscription_groups:\n      - {id: ed06e19a-69b1-4f9b-a452-2db2c4e303a8, name: Recorded, channel: email}\n"
	text := strings.Replace(bootstrapText, "    subscription_groups:\n", recordedGroup, 1)
	require.NotEqual(t, bootstrapText, text)
	require.NoError(t, os.WriteFile(s.bootstrap, []byte(text), 0o600))
	p := s.start(t)
	routes := routesOf(t, s)
	met := 0
	for _, r := range list {
		a := r.replay(t, s)
		require.Less(t, a.status, 500, "%s: %s", r.Source, a.body)
		require.True(t, json.Valid([]byte(a.body)), "%s: %s", r.Source, a.body)
		if !strings.HasPrefix(r.Path, "/scim/") {
			require.NotEmpty(t, a.message(), "%s: %s", r.Source, a.body)
		}
		path, _, _ := strings.Cut(r.Path, "?")
		methods, served := routes.find(path)
		switch {
		case !served:
			require.Equal(t, 404, a.status, "%s: %s %s", r.Source, r.Method, path)
			require.Equal(t, "Not Found", a.message())
			continue
		case !methods[r.Method]:
			require.Equal(t, 405, a.status, "%s: %s %s", r.Source, r.Method, path)
			continue
		}
		require.NotContains(t, []int{404, 405}, a.status, "%s: %s %s", r.Source, r.Method, path)
		if r.Status == 401 {
			require.Equal(t, 401, a.status, r.Source)
		}
		if r.Kind != "vcr-recorded-real-service" {
			continue
		}
		met++
		if superseded[r.Source] {
			require.Equal(t, 201, a.status, "%s: %s", r.Source, a.body)
			continue
		}
		require.Equal(t, r.Status, a.status, "%s: %s", r.Source, a.body)
		var want, have map[string]any
		if r.Status < 300 && json.Unmarshal(r.Answer, &want) == nil && want["message"] != nil {
			require.NoError(t, json.Unmarshal([]byte(a.body), &have))
			require.Equal(t, want["message"], have["message"], r.Source)
			for member := range want {
				require.Contains(t, have, member, "%s: %s", r.Source, a.body)
			}
		}
	}
	t.Logf("%d requests, %d of them with the real service's answer", len(list), met)
	require.GreaterOrEqual(t, met, 33)
	require.True(t, p.isAlive())
	p.stop()
}

// superseded are recordings that later ones and the contract say otherwise about: an unknown address keeps its state
// (service.md 3.1).
var superseded = map[string]bool{
	"jonallured/appboy:spec/fixtures/responses/email_status/unknown_email/responds_with_bad_request.yml": true,
}

// replay sends the request, with the key of the test where the recording had a good one.
func (r *recorded) replay(t *testing.T, s *site) reply {
	key, headers := allKey, []string{}
	for name, value := range r.Headers {
		switch http.CanonicalHeaderKey(name) {
		case "Authorization":
			if r.Status == 401 {
				key = strings.TrimPrefix(value, "Bearer ")
			}
		case "Accept-Encoding", "Content-Length", "Host", "Connection", "Transfer-Encoding":
		default:
			headers = append(headers, name, value)
		}
	}
	if r.Status == 401 && key == allKey { // told by the body, in the old way
		key = ""
	}
	body := r.RawBody
	if body == "" && string(r.Body) != "null" {
		body = string(r.Body)
	}
	a, err := call(patient, r.Method, s.url(r.Path), key, body, headers...)
	require.NoError(t, err, r.Source)
	return a
}

// routeTable is the paths of the router with their methods.
type routeTable map[string]map[string]bool

// routesOf reads the table from the document of the interface, which has the router's routes and no others.
func routesOf(t *testing.T, s *site) routeTable {
	a, err := call(patient, "GET", s.url("/openapi.json"), "", "")
	require.NoError(t, err)
	var document struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &document))
	table := routeTable{}
	for path, item := range document.Paths {
		table[path] = map[string]bool{}
		for method := range item {
			table[path][strings.ToUpper(method)] = true
		}
	}
	require.True(t, table["/users/track"]["POST"])
	return table
}

// find is how the router finds a path.
func (table routeTable) find(path string) (methods map[string]bool, served bool) {
	for route, methods := range table {
		pattern := "^" + regexp.MustCompile(`\\\{[^}]*\}`).ReplaceAllString(regexp.QuoteMeta(route), "[^/]+") + "/?$"
		if regexp.MustCompile(pattern).MatchString(path) {
			return methods, true
		}
	}
	return nil, false
}
