package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"millrace/api/admin/answers"
	"millrace/loadtest"
	"millrace/loadtest/testaddr"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/eventlog/event"
)

// files are the files of a stream, sorted. Nothing else lies where readers look.
func (s *site) streamFiles(t *testing.T, stream, suffix string) (files []string) {
	t.Helper()
	root := filepath.Join(s.dir, "streams", "test", stream)
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.Contains(path, "/.millrace/") {
			require.True(t, strings.HasSuffix(path, suffix), path)
			files = append(files, path)
		}
		return err
	}))
	slices.Sort(files)
	return files
}

// ndjsonOf are the lines of a file that a stream has written.
func ndjsonOf(t *testing.T, file string) (lines []string) {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	var r io.Reader = f
	if filepath.Ext(file) == ".zst" {
		z, err := zstd.NewReader(f)
		require.NoError(t, err)
		defer z.Close()
		r = z
	}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		lines = append(lines, in.Text())
	}
	require.NoError(t, in.Err())
	return lines
}

func idOf(t *testing.T, line string) string {
	t.Helper()
	var v struct{ ID string }
	require.NoError(t, json.Unmarshal([]byte(line), &v))
	return v.ID
}

// status is what `millrace streams show` says.
func (s *site) streamStatus(t *testing.T, stream string) (v answers.StreamStatus) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(tool(t, s.target("streams", "show", "test", stream, "--json")...)), &v))
	return v
}

// awaitStream waits until a stream has delivered what `millrace export events` gives, and returns that.
func (s *site) awaitStream(t *testing.T, stream string) (want []string) {
	t.Helper()
	want = strings.Split(strings.TrimSuffix(tool(t, s.target("export", "events", "--workspace", "test")...), "\n"), "\n")
	s.awaitEvents(t, stream, len(want))
	return want
}

// awaitEvents waits until a stream has delivered that many.
func (s *site) awaitEvents(t *testing.T, stream string, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return s.streamStatus(t, stream).Events >= int64(n) }, testsize.Of(20*time.Minute, testPatience, testPatience), 100*time.Millisecond, "%s: %d events", stream, n)
}

// The server is killed again and again while requests come and files are written, and destinations fail now and then. In
// the end each stream has what the export has: nothing is missing, in files and objects nothing is there twice, what
// comes twice as a message has the same id, and all is in the order in which it was applied.
func TestStreamsOverKills(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	s := newAdminSite(t, "--stream-file-after", "30ms", "--stream-file-bytes", "64KiB", "--event-pack-after", "500ms", "--stream-retry-max", "1s")
	p := s.start(t)
	others := s.receive(t, r.Uint64())
	tool(t, s.target("streams", "create", "test", "lines", "--format", "ndjson", "--from", "beginning")...)
	tool(t, s.target("streams", "create", "test", "columns", "--format", "parquet")...)
	l := s.load(func(o *loadtest.Options) { o.Connections, o.Body.EmailShare = 4, 0.1 })
	for range testsize.Of(100, 2, 2) {
		time.Sleep(time.Duration(100+r.IntN(700)) * time.Millisecond)
		p.kill()
		p = s.start(t, streamBounds(r)...)
	}
	l.verify(t)
	want := s.awaitStream(t, "lines")
	require.NotEmpty(t, want)
	var got []string
	for _, f := range s.streamFiles(t, "lines", ".ndjson.zst") {
		of := ndjsonOf(t, f)
		require.True(t, slices.IsSortedFunc(of, func(a, b string) int { return strings.Compare(idOf(t, a), idOf(t, b)) }), f)
		got = append(got, of...)
	}
	slices.Sort(want)
	slices.Sort(got)
	require.Equal(t, len(want), len(got))
	require.Equal(t, want, got)

	var ids []string
	for _, line := range want {
		ids = append(ids, idOf(t, line))
	}
	s.awaitStream(t, "columns")
	slices.Sort(ids)
	require.Equal(t, ids, s.parquetIDs(t, "columns"))
	require.EqualValues(t, len(want), s.streamStatus(t, "lines").Events)
	others.requireReceived(t, s, want)
	p.stop()
	require.Empty(t, unfinished(t, filepath.Join(s.dir, "streams", "test", "lines")))
	t.Logf("%d events in %d and %d files", len(want), len(s.streamFiles(t, "lines", ".ndjson.zst")), len(s.streamFiles(t, "columns", ".parquet")))
}

