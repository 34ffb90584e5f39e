package importer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/valyala/fasthttp"
	"github.com/valyala/fasthttp/fasthttputil"

	"millrace/ingest/files"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/wal/durable"
)

// double is a server that knows what it was sent: rows by their member `row`, in order for each user. It keeps answers
// by Idempotency-Key, and fails as often as told, before it has done something or after.
type double struct {
	*httptest.Server
	fails float64
	onAny func() // called for each request

	mu      sync.Mutex
	r       *rand.Rand
	kept    map[string]string
	bodies  map[string]string
	rows    map[string][]int // of each user
	ofKind  map[string][]int // of each user and kind
	deleted []string
	most    int // objects in a request
	ofUser  int // most objects of one user in a request
	paths   map[string]bool
}

func newDouble(t *testing.T, r *rand.Rand, fails float64) *double {
	d := &double{fails: fails, r: r, kept: map[string]string{}, bodies: map[string]string{}, rows: map[string][]int{}, ofKind: map[string][]int{}, paths: map[string]bool{}}
	d.Server = httptest.NewServer(d)
	t.Cleanup(d.Close)
	return d
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if d.onAny != nil {
		d.onAny()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails > d.r.Float64() {
		d.fail(w)
		return
	}
	body := map[string][]map[string]any{}
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if r.URL.Path == "/users/delete" {
		d.delete(w, raw)
		return
	}
	d.paths[r.URL.Path] = true
	if err := json.Unmarshal(raw, &body); err != nil {
		answer400(w, `["Malformed JSON at byte 1"]`)
		return
	}
	key := r.Header.Get("Idempotency-Key")
	if was, ok := d.bodies[key]; ok && was != string(raw) {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	said, ok := d.kept[key]
	if ok {
		w.Header().Set("Idempotent-Replay", "true")
	} else if said = d.apply(body); strings.HasPrefix(said, "!") {
		answer400(w, said[1:])
		return
	}
	d.kept[key], d.bodies[key] = said, string(raw)
	if d.fails > d.r.Float64() {
		d.fail(w)
		return
	}
	respond(w, http.StatusCreated, said)
}

func respond(w http.ResponseWriter, status int, body string) {
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

func answer400(w http.ResponseWriter, list string) {
	w.WriteHeader(http.StatusBadRequest)
	_, _ = fmt.Fprintf(w, `{"message":"no","errors":%s}`, list)
}

func (d *double) fail(w http.ResponseWriter) {
	switch d.r.IntN(3) {
	case 0:
		panic(http.ErrAbortHandler)
	case 1:
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// apply takes objects with a row; "!" and the errors when there are none.
func (d *double) apply(body map[string][]map[string]any) string {
	var refused []string
	n, taken, ofUser := 0, 0, map[string]int{}
	for _, array := range []string{"attributes", "events", "purchases"} {
		for index, o := range body[array] {
			n++
			row, ok := o["row"].(float64)
			if !ok {
				refused = append(refused, fmt.Sprintf(`{"type":"no row","input_array":%q,"index":%d}`, array, index))
				continue
			}
			user := fmt.Sprint(o["external_id"])
			d.rows[user] = append(d.rows[user], int(row))
			d.ofKind[user+array] = append(d.ofKind[user+array], int(row))
			taken++
			ofUser[user]++
			d.ofUser = max(d.ofUser, ofUser[user])
		}
	}
	d.most = max(d.most, n)
	list := "[" + strings.Join(refused, ",") + "]"
	switch {
	case taken == 0:
		return "!" + list
	case len(refused) == 0:
		return `{"message":"success"}`
	}
	return `{"message":"success","errors":` + list + `}`
}

func (d *double) delete(w http.ResponseWriter, raw []byte) {
	var body struct {
		IDs []string `json:"external_ids"`
	}
	_ = json.Unmarshal(raw, &body)
	d.most = max(d.most, len(body.IDs))
	d.deleted = append(d.deleted, body.IDs...)
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, `{"deleted":%d,"invalid_user_ids":["nobody"],"message":"success"}`, len(body.IDs)-1)
}

func (d *double) options(t *testing.T, dir string) Options {
	t.Helper()
	return Options{URL: []string{d.URL}, Key: "key", Paths: []string{dir}, Connections: 4, Objects: 10, Timeout: time.Minute, Patience: time.Hour}
}

func write(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// bring puts rows where an import finds them, in any way, and says what its refused file is called without the ending.
func bring(t *testing.T, r *rand.Rand, o *Options, text string) (path string) {
	dir, name := o.Paths[0], "a.ndjson"+append([]string{""}, ".gz", ".zst")[r.IntN(3)]
	text = string(packed(t, name, text))
	if r.IntN(2) == 0 {
		return write(t, filepath.Join(dir, name), text)
	}
	s := newService(t)
	s.put("in/"+name, text)
	o.Paths, o.State, o.S3 = []string{"s3://" + testBucket + "/in/"}, dir, S3{Endpoint: s.URL}
	return filepath.Join(dir, name)
}

func refusedRows(t *testing.T, path string) (all []line) {
	t.Helper()
	text, err := os.ReadFile(path + refusedEnding)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	require.NoError(t, err)
	for one := range strings.Lines(string(text)) {
		var l line
		require.NoError(t, json.Unmarshal([]byte(one), &l))
		all = append(all, l)
	}
	return all
}

// An import of a file, a packed file or an object is interrupted at any request and begun again, with a server that fails
// before and after it has done something. Each row is taken once, and one user's in order: those of a kind, and all where
// it matters.
func TestEachRowOnce(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	for range testsize.Of(100, 5, 3) {
		dir := t.TempDir()
		d := newDouble(t, rand.New(rand.NewPCG(r.Uint64(), 0)), 0.02)
		want, wantRefused := map[string][]int{}, map[int64]string{}
		conditional := ""
		if r.IntN(2) == 0 {
			conditional = `,\"_update_existing_only\":true`
		}
		var text strings.Builder
		rows := 200 + r.IntN(2000)
		kinds := []files.Kind{files.Attributes, files.Events, files.Purchases}[:1+r.IntN(3)]
		for row := 1; row <= rows; row++ {
			user := fmt.Sprint("u", r.IntN(1+r.IntN(40)))
			kind := kinds[r.IntN(len(kinds))]
			switch r.IntN(40) {
			case 0:
				fmt.Fprintf(&text, `{"external_id":%q,"kind":%q,"payload":{}}`+"\n", user, kind)
				wantRefused[int64(row)] = "no row"
			case 1:
				fmt.Fprintf(&text, `{"external_id":%q,"kind":%q,"payload":"{\"row\":tru}"}`+"\n", user, kind)
				wantRefused[int64(row)] = "malformed JSON: invalid character '}' in literal true (expecting 'e')"
			case 2:
				fmt.Fprintf(&text, `{"external_id":%q,"kind":"clicks","payload":{}}`+"\n", user)
				wantRefused[int64(row)] = "'kind' is not valid: want one of [attributes events purchases deletions]"
			default:
				fmt.Fprintf(&text, `{"external_id":%q,"kind":%q,"payload":"{\"row\":%d%s}"}`+"\n", user, kind, row, conditional)
				if conditional == "" {
					user += string(kind)
				}
				want[user] = append(want[user], row)
			}
		}
		o := d.options(t, dir)
		file := bring(t, r, &o, text.String())
		o.Connections, o.NoteBytes, o.Bulk = 1+r.IntN(8), 1<<r.IntN(20), r.IntN(2) == 0
		path, most := "/users/track", 30
		if o.Bulk {
			path, most = "/users/track/bulk", 1000
		}
		var report Report
		sent := int64(0)
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			left := r.IntN(40)
			d.onAny = func() {
				d.mu.Lock()
				defer d.mu.Unlock()
				if left--; left < 0 {
					cancel()
				}
			}
			var err error
			if report, err = Run(ctx, o); err != nil {
				require.ErrorIs(t, err, context.Canceled)
			}
			cancel()
			sent += report.Sent
			o.Connections, o.Bulk = 1+r.IntN(8), r.IntN(2) == 0 // the file's stay what they were
		}
		d.onAny = nil
		if again, err := Run(t.Context(), o); again.Files > 0 {
			require.NoError(t, err)
			report = again
			sent += report.Sent
		}
		if conditional != "" {
			require.Equal(t, want, d.rows)
		} else {
			require.Equal(t, want, d.ofKind)
		}
		got := map[int64]string{}
		for _, l := range refusedRows(t, file) {
			require.NotContains(t, got, l.Row)
			got[l.Row] = l.Reason
		}
		require.Equal(t, wantRefused, got)
		require.LessOrEqual(t, sent, int64(rows))
		if report.Files > 0 {
			require.EqualValues(t, rows, sent, "each row is in the report of one run")
			report.Replayed = 0
			require.Equal(t, Counts{Rows: int64(rows), Taken: int64(rows - len(got)), Refused: int64(len(got))}, report.Counts)
		}
		require.LessOrEqual(t, d.most, most)
		require.LessOrEqual(t, d.ofUser, 100)
		require.Equal(t, map[string]bool{path: true}, d.paths)
	}
}

// Deletions go out in their own requests, of 50 at most and of one kind of identifier.
func TestDeletions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDouble(t, testseed.Rand(t), 0)
	text := "external_id\n"
	for k := range 120 {
		text += fmt.Sprintf("u%d\n", k)
	}
	write(t, filepath.Join(dir, "a.csv"), text)
	o := d.options(t, dir)
	o.Kind, o.Connections, o.Objects = files.Deletions, 1, 75
	report, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, Counts{Rows: 120, Taken: 120, Deleted: 117, Nobody: 3}, report.Counts)
	require.Len(t, d.deleted, 120)
	require.Equal(t, 50, d.most)
}

// Rows with cells of another event are counted among those with a value left out, each once, whatever else the server
// leaves out of them; refused ones aren't.
func TestCellsOfOtherEvents(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusCreated, `{"message":"success","errors":[{"type":"no","input_array":"events","index":4}],`+
			`"warnings":[{"type":"no","input_array":"events","index":1},{"type":"no","input_array":"events","index":2}]}`)
	}))
	t.Cleanup(server.Close)
	path := write(t, filepath.Join(t.TempDir(), "a.csv"), "external_id,name,time,seen.properties.n,left.properties.n\n"+
		"u,seen,2026-01-31,1,\nu,seen,2026-01-31,1,2\nu,left,2026-01-31,,2\nu,x,2026-01-31,,2\nu,x,2026-01-31,1,2\n")
	report, err := Run(t.Context(), Options{URL: []string{server.URL}, Key: "key", Paths: []string{path}, Kind: files.Events})
	require.NoError(t, err)
	require.Equal(t, Counts{Rows: 5, Taken: 4, Refused: 1, Warned: 3}, report.Counts)
}

