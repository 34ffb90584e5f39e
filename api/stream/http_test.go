package stream

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/api/bounded"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/ingest"
	"millrace/loadtest/testseed"
	"millrace/shard"
	"millrace/shard/eventlog"
	"millrace/shard/op"
)

// sink is a real server that takes what streams send.
type sink struct {
	*httptest.Server
	mu     sync.Mutex
	posts  [][]json.RawMessage          // the events of each request that was taken
	heads  []http.Header                // of all
	judge  func(n int, body []byte) int // the status of a request of n events; nil: 200
	header http.Header                  // of answers
	check  func(h http.Header, body []byte)
}

func newSink(t testing.TB) *sink {
	s := &sink{header: http.Header{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		var v struct{ Events []json.RawMessage }
		_ = json.Unmarshal(body, &v)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.heads = append(s.heads, r.Header)
		maps.Copy(w.Header(), s.header)
		if s.check != nil {
			s.check(r.Header, body)
		}
		status := http.StatusOK
		if s.judge != nil {
			status = s.judge(len(v.Events), body)
		}
		if status < 300 {
			s.posts = append(s.posts, v.Events)
		}
		if status == http.StatusNoContent+1000 { // it is done, and nobody hears of it
			s.posts = append(s.posts, v.Events)
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(status)
		fmt.Fprintf(w, "status %d", status)
	}))
	t.Cleanup(s.Close)
	return s
}

// idAndTime are what the expected text of a message takes from it.
func idAndTime(t testing.TB, message string) (id string, at int64) {
	var v struct {
		ID   string
		Time int64
	}
	require.NoError(t, json.Unmarshal([]byte(message), &v))
	return v.ID, v.Time
}

// events are those that were taken, each once, in the order of their first coming.
func (s *sink) events(t testing.TB) (all []string) {
	seen := map[string]string{}
	for _, p := range s.posts {
		for _, e := range p {
			var v struct{ ID string }
			require.NoError(t, json.Unmarshal(e, &v))
			require.NotEmpty(t, v.ID)
			if before, was := seen[v.ID]; was {
				require.Equal(t, before, string(e), "what comes again is the same")
				continue
			}
			seen[v.ID] = string(e)
			all = append(all, string(e))
		}
	}
	return all
}

// track commits a body of /users/track.
func (w *world) track(body string) {
	w.t.Helper()
	b := w.e.NewBatch(w.ws.Number, 0)
	defer b.Release()
	answer, status := ingest.NewDecoder(ingest.Options{}).Track(nil, []byte(body), &ingest.Workspace{ID: w.ws.Number, StreamsAttributes: w.c.Snapshot().Lookup("shop").StreamsAttributes,
		Groups: map[[16]byte]byte{{15: 1}: op.ChannelEmail}}, &b.Builder, b, time.Now().UnixMilli())
	require.Equal(w.t, 201, status, "%s", answer)
	require.NotContains(w.t, string(answer), "errors")
	require.NoError(w.t, b.Commit())
	w.settle()
}

func (w *world) hook(id string, s *sink, edit func(*document.Stream)) *document.Stream {
	v := document.Stream{ID: id, Destination: document.Destination{Type: document.DestinationHTTP, URL: s.URL + "/in?of=shop"}}
	if edit != nil {
		edit(&v)
	}
	return w.create(v)
}

// An endpoint gets each event of the export, in its order, whatever it answers in between.
func TestHTTPIsTheExport(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	r := testseed.Rand(t)
	stream := w.hook("all", s, func(s *document.Stream) { s.Format, s.Destination.Batch = document.FormatJSON, 9 })
	s.judge = func(int, []byte) int {
		return []int{200, 200, 200, 204, 500, 429, 503, 302, 404, 401, 1204}[r.IntN(11)]
	}
	w.commit(w.ws.Number, 10, 7)
	w.pack()
	w.commit(w.ws.Number, 10, 7)
	o := w.options()
	o.MessageBytes = 1 << 10
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	k.carryOn(t)
	want := w.exported(eventlog.Query{})
	got := s.events(t)
	require.Equal(t, len(want), len(got))
	for i, line := range got {
		var g, x map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &g))
		require.NoError(t, json.Unmarshal([]byte(want[i]), &x))
		require.Len(t, g["svc_id"], 24)
		delete(g, "svc_id")
		require.Equal(t, x, g)
	}
	require.EqualValues(t, len(want), k.status().Events)
	require.Positive(t, k.status().Bytes)
}