// streamBounds are other bounds of files at each start.
func streamBounds(r *rand.Rand) []string {
	return []string{"--stream-file-bytes", []string{"2KiB", "64KiB", "16MiB"}[r.IntN(3)], "--checkpoint-interval", []string{"200ms", "5m"}[r.IntN(2)]}
}

// saidOverKills has users say something again and again while the server is killed and started; say is called for the
// same n until it is answered. It returns the process that runs in the end, and how much each has said.
func (s *site) saidOverKills(t *testing.T, r *rand.Rand, p *process, say func(user, n int) (reply, error)) (*process, [6]int) {
	stop := make(chan struct{})
	var said [6]int
	var wg sync.WaitGroup
	for user := range said {
		wg.Go(func() {
			for {
				if a, err := say(user, said[user]); err == nil && a.status == http.StatusCreated {
					said[user]++
					select {
					case <-stop:
						return
					default:
					}
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	for range testsize.Of(100, 3, 2) {
		time.Sleep(time.Duration(100+r.IntN(500)) * time.Millisecond)
		p.kill()
		p = s.start(t, streamBounds(r)...)
	}
	close(stop)
	wg.Wait()
	return p, said
}

func unfinished(t *testing.T, root string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(root, ".millrace"))
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// parquetIDs are the ids in the Parquet files of a stream, sorted.
func (s *site) parquetIDs(t *testing.T, stream string) (ids []string) {
	t.Helper()
	for _, f := range s.streamFiles(t, stream, ".parquet") {
		rows, err := parquet.ReadFile[event.ParquetRow](f)
		require.NoError(t, err, f)
		for _, r := range rows {
			ids = append(ids, r.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// The commands: a stream is made, seen, paused, resumed, rewound and removed, each with an entry of the audit log.
func TestStreamCommands(t *testing.T) {
	t.Parallel()
	s := newAdminSite(t, "--stream-file-after", "20ms")
	p := s.start(t)
	s.track(t, "before")
	tool(t, s.target("streams", "create", "test", "orders", "--kind", "purchase", "--kind", "event", "--name", "e", "--format", "ndjson", "--compression", "none")...)
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "orders")...), "already exists")
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "up", "--path", "../../etc")...), "destination.path")
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "x", "--kind", "click")...), "kinds[0]")
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "x", "--from", "yesterday")...), "from")
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "x", "--column", "n:int")...), "want NAME:TYPE")
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "x", "--format", "avro", "--compression", "gzip")...), "want deflate or snappy or zstd or none")
	require.Contains(t, refused(t, nil, s.target("streams", "pause", "test", "nothing")...), "not found")
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "x", "--to", "s3")...), "destination.bucket is required")
	require.Contains(t, refused(t, nil, s.target("streams", "create", "test", "x", "--to", "http", "--url", "http://127.0.0.1:1/x", "--format", "ndjson")...), "want currents or json")
	require.Contains(t, tool(t, s.target("streams", "create", "test", "hook", "--to", "http", "--url", "http://127.0.0.1:1/x", "--batch", "7", "--from", "beginning")...), "currents")
	require.Contains(t, tool(t, s.target("streams", "create", "test", "bucket", "--to", "s3", "--bucket", "lake", "--credentials", "c-1", "--prefix", "a/b", "--layout", "currents")...), "a/b")
	require.Eventually(t, func() bool { return s.streamStatus(t, "bucket").State == "failing" }, testPatience, 20*time.Millisecond)
	shown := tool(t, s.target("streams", "show", "test", "bucket")...)
	require.Contains(t, shown, "MILLRACE_STREAM_CREDENTIALS_TEST_C_1")
	require.Regexp(t, `\nstarted_at +20\d\d-\d\d-\d\dT\S+Z\n`, shown)
	count := func() (n int) {
		for _, f := range s.streamFiles(t, "orders", ".ndjson") {
			n += len(ndjsonOf(t, f))
		}
		return n
	}
	s.track(t, "one")
	require.Eventually(t, func() bool { return s.streamStatus(t, "orders").Events == 1 }, testPatience, 20*time.Millisecond)
	require.Equal(t, 1, count(), "what was before the stream is not in it")
	listed := tool(t, s.target("streams", "list", "test")...)
	require.Regexp(t, `(?m)^ID +STATE +LAG EVENTS +LAG SECONDS +FORMAT `, listed)
	require.Regexp(t, `(?m)^orders +running +0 +\d`, listed)
	require.Regexp(t, `(?m)^bucket +failing +[1-9]\d* +\d`, listed)
	var list struct {
		Streams []struct{ ID, Format, State string }
	}
	require.NoError(t, json.Unmarshal([]byte(tool(t, append(s.target("streams", "list", "test"), "--json")...)), &list))
	require.Len(t, list.Streams, 3)
	require.Equal(t, []string{"bucket", "parquet", "failing"}, []string{list.Streams[0].ID, list.Streams[0].Format, list.Streams[0].State})

	require.Contains(t, tool(t, s.target("streams", "pause", "test", "orders")...), "paused")
	require.Eventually(t, func() bool { return s.streamStatus(t, "orders").State == "paused" }, testPatience, 20*time.Millisecond)
	s.track(t, "two")
	require.Contains(t, tool(t, s.target("streams", "resume", "test", "orders")...), "orders is resumed")
	require.Eventually(t, func() bool { return count() == 2 }, testPatience, 20*time.Millisecond)

	tool(t, s.target("streams", "rewind", "test", "orders", "--from", "beginning")...)
	require.Eventually(t, func() bool { return count() == 2+3 }, testPatience, 20*time.Millisecond, "all that is kept once more, in files of their own")
	ids := map[string]int{}
	for _, f := range s.streamFiles(t, "orders", ".ndjson") {
		for _, line := range ndjsonOf(t, f) {
			ids[idOf(t, line)]++
		}
	}
	require.Len(t, ids, 3)
	require.Eventually(t, func() bool {
		return strings.Contains(s.metrics(t), `millrace_stream_events_total{workspace="test",stream="orders"} 5`)
	}, testPatience, 20*time.Millisecond)

	tool(t, s.target("streams", "delete", "test", "orders")...)
	require.Contains(t, refused(t, nil, s.target("streams", "show", "test", "orders")...), "not found")
	require.Equal(t, 5, count(), "what was written stays")
	audit := tool(t, append(s.target("admin", "audit", "list"), "--all")...)
	for _, what := range []string{"stream created", "stream changed", "stream removed"} {
		require.Contains(t, audit, what)
	}
	p.stop()
}