// One row that the server can't take as a part of a request doesn't keep the others.
func TestRequestThatIsTooLarge(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		if strings.Contains(string(raw), "large") {
			respond(w, http.StatusRequestEntityTooLarge, `{"message":"too large"}`)
			return
		}
		respond(w, http.StatusCreated, `{"message":"success","warnings":[{"type":"'phone' is not valid","input_array":"attributes","index":0}]}`)
	}))
	t.Cleanup(server.Close)
	path := write(t, filepath.Join(dir, "a.ndjson"), strings.Repeat(`{"external_id":"u","k":1}`+"\n", 7)+`{"external_id":"u","k":"large"}`+"\n"+`{"external_id":"u","k":1}`)
	report, err := Run(t.Context(), Options{URL: []string{server.URL}, Key: "key", Paths: []string{path}})
	require.NoError(t, err)
	require.Equal(t, Counts{Rows: 9, Taken: 8, Refused: 1, Warned: 4}, report.Counts)
	refused := refusedRows(t, path)
	require.Len(t, refused, 1)
	require.Equal(t, "too large", refused[0].Reason)
	require.EqualValues(t, 8, refused[0].Row)
	require.JSONEq(t, `{"external_id":"u","k":"large"}`, string(refused[0].Payload))
}

// What is true of every row ends an import, and what was begun stays as it was.
func TestEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	status := http.StatusUnauthorized
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		respond(w, status, `{"message":"Invalid API key: key…"}`)
	}))
	t.Cleanup(server.Close)
	write(t, filepath.Join(dir, "a.ndjson"), `{"external_id":"u","name":"e"}`)
	write(t, filepath.Join(dir, "b.txt"), `nothing`)
	o := Options{URL: []string{server.URL}, Key: "key", Paths: []string{dir}, Kind: files.Events}
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "POST /users/track: 401 Unauthorized: Invalid API key: key…")
	status = http.StatusUnprocessableEntity
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, "an import of this file began within the last day")
	for want, change := range map[string]func(*Options){
		"its import began as events: resume it with the same --kind": func(o *Options) { o.Kind = files.Attributes },
		"its import began with another API key":                      func(o *Options) { o.Key = "other" },
		"its import began with another --update-existing-only":       func(o *Options) { o.UpdateExistingOnly = true },
		"want http://HOST:PORT":                                      func(o *Options) { o.URL = []string{"localhost"} },
	} {
		other := o
		change(&other)
		_, err = Run(t.Context(), other)
		require.ErrorContains(t, err, want)
	}
	status = http.StatusCreated
	report, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, Counts{Rows: 1, Taken: 1}, report.Counts)
	require.Equal(t, []string{"b.txt"}, report.Unknown)

	lock, err := durable.Lock(filepath.Join(dir, ".millrace-import", "lock"))
	require.NoError(t, err)
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, "another import is using")
	require.NoError(t, lock.Close())
}

