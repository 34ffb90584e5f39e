package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"millrace/cmd/millrace/importer"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// importArgs are those of an import of paths into the site's server.
func (s *site) importArgs(more ...string) []string {
	return append([]string{"import", "files", "--json", "--url", s.url(""), "--key", allKey}, more...)
}

func reportOf(t *testing.T, out string) (r importer.Report) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(out), &r), out)
	return r
}

// users are exported profiles, by external id.
func (s *site) users(t *testing.T, ids ...string) map[string]map[string]any {
	t.Helper()
	list, err := json.Marshal(ids)
	require.NoError(t, err)
	a := s.post(t, "/users/export/ids", allKey, fmt.Sprintf(`{"external_ids":%s}`, list))
	require.Equal(t, 201, a.status, a.body)
	var v struct {
		Users []map[string]any
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &v))
	all := map[string]map[string]any{}
	for _, u := range v.Users {
		all[u["external_id"].(string)] = u
	}
	return all
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// Rows of a file are taken as /users/track takes them, each once, whatever is run again; those that are refused stand
// beside the file, and can be taken from there once they are mended.
func TestImportNDJSON(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t)
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.ndjson"), "\xef\xbb\xbf"+strings.Join([]string{
		`{"external_id":"ann","payload":"{\"first_name\":\"Ann\",\"age\":74,\"tag\":\"a \\\"b\\\" \\u00e9\"}"}`,
		`{"EXTERNAL_ID":"bob","PAYLOAD":{"first_name":"Bob","email":"bob@example.com"},"UPDATED_AT":"2026-01-01T00:00:00Z"}`,
		``,
		`{"external_id":"cid","first_name":"Cid","_merge_objects":"true","o":{"a":1}}`,
		`{"external_id":"dan","payload":"{\"email_subscribe\":\"maybe\"}"}`,
		`{"external_id":"eve","email":"eve@example.com","payload":{"x":1}}`,
		`{"external_id":"fay","kind":"events","payload":{"name":"seen"}}`,
		`{"external_id":"fay","kind":"purchases","payload":{"product_id":"p","currency":"EUR","price":2.5,"time":"2026-01-31T09:30:00Z"}}`,
	}, "\r\n"))
	text, err := runHere(t, s.importArgs(dir)...)
	require.EqualError(t, err, "2 of 7 rows were refused, and are not imported")
	require.Equal(t, exitRefused, err.(exitError).code)
	r := reportOf(t, text)
	require.Equal(t, importer.Counts{Rows: 7, Taken: 5, Refused: 2}, r.Counts)
	require.Equal(t, 1, r.Files)
	users := s.users(t, "ann", "bob", "cid", "dan", "eve", "fay")
	require.Equal(t, "Ann", users["ann"]["first_name"])
	require.Equal(t, map[string]any{"age": 74.0, "tag": `a "b" é`}, users["ann"]["custom_attributes"])
	require.Equal(t, "bob@example.com", users["bob"]["email"])
	require.NotContains(t, users, "dan")
	require.Len(t, users["fay"]["custom_events"], 1)
	require.Len(t, users["fay"]["purchases"], 1)

	lines, err := os.ReadFile(file + ".refused.ndjson")
	require.NoError(t, err)
	require.Contains(t, string(lines), `{"line":5,"row":4,"reason":"'email_subscribe' must be`)
	require.Contains(t, string(lines), `"line":6,"row":5,"reason":"a row must have one identifier`)

	r = reportOf(t, tool(t, s.importArgs(dir)...))
	require.Equal(t, importer.Counts{}, r.Counts)
	require.Equal(t, 1, r.Before)
	require.Equal(t, 1, s.events(t, "fay"))

	mended := strings.ReplaceAll(strings.ReplaceAll(string(lines), "maybe", "opted_in"), `"line":6`, `"line":6,"payload":{"external_id":"eve"}`)
	r = reportOf(t, tool(t, s.importArgs(write(t, filepath.Join(dir, "mended.ndjson"), mended))...))
	require.Equal(t, importer.Counts{Rows: 2, Taken: 2}, r.Counts)
	require.Equal(t, "opted_in", s.users(t, "dan")["dan"]["email_subscribe"])
	p.stop()
}