// DuckDB, which nobody here has written, reads the files of streams by the queries of docs/streams.md, and finds in
// them what the export has.
func TestClientsReadStreams(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("MILLRACE_CLIENTS")
	if dir == "" {
		t.Skip("SKIPPED: needs node and npm; make test-clients runs it")
	}
	s := newAdminSite(t, "--stream-file-after", "20ms")
	p := s.start(t)
	tool(t, s.target("streams", "create", "test", "parquet", "--column", "n:number,text:string", "--column", "f:boolean", "--column", "at:time")...)
	tool(t, s.target("streams", "create", "test", "ndjson", "--format", "ndjson")...)
	tool(t, s.target("streams", "create", "test", "gzip", "--format", "ndjson", "--compression", "gzip")...)
	tool(t, s.target("streams", "create", "test", "plain", "--format", "ndjson", "--compression", "none")...)
	for i := range 3 {
		require.Equal(t, 201, s.post(t, "/users/track", allKey, strings.ReplaceAll(`{"events":[{"external_id":"ann","name":"e \"1\" é\n","time":"2026-01-31T09:30:00.123Z",
			"app_id":"11ae5b4b-2445-4440-a04f-bf537764c9ad","properties":{"n":#,"f":1.5,"text":"a'b\\c","at":"2026-01-31T10:30:00.5+01:00","nested":{"a":"deep"},"list":[1,"2"]}},{"external_id":"bob","name":"plain","time":"2013-07-16T19:20:30+01:00"}],
			"purchases":[{"external_id":"ann","product_id":"sku-#","currency":"JPY","price":12000.0,"quantity":3,"time":"2026-02-01T00:00:00Z"}]}`, "#", strconv.Itoa(i))).status)
	}
	installed := filepath.Join(dir, "readers", "duckdb.js") // node looks for packages from where the file is
	source, err := os.ReadFile("../../loadtest/clients/readers/duckdb.js")
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Dir(installed), 0o700))
	require.NoError(t, os.WriteFile(installed, source, 0o600))
	for stream, ending := range map[string]string{"parquet": "parquet", "ndjson": "ndjson.zst", "gzip": "ndjson.gz", "plain": "ndjson"} {
		want := s.awaitStream(t, stream)
		require.Len(t, want, 9)
		out, err := exec.Command("node", installed, ending, filepath.Join(s.dir, "streams", "test", stream)).CombinedOutput()
		require.NoError(t, err, "%s", out)
		got := strings.Split(strings.TrimSpace(string(out)), "\n")
		require.Len(t, got, len(want), "%s", out)
		byID := map[string]string{}
		for _, line := range want {
			byID[idOf(t, line)] = line
		}
		for _, row := range got {
			requireSameEvent(t, byID[idOf(t, row)], row)
			if ending == "parquet" {
				requireOwnColumns(t, byID[idOf(t, row)], row)
			}
		}
	}
	p.stop()
}