// A file that another import has begun, such as one that watches the same directory, keeps nobody from the next one.
func TestFileBegunElsewhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusCreated
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), "theirs") {
			status = http.StatusUnprocessableEntity
		}
		respond(w, status, `{"message":"said"}`)
	}))
	t.Cleanup(server.Close)
	write(t, filepath.Join(dir, "a.ndjson"), `{"external_id":"theirs","name":"e"}`)
	write(t, filepath.Join(dir, "b.ndjson"), `{"external_id":"ours","name":"e"}`)
	report, err := Run(t.Context(), Options{URL: []string{server.URL}, Key: "key", Paths: []string{dir}, Kind: files.Events})
	require.ErrorContains(t, err, "a.ndjson: an import of this file began within the last day")
	require.ErrorContains(t, err, "it may be imported in part")
	require.Equal(t, []int{1, 1}, []int{report.Files, report.Bad})
	require.EqualValues(t, 1, report.Taken)
}

// A key that the server turns away has done nothing: the file is begun with the right one.
func TestWrongKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	status := http.StatusCreated
	var left atomic.Int64 // requests until a key is revoked
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Authorization")
		if key != "Bearer right" && (key != "Bearer revoked" || left.Add(-1) < 0) {
			respond(w, http.StatusUnauthorized, `{"message":"Invalid API key: wron…"}`)
			return
		}
		respond(w, status, `{"message":"success"}`)
	}))
	t.Cleanup(server.Close)
	path := write(t, filepath.Join(dir, "a.ndjson"), `{"external_id":"u","k":1}`)
	o := Options{URL: []string{server.URL}, Paths: []string{dir}}
	run := func(key string) (Report, error) {
		o.Key = key
		return Run(t.Context(), o)
	}
	_, err := run("wrong")
	require.ErrorContains(t, err, "Invalid API key: wron…")
	report, err := run("right")
	require.NoError(t, err)
	require.Equal(t, Counts{Rows: 1, Taken: 1}, report.Counts)

	// Nor has it when rows were refused that are not sent.
	require.NoError(t, os.Remove(path))
	o.Connections, o.Objects, o.Malformed = 1, 1, "row"
	path = write(t, filepath.Join(dir, "c.ndjson"), strings.Repeat("no row\n", 4)+`{"external_id":"u","k":1}`)
	before, err := run("wrong")
	require.ErrorContains(t, err, "Invalid API key: wron…")
	report, err = run("right")
	require.NoError(t, err)
	require.Zero(t, before.Counts)
	require.Equal(t, Counts{Rows: 5, Taken: 1, Refused: 4}, report.Counts)
	require.Len(t, refusedRows(t, path), 4)

	// Nor has a key that was turned away only after other files of the run.
	require.NoError(t, os.Remove(path))
	left.Store(1)
	first := write(t, filepath.Join(dir, "d1.ndjson"), `{"external_id":"u","k":1}`)
	second := write(t, filepath.Join(dir, "d2.ndjson"), `{"external_id":"u","k":1}`)
	_, err = run("revoked")
	require.ErrorContains(t, err, "d2.ndjson")
	report, err = run("right")
	require.NoError(t, err)
	require.Equal(t, [2]int{1, 1}, [2]int{report.Before, report.Files})

	// What another key may have done something with stays that key's.
	require.NoError(t, errors.Join(os.Remove(first), os.Remove(second)))
	write(t, filepath.Join(dir, "b.ndjson"), `{"external_id":"u","k":2}`)
	status = http.StatusUnprocessableEntity
	_, err = run("right")
	require.Error(t, err)
	_, err = run("wrong")
	require.ErrorContains(t, err, "its import began with another API key")
	// A file without rows is taken whatever the key.
	write(t, filepath.Join(dir, "b.ndjson"), ``)
	o.Changed = true
	_, err = run("wrong")
	require.NoError(t, err)
	report, err = run("wrong")
	require.NoError(t, err)
	require.Equal(t, 1, report.Before)
}

// A terminal has messages, too, each in place of the bar: what is skipped, and where refused rows are.
func TestMessagesOnATerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "b.txt"), "")
	path := write(t, filepath.Join(dir, "a.ndjson"), "no row\n"+`{"external_id":"u","row":1}`)
	terminal, err := os.Create(filepath.Join(t.TempDir(), "terminal"))
	require.NoError(t, err)
	defer func() { require.NoError(t, terminal.Close()) }()
	o := newDouble(t, testseed.Rand(t), 0).options(t, dir)
	o.Terminal, o.Malformed = terminal, "row"
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	said, err := os.ReadFile(terminal.Name())
	require.NoError(t, err)
	require.Regexp(t, `\r\x1b\[Ktime=\S+ level=WARN msg="skipped: its name doesn't tell its format" file=\S+/b.txt\n`, string(said))
	require.Contains(t, string(said), `level=WARN msg="rows were refused" file=`+path+` rows=1 refused_file=`+path+refusedEnding+"\n")
}

