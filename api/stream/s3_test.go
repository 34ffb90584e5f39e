package stream

import (
	"context"
	"fmt"
	"io"
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
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testseed"
	"millrace/shard/eventlog"
	"millrace/shard/op"
)

// service is a server that speaks S3, the library of `rclone serve s3`, with a bucket and a key.
type service struct {
	*httptest.Server
	t       testing.TB
	backend gofakes3.Backend

	mu     sync.Mutex
	heads  []http.Header // of requests that put something
	hosts  map[string]bool
	before func(w http.ResponseWriter, r *http.Request) (answered bool)
}

const (
	testBucket = "lake"
	testKey    = "AKIDEXAMPLE"
	testSecret = "wJalrXUtnFEMI"
)

func init() { minio.DefaultRetryUnit = time.Microsecond }

func newService(t testing.TB) *service {
	s := &service{t: t, backend: s3mem.New(), hosts: map[string]bool{}}
	require.NoError(t, s.backend.CreateBucket(context.Background(), testBucket))
	server := func(hosts bool) http.Handler {
		return gofakes3.New(s.backend, gofakes3.WithV4Auth(map[string]string{testKey: testSecret}), gofakes3.WithHostBucket(hosts)).Server()
	}
	byPath, byHost := server(false), server(true)
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		if r.Method == http.MethodPut || r.Method == http.MethodPost {
			s.heads = append(s.heads, r.Header.Clone())
		}
		host, _, _ := strings.Cut(r.Host, ":")
		s.hosts[host] = true
		before := s.before
		s.mu.Unlock()
		if before != nil && before(w, r) {
			return
		}
		if strings.HasSuffix(host, ".s3.test") {
			byHost.ServeHTTP(w, r)
		} else {
			byPath.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// setBefore sets what sees each request first; requests that a client has given up may still be on their way.
func (s *service) setBefore(f func(w http.ResponseWriter, r *http.Request) (answered bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = f
}

// options have the credentials that the service knows under the name "lake", and reach it under any name.
func (s *service) options(w *world) Options {
	o := w.options()
	o.CredentialsDir = filepath.Join(w.dir, "credentials")
	folder := filepath.Join(o.CredentialsDir, "shop")
	require.NoError(s.t, os.MkdirAll(folder, 0o700))
	require.NoError(s.t, os.WriteFile(filepath.Join(folder, "lake.json"), fmt.Appendf(nil, `{"access_key_id":%q,"secret_access_key":%q}`, testKey, testSecret), 0o600))
	o.transport = &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, s.Listener.Addr().String())
	}}
	return o
}

func (s *service) destination() document.Destination {
	return document.Destination{Type: document.DestinationS3, Endpoint: s.URL, Bucket: testBucket, Region: "us-east-1", Credentials: "lake"}
}

// objects are what lies in the bucket, by name.
func (s *service) objects() map[string][]byte {
	all := map[string][]byte{}
	list, err := s.backend.ListBucket(context.Background(), testBucket, nil, gofakes3.ListBucketPage{})
	require.NoError(s.t, err)
	for _, c := range list.Contents {
		o, err := s.backend.GetObject(context.Background(), testBucket, c.Key, nil)
		require.NoError(s.t, err)
		text, err := io.ReadAll(o.Contents)
		require.NoError(s.t, err)
		require.NoError(s.t, o.Contents.Close())
		all[c.Key] = text
	}
	return all
}

// lines are those of all objects that are NDJSON, sorted.
func (s *service) lines(prefix string) (lines []string) {
	for name, text := range s.objects() {
		if strings.HasPrefix(name, prefix) {
			lines = append(lines, linesOf(s.t, plainOf(s.t, name, text))...)
		}
	}
	slices.Sort(lines)
	return lines
}