// requireOwnColumns holds the columns of properties against the JSON: f is a number, and has a column of booleans.
func requireOwnColumns(t *testing.T, want, row string) {
	t.Helper()
	var line struct{ Properties map[string]any }
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(want), &line))
	require.NoError(t, json.Unmarshal([]byte(row), &got))
	require.Equal(t, "DOUBLE VARCHAR BOOLEAN TIMESTAMP WITH TIME ZONE", got["types"])
	require.Nil(t, got["property_f"])
	require.Equal(t, line.Properties["text"], got["property_text"])
	if line.Properties == nil {
		require.Nil(t, got["property_n"])
		require.Nil(t, got["property_at"])
		return
	}
	require.EqualValues(t, line.Properties["n"], numberOf(got["property_n"]))
	at, err := time.Parse("2006-01-02 15:04:05.999-07", got["property_at"].(string))
	require.NoError(t, err)
	require.Equal(t, "2026-01-31T09:30:00.5Z", at.UTC().Format(time.RFC3339Nano))
}

// requireSameEvent compares a line of the export with a row of a reader.
func requireSameEvent(t *testing.T, want, row string) {
	t.Helper()
	var line, got map[string]any
	require.NoError(t, json.Unmarshal([]byte(want), &line), row)
	require.NoError(t, json.Unmarshal([]byte(row), &got))
	require.Equal(t, line["type"], got["event_type"])
	require.Equal(t, line["accepted_at"].(string)[:10], got["date"])
	for _, name := range []string{"id", "type", "external_id", "name", "product_id", "currency", "app_id"} {
		require.Equal(t, line[name], got[name], name)
	}
	for _, name := range []string{"price", "quantity", "total_minor"} {
		require.Equal(t, fmt.Sprint(line[name]), fmt.Sprint(numberOf(got[name])), name)
	}
	for _, name := range []string{"time", "accepted_at"} {
		at, err := time.Parse(time.RFC3339Nano, line[name].(string))
		require.NoError(t, err)
		require.EqualValues(t, at.UnixMilli(), numberOf(got[name]), name)
	}
	if line["properties"] == nil {
		require.Nil(t, got["properties"])
		return
	}
	properties, err := json.Marshal(line["properties"])
	require.NoError(t, err)
	require.JSONEq(t, string(properties), got["properties"].(string))
	require.Equal(t, "deep", got["nested"])
}

// numberOf is a number that a reader may give as text, because it has 64 bits.
func numberOf(v any) any {
	if s, ok := v.(string); ok {
		f, err := strconv.ParseFloat(s, 64)
		if err == nil {
			return f
		}
	}
	return v
}

// takenBlocks finds that a node has taken blocks that others have packed.
var takenBlocks = regexp.MustCompile(`(?m)^millrace_eventlog_taken_blocks_total [1-9]`)