// A server that is out of reach is said to be, and why, once; and that it is back.
func TestServerOutOfReach(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		said := func() string {
			defer log.Reset()
			return log.String()
		}
		c := &client{patience: time.Minute, logger: slog.New(slog.NewTextHandler(&log, nil))}
		since := time.Now()
		c.sayWhetherAway(true, time.Time{}, syscall.ECONNREFUSED)
		c.sayWhetherAway(true, since, syscall.ECONNREFUSED)
		c.sayWhetherAway(false, since, nil)
		require.Empty(t, said(), "a blip")
		time.Sleep(awayFor)
		c.sayWhetherAway(true, since, syscall.ECONNREFUSED)
		require.Contains(t, said(), "can't be reached or is busy; trying again\" for_up_to=1m0s error=\"connection refused")
		c.sayWhetherAway(true, since, syscall.ECONNREFUSED)
		require.Empty(t, said(), "it was said")
		c.sayWhetherAway(false, since, nil)
		require.Contains(t, said(), "the server answers again")
		c.sayWhetherAway(true, since, syscall.ECONNREFUSED)
		require.Empty(t, said(), "another request was answered a moment ago")
		time.Sleep(awayFor)
		c.sayWhetherAway(true, since, syscall.ECONNREFUSED)
		require.Contains(t, said(), "can't be reached")
	})
}

// A server that is away is looked up again: its name may lead to another address by now, while what is at the old one goes
// on answering with errors.
func TestServerThatMoves(t *testing.T) {
	t.Parallel()
	listen := func(status int) *fasthttputil.InmemoryListener {
		l := fasthttputil.NewInmemoryListener()
		go func() {
			_ = fasthttp.Serve(l, func(ctx *fasthttp.RequestCtx) {
				ctx.SetStatusCode(status)
				ctx.SetBodyString(`{"message":"success"}`)
			})
		}()
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	old, next := listen(http.StatusServiceUnavailable), listen(http.StatusCreated)
	dials := 0
	o := Options{URL: []string{"http://server"}, Key: "key", Connections: 1, Patience: time.Minute}
	o.EnsureDefaults()
	o.dial = func() (net.Conn, error) {
		if dials++; dials == 1 {
			return old.Dial()
		}
		return next.Dial()
	}
	require.NoError(t, newClient(&o).do(t.Context(), &call{path: "/users/track"}, 1))
}

// A file is known by name and content: the same is passed over, another one is taken, and a bad one doesn't keep those
// behind it.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDouble(t, testseed.Rand(t), 0)
	row := func(n int) string { return fmt.Sprintf(`{"external_id":"u","row":%d}`+"\n", n) }
	write(t, filepath.Join(dir, "a.ndjson"), row(1)+"{\n")
	path := write(t, filepath.Join(dir, "b.ndjson"), row(2))
	write(t, filepath.Join(dir, ".c.ndjson"), row(3))
	run := func(want Counts, files, before, bad int) {
		t.Helper()
		report, err := Run(t.Context(), d.options(t, dir))
		if bad > 0 {
			require.ErrorContains(t, err, "a.ndjson: line 2, column 1: unexpected end of JSON input")
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, []any{want, files, before, bad}, []any{report.Counts, report.Files, report.Before, report.Bad})
	}
	run(Counts{Rows: 1, Taken: 1}, 1, 0, 1)
	run(Counts{}, 0, 1, 1)
	require.NoError(t, os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)))
	run(Counts{}, 0, 1, 1)
	write(t, filepath.Join(dir, "a.ndjson"), row(4))
	write(t, path, row(5))
	run(Counts{Rows: 2, Taken: 2}, 2, 0, 0)
	require.Equal(t, []int{2, 4, 5}, d.rows["u"])

	state, err := filepath.Glob(filepath.Join(dir, ".millrace-import", "b.ndjson.*"+stateEnding))
	require.NoError(t, err)
	require.Len(t, state, 2)
	text, err := os.ReadFile(state[0])
	require.NoError(t, err)
	write(t, state[0], strings.Replace(string(text), `"done": true`, `"done": fals`, 1))
	_, err = Run(t.Context(), d.options(t, dir))
	require.ErrorContains(t, err, "it fails its checksum")
}

// Files are known by their names also where these are no UTF-8. One with a name so long that it can have no file of
// refused rows is bad, and doesn't keep those behind it.
func TestOddNames(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "in\xff")
	require.NoError(t, os.Mkdir(dir, 0o700))
	d := newDouble(t, testseed.Rand(t), 0)
	for n, name := range []string{"a\xfe.ndjson", "a\xff.ndjson", "b.ndjson", "c\n.ndjson", strings.Repeat("d", 240) + ".ndjson", "e.ndjson"} {
		write(t, filepath.Join(dir, name), fmt.Sprintf(`{"external_id":"u","row":%d}`+"\n", n))
	}
	report, err := Run(t.Context(), d.options(t, dir))
	require.ErrorContains(t, err, "its name is too long for the file of its refused rows")
	require.Equal(t, []int{0, 1, 2, 3, 5}, d.rows["u"])
	require.Equal(t, []int{5, 1}, []int{report.Files, report.Bad})
	report, err = Run(t.Context(), d.options(t, dir))
	require.ErrorContains(t, err, "its name is too long")
	require.Equal(t, []int{0, 5, 1}, []int{report.Files, report.Before, report.Bad})
}

// A file that is gone when its turn comes, for whoever brought it took it back, doesn't keep those behind it.
func TestFileThatIsGone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDouble(t, testseed.Rand(t), 0)
	for n, name := range []string{"a.ndjson", "b.ndjson", "c.ndjson"} {
		write(t, filepath.Join(dir, name), fmt.Sprintf(`{"external_id":"u","row":%d}`+"\n", n))
	}
	d.onAny = sync.OnceFunc(func() { _ = os.Remove(filepath.Join(dir, "b.ndjson")) })
	report, err := Run(t.Context(), d.options(t, dir))
	require.ErrorContains(t, err, "b.ndjson: no such file or directory")
	require.Equal(t, []int{0, 2}, d.rows["u"])
	require.Equal(t, []int{2, 1}, []int{report.Files, report.Bad})
}

// A file that is no file any more when its turn comes doesn't keep those behind it either: above all, nobody waits until
// somebody writes into a pipe.
func TestFileThatIsAnother(t *testing.T) {
	t.Parallel()
	for what, put := range map[string]func(path string) error{
		"directory": func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
	} {
		for _, name := range []string{"b.ndjson", "b.ndjson.gz"} {
			dir := t.TempDir()
			d := newDouble(t, testseed.Rand(t), 0)
			for n, name := range []string{"a.ndjson", name, "c.ndjson"} {
				write(t, filepath.Join(dir, name), row(n))
			}
			path := filepath.Join(dir, name)
			d.onAny = sync.OnceFunc(func() { assert.NoError(t, errors.Join(os.Remove(path), put(path))) })
			report, err := Run(t.Context(), d.options(t, dir))
			require.ErrorContains(t, err, name+": it is not a regular file", what)
			require.Equal(t, []int{0, 2}, d.rows["u"])
			require.Equal(t, []int{2, 1}, []int{report.Files, report.Bad})
		}
	}
}