// carryOn has a carrier do what there is to do, whatever fails in between.
func (k *carrier) carryOn(t *testing.T) {
	k.rest = true
	for tries := 0; k.rest || k.err != nil; tries++ {
		require.Less(t, tries, 5000, "%v", k.err)
		k.note(k.turn(context.Background()))
	}
}

// What was answered before a failure is not sent again.
func TestHTTPGoesOnWhereItWas(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	stream := w.hook("all", s, func(s *document.Stream) { s.Destination.Batch = 5 })
	w.commit(w.ws.Number, 10, 5)
	count := 0
	s.judge = func(int, []byte) int {
		if count++; count == 7 {
			return 500
		}
		return 200
	}
	o := w.options()
	require.ErrorContains(t, w.turns(o, stream), "answers 500: status 500")
	require.NoError(t, w.turns(o, stream))
	require.Len(t, s.posts, 10)
	require.Len(t, s.events(t), 50)
}

// An endpoint that takes few requests at a time gets on, also when the events of one request to the server are more, or
// when it refuses a batch and is asked about each event of it.
func TestHTTPGetsOnWithinAPosition(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	single := w.hook("single", s, func(s *document.Stream) { s.Destination.Batch = 1 })
	batch := w.hook("batch", s, func(s *document.Stream) { s.Destination.Batch = 50 })
	w.commit(w.ws.Number, 2, 30)
	count := 0
	s.judge = func(_ int, body []byte) int {
		if count++; count%7 == 0 {
			return http.StatusTooManyRequests
		}
		if strings.Contains(string(body), `"n":25}`) {
			return http.StatusBadRequest
		}
		return http.StatusOK
	}
	for _, stream := range []*document.Stream{single, batch} {
		s.posts = nil
		o := w.options()
		k := newCarrier(&o, w.ws, stream, o.Parts()[0])
		k.carryOn(t)
		require.Len(t, s.events(t), 59)
		sent := 0
		for _, p := range s.posts {
			sent += len(p)
		}
		require.Equal(t, 59, sent, "what was answered is not sent again")
		require.EqualValues(t, 60, k.status().Events)
		require.EqualValues(t, 1, k.status().Refused)
		lines, err := os.ReadFile(filepath.Join(w.dir, "shop", refusedDir, stream.ID+"..0.ndjson"))
		require.NoError(t, err)
		require.Equal(t, 1, strings.Count(string(lines), "\n"))
	}
}