// Nodes of a cluster die one after the other, in the middle of files, while users are written. Whoever leads a group
// next goes on with its part of the stream, so that in the directory that all share each event is once.
func TestStreamsOfACluster(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	var sites []*site
	var members []string
	for n := 1; n <= 3; n++ {
		raft := testaddr.Free(t)
		members = append(members, fmt.Sprintf("%d=%s", n, raft))
		sites = append(sites, newAdminSite(t, "--node", fmt.Sprint(n), "--raft", raft, "--raft-insecure", "--groups", "3", "--raft-timeout", calm, "--commit-timeout", calm, "--stream-dir", shared,
			"--stream-file-after", "50ms", "--stream-file-bytes", "1KiB", "--checkpoint-interval", "100ms", "--event-pack-after", "100ms"))
	}
	nodes := make([]*process, len(sites))
	for i, s := range sites {
		s.flags = append(s.flags, "--members", strings.Join(members, ","))
		nodes[i] = startProcess(t, binary, s.args()...)
	}
	for i, p := range nodes {
		p.waitReady(sites[i].url("/readyz"))
	}
	tool(t, sites[0].target("streams", "create", "test", "all", "--format", "ndjson", "--from", "beginning")...)
	sent := 0
	write := func(s *site, requests int) {
		for range requests {
			sent++
			text := fmt.Sprintf(`{"events":[{"external_id":"a%d","name":"e","time":"2026-01-31T09:30:00Z"},{"external_id":"b%d","name":"e","time":"2026-01-31T09:30:00Z"}]}`, sent, sent)
			require.Eventually(t, func() bool {
				a, err := call(patient, http.MethodPost, s.url("/users/track"), allKey, text, "Idempotency-Key", fmt.Sprint("k", sent))
				return err == nil && a.status == http.StatusCreated
			}, testPatience, 50*time.Millisecond)
		}
	}
	for round := range testsize.Of(30, 3, 1) {
		dies := round % len(sites)
		write(sites[(dies+1)%len(sites)], 20)
		nodes[dies].kill()
		write(sites[(dies+1)%len(sites)], 10)
		nodes[dies] = startProcess(t, binary, sites[dies].args()...)
		nodes[dies].waitReady(sites[dies].url("/readyz"))
	}
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(sites, func(s *site) bool { return takenBlocks.MatchString(s.metrics(t)) })
	}, testPatience, 200*time.Millisecond, "replicas take blocks that others have packed")
	want := strings.Split(strings.TrimSuffix(tool(t, sites[0].target("export", "events", "--workspace", "test")...), "\n"), "\n")
	require.Len(t, want, 2*sent)
	slices.Sort(want)
	all := &site{dir: filepath.Dir(shared)}
	require.NoError(t, os.Symlink(shared, filepath.Join(all.dir, "streams")))
	var got []string
	require.Eventually(t, func() bool {
		got = nil
		for _, f := range all.streamFiles(t, "all", ".ndjson.zst") {
			got = append(got, ndjsonOf(t, f)...)
		}
		return len(got) >= len(want)
	}, testPatience, 200*time.Millisecond)
	slices.Sort(got)
	require.Equal(t, want, got)
	require.Eventually(t, func() bool { return sites[1].streamStatus(t, "all").Events == int64(len(want)) }, testPatience, 100*time.Millisecond,
		"any node knows how far all parts are")
	for _, p := range nodes {
		p.stop()
	}
}

// The server is killed while users and addresses change their minds; who gets no answer says the same again. In the end a stream has
// each change once, those of a user in order, and says the same once more when it is rewound.
func TestStatesStreamOverKills(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	s := newAdminSite(t, "--stream-file-after", "30ms", "--event-pack-after", "200ms")
	p := s.start(t)
	tool(t, s.target("streams", "create", "test", "states", "--format", "ndjson", "--from", "beginning", "--kind", "email_subscription")...)
	values := []string{"unsubscribed", "opted_in", "subscribed"}
	p, said := s.saidOverKills(t, r, p, func(user, n int) (reply, error) {
		body := fmt.Sprintf(`{"attributes":[{"external_id":"u%d","email_subscribe":%q}]}`, user, values[n%3])
		return call(patient, http.MethodPost, s.url("/users/track"), allKey, body)
	})
	all := 0
	for user, n := range said {
		require.NotZero(t, n, user)
		all += n
	}
	read := func(all int) (got []string) {
		require.Eventually(t, func() bool { return s.streamStatus(t, "states").Events >= int64(all) }, testPatience, 50*time.Millisecond)
		for _, f := range s.streamFiles(t, "states", ".ndjson.zst") {
			got = append(got, ndjsonOf(t, f)...)
		}
		return got
	}
	first := read(all)
	require.Len(t, first, all)
	slices.SortFunc(first, func(a, b string) int { return strings.Compare(idOf(t, a), idOf(t, b)) })
	var seen [6]int
	for _, line := range first {
		var v struct{ External_ID, Status, Source, Of string }
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		user := v.External_ID[1] - '0'
		require.Equal(t, []string{values[seen[user]%3], "/users/track", "user"}, []string{v.Status, v.Source, v.Of}, line)
		seen[user]++
	}
	require.Equal(t, said, seen)
	tool(t, s.target("streams", "rewind", "test", "states")...)
	second := []string{}
	require.Eventually(t, func() bool { second = read(0); return len(second) >= 2*all }, testPatience, 50*time.Millisecond)
	slices.Sort(second)
	slices.Sort(first)
	require.Equal(t, first, slices.Compact(second), "under the same ids")
	p.stop()
}