// A bucket has what the export has, each event once, whichever requests the service refuses or cuts off, and while it
// lets a request have its effect and loses the answer.
func TestS3IsTheExport(t *testing.T) {
	w, s := newWorld(t, 4<<10), newService(t)
	o := s.options(w)
	r := testseed.Rand(t)
	var drawing sync.Mutex
	draw := func(n int) int {
		drawing.Lock()
		defer drawing.Unlock()
		return r.IntN(n)
	}
	for round := range 8 {
		stream := w.create(document.Stream{ID: fmt.Sprint("s", round), Format: "ndjson", Destination: s.destination()})
		w.commit(w.ws.Number, 12, 7)
		fail := func(w http.ResponseWriter, req *http.Request) bool {
			if req.Method != http.MethodPut || draw(3) > 0 {
				return false
			}
			switch draw(3) {
			case 0:
				http.Error(w, "slow down", http.StatusServiceUnavailable)
			case 1: // a part of the body is read, then the connection ends
				_, _ = io.CopyN(io.Discard, req.Body, 10)
				panic(http.ErrAbortHandler)
			case 2: // it is done, and nobody hears of it
				rec := httptest.NewRecorder()
				inner := gofakes3.New(s.backend).Server()
				inner.ServeHTTP(rec, req)
				panic(http.ErrAbortHandler)
			}
			return true
		}
		s.setBefore(fail)
		if round%2 == 1 {
			failures := 0
			w.puts = func() error { // and cursors fail
				if failures++; failures%4 == 0 {
					return io.ErrUnexpectedEOF
				}
				return nil
			}
		}
		for range 100 {
			if w.turns(o, stream) == nil {
				break
			}
			w.commit(w.ws.Number, 1, 3)
		}
		s.setBefore(nil)
		w.puts = nil
		require.NoError(t, w.turns(o, stream))
		require.Equal(t, w.exported(eventlog.Query{}), s.lines("shop/"+stream.ID+"/event_type="))
		left, err := os.ReadDir(filepath.Join(w.dir, "shop", unfinishedDir))
		require.NoError(t, err)
		require.Empty(t, left)
	}
	for name := range s.objects() {
		require.Regexp(t, `^shop/s\d/event_type=(event|purchase)/date=\d{4}-\d\d-\d\d/s\d\.\d{8}T\d{6}\.\d{3}Z\.[0-9a-f]{16}-[0-9a-f]{16}\.ndjson\.zst$`, name)
	}
}

// A large file goes up in parts, and shows when the last of them is there.
func TestS3InParts(t *testing.T) {
	w, s := newWorld(t, 4<<10), newService(t)
	o := s.options(w)
	o.partBytes = 5 << 20
	d := s.destination()
	b := newBucket(&o, "shop", "parts", &d)
	require.NoError(t, b.open(context.Background()))
	text := make([]byte, 11<<20)
	for i := range text {
		text[i] = byte(rand.N(256))
	}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	parts := 0
	s.setBefore(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("partNumber") == "" {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		parts++
		assert.Empty(t, s.objects())
		if parts <= s3Tries && r.URL.Query().Get("partNumber") == "2" {
			http.Error(w, "<Error><Code>AccessDenied</Code></Error>", http.StatusForbidden)
			return true
		}
		return false
	})
	require.ErrorContains(t, b.put(context.Background(), file, "x", false), "put lake/shop/parts/x")
	require.Empty(t, s.objects())
	require.FileExists(t, file)
	s.setBefore(nil)
	require.NoError(t, b.put(context.Background(), file, "x", true))
	require.Equal(t, map[string][]byte{"shop/parts/x": text}, s.objects())
	require.NoFileExists(t, file)
}