// fileTime is the time of a file, which some file systems keep in 64 bits.
type fileTime struct {
	os.FileInfo
	time.Time
}

func (f fileTime) ModTime() time.Time { return f.Time }

func TestTimesThatNoStateHolds(t *testing.T) {
	s := &states{dir: t.TempDir(), byName: map[string][]*state{}}
	for unix, want := range map[int64]bool{0: true, 253402128000: true, 300000000000: false, -100000000000: false} {
		at := modified(fileTime{Time: time.Unix(unix, 5)})
		require.Equal(t, want, at.Equal(time.Unix(unix, 5)), unix)
		require.False(t, at.Equal(modified(fileTime{Time: time.Unix(unix+1, 5)})), "a change is seen")
		require.NoError(t, s.save(&state{Name: "a", Modified: at}))
	}
}

// Who writes into a file while it is taken is told so, and what was in it before is gone on with when it is there again:
// one that was copied once more over itself has all its rows taken, each once.
func TestFileThatChanges(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for n := range 1000 {
		fmt.Fprintf(&text, `{"external_id":"u","row":%d,"fill":%q}`+"\n", n, strings.Repeat("x", 900))
	}
	for name, change := range map[string]func(path string) error{
		"cut": func(path string) error { return os.Truncate(path, 300_000) },
		"overwritten": func(path string) error {
			return os.WriteFile(path, []byte(strings.ReplaceAll(text.String(), "xxx", "yyy")), 0o600)
		},
		"overwritten at the same time": func(path string) error {
			was, err := os.Stat(path)
			other := []byte(strings.ReplaceAll(text.String(), "xxx", "yyy"))
			return errors.Join(err, os.WriteFile(path, other, 0o600), os.Chtimes(path, was.ModTime(), was.ModTime()))
		},
	} {
		dir := t.TempDir()
		d := newDouble(t, testseed.Rand(t), 0)
		path := write(t, filepath.Join(dir, "a.ndjson"), text.String())
		write(t, filepath.Join(dir, "b.ndjson"), `{"external_id":"v","row":1}`)
		d.onAny = sync.OnceFunc(func() { _ = change(path) })
		o := d.options(t, dir)
		o.Connections = 1
		report, err := Run(t.Context(), o)
		require.ErrorContains(t, err, "a.ndjson: the file changed during its import", name)
		require.Equal(t, []int{1, 1}, []int{report.Files, report.Bad}, name)
		require.Equal(t, []int{1}, d.rows["v"], "the next one is taken")
		require.Empty(t, refusedRows(t, path), name)
		write(t, path, text.String())
		report, err = Run(t.Context(), o)
		require.NoError(t, err, name)
		require.EqualValues(t, 1000, report.Taken, name)
		require.Len(t, d.rows["u"], 1000, name)
		require.IsIncreasing(t, d.rows["u"], name)
	}
}

// A file that somebody goes on writing has the rows taken that were there, and that is no end of it. One that is replaced,
// or touched, is taken as it was.
func TestFileThatGrows(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(path string) error{
		"grown": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
			_, writing := io.WriteString(f, row(3))
			return errors.Join(err, writing, f.Close())
		},
		"replaced": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte(row(3)), 0o600), os.Rename(path+".new", path))
		},
		"touched": func(path string) error { return os.Chtimes(path, time.Time{}, time.Now().Add(time.Hour)) },
	} {
		dir := t.TempDir()
		d := newDouble(t, testseed.Rand(t), 0)
		path := write(t, filepath.Join(dir, "a.ndjson"), row(1)+row(2))
		d.onAny = sync.OnceFunc(func() { assert.NoError(t, change(path)) })
		o := d.options(t, dir)
		report, err := Run(t.Context(), o)
		require.Equal(t, []int{1, 2}, d.rows["u"], name)
		if name != "grown" {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorContains(t, err, "a.ndjson: the file grew during its import")
		require.Equal(t, []int{0, 1}, []int{report.Files, report.Bad})
		_, err = Run(t.Context(), o)
		require.ErrorContains(t, err, "a.ndjson: it has changed since ")
		require.NoError(t, os.Truncate(path, int64(len(row(1)+row(2)))))
		report, err = Run(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, 1, report.Files)
		require.Equal(t, []int{1, 2}, d.rows["u"])
	}
}

// A file that was left off keeps what is now at its path from being taken, and no file of the same name elsewhere.
func TestLeftOffAtAnotherPath(t *testing.T) {
	t.Parallel()
	one, other := t.TempDir(), t.TempDir()
	d := newDouble(t, testseed.Rand(t), 0)
	path := write(t, filepath.Join(one, "a.ndjson"), row(1))
	d.onAny = sync.OnceFunc(func() { write(t, path, row(1)+row(2)) })
	o := d.options(t, one)
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "a.ndjson: the file grew during its import")
	write(t, filepath.Join(other, "a.ndjson"), row(3))
	o.State, o.Paths = filepath.Join(one, ".millrace-import"), []string{one, other}
	report, err := Run(t.Context(), o)
	require.ErrorContains(t, err, filepath.Join(one, "a.ndjson")+": it has changed since ")
	require.Equal(t, []int{1, 1}, []int{report.Files, report.Bad})
	require.Equal(t, []int{1, 3}, d.rows["u"])
}

// A packed file that is written to while it is copied may be half there, at the end of one of its parts.
func TestPackedFileThatGrows(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "a.ndjson.gz"), string(packed(t, "a.gz", row(1))))
	i := &importer{o: Options{State: t.TempDir(), MaxCopyBytes: 1 << 20}, bar: newBar(nil)}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	as, err := file.Stat()
	require.NoError(t, err)
	copied, err := i.unpack(t.Context(), &found{path: path}, file, as)
	require.NoError(t, err)
	require.NoError(t, copied.Close())
	_, err = file.Write(packed(t, "a.gz", row(2)))
	require.NoError(t, err)
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	_, err = i.unpack(t.Context(), &found{path: path}, file, as)
	var bad *FileError
	require.ErrorAs(t, err, &bad)
	require.Equal(t, &FileError{path, errWritten}, bad)
}