// The bodies of Currents, field by field: users with and without external id, time zone, app; a purchase of several.
func TestCurrentsBodies(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	stream := w.hook("all", s, nil)
	w.track(`{"attributes":[{"external_id":"u1","time_zone":"Europe/Berlin"}]}`)
	w.track(`{"events":[{"external_id":"u1","name":"viewed \"x\"","time":"2026-01-31T09:30:00.750Z","properties":{"k":1,"n":{"a":[true,null]}}}]}`)
	w.track(`{"events":[{"email":"a@example.com","name":"opened","time":"2026-01-31T09:30:01Z","_update_existing_only":false}]}`)
	w.track(`{"purchases":[{"external_id":"u1","product_id":"sku","currency":"EUR","price":16777217.25,"quantity":3,"time":"2026-01-31T09:30:02Z","properties":{"x":{"quantity":1}}}]}`)
	w.track(`{"purchases":[{"external_id":"u1","product_id":"sku","currency":"EUR","price":1,"quantity":2,"time":"2026-01-31T09:30:04Z"}]}`)
	require.NoError(t, w.turns(w.options(), stream))
	svcID := func(id op.IDKind, key string) string { return w.svcID(w.number(id, key)) }
	u1 := `"user_id":"` + svcID(op.ExternalID, "u1") + `","external_user_id":"u1"`
	want := []string{
		`{"event_type":"users.behaviors.CustomEvent","id":"%s","time":1769851800,"user":{` + u1 + `,"timezone":"Europe/Berlin"},` +
			`"properties":{"app_group_id":"shop","name":"viewed \"x\"","custom_properties":{"k":1,"n":{"a":[true,null]}}}}`,
		`{"event_type":"users.behaviors.CustomEvent","id":"%s","time":1769851801,"user":{"user_id":"` + svcID(op.Email, "a@example.com") + `"},` +
			`"properties":{"app_group_id":"shop","name":"opened","custom_properties":{}}}`,
		`{"event_type":"users.behaviors.Purchase","id":"%s","time":1769851802,"user":{` + u1 + `},` +
			`"properties":{"app_group_id":"shop","product_id":"sku","currency":"EUR","price":16777217.25,"purchase_properties":{"x":{"quantity":1},"quantity":3}}}`,
		`{"event_type":"users.behaviors.Purchase","id":"%s","time":1769851804,"user":{` + u1 + `},` +
			`"properties":{"app_group_id":"shop","product_id":"sku","currency":"EUR","price":1,"purchase_properties":{"quantity":2}}}`,
	}
	got := s.events(t)
	require.Len(t, got, len(want))
	for i, line := range got {
		var v struct{ ID string }
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		require.Regexp(t, `^[0-9a-f]{8}-[0-9a-f]{4}-8[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`, v.ID)
		require.Equal(t, fmt.Sprintf(want[i], v.ID), line)
	}
	require.Equal(t, "1", s.heads[0].Get("Braze-Currents-Version"))
	require.Equal(t, "application/json", s.heads[0].Get("Content-Type"))
	require.Empty(t, s.heads[0].Get("Authorization"))
}