// An answer of 200 that isn't the service's, like the page of a proxy, doesn't say that the object is there.
func TestS3AnswersOfOthers(t *testing.T) {
	w, s := newWorld(t, 4<<10), newService(t)
	o, d := s.options(w), s.destination()
	o.partBytes = 5 << 20
	b := newBucket(&o, "shop", "s", &d)
	require.NoError(t, b.open(context.Background()))
	const page = "<html>Please sign in to this network.</html>"
	for _, c := range []struct {
		size        int
		method, ask string
		answer      string
	}{{10, http.MethodPut, "", page}, {6 << 20, http.MethodPost, "uploads", page}, {6 << 20, http.MethodPut, "partNumber", page},
		{6 << 20, http.MethodPost, "uploadId", page}, {6 << 20, http.MethodPost, "uploadId", ""}} { // by one request; the first of the parts, one of them, what joins them
		file := filepath.Join(t.TempDir(), "file")
		require.NoError(t, os.WriteFile(file, make([]byte, c.size), 0o600))
		s.setBefore(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != c.method || c.ask != "" && !r.URL.Query().Has(c.ask) {
				return false
			}
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(w, c.answer)
			return true
		})
		err := b.put(context.Background(), file, "x", false)
		require.ErrorContains(t, err, "put lake/shop/s/x")
		require.ErrorContains(t, err, "so it is not that of a service that speaks S3")
		require.Empty(t, s.objects())
		require.FileExists(t, file)
		s.setBefore(nil)
		require.NoError(t, b.put(context.Background(), file, "x", true))
		require.Len(t, s.objects()["shop/s/x"], c.size)
		require.NoError(t, b.client.RemoveObject(context.Background(), testBucket, "shop/s/x", minio.RemoveObjectOptions{}))
	}
}

// An answer or headers without end, whatever they answer, hold the stream up, and neither is kept.
func TestS3AnswersWithoutEnd(t *testing.T) {
	w, s := newWorld(t, 4<<10), newService(t)
	o, d := s.options(w), s.destination()
	o.transport, d.Addressing, d.Region = nil, document.AddressingPath, ""
	o.partBytes = 5 << 20
	b := newBucket(&o, "shop", "s", &d)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 6<<20), 0o600))
	for _, ask := range []string{"location", "uploads", "partNumber", "uploadId"} { // in this order; the last one joins the parts
		for _, begins := range []string{"HTTP/1.1 200 OK\r\n\r\n<?xml version='1.0'?><Error><Code>", "HTTP/1.1 200 OK\r\nX: "} {
			var isTaken atomic.Bool // 256 MiB of it
			s.setBefore(func(w http.ResponseWriter, r *http.Request) bool {
				if q := r.URL.Query(); !q.Has(ask) || ask == "uploadId" && r.Method != http.MethodPost {
					return false
				}
				_, _ = io.Copy(io.Discard, r.Body)
				conn, _, err := w.(http.Hijacker).Hijack()
				assert.NoError(t, err)
				defer conn.Close()
				_, err = io.WriteString(conn, begins)
				for range 4096 {
					if err == nil {
						_, err = io.WriteString(conn, strings.Repeat("x", 64<<10))
					}
				}
				if err == nil {
					isTaken.Store(true)
				}
				return true
			})
			require.NoError(t, b.open(context.Background()))
			err := b.put(context.Background(), file, "x", false)
			require.ErrorContains(t, err, "put lake/shop/s/x")
			require.False(t, isTaken.Load(), "%s: %v", ask, err)
			require.FileExists(t, file)
		}
	}
	require.Empty(t, s.objects())
}