// A link is the file that it leads to, by its own name. One that leads nowhere is a bad file, and what is no file is
// passed over, or an error when it was named.
func TestLinks(t *testing.T) {
	t.Parallel()
	d := newDouble(t, testseed.Rand(t), 0)
	dir, elsewhere := t.TempDir(), t.TempDir()
	write(t, filepath.Join(elsewhere, "data"), row(1))
	write(t, filepath.Join(dir, "b.ndjson"), row(2))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "below.ndjson"), 0o700))
	for name, to := range map[string]string{"a.ndjson": filepath.Join(elsewhere, "data"), "c.ndjson": "gone", "d.ndjson": elsewhere} {
		require.NoError(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "e.ndjson"), 0o600))
	report, err := Run(t.Context(), d.options(t, dir))
	require.ErrorContains(t, err, "c.ndjson: open ")
	require.Equal(t, []int{1, 2}, d.rows["u"])
	require.Equal(t, []string{"d.ndjson", "e.ndjson"}, report.Unknown)
	require.Equal(t, []int{2, 1}, []int{report.Files, report.Bad})

	links := t.TempDir()
	require.NoError(t, os.Symlink(elsewhere, filepath.Join(links, "folder")))
	require.NoError(t, os.Symlink(filepath.Join(dir, "b.ndjson"), filepath.Join(links, "file.ndjson")))
	require.NoError(t, os.Rename(filepath.Join(elsewhere, "data"), filepath.Join(elsewhere, "data.ndjson")))
	o := d.options(t, filepath.Join(links, "folder"))
	o.Paths, o.State = append(o.Paths, filepath.Join(links, "file.ndjson")), t.TempDir()
	d.rows = map[string][]int{}
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []int{1, 2}, d.rows["u"])
	o.Paths = []string{filepath.Join(dir, "e.ndjson")}
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, "e.ndjson: it is neither a file nor a directory")
}

// The directory for refused files is made, so that an import doesn't end at the first refused row.
func TestRefusedDirIsMade(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDouble(t, testseed.Rand(t), 0)
	write(t, filepath.Join(dir, "a.ndjson"), `{"external_id":"u","payload":"no"}`)
	o := d.options(t, dir)
	o.Refused = filepath.Join(t.TempDir(), "refused", "rows")
	report, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, Counts{Rows: 1, Refused: 1}, report.Counts)
	require.FileExists(t, filepath.Join(o.Refused, "a.ndjson"+refusedEnding))
}

// What another file of the same name has left of refused rows stays when the one before it comes back.
func TestRefusedOfTwo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := newDouble(t, testseed.Rand(t), 0)
	var first strings.Builder
	for n := range 300 {
		fmt.Fprintf(&first, `{"external_id":"u","payload":"no %d"}`+"\n"+`{"external_id":"u","row":%d}`+"\n", n, n)
	}
	path := write(t, filepath.Join(dir, "a.ndjson"), first.String())
	o := d.options(t, dir)
	o.Connections = 1
	ctx, cancel := context.WithCancel(t.Context())
	count := 0
	d.onAny = func() {
		if count++; count == 10 {
			cancel()
		}
	}
	_, err := Run(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	write(t, path, `{"external_id":"v","payload":"no"}`+"\n"+`{"external_id":"v","row":1}`+"\n")
	for range 2 {
		_, err = Run(t.Context(), o)
		require.ErrorContains(t, err, "a.ndjson: it has changed since ")
		require.Empty(t, d.rows["v"])
	}
	o.Changed = true
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []int{1}, d.rows["v"])
	o.Changed = false
	report, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 1, report.Before, "what is there now was taken")
	write(t, path, first.String())
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	users := map[string]map[int64]bool{}
	for _, l := range refusedRows(t, path) {
		user := l.Text[len(`{"external_id":"`):][:1]
		if users[user] == nil {
			users[user] = map[int64]bool{}
		}
		users[user][l.Row] = true
	}
	require.Len(t, users["u"], 300)
	require.Len(t, users["v"], 1)
}

// A file of a watched directory is taken when it was left alone, and once.
func TestSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watcher{settle: 10 * time.Second}
		at := time.Now()
		require.False(t, w.settled(&found{path: "a", size: 1, modified: at}))
		time.Sleep(9 * time.Second)
		require.False(t, w.settled(&found{path: "a", size: 1, modified: at}))
		require.False(t, w.settled(&found{path: "a", size: 2, modified: at}))
		time.Sleep(9 * time.Second)
		require.False(t, w.settled(&found{path: "a", size: 2, modified: at}))
		time.Sleep(time.Second)
		require.True(t, w.settled(&found{path: "a", size: 2, modified: at}))
		w.leave("a")
		require.False(t, w.settled(&found{path: "a", size: 2, modified: at}))
		require.False(t, w.settled(&found{path: "a", size: 2, modified: at.Add(1)}))
		time.Sleep(10 * time.Second)
		require.True(t, w.settled(&found{path: "a", size: 2, modified: at.Add(1)}))
		require.True(t, w.settled(&found{path: "b", object: &object{}}), "objects are there as a whole or not at all")
		w.leave("b")
		w.forget()
		w.settled(&found{path: "a", size: 2, modified: at.Add(1)})
		w.forget()
		require.Equal(t, []string{"a"}, slices.Collect(maps.Keys(w.seen)), "what is gone is forgotten")
	})
}

// A file that couldn't be opened is looked at again when its mode has changed, which no other time of it tells.
func TestFileThatMayBeRead(t *testing.T) {
	path := write(t, filepath.Join(t.TempDir(), "a.ndjson"), row(1))
	i, w := new(importer), new(watcher)
	looks := func() (settled bool) {
		all, err := i.listDirectory(filepath.Dir(path), w)
		require.NoError(t, err)
		require.Len(t, all, 1)
		return w.settled(&all[0])
	}
	require.True(t, looks())
	w.leave(path)
	require.False(t, looks())
	mode := os.FileMode(0o600)
	require.Eventually(t, func() bool { // the clock of the file system may stand still for some milliseconds
		mode ^= 0o040
		require.NoError(t, os.Chmod(path, mode))
		return looks()
	}, time.Minute, time.Millisecond)
}