// A message says whose an event is by the time that it is sent: of somebody who was merged, who was deleted and came
// again, or who got an external id later.
func TestWhoseAnEventIs(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	w.track(`{"events":[{"external_id":"again","name":"gone","time":"2026-01-31T09:30:00Z"}]}`)
	again := w.number(op.ExternalID, "again")
	w.delete("again")
	w.track(`{"events":[{"external_id":"again","name":"second life","time":"2026-01-31T09:30:00Z"}]}`)
	w.track(`{"events":[{"external_id":"merged","name":"before","time":"2026-01-31T09:30:00Z"},{"external_id":"stays","name":"own","time":"2026-01-31T09:30:00Z"}]}`)
	merged, stays := w.number(op.ExternalID, "merged"), w.number(op.ExternalID, "stays")
	w.change(func(b *shard.Batch) { b.Merge(merged, stays) })
	require.Eventually(t, func() bool {
		users, err := w.e.Find(w.ws.Number, op.ExternalID, []byte("merged"))
		return err == nil && len(users) == 0
	}, time.Minute, time.Millisecond)
	w.track(`{"events":[{"external_id":"merged","name":"somebody else","time":"2026-01-31T09:30:00Z"}]}`)
	w.track(`{"events":[{"email":"a@example.com","name":"by email","time":"2026-01-31T09:30:00Z"}]}`)
	w.track(`{"events":[{"email":"a@example.com","name":"by email again","time":"2026-01-31T09:30:00Z"}]}`)
	byEmail := w.number(op.Email, "a@example.com")
	w.change(func(b *shard.Batch) { b.Merge(byEmail, stays) })
	require.Eventually(t, func() bool {
		users, err := w.e.FindNumber(w.ws.Number, byEmail)
		return err == nil && len(users) == 0
	}, time.Minute, time.Millisecond)
	w.track(`{"attributes":[{"external_id":"stays","email":"b@example.com"}]}`)
	w.track(`{"events":[{"email":"a@example.com","name":"new owner","time":"2026-01-31T09:30:00Z"}]}`)
	w.track(`{"events":[{"user_alias":{"alias_label":"l","alias_name":"n"},"name":"by alias","time":"2026-01-31T09:30:00Z","_update_existing_only":false}]}`)
	w.track(`{"events":[{"external_id":"renamed","name":"old name","time":"2026-01-31T09:30:00Z"}]}`)
	renamed := w.number(op.ExternalID, "renamed")
	w.change(func(b *shard.Batch) { b.RenameExternalID(renamed, []byte("renamed"), []byte("new name")) })
	w.change(func(b *shard.Batch) { b.RemoveExternalID(renamed, []byte("renamed")) })
	w.track(`{"events":[{"external_id":"renamed","name":"second owner","time":"2026-01-31T09:30:00Z"}]}`)
	w.track(`{"events":[{"email":"c@example.com","name":"before the change","time":"2026-01-31T09:30:00Z"}]}`)
	changed := w.number(op.Email, "c@example.com")
	w.track(fmt.Sprintf(`{"attributes":[{"svc_id":"%s","email":"d@example.com"}]}`, w.svcID(changed)))
	w.track(`{"events":[{"email":"c@example.com","name":"after the change","time":"2026-01-31T09:30:00Z"}]}`)
	require.NoError(t, w.turns(w.options(), w.hook("all", s, nil)))

	got := map[string]string{}
	for _, line := range s.events(t) {
		var v struct {
			User       struct{ UserID, ExternalUserID string }
			Properties struct{ Name string }
		}
		require.NoError(t, json.Unmarshal([]byte(strings.NewReplacer("user_id", "userid", "external_user_id", "externaluserid").Replace(line)), &v))
		got[v.Properties.Name] = v.User.UserID
	}
	id := w.svcID
	require.Equal(t, map[string]string{"second life": id(w.number(op.ExternalID, "again")), "before": id(stays), "own": id(stays),
		"by email": id(stays), "by email again": id(stays), "new owner": id(w.number(op.Email, "a@example.com")), "by alias": id(w.number(op.Alias, string(op.AppendAliasKey(nil, []byte("l"), []byte("n"))))),
		"somebody else": id(w.number(op.ExternalID, "merged")), "old name": id(renamed), "second owner": id(w.number(op.ExternalID, "renamed")),
		"before the change": id(changed), "after the change": id(w.number(op.Email, "c@example.com"))}, got)
	require.NotEqual(t, renamed, w.number(op.ExternalID, "renamed"))
	require.Contains(t, strings.Join(s.events(t), "\n"), `"external_user_id":"new name"},"properties":{"app_group_id":"shop","name":"old name"`)
	require.NotEqual(t, again, w.number(op.ExternalID, "again"))
}

// What is refused for good goes into a file, alone; nothing waits for it. Too much of it holds the stream up.
func TestRefusedForGood(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	stream := w.hook("all", s, nil)
	w.commit(w.ws.Number, 10, 9)
	s.judge = func(n int, body []byte) int {
		switch {
		case n > 20:
			return http.StatusRequestEntityTooLarge
		case strings.Contains(string(body), `"n":33}`) || strings.Contains(string(body), `"n":77}`):
			return http.StatusBadRequest
		}
		return http.StatusAccepted
	}
	o := w.options()
	path := filepath.Join(w.dir, "shop", refusedDir, "all..0.ndjson")
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	cut := `{"refused_at":"2026` + strings.Repeat("x", 10<<10) // by a crash
	require.NoError(t, os.WriteFile(path, []byte("{}\n"+cut), 0o600))
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	refused := k.counter("refused").Get()
	for k.rest = true; k.rest; {
		require.NoError(t, k.turn(context.Background()))
	}
	require.Len(t, s.events(t), 88)
	require.EqualValues(t, 2, k.status().Refused)
	require.EqualValues(t, 90, k.status().Events)
	require.Equal(t, refused+2, k.counter("refused").Get())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, "{}", lines[0])
	for i, n := range []string{`"n":33`, `"n":77`} {
		var v refusedLine
		require.NoError(t, json.Unmarshal([]byte(lines[i+1]), &v))
		require.Equal(t, []any{400, "status 400"}, []any{v.Status, v.Answer})
		require.Contains(t, string(v.Event), n)
	}

	s.judge = func(int, []byte) int { return http.StatusBadRequest }
	o.RefusedBytes = int64(len(text)) + 1000
	w.commit(w.ws.Number, 2, 20)
	require.ErrorContains(t, w.turns(o, stream), "is full of events that were refused")
	s.judge = nil
	require.NoError(t, w.turns(o, stream))
	lost := w.lostOf(t, s, path)
	require.Empty(t, lost)
}