// The server is killed while attributes are set; who gets no answer sends the same request again. In the end a stream has
// each object once, those of a user in order, whichever way they went to him, and as many as he has counted; nothing of
// what had no effect. Rewound, it says the same under the same ids, but of a user who was deleted nothing.
func TestAttributesStreamOverKills(t *testing.T) {
	t.Parallel()
	r := testseed.Rand(t)
	s := newAdminSite(t, "--stream-file-after", "30ms", "--event-pack-after", "200ms")
	p := s.start(t)
	tool(t, s.target("streams", "create", "test", "sent", "--format", "ndjson", "--kind", "attributes")...)
	p, said := s.saidOverKills(t, r, p, func(user, n int) (reply, error) {
		who := fmt.Sprintf(`"email":"u%d@example.com"`, user) // in another partition
		if n%2 == 0 {
			who += fmt.Sprintf(`,"external_id":"u%d"`, user)
		}
		body := fmt.Sprintf(`{"attributes":[{%s,"said":%d,"count":{"inc":1}},{"external_id":"gone","n":1},{"external_id":"nobody","_update_existing_only":true,"n":1}]}`, who, n)
		return call(patient, http.MethodPost, s.url("/users/track"), allKey, body, "Idempotency-Key", fmt.Sprintf("%d-%d", user, n))
	})
	all := 0
	for user, n := range said {
		all += n
		users := s.post(t, "/users/export/ids", allKey, fmt.Sprintf(`{"external_ids":["u%d"],"fields_to_export":["custom_attributes"]}`, user))
		require.Regexp(t, fmt.Sprintf(`"count":%d[,}]`, n), users.body)
	}
	read := func(rows int) (got []string) {
		require.Eventually(t, func() bool {
			got = nil
			for _, f := range s.streamFiles(t, "sent", ".ndjson.zst") {
				got = append(got, ndjsonOf(t, f)...)
			}
			return len(got) >= rows
		}, testsize.Of(10*time.Minute, testPatience, testPatience), 200*time.Millisecond)
		require.Len(t, got, rows)
		slices.SortFunc(got, func(a, b string) int { return strings.Compare(idOf(t, a), idOf(t, b)) })
		return got
	}
	first := read(2 * all)
	require.Len(t, slices.CompactFunc(slices.Clone(first), func(a, b string) bool { return idOf(t, a) == idOf(t, b) }), 2*all)
	isGone := func(line string) bool { return strings.Contains(line, `"external_id":"gone"`) }
	kept := slices.DeleteFunc(slices.Clone(first), isGone)
	require.Len(t, kept, all)
	var seen [6]int
	for _, line := range kept {
		var v struct {
			ExternalID string `json:"external_id"`
			Email      string
			Properties struct {
				Said  int
				Count struct{ Inc int }
			}
		}
		require.NoError(t, json.Unmarshal([]byte(line), &v))
		user := (v.ExternalID + v.Email)[1] - '0'
		require.Equal(t, []int{seen[user], 1}, []int{v.Properties.Said, v.Properties.Count.Inc}, line)
		seen[user]++
	}
	require.Equal(t, said, seen)

	require.Equal(t, http.StatusCreated, s.post(t, "/users/delete", allKey, `{"external_ids":["gone"]}`).status)
	tool(t, s.target("streams", "rewind", "test", "sent")...)
	again := read(3 * all)
	want := slices.Concat(first, kept)
	slices.Sort(want)
	slices.Sort(again)
	require.Equal(t, want, again)
	t.Logf("%d objects of %d requests", 2*all, all)
	p.stop()
}