// What a destination says decides where objects lie and how they are asked for.
func TestS3Settings(t *testing.T) {
	w, s := newWorld(t, 4<<10), newService(t)
	w.commit(w.ws.Number, 2, 5)
	o := s.options(w)
	for name, c := range map[string]struct {
		edit func(*document.Destination)
		want string // of each object
		host string
		head string
	}{
		"path": {func(d *document.Destination) { d.Addressing, d.Prefix = document.AddressingPath, "a/b" }, `^a/b/event_type=`, "127.0.0.1", ""},
		"host": {func(d *document.Destination) { d.Endpoint, d.Addressing = "http://s3.test", document.AddressingHost }, `^shop/host/event_type=`, "lake.s3.test", ""},
		"none": {func(d *document.Destination) { d.Prefix, d.Encryption = ".", document.EncryptionS3 }, `^event_type=`, "127.0.0.1", "AES256"},
		"layout": {func(d *document.Destination) { d.Prefix, d.Layout = "currents", document.LayoutCurrents },
			`^currents/dataexport\.millrace\.S3\.integration\.shop\.layout/event_type=users\.behaviors\.(CustomEvent|Purchase)/date=\d{4}-\d\d-\d\d-\d\d/1/[0-9TZ.]+/` +
				`dataexport\.millrace\.S3\.integration\.shop\.layout\+0\+\d+\.ndjson\.zst$`, "127.0.0.1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := s.destination()
			c.edit(&d)
			before := s.objects()
			s.heads, s.hosts = nil, map[string]bool{}
			require.NoError(t, w.turns(o, w.create(document.Stream{ID: name, Format: "ndjson", Destination: d})))
			made := 0
			for object := range s.objects() {
				if _, was := before[object]; !was {
					made++
					require.Regexp(t, c.want, object)
				}
			}
			require.Equal(t, 2, made)
			require.Equal(t, map[string]bool{c.host: true}, s.hosts)
			for _, h := range s.heads {
				require.Equal(t, c.head, h.Get("X-Amz-Server-Side-Encryption"))
			}
		})
	}
}

// Streams of one name of two workspaces, which began at once and go to one place, have no object of one name.
func TestS3PlaceOfTwoWorkspaces(t *testing.T) {
	for _, layout := range []string{document.LayoutHive, document.LayoutCurrents} {
		s := &document.Stream{ID: "lake", Format: "ndjson", StartedAt: 1,
			Destination: document.Destination{Type: document.DestinationS3, Prefix: "events", Layout: layout}}
		seen := map[string]bool{}
		for _, workspace := range []string{"shop", "other"} {
			l := newLayout(&control.Workspace{Settings: document.Settings{ID: workspace}}, s, Part{})
			seen[l.name(fileKey{op.Event, 1}, 1, 9)] = true
		}
		require.Len(t, seen, 2)
	}
}

// Credentials are read anew after each failure; what is wrong with them is said without them.
func TestCredentials(t *testing.T) {
	w, s := newWorld(t, 4<<10), newService(t)
	stream := w.create(document.Stream{ID: "all", Format: "ndjson", Destination: s.destination()})
	w.commit(w.ws.Number, 2, 5)
	o := s.options(w)
	file := filepath.Join(o.CredentialsDir, "shop", "lake.json")
	good, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.Remove(file))
	require.ErrorContains(t, w.turns(o, stream), "MILLRACE_STREAM_CREDENTIALS_SHOP_LAKE")
	for _, bad := range []string{`{"access_key_id":"x"`, `{"password":"hidden"}`, `{} {"x":"hidden"}`, `"hidden"`} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		err := w.turns(o, stream)
		require.ErrorContains(t, err, `credentials "lake"`)
		require.NotContains(t, err.Error(), "hidden")
	}
	require.NoError(t, os.WriteFile(file, []byte(`{"access_key_id":"AKIDEXAMPLE","secret_access_key":"hidden"}`), 0o600))
	err = w.turns(o, stream)
	require.Error(t, err)
	require.NotContains(t, err.Error(), "hidden")
	require.NoError(t, os.Remove(file))
	t.Setenv("MILLRACE_STREAM_CREDENTIALS_SHOP_LAKE", string(good))
	require.NoError(t, w.turns(o, stream))
	require.Equal(t, w.exported(eventlog.Query{}), s.lines("shop/all/"))
}