// lostOf are events of the export that are neither at the endpoint nor in the file.
func (w *world) lostOf(t *testing.T, s *sink, path string) (lost []string) {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	there := strings.Join(s.events(t), "\n") + string(text)
	for _, line := range w.exported(eventlog.Query{}) {
		var v struct{ Properties struct{ N int } }
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		if !strings.Contains(there, fmt.Sprintf(`"n":%d}`, v.Properties.N)) && !strings.Contains(there, fmt.Sprintf(`"n":%d,`, v.Properties.N)) {
			lost = append(lost, line)
		}
	}
	return lost
}

// Requests bear the token, and are signed as Standard Webhooks has it; credentials are read anew after a failure.
func TestHTTPCredentials(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	stream := w.hook("all", s, func(s *document.Stream) { s.Destination.Credentials = "hook" })
	w.commit(w.ws.Number, 1, 5)
	secret := []byte("0123456789abcdef0123456789abcdef")
	set := func(text string) { t.Setenv("MILLRACE_STREAM_CREDENTIALS_SHOP_HOOK", text) }
	set(`{"token":"a b"}`)
	require.ErrorContains(t, w.turns(w.options(), stream), "no header can have")
	set(`{"secret":"?"}`)
	require.ErrorContains(t, w.turns(w.options(), stream), "not base64")
	require.Empty(t, s.heads)
	good := ""
	s.check = func(h http.Header, body []byte) {
		good = h.Get("Authorization")
		mac := hmac.New(sha256.New, secret)
		_, _ = mac.Write([]byte(h.Get("webhook-id") + "." + h.Get("webhook-timestamp") + "." + string(body)))
		if h.Get("webhook-signature") != "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)) {
			good = "badly signed"
		}
	}
	s.judge = func(int, []byte) int {
		if good != "Bearer abc.def" {
			return http.StatusUnauthorized
		}
		return http.StatusOK
	}
	set(`{"token":"wrong","secret":"` + base64.StdEncoding.EncodeToString(secret) + `"}`)
	err := w.turns(w.options(), stream)
	require.ErrorContains(t, err, "answers 401")
	require.NotContains(t, err.Error(), "wrong")
	set(`{"token":"abc.def","secret":"whsec_` + base64.StdEncoding.EncodeToString(secret) + `"}`)
	require.NoError(t, w.turns(w.options(), stream))
	require.Len(t, s.events(t), 5)
	ids := map[string]bool{}
	for _, h := range s.heads {
		ids[h.Get("webhook-id")] = true
	}
	require.Len(t, ids, 1, "what is sent again has the same id: %v", slices.Collect(maps.Keys(ids)))
}

// A receiver that takes a webhook-id once, as Standard Webhooks has it, misses nothing: a request that has others of the
// events, because a user was deleted meanwhile, has another id.
func TestWebhookIDs(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	stream := w.hook("all", s, func(s *document.Stream) {
		s.Format, s.Destination.Batch, s.Destination.Credentials = document.FormatJSON, 3, "hook"
	})
	t.Setenv("MILLRACE_STREAM_CREDENTIALS_SHOP_HOOK", `{"secret":"c2VjcmV0"}`)
	for i := range 4 {
		w.track(fmt.Sprintf(`{"events":[{"external_id":"u%d","name":"e%d","time":"2026-01-31T09:30:00Z"}]}`, i, i))
	}
	known, id, taken, lost := map[string]bool{}, "", "", true
	s.check = func(h http.Header, _ []byte) { id = h.Get("webhook-id") }
	s.judge = func(_ int, body []byte) int {
		if !known[id] {
			taken += string(body)
		}
		known[id] = true
		if lost {
			lost = false
			return http.StatusNoContent + 1000
		}
		return http.StatusOK
	}
	require.Error(t, w.turns(w.options(), stream))
	w.delete("u1")
	require.NoError(t, w.turns(w.options(), stream))
	for i := range 4 {
		require.Contains(t, taken, fmt.Sprintf(`"e%d"`, i))
	}
}