func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pace{rate: 100}
		at := time.Now()
		for range 11 {
			require.NoError(t, p.wait(t.Context(), 50))
		}
		require.Equal(t, 5*time.Second, time.Since(at))

		time.Sleep(530 * time.Millisecond) // a little too late: what follows makes up for it
		for range 2 {
			require.NoError(t, p.wait(t.Context(), 50))
		}
		require.Equal(t, 6*time.Second, time.Since(at))
		time.Sleep(time.Hour) // a pause is not made up for
		at = time.Now()
		for range 11 {
			require.NoError(t, p.wait(t.Context(), 50))
		}
		require.Equal(t, 5*time.Second-maxLate, time.Since(at))
	})
}

// A file that was left off too long ago isn't gone on with by itself: rows of any kind may say that they are events, and
// attributes may be counters. Deletions have no keys.
func TestLate(t *testing.T) {
	for _, kind := range files.Kinds {
		o := Options{Kind: kind, Key: "key"}
		s := &state{Kind: kind, APIKey: hashOfKey("key"), Saved: time.Now().Add(-keeps - time.Hour)}
		if kind != files.Deletions {
			require.ErrorContains(t, s.resume(&o), "--late", kind)
		}
		o.Late = true
		require.NoError(t, s.resume(&o))
		o.Late, s.Saved = false, time.Now()
		require.NoError(t, s.resume(&o))
	}
}

// age makes the states of a directory so much older.
func age(t *testing.T, dir string, by time.Duration) {
	t.Helper()
	all, err := openStates(dir)
	require.NoError(t, err)
	for _, list := range all.byName {
		for _, one := range list {
			one.Saved = one.Saved.Add(-by)
			if !one.Since.IsZero() {
				one.Since = one.Since.Add(-by)
			}
			require.NoError(t, durable.ReplaceFile(filepath.Join(dir, one.fileName()), durable.SealText(one), 0o600))
		}
	}
}

// runUntil imports events, one a request, unless cancel is called.
func runUntil(t *testing.T, cancel *context.CancelFunc, o Options) error {
	var ctx context.Context
	ctx, *cancel = context.WithCancel(t.Context())
	defer (*cancel)()
	o.Key, o.Kind, o.Objects = "key", files.Events, 1
	_, err := Run(ctx, o)
	return err
}

// A request whose answer was lost is as old as it is, however often the file was tried to be gone on with since, and
// though others were answered.
func TestLateAfterAnotherTry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var others chan struct{} // closed when another user's request was answered; nil: none is
	var answered sync.Once
	var cancel context.CancelFunc
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		if others != nil && !strings.Contains(string(raw), "lost") {
			respond(w, http.StatusCreated, `{"message":"success"}`)
			answered.Do(func() { close(others) })
			return
		}
		if others != nil {
			<-others
		}
		cancel()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(server.Close)
	text := `{"external_id":"lost","name":"e"}` + "\n"
	for n := range 9 {
		text += fmt.Sprintf(`{"external_id":"u%d","name":"e"}`+"\n", n)
	}
	write(t, filepath.Join(dir, "a.ndjson"), text)
	run := func() error {
		return runUntil(t, &cancel, Options{URL: []string{server.URL}, Paths: []string{dir}, Connections: 4})
	}
	require.ErrorIs(t, run(), context.Canceled)
	age(t, filepath.Join(dir, ".millrace-import"), keeps-time.Hour)
	others = make(chan struct{})
	require.ErrorIs(t, run(), context.Canceled)
	age(t, filepath.Join(dir, ".millrace-import"), 2*time.Hour)
	require.ErrorContains(t, run(), "--late")
}

// A file that was interrupted when all that was sent was answered is gone on with however late. While it is sent, a kill
// leaves a state that says otherwise.
func TestNotLateWhenAllIsAnswered(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	states := filepath.Join(dir, ".millrace-import")
	var cancel context.CancelFunc
	var rows atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		all, err := openStates(states)
		if err != nil || all.byName["a.ndjson"][0].Settled {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if rows.Add(1) == 3 {
			cancel()
		}
		respond(w, http.StatusCreated, `{"message":"success"}`)
	}))
	t.Cleanup(server.Close)
	text := ""
	for n := range 20 {
		text += fmt.Sprintf(`{"external_id":"u%d","name":"e"}`+"\n", n)
	}
	write(t, filepath.Join(dir, "a.ndjson"), text)
	run := func() error {
		return runUntil(t, &cancel, Options{URL: []string{server.URL}, Paths: []string{dir}, Connections: 1})
	}
	require.ErrorIs(t, run(), context.Canceled)
	age(t, states, keeps+time.Hour)
	require.NoError(t, run())
	require.Equal(t, int64(20), rows.Load())
}

// A kill loses what was answered since the state was saved last. The run behind it settles a file only when it has come
// beyond that: at the first request that the server had not had.
func TestLateWhenAKillLostAnswers(t *testing.T) {
	t.Parallel()
	for stop, want := range map[int64]bool{1: true, 3: true, 4: false} {
		dir := t.TempDir()
		states, had := filepath.Join(dir, ".millrace-import"), sync.Map{}
		var begun string // the state's file, as the killed run leaves it
		var text []byte
		var cancel context.CancelFunc
		var requests, most atomic.Int64
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if begun == "" {
				all, err := filepath.Glob(filepath.Join(states, "*"+stateEnding))
				if assert.NoError(t, err) && assert.Len(t, all, 1) {
					begun = all[0]
					text, err = os.ReadFile(begun)
					assert.NoError(t, err)
				}
			}
			if _, again := had.LoadOrStore(r.Header.Get("Idempotency-Key"), nil); again {
				w.Header().Set("Idempotent-Replay", "true")
			}
			if requests.Add(1) == most.Load() {
				cancel()
			}
			respond(w, http.StatusCreated, `{"message":"success"}`)
		}))
		t.Cleanup(server.Close)
		write(t, filepath.Join(dir, "a.ndjson"), strings.Repeat(`{"external_id":"u","name":"e"}`+"\n", 9))
		run := func(n int64) error {
			requests.Store(0)
			most.Store(n)
			return runUntil(t, &cancel, Options{URL: []string{server.URL}, Paths: []string{dir}, Connections: 1})
		}
		require.ErrorIs(t, run(3), context.Canceled)
		require.NoError(t, os.WriteFile(begun, text, 0o600))
		require.ErrorIs(t, run(stop), context.Canceled)
		age(t, states, keeps+time.Hour)
		if err := run(0); want {
			require.ErrorContains(t, err, "--late")
		} else {
			require.NoError(t, err)
		}
	}
}