// The import, and now and then the server, is killed again and again. In the end each row has taken effect once, and each
// refused one stands in the refused file once.
func TestImportOverKills(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	s := newSite(t)
	p := s.start(t)
	kills, rows, users := testsize.Of(100, 3, 2), testsize.Of(600_000, 15_000, 8_000), 97
	dir := t.TempDir()
	want := map[string]int{}
	refused := map[int64]bool{}
	for f := range 2 {
		var text strings.Builder
		for row := range rows / 2 {
			user := fmt.Sprint("u", r.IntN(users))
			if row%331 == 7 {
				fmt.Fprintf(&text, `{"external_id":"%s","payload":"{\"name\":\"\"}"}`+"\n", user)
				refused[int64(f*rows+row+1)] = true
				continue
			}
			want[user]++
			fmt.Fprintf(&text, `{"external_id":"%s","payload":"{\"name\":\"e\",\"properties\":{\"row\":%d}}"}`+"\n", user, row)
		}
		write(t, filepath.Join(dir, fmt.Sprint(f, ".ndjson")), text.String())
	}
	args := s.importArgs("--kind", "events", "--objects", fmt.Sprint(1+r.IntN(20)), "--connections", fmt.Sprint(1+r.IntN(8)), "--rate", fmt.Sprint(8000), dir)
	if r.IntN(2) == 0 {
		args = append(args, "--bulk")
	}
	for range kills {
		i := startProcess(t, binary, args...)
		time.Sleep(time.Duration(100+r.IntN(900)) * time.Millisecond)
		if r.IntN(3) == 0 {
			p.kill()
			p = s.start(t)
		}
		i.kill()
	}
	var out bytes.Buffer
	last := exec.Command(binary, args...)
	last.Stdout, last.Stderr = &out, os.Stderr
	_ = last.Run() // rows are refused, perhaps by a run before it
	require.Contains(t, []int{0, exitRefused}, last.ProcessState.ExitCode())
	for user, n := range want {
		require.Equal(t, n, s.events(t, user), user)
	}
	found := map[int64]bool{}
	for f := range 2 {
		lines, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(f, ".ndjson.refused.ndjson")))
		require.NoError(t, err)
		for line := range strings.Lines(string(lines)) {
			var v struct{ Row int64 }
			require.NoError(t, json.Unmarshal([]byte(line), &v))
			require.False(t, found[int64(f*rows)+v.Row], "row %d twice", v.Row)
			found[int64(f*rows)+v.Row] = true
		}
	}
	require.Equal(t, refused, found)
	require.Empty(t, reportOf(t, tool(t, args...)).Counts, "there is nothing left to take")
	p.stop()
}

// The users' CSV, rows in CSV and Parquet, deletions: through the command into a real server. A bad file doesn't keep the
// others.
func TestImportFormats(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t)
	dir := t.TempDir()
	users, err := os.ReadFile("../../ingest/files/testdata/users.csv")
	require.NoError(t, err)
	write(t, filepath.Join(dir, "1.csv"), string(users))
	var columns bytes.Buffer
	type row struct {
		ExternalID string `parquet:"EXTERNAL_ID"`
		Payload    string `parquet:"PAYLOAD"`
	}
	w := parquet.NewGenericWriter[row](&columns)
	_, err = w.Write([]row{{"u1", `{"last_name":"Parquet"}`}, {"u9", `{"k":[1,{"a":null}]}`}})
	require.NoError(t, err)
	require.NoError(t, w.Close())
	write(t, filepath.Join(dir, "2.parquet"), columns.String())
	write(t, filepath.Join(dir, "3.csv"), "external_id,payload\nu1,{}\nu2,\"{\"\"k\"\":\"\"\xff\"\"}\"\n")
	said := refused(t, nil, s.importArgs(dir)...)
	require.Contains(t, said, "3.csv: line 3, column 14: invalid UTF-8")
	require.Contains(t, said, `"files":2`)
	require.Contains(t, said, `"rows":8,"taken":6,"warned":0,"refused":2`)
	found := s.users(t, "u1", "u2", "u3", "u9", "007")
	require.Len(t, found, 5)
	require.Equal(t, "Parquet", found["u1"]["last_name"])
	require.Equal(t, 1200.0, found["u1"]["custom_attributes"].(map[string]any)["loyalty points"])
	require.Equal(t, "17", found["u2"]["custom_attributes"].(map[string]any)["code"])

	write(t, filepath.Join(dir, "gone", "a.csv"), "EXTERNAL_ID\nu1\nnobody\n007\n")
	r := reportOf(t, tool(t, s.importArgs("--kind", "deletions", filepath.Join(dir, "gone"))...))
	require.Equal(t, importer.Counts{Rows: 3, Taken: 3, Deleted: 2, Nobody: 1}, r.Counts)
	require.Len(t, s.users(t, "u1", "u2", "u3", "u9", "007"), 3)
	p.stop()
}

// What is put into a watched directory is taken; an interrupt ends the command in peace.
func TestImportWatches(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t)
	dir := t.TempDir()
	i := startProcess(t, binary, s.importArgs("--watch", "--settle", "0s", "--poll", "10ms", "--kind", "events", dir)...)
	for n, name := range []string{"b.ndjson", "a.ndjson"} {
		write(t, filepath.Join(dir, ".new"), `{"external_id":"u","name":"e"}`+strings.Repeat("\n", n))
		require.NoError(t, os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, name)))
		require.Eventually(t, func() bool { return filesTaken(t, dir) == n+1 }, testPatience, 20*time.Millisecond)
		require.Equal(t, n+1, s.events(t, "u"))
	}
	i.stop()
	require.Zero(t, reportOf(t, i.out.String()).Refused)
	p.stop()
}

// filesTaken is how many files of a directory an import has noted as done.
func filesTaken(t *testing.T, dir string) (n int) {
	t.Helper()
	states, err := filepath.Glob(filepath.Join(dir, ".millrace-import", "*.state"))
	require.NoError(t, err)
	for _, path := range states {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		n += bytes.Count(text, []byte(`"done": true`))
	}
	return n
}