// An endpoint that says when to come again is left alone until then, and others longer with each failure, up to a bound;
// no two streams come at the same time.
func TestBackoff(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	stream := w.hook("all", s, nil)
	w.commit(w.ws.Number, 1, 5)
	for _, c := range []struct {
		status int
		after  string
		least  time.Duration
	}{
		{429, "120", 2 * time.Minute},
		{503, time.Now().Add(30 * time.Minute).UTC().Format(http.TimeFormat), 28 * time.Minute},
		{503, "999999", bounded.MaxLater},
		{503, "99999999999", bounded.MaxLater},
		{503, strings.Repeat("9", 30), bounded.MaxLater},
		{500, "soon", 0},
		{500, "-1", 0},
		{500, time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat), 0},
	} {
		s.judge = func(int, []byte) int { return c.status }
		s.header.Set("Retry-After", c.after)
		err := w.turns(w.options(), stream)
		require.ErrorContains(t, err, fmt.Sprint("answers ", c.status))
		require.GreaterOrEqual(t, later(err), c.least, c.after)
		require.LessOrEqual(t, later(err), max(c.least+2*time.Minute, 0), c.after)
		if c.least == 0 {
			require.Zero(t, later(err))
		}
	}
	theirs := time.Now().Add(45 * time.Minute).UTC() // a clock that is ahead of this machine's
	s.judge = func(int, []byte) int { return 503 }
	s.header.Set("Date", theirs.Format(http.TimeFormat))
	s.header.Set("Retry-After", theirs.Add(2*time.Second).Format(http.TimeFormat))
	require.Equal(t, 2*time.Second, later(w.turns(w.options(), stream)))
	o := w.options()
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	pauses := map[time.Duration]bool{}
	for failures := 1; failures < 100; failures++ {
		d, middle := k.backoff(failures), min(time.Second<<min(failures-1, 20), time.Minute)
		require.GreaterOrEqual(t, d, middle*3/4)
		require.LessOrEqual(t, d, middle*5/4)
		pauses[d] = true
	}
	require.Greater(t, len(pauses), 90)
}

// After a failure the host is looked up again: its name may lead to another address by now, while the server at the old
// one goes on answering with errors.
func TestHTTPHostThatMoves(t *testing.T) {
	w, old, next := newWorld(t, 4<<10), newSink(t), newSink(t)
	stream := w.hook("all", old, func(s *document.Stream) { s.Destination.URL = "http://hook.test/in" })
	at := old
	old.judge = func(int, []byte) int { return 503 }
	o := w.options()
	o.transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, at.Listener.Addr().String())
	}}
	k := newCarrier(&o, w.ws, stream, o.Parts()[0])
	w.commit(w.ws.Number, 1, 3)
	k.note(k.turn(t.Context()))
	require.ErrorContains(t, k.err, "answers 503")
	at = next
	k.carryOn(t)
	require.Len(t, next.events(t), 3)
}

// An endpoint that has taken events and then doesn't come to the end of its answer is not waited for.
func TestHTTPAnswerWithoutEnd(t *testing.T) {
	o := newWorld(t, 4<<10).options()
	o.EnsureDefaults()
	synctest.Test(t, func(t *testing.T) {
		o.transport = roundTrip(func(r *http.Request) (*http.Response, error) {
			text, never := io.Pipe()
			context.AfterFunc(r.Context(), func() { _ = never.CloseWithError(r.Context().Err()) })
			return &http.Response{StatusCode: 200, Body: text}, nil
		})
		h := newEndpoint(&o, &control.Workspace{}, &document.Stream{Destination: document.Destination{URL: "http://hook.test/in"}}, refusedFile{})
		began := time.Now()
		status, _, err := h.post(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Equal(t, 200, status)
		require.Equal(t, maxAnswerTime, time.Since(began))
	})
}

type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// An answer whose headers have no end costs little memory, and takes no event.
func TestHTTPHeadersWithoutEnd(t *testing.T) {
	o := newWorld(t, 4<<10).options()
	o.EnsureDefaults()
	many := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range many {
			w.Header().Set(fmt.Sprint("X-", i), strings.Repeat("x", 1<<10))
		}
	}))
	defer server.Close()
	h := newEndpoint(&o, &control.Workspace{}, &document.Stream{Destination: document.Destination{URL: server.URL}}, refusedFile{})
	defer h.close()
	for _, many = range []int{40, 100} {
		_, _, err := h.post(t.Context(), nil, nil)
		if many < 64 {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "server response headers exceeded 65536 bytes")
		}
	}
}