// A variable is of one workspace: who names credentials as another's workspace begins doesn't get that one's.
func TestVariablesOfOthers(t *testing.T) {
	w := newWorld(t, 4<<10)
	o := w.options()
	t.Setenv("MILLRACE_STREAM_CREDENTIALS_SHOP_EU_LAKE", `{"token":"hidden"}`)
	read := func(workspace, name string) error { return o.credentials(workspace, name, new(httpCredentials)) }
	require.NoError(t, read("shop", "eu-lake"))
	_, err := w.c.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "shop-eu"})
	require.NoError(t, err)
	require.ErrorContains(t, read("shop", "eu-lake"), `workspace "shop-eu"`)
	require.NoError(t, read("shop-eu", "lake"))
	_, err = w.c.CreateWorkspace(control.Actor{Name: "test"}, document.Settings{ID: "shop_eu"})
	require.NoError(t, err)
	require.ErrorContains(t, read("shop-eu", "lake"), `workspace "shop_eu"`)
	require.ErrorContains(t, read("shop_eu", "lake"), `workspace "shop-eu"`)
}

// A service that hangs in the middle of an answer, or takes nothing, is an error, whatever the size of the object.
func TestS3ServiceThatHangs(t *testing.T) {
	w, service := newWorld(t, 4<<10), newService(t)
	hang := true
	service.setBefore(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPut || !hang {
			return false
		}
		conn, _, err := rw.(http.Hijacker).Hijack()
		require.NoError(t, err)
		t.Cleanup(func() { conn.Close() })
		_, err = conn.Write([]byte("HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: 1000\r\n\r\n<Error>"))
		require.NoError(t, err)
		return true
	})
	v := document.Stream{ID: "all", Format: "ndjson", Destination: service.destination()}
	v.Destination.Addressing = document.AddressingPath
	s := w.create(v)
	w.commit(w.ws.Number, 2, 5)
	o := service.options(w)
	o.transport, o.RequestTimeout = nil, 100*time.Millisecond
	require.Error(t, w.turns(o, s))
	hang = false
	o.RequestTimeout = time.Minute
	require.NoError(t, w.turns(o, s))
	require.Equal(t, strings.Join(w.exported(eventlog.Query{}), "\n"), strings.Join(service.lines("shop/all/"), "\n"))
}

// So is a machine's service of credentials that takes the question and never answers.
func TestS3CredentialsThatHang(t *testing.T) {
	w, service := newWorld(t, 4<<10), newService(t)
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	t.Cleanup(hanging.Close)
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", hanging.URL)
	v := document.Stream{ID: "all", Format: "ndjson", Destination: service.destination()}
	v.Destination.Credentials = ""
	s := w.create(v)
	w.commit(w.ws.Number, 2, 5)
	o := service.options(w)
	o.RequestTimeout = 100 * time.Millisecond
	require.Error(t, w.turns(o, s))
	require.Empty(t, service.objects())
}

// hanging is a service that begins an upload, and never answers after that.
type hanging struct{}

func (hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Query().Has("uploads") {
		text := `<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>`
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)), Request: r}, nil
	}
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// An upload that is no longer wanted doesn't wait for a service that hangs: a pause, or the end of the server, would.
func TestS3UploadIsGivenUp(t *testing.T) {
	o := newService(t).options(newWorld(t, 4<<10))
	o.transport, o.partBytes = hanging{}, 5<<20
	d := document.Destination{Type: document.DestinationS3, Endpoint: "http://127.0.0.1:9", Bucket: testBucket, Region: "us-east-1", Credentials: "lake"}
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, make([]byte, 6<<20), 0o600))
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(&o, "shop", "s", &d)
		ctx, cancel := context.WithCancel(t.Context())
		require.NoError(t, b.open(ctx))
		var ended time.Time
		go func() {
			assert.ErrorIs(t, b.put(ctx, file, "x", false), context.Canceled)
			ended = time.Now()
		}()
		time.Sleep(time.Second)
		cancel()
		given := time.Now()
		time.Sleep(2 * time.Minute) // the library goes on for a while
		synctest.Wait()
		require.False(t, ended.IsZero())
		require.Less(t, ended.Sub(given), closePatience)
	})
}