// fullDisk is a file that takes so many more bytes.
type fullDisk struct {
	*os.File
	room int
}

func (f *fullDisk) WriteAt(p []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(p[:min(f.room, len(p))], at)
	if f.room -= n; err == nil && n < len(p) {
		err = syscall.ENOSPC
	}
	return n, err
}

// Half a line that a full disk has left of a row is nothing that a later row, or the next run, goes on behind.
func TestRefusedOnAFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.ndjson"+refusedEnding)
	r, err := openRefused(path, &state{})
	require.NoError(t, err)
	add := func(reason string) error {
		o := outcome{request: new(request)}
		o.request.texts[faulty] = []byte("text")
		o.refuse(sent{row: 1, from: 0, to: 4, fault: reason}, reason)
		return r.append(&o)
	}
	require.NoError(t, add("first"))
	full := &fullDisk{r.file.(*os.File), 10}
	r.file = full
	require.ErrorIs(t, add("second, and a long one"), syscall.ENOSPC)
	full.room = 1000
	require.NoError(t, add("third"))
	full.room = 10
	require.ErrorIs(t, add("fourth"), syscall.ENOSPC)
	require.NoError(t, r.close())
	r, err = openRefused(path, &state{Refused: r.size})
	require.NoError(t, err)
	require.NoError(t, r.forget())
	var reasons []string
	for _, l := range refusedRows(t, strings.TrimSuffix(path, refusedEnding)) {
		reasons = append(reasons, l.Reason)
	}
	require.Equal(t, []string{"first", "third"}, reasons)
}

// A file begins behind the last whole line that another file of the same name has left. Half a line is cut off; a line
// that lacks only its end is kept.
func TestRefusedBehindAnotherFile(t *testing.T) {
	t.Parallel()
	whole, long := `{"line":1,"row":1,"reason":"first"}`+"\n", `{"line":2,"row":2,"reason":"`+strings.Repeat("x", 200<<10)
	for there, want := range map[string][]string{
		"": {"third"}, whole: {"first", "third"},
		whole + `{"line":2,"row":2,"reas`: {"first", "third"},
		whole + long:                      {"first", "third"},
		whole + long + `"}`:               {"first", long[len(`{"line":2,"row":2,"reason":"`):], "third"},
		long:                              {"third"},
		whole + whole + "\n" + `{"line":2,"row":2,"reason":`: {"first", "first", "third"},
	} {
		dir := t.TempDir()
		d := newDouble(t, testseed.Rand(t), 0)
		path := write(t, filepath.Join(dir, "a.ndjson"), `{"external_id":"u","payload":"no"}`+"\n")
		refused := write(t, path+refusedEnding, there)
		_, err := Run(t.Context(), d.options(t, dir))
		require.NoError(t, err)
		text, err := os.ReadFile(refused)
		require.NoError(t, err)
		var reasons []string
		for one := range strings.Lines(strings.ReplaceAll(string(text), "\n\n", "\n")) {
			var l line
			require.NoError(t, json.Unmarshal([]byte(one), &l))
			reasons = append(reasons, l.Reason)
		}
		require.Len(t, reasons, len(want))
		require.Equal(t, want[:len(want)-1], reasons[:len(want)-1])
	}
}

// TestRequestTakes: which rows are in a request decides its Idempotency-Key. When that changes, so does stateVersion.
func TestRequestTakes(t *testing.T) {
	s := &state{Objects: 3, RequestBytes: 20}
	object := func(kind files.Kind, text string) *files.Object { return &files.Object{Kind: kind, Text: []byte(text)} }
	deletion := func(identifiers string) *files.Object {
		return &files.Object{Kind: files.Deletions, Text: []byte(`"a"`), Identifiers: identifiers}
	}
	f := func(want bool, o *files.Object, there ...*files.Object) {
		t.Helper()
		r := new(request)
		for _, other := range there {
			if other == nil {
				r.add(new(files.Row), new(files.Object), "a fault")
			} else {
				r.add(new(files.Row), other, "")
			}
		}
		require.Equal(t, want, r.takes(o, false, s))
	}
	ten, event := object(files.Events, "0123456789"), object(files.Events, "{}")
	f(true, ten, ten)
	f(false, object(files.Events, "{}"), ten, ten)
	f(false, object(files.Attributes, "0"), ten, ten)
	f(true, object(files.Attributes, "01"), ten, object(files.Purchases, "01234567"))
	f(false, object(files.Attributes, "012"), ten, object(files.Purchases, "01234567"))
	f(true, event, event, event)
	f(false, event, event, event, event)
	f(true, object(files.Attributes, "{}"), event, event, event)
	f(false, deletion("svc_ids"), event)
	f(true, deletion("svc_ids"), nil, nil)
	f(true, deletion("svc_ids"), nil, deletion("svc_ids"))
	f(false, deletion("svc_ids"), deletion("external_ids"))
	f(false, deletion("svc_ids"), deletion("svc_ids"), deletion("svc_ids"), deletion("svc_ids"))
	f(false, event, deletion("svc_ids"))
}

// TestBulkRequestTakes is TestRequestTakes for /users/track/bulk.
func TestBulkRequestTakes(t *testing.T) {
	s, r := &state{Bulk: true, Objects: 3, RequestBytes: 1 << 20}, new(request)
	of := func(kind int, user uint64) *files.Object { return &files.Object{Kind: files.Kinds[kind], User: user} }
	add := func(o *files.Object) {
		t.Helper()
		require.True(t, r.takes(o, false, s))
		r.add(new(files.Row), o, "")
	}
	const hot = 1 << 63
	for n := range 100 {
		add(of(n%3, hot))
	}
	require.False(t, r.takes(of(0, hot), false, s))
	for n := range 900 {
		require.True(t, r.takes(nil, true, s))
		add(of(n%3, uint64(n)<<53))
	}
	for n := range 64 {
		require.False(t, r.takes(of(0, uint64(n)<<58), false, s))
	}
	require.False(t, r.takes(nil, true, s))
}