// An answer that is none takes no event.
func TestHTTPSwitchesNoProtocols(t *testing.T) {
	w, s := newWorld(t, 4<<10), newSink(t)
	stream := w.hook("all", s, nil)
	w.commit(w.ws.Number, 1, 3)
	s.judge = func(int, []byte) int { return http.StatusSwitchingProtocols }
	o := w.options()
	o.RequestTimeout = 200 * time.Millisecond
	require.ErrorContains(t, w.turns(o, stream), "answers 101")

	silent, _ := net.Pipe() // the connection stays open, and no timeout ends it
	o.transport = roundTrip(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusSwitchingProtocols, Body: silent}, nil
	})
	require.ErrorContains(t, w.turns(o, stream), "answers 101")
	require.Empty(t, w.c.StreamCursors("shop", "all"))
}

// A refused file that somebody moves away is on disk again before the stream goes on.
func TestRefusedFileMovedAway(t *testing.T) {
	w := newWorld(t, 4<<10)
	var synced []string
	o := w.options()
	o.disk = syncs{faulty{ask: func() error { return nil }}, &synced}
	f := refusedFile{folders: o.folders(), path: w.dir + "/shop/.refused/all..0.ndjson", limit: 1 << 20}
	for i, moved := range []bool{false, false, true, false} {
		if moved {
			require.NoError(t, machine{}.Rename(f.path, f.path+".old"))
		}
		before := len(synced)
		require.NoError(t, f.add(refusedLine{Status: 400, Event: []byte(`{}`)}))
		require.Equal(t, i == 0 || moved, len(synced) > before, i)
	}
	small := refusedFile{folders: o.folders(), path: w.dir + "/shop/.refused/small..0.ndjson", limit: 10}
	require.NoError(t, small.add(refusedLine{Event: []byte(`{"one":"has room"}`)}))
	require.ErrorContains(t, small.add(refusedLine{Event: []byte(`{}`)}), "full")
}

// syncs notes the directories that are brought to disk.
type syncs struct {
	faulty
	dirs *[]string
}

func (d syncs) SyncDir(dir string) error {
	*d.dirs = append(*d.dirs, dir)
	return d.faulty.SyncDir(dir)
}

// Whatever fails when a refused event is kept, the file has whole lines, each once.
func TestRefusedFileHasWholeLines(t *testing.T) {
	w := newWorld(t, 4<<10)
	o := w.options()
	left := -1
	o.disk = faulty{ask: func() error {
		if left--; left == 0 {
			return syscall.ENOSPC
		}
		return nil
	}}
	f := refusedFile{folders: o.folders(), path: w.dir + "/shop/.refused/all..0.ndjson", limit: 1 << 20}
	line := func(n int) refusedLine { return refusedLine{Status: 400, Event: fmt.Appendf(nil, `{"n":%d}`, n)} }
	require.NoError(t, f.add(line(0)))
	failed := 0
	for n := 1; ; n++ {
		left = n
		err := f.add(line(n))
		if left > 0 { // there are no more steps
			break
		}
		require.ErrorIs(t, err, syscall.ENOSPC)
		failed++
	}
	data, err := os.ReadFile(f.path)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSuffix(string(data), "\n"), "\n")
	require.Len(t, lines, 2, "the first and the last")
	for _, l := range lines {
		require.True(t, json.Valid([]byte(l)), l)
	}
	require.GreaterOrEqual(t, failed, 3)
}
