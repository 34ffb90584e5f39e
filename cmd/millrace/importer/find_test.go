package importer

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/minio/minio-go/v7"
	"github.com/rclone/gofakes3"
	"github.com/rclone/gofakes3/s3mem"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
)

// service is a server that speaks S3, the library of `rclone serve s3`, with a bucket and a key.
type service struct {
	*httptest.Server
	t       testing.TB
	backend gofakes3.Backend

	mu     sync.Mutex
	before func(w http.ResponseWriter, r *http.Request) (answered bool)
}

const (
	testBucket = "landing"
	testKey    = "AKIDEXAMPLE"
	testSecret = "wJalrXUtnFEMI"
)

func init() {
	minio.DefaultRetryUnit = time.Microsecond
	_ = os.Setenv("AWS_ACCESS_KEY_ID", testKey)
	_ = os.Setenv("AWS_SECRET_ACCESS_KEY", testSecret)
}

func newService(t testing.TB) *service {
	s := &service{t: t, backend: s3mem.New()}
	require.NoError(t, s.backend.CreateBucket(context.Background(), testBucket))
	handler := gofakes3.New(s.backend, gofakes3.WithV4Auth(map[string]string{testKey: testSecret})).Server()
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		before := s.before
		s.mu.Unlock()
		if before == nil || !before(w, r) {
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// intercept has a function see each request first.
func (s *service) intercept(before func(w http.ResponseWriter, r *http.Request) (answered bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = before
}

func (s *service) put(key, text string) {
	_, err := s.backend.PutObject(context.Background(), testBucket, key, map[string]string{"Last-Modified": time.Now().UTC().Format(http.TimeFormat)}, strings.NewReader(text), int64(len(text)))
	require.NoError(s.t, err)
}

// packed is a text as its file's name says.
func packed(t *testing.T, name, text string) []byte {
	var b bytes.Buffer
	w := io.WriteCloser(nil)
	switch filepath.Ext(name) {
	case ".gz":
		w = gzip.NewWriter(&b)
	case ".zst":
		var err error
		w, err = zstd.NewWriter(&b)
		require.NoError(t, err)
	default:
		return []byte(text)
	}
	_, err := io.WriteString(w, text)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

func row(n int) string { return fmt.Sprintf(`{"external_id":"u","row":%d}`+"\n", n) }

// Of a bucket what begins as the path says is taken by its keys, each object once as it is.
func TestBucket(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	s.put("in/c.ndjson", row(3)+`{"external_id":"u"}`)
	s.put("in/a.ndjson", row(1))
	s.put("in/b.CSV.GZ", string(packed(t, "x.gz", "external_id,payload\nu,\"{\"\"row\"\":2}\"\n")))
	s.put("in/d.txt", "nothing")
	s.put("in/folder/e.ndjson", row(9))
	s.put("in/.hidden.ndjson", row(9))
	s.put("out/e.ndjson", row(9))
	o := d.options(t, "s3://"+testBucket+"/in/")
	o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
	run := func(files, before int, rows ...int) {
		t.Helper()
		d.rows = map[string][]int{}
		report, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, []int{files, before}, []int{report.Files, report.Before})
		require.Equal(t, []string{"d.txt"}, report.Unknown)
		require.ElementsMatch(t, rows, d.rows["u"])
	}
	run(3, 0, 1, 2, 3)
	require.Len(t, refusedRows(t, filepath.Join(o.State, "c.ndjson")), 1)
	run(0, 3)
	s.put("in/a.ndjson", row(4)) // within the same second, and of the same length
	run(1, 2, 4)
	entries, err := os.ReadDir(o.State)
	require.NoError(t, err)
	for _, e := range entries {
		require.NotContains(t, e.Name(), "copy-")
	}

	o.Paths = []string{"s3://" + testBucket + "/in/d.txt"} // who names an object means it
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, "d.txt: its name doesn't tell its format")
	for path, want := range map[string]string{"s3://": "want s3://BUCKET/PREFIX", "s3://other/in/": "list s3://other/in/: The specified bucket does not exist"} {
		o.Paths = []string{path}
		_, err = Run(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
	o.Paths = []string{"s3://" + testBucket}
	o.S3.Endpoint = "landing"
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, `--s3-endpoint "landing": want http`)
	o.S3 = S3{Endpoint: s.URL, Addressing: "dns"}
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, `--s3-addressing "dns": want path or host`)
}

// What can't be reached at any time is refused at once, also by an import that would wait for what can't be reached now.
func TestBucketsThatCannotBe(t *testing.T) {
	d := newDouble(t, testseed.Rand(t), 0)
	for want, set := range map[string]S3{
		`path "s3://ab/in": Bucket name cannot be shorter`: {},
		`--s3-endpoint "http://u:p@h": want http`:          {Endpoint: "http://u:p@h"},
		`--s3-endpoint "http://h/?a=b": want http`:         {Endpoint: "http://h/?a=b"},
		`--s3-endpoint "http://:9000": want http`:          {Endpoint: "http://:9000"},
		`--s3-endpoint "http://h:99999": no machine`:       {Endpoint: "http://h:99999"},
		"--s3-addressing host: http://127.0.0.1:9 has no":  {Endpoint: "http://127.0.0.1:9", Addressing: "host"},
	} {
		o := d.options(t, "s3://ab/in")
		if set != (S3{}) {
			o.Paths[0] = "s3://landing/in"
		}
		o.State, o.S3, o.Watch, o.Patience = t.TempDir(), set, true, time.Millisecond
		_, err := Run(t.Context(), o)
		require.ErrorContains(t, err, want)
	}
}

// An object that changes between the list and its turn isn't taken by half, and doesn't keep those behind it.
func TestObjectThatChanges(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	for n, key := range []string{"a.ndjson", "b.ndjson", "c.ndjson"} {
		s.put(key, row(n))
	}
	d.onAny = sync.OnceFunc(func() { s.put("b.ndjson", row(7)) })
	o := d.options(t, "s3://"+testBucket)
	o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
	report, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "b.ndjson: it was changed or removed since it was listed")
	require.Equal(t, []int{2, 1}, []int{report.Files, report.Bad})
	require.Equal(t, []int{0, 2}, d.rows["u"])
	_, err = Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, []int{0, 2, 7}, d.rows["u"])
}

// An object that is replaced when its answer is about to begin, or can't be read because it is archived, doesn't keep
// those behind it either.
func TestObjectThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for want, get := range map[string]func(s *service, w http.ResponseWriter) (answered bool){
		"it was changed or removed since it was listed": func(s *service, _ http.ResponseWriter) bool {
			s.put("b.ndjson", row(7))
			return false
		},
		"The operation is not valid for the object's storage class": func(_ *service, w http.ResponseWriter) bool {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `<Error><Code>InvalidObjectState</Code>`+
				`<Message>The operation is not valid for the object's storage class</Message></Error>`)
			return true
		},
	} {
		d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
		for n, key := range []string{"a.ndjson", "b.ndjson", "c.ndjson"} {
			s.put(key, row(n))
		}
		s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "b.ndjson") && get(s, w)
		})
		o := d.options(t, "s3://"+testBucket)
		o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
		report, err := Run(t.Context(), o)
		require.ErrorContains(t, err, "b.ndjson: "+want)
		require.Equal(t, []int{2, 1}, []int{report.Files, report.Bad})
		require.Equal(t, []int{0, 2}, d.rows["u"])
	}
}

// Of an object that has other bytes than it was listed with nothing is taken, though its answer is complete.
func TestObjectOfAnotherSize(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 3} {
		d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
		s.put("a.ndjson", row(1)+row(2))
		s.put("b.ndjson", row(3))
		s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "a.ndjson") {
				return false
			}
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			_, _ = io.WriteString(w, strings.Repeat(row(1), size))
			return true
		})
		o := d.options(t, "s3://"+testBucket)
		o.State, o.S3, o.Poll = t.TempDir(), S3{Endpoint: s.URL}, time.Millisecond
		report, err := Run(t.Context(), o)
		require.ErrorContains(t, err, fmt.Sprintf("a.ndjson: it was listed with %d bytes and has ", 2*len(row(1))))
		require.Equal(t, []int{1, 1}, []int{report.Files, report.Bad})
		require.Equal(t, []int{3}, d.rows["u"])
	}
}

// An object of which a part has come as if it were all is asked for again.
func TestObjectThatIsCut(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a.ndjson", "a.ndjson.gz"} {
		text := string(packed(t, name, row(1)+row(2)))
		d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
		s.put(name, text)
		cuts := 0
		s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, name) || cuts == 2 {
				return false
			}
			cuts++
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			_, _ = io.WriteString(w, text[:len(text)/2])
			return true
		})
		o := d.options(t, "s3://"+testBucket)
		o.State, o.S3, o.Poll = t.TempDir(), S3{Endpoint: s.URL}, time.Millisecond
		report, err := Run(t.Context(), o)
		require.NoError(t, err)
		require.Equal(t, 1, report.Files)
		require.Equal(t, []int{1, 2}, d.rows["u"])
	}
}

// An answer of 200 that is no list of objects is not an empty bucket.
func TestListOfOthers(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"<html><body>Sign in</body></html>", "", "<Error><Code>InternalError</Code></Error>"} {
		for _, param := range []string{"list-type", ""} { // what answers may do so to all requests
			d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
			s.put("a.ndjson", row(1))
			s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if param != "" && !r.URL.Query().Has(param) {
					return false
				}
				_, _ = io.WriteString(w, text)
				return true
			})
			o := d.options(t, "s3://"+testBucket)
			o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
			_, err := Run(t.Context(), o)
			require.ErrorContains(t, err, "list s3://"+testBucket, text)
		}
	}
}

// An answer of 200 that is no object says nothing about the object.
func TestObjectOfOthers(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	s.put("a.ndjson", row(1))
	s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "a.ndjson") {
			return false
		}
		_, _ = io.WriteString(w, "<html><body>Sign in</body></html>")
		return true
	})
	o := d.options(t, "s3://"+testBucket)
	o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "get s3://"+testBucket+"/a.ndjson: ")
	require.ErrorContains(t, err, "the answer has no Last-Modified, so it is not that of a service that speaks S3")
}

// Objects may have any name. One that no file can have doesn't keep those behind it.
func TestOddKeys(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	for n, key := range []string{"a\nb.ndjson", "a b+%20?x=1#y.ndjson", "back\\slash.ndjson", "n\x00.ndjson", "z&<ü😀.ndjson"} {
		s.put("in/"+key, row(n))
	}
	o := d.options(t, "s3://"+testBucket+"/in/")
	o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
	report, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "no file can have its name")
	require.Equal(t, []int{4, 1}, []int{report.Files, report.Bad})
	require.ElementsMatch(t, []int{0, 1, 2, 4}, d.rows["u"])
}

// A path that names a folder without the / at its end has no objects of the folder, and says so.
func TestFolderWithoutSlash(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.put("in/a.ndjson", row(1))
	s.put("in-b.ndjson", row(2))
	s.put("deep//c.ndjson", row(3))
	s.put(".hidden/d.ndjson", row(4))
	for _, test := range []struct {
		path    string
		rows    []int
		unknown []string
	}{{"in", []int{2}, []string{"in"}}, {".hidden", nil, []string{".hidden"}}, {"deep/", nil, nil}} {
		d := newDouble(t, testseed.Rand(t), 0)
		var logged bytes.Buffer
		o := d.options(t, "s3://"+testBucket+"/"+test.path)
		o.State, o.S3, o.Logger = t.TempDir(), S3{Endpoint: s.URL}, slog.New(slog.NewTextHandler(&logged, nil))
		report, err := Run(t.Context(), o)
		require.NoError(t, err, test.path)
		require.Equal(t, test.rows, d.rows["u"], test.path)
		require.Equal(t, test.unknown, report.Unknown, test.path)
		if test.unknown != nil {
			require.Contains(t, logged.String(), `"skipped: it is a folder: only a path that ends with / has its objects" file=s3://landing/`+test.path+`/`)
		}
	}
}

// A bucket is watched: what comes is taken, also when the service was away meanwhile, in the middle of an object too.
func TestWatchedBucket(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	o := d.options(t, "s3://"+testBucket+"/in/")
	o.State, o.S3, o.Watch, o.Poll, o.Settle = t.TempDir(), S3{Endpoint: s.URL}, true, time.Millisecond, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := Run(ctx, o)
		done <- err
	}()
	taken := func(n int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			states, err := openStates(o.State)
			require.NoError(t, err)
			ended := 0
			for _, some := range states.byName {
				for _, one := range some {
					if one.Done {
						ended++
					}
				}
			}
			if ended == n {
				return
			}
			require.True(t, time.Now().Before(end), "%d of %d", ended, n)
		}
	}
	s.put("in/a.ndjson", row(1))
	taken(1)
	refused := make(chan struct{}, 1)
	s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		select {
		case refused <- struct{}{}:
		default:
		}
		return true
	})
	<-refused
	var cuts sync.WaitGroup
	cuts.Add(1)
	cut := sync.OnceFunc(cuts.Done)
	s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "b.ndjson") {
			return false
		}
		cut()
		panic(http.ErrAbortHandler)
	})
	s.put("in/b.ndjson", row(2))
	cuts.Wait()
	s.intercept(nil)
	taken(2)
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, []int{1, 2}, d.rows["u"])
}

// A service that says no more in the middle of an object, or of what there is, is one that is away.
func TestBucketThatHangs(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	s.put("in/a.ndjson", row(1))
	for _, hanging := range []string{"/" + testBucket + "/", "/" + testBucket + "/in/a.ndjson"} {
		s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || r.URL.Path != hanging || r.URL.Query().Has("location") {
				return false
			}
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
			_, _ = io.WriteString(w, row(1))
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		})
		o := d.options(t, "s3://"+testBucket+"/in/")
		o.State, o.S3, o.Timeout = t.TempDir(), S3{Endpoint: s.URL}, 100*time.Millisecond
		_, err := Run(t.Context(), o)
		require.ErrorContains(t, err, "s3://"+testBucket+"/in/", hanging)
	}
	s.intercept(nil)
	o := d.options(t, "s3://"+testBucket+"/in/")
	o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
	report, err := Run(t.Context(), o)
	require.NoError(t, err)
	require.Equal(t, 1, report.Files)
}

// One that is interrupted before it asks again has found no bad file.
func TestObjectThatIsCutInterrupted(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	s.put("a.ndjson", row(1)+row(2))
	ctx, cancel := context.WithCancel(t.Context())
	s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.HasSuffix(r.URL.Path, "a.ndjson") {
			return false
		}
		w.Header().Set("ETag", `"e"`)
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		_, _ = io.WriteString(w, row(1))
		time.AfterFunc(50*time.Millisecond, cancel)
		return true
	})
	o := d.options(t, "s3://"+testBucket)
	o.State, o.S3, o.Poll = t.TempDir(), S3{Endpoint: s.URL}, time.Hour
	report, err := Run(ctx, o)
	require.ErrorIs(t, err, context.Canceled)
	require.Zero(t, report.Bad)
}

// A watching import that is interrupted while it looks for objects has left nothing off.
func TestWatchedBucketInterrupted(t *testing.T) {
	t.Parallel()
	i := &importer{o: Options{Paths: []string{"s3://" + testBucket + "/in/"}, Watch: true, S3: S3{Endpoint: newService(t).URL}}}
	var err error
	i.bucket, err = newBuckets(&i.o.S3, time.Minute, i.isOurs)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, i.round(ctx, &watcher{}, &FileErrors{}))
	i.o.Watch = false
	require.ErrorIs(t, i.round(ctx, &watcher{}, &FileErrors{}), context.Canceled)
}

// A watching import goes on with a service that often fails, as long as it gives something in between.
func TestWatchedBucketThatFailsOften(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	s.put("a.ndjson", row(1))
	s.put("b.ndjson", row(2))
	i := &importer{o: d.options(t, "s3://"+testBucket), bar: newBar(nil), patience: patience{most: time.Hour}}
	i.o.Watch, i.o.S3, i.o.State = true, S3{Endpoint: s.URL}, t.TempDir()
	i.o.EnsureDefaults()
	i.client = newClient(&i.o)
	var err error
	i.bucket, err = newBuckets(&i.o.S3, time.Minute, i.isOurs)
	require.NoError(t, err)
	i.states, err = openStates(i.o.State)
	require.NoError(t, err)
	s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "b.ndjson") {
			w.WriteHeader(http.StatusServiceUnavailable)
			return true
		}
		return false
	})
	i.patience.since = time.Now().Add(-time.Minute)
	require.ErrorAs(t, i.round(t.Context(), &watcher{}, &FileErrors{}), new(*awayError))
	require.Equal(t, []int{1}, d.rows["u"])
	require.True(t, i.patience.away())
	require.Less(t, time.Since(i.patience.since), time.Minute)
}

// Copying ends when the import is interrupted, however much there is still to copy.
func TestInterruptedCopy(t *testing.T) {
	t.Parallel()
	path := write(t, filepath.Join(t.TempDir(), "a.ndjson.gz"), string(packed(t, "a.gz", row(1))))
	i := &importer{o: Options{State: t.TempDir(), MaxCopyBytes: 1 << 20}, bar: newBar(nil)}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := i.open(ctx, &found{path: path})
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorAs(t, err, new(*FileError))
}

// What a service says for good ends also a watching import, and so does one that is away for too long.
func TestWatchedBucketEnds(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	o := d.options(t, "s3://other/in/")
	o.State, o.S3, o.Watch = t.TempDir(), S3{Endpoint: s.URL}, true
	_, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "The specified bucket does not exist")
	s.intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusMovedPermanently)
		_, _ = io.WriteString(w, `<Error><Code>PermanentRedirect</Code><Message>It is elsewhere</Message></Error>`)
		return true
	})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // far from its patience
	defer cancel()
	_, err = Run(ctx, o)
	require.ErrorContains(t, err, "It is elsewhere")
	s.intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	o.Patience, o.Poll = time.Nanosecond, time.Millisecond
	_, err = Run(t.Context(), o)
	require.ErrorContains(t, err, "list s3://other/in/")
}

// A packed file that is damaged, cut short or endless is a bad one, of which nothing is taken; one without a byte has no
// rows.
func TestPackedFiles(t *testing.T) {
	t.Parallel()
	text := strings.Repeat(row(1), 10_000)
	for _, name := range []string{"a.ndjson.gz", "a.ndjson.zst"} {
		whole := packed(t, name, text)
		damaged := bytes.Clone(whole)
		damaged[len(damaged)-6] ^= 1
		for what, c := range map[string]struct {
			bytes []byte
			want  string
		}{
			"cut short": {whole[:len(whole)/2], "it is damaged or truncated"},
			"damaged":   {damaged, "it is damaged or truncated"},
			"no such":   {[]byte(text), "it is damaged or truncated"},
			"endless":   {packed(t, name, strings.Repeat(text, 2)), "it is longer than 300000 bytes (--copy-bytes)"},
			"whole":     {whole, ""},
			"empty":     {nil, ""},
		} {
			d := newDouble(t, testseed.Rand(t), 0)
			o := d.options(t, t.TempDir())
			o.MaxCopyBytes = 300_000
			write(t, filepath.Join(o.Paths[0], name), string(c.bytes))
			report, err := Run(t.Context(), o)
			if c.want == "" {
				require.NoError(t, err)
				require.EqualValues(t, map[bool]int{true: 0, false: 10_000}[c.bytes == nil], report.Taken)
				continue
			}
			require.ErrorContains(t, err, c.want, "%s: %s", name, what)
			require.Empty(t, d.rows)
			require.Equal(t, 1, report.Bad)
		}
	}
}

// Of many files that were taken each is looked at once in a number of rounds; others are looked at in each of them.
func TestTurns(t *testing.T) {
	const turns = 7
	w := &watcher{}
	var paths []string
	for n := range 1000 {
		paths = append(paths, fmt.Sprint("/landing/", n))
		require.True(t, w.settled(&found{path: paths[n]}))
		if n > 10 {
			w.leave(paths[n])
		}
	}
	w.forget()
	looked := map[string]int{}
	for range turns {
		for _, path := range paths {
			require.False(t, w.rests(path, 1))
			if !w.rests(path, turns) {
				looked[path]++
				w.settled(&found{path: path})
			}
		}
		require.False(t, w.rests("/landing/new", turns))
		w.forget()
		require.Len(t, w.seen, len(paths), "files that rest aren't forgotten")
	}
	for n, path := range paths {
		require.Equal(t, map[bool]int{true: 1, false: turns}[n > 10], looked[path])
	}
	w.forget()
	require.Empty(t, w.seen)
}

// A directory that isn't there stays so: it must not be made for the state, be found empty, and pass for imported.
func TestMissingDirectory(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, path := range []string{missing, missing + "/"} {
		o := Options{Paths: []string{path}}
		o.EnsureDefaults()
		require.Equal(t, filepath.Join(filepath.Dir(missing), ".millrace-import"), o.State, path)
	}
}

// listed is an answer of a service to the question for a list.
func listed(next string, objects ...string) string {
	return "<ListBucketResult><IsTruncated>" + strconv.FormatBool(next != "") + "</IsTruncated><NextContinuationToken>" + next +
		"</NextContinuationToken>" + strings.Join(objects, "") + "</ListBucketResult>"
}

// A list of many keys, or without an end, is not read to its end, whether or not the keys are of objects to import.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, key := range []string{"a.ndjson", "a.txt"} {
		s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			object := "<Contents><Key>" + key + "</Key></Contents>"
			_, _ = io.WriteString(w, listed("more", object, object))
			return true
		})
		b, err := newBuckets(&S3{Endpoint: s.URL, Region: "x"}, time.Minute, func(name string) bool { return name != "a.txt" })
		require.NoError(t, err)
		require.Equal(t, maxKeys, b.most)
		b.most = 5
		_, err = b.list(t.Context(), "s3://"+testBucket)
		require.ErrorContains(t, err, "list s3://"+testBucket+": there are more than 5 objects")
		_, isAway := errors.AsType[*awayError](err)
		require.False(t, isAway, "it will not pass")
	}
}

// Nor is one that goes on for ever with pages that have no keys, whether or not there were keys before.
func TestListOfEmptyPages(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for _, before := range []string{"", "<Contents><Key>a.ndjson</Key></Contents>"} {
		first := before
		s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			_, _ = io.WriteString(w, listed("more", first))
			first = ""
			return true
		})
		b, err := newBuckets(&S3{Endpoint: s.URL, Region: "x"}, time.Minute, func(string) bool { return true })
		require.NoError(t, err)
		require.Equal(t, time.Minute, b.patience)
		b.patience = 50 * time.Millisecond
		_, err = b.list(t.Context(), "s3://"+testBucket)
		require.ErrorContains(t, err, "list s3://"+testBucket+": the service sends one empty page after the other")
		_, isAway := errors.AsType[*awayError](err)
		require.True(t, isAway, "it may be over in a while")
	}
}

// Such pages are told from a service that is slow, or says what is wrong.
func TestListOfASlowService(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.put("a.ndjson", row(1))
	b, err := newBuckets(&S3{Endpoint: s.URL, Region: "x"}, time.Minute, func(string) bool { return true })
	require.NoError(t, err)
	b.patience = 0 // any time is too long
	list, err := b.list(t.Context(), "s3://"+testBucket)
	require.NoError(t, err)
	require.Len(t, list, 1)
	s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	_, err = b.list(t.Context(), "s3://"+testBucket)
	require.ErrorContains(t, err, "Access Denied")
}

// An object that is listed without an ETag could be replaced unseen: it is a bad file, and the others are imported.
func TestObjectWithoutETag(t *testing.T) {
	t.Parallel()
	d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
	s.put("a.ndjson", row(1))
	s.put("b.ndjson", row(2))
	etag := fmt.Sprintf("<ETag>%x</ETag>", md5.Sum([]byte(row(2))))
	s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !r.URL.Query().Has("list-type") {
			return false
		}
		_, _ = io.WriteString(w, listed("", "<Contents><Key>a.ndjson</Key></Contents>",
			fmt.Sprintf("<Contents><Key>b.ndjson</Key><Size>%d</Size>%s</Contents>", len(row(2)), etag)))
		return true
	})
	o := d.options(t, "s3://"+testBucket)
	o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
	report, err := Run(t.Context(), o)
	require.ErrorContains(t, err, "s3://"+testBucket+"/a.ndjson: the service lists it without an ETag")
	require.Equal(t, []int{1, 1}, []int{report.Bad, report.Files}, "%v", err)
	require.Equal(t, []int{2}, d.rows["u"])
}

// A service whose answers never end is not read for ever: an error, a list, an object's key, the headers.
func TestAnswersWithoutEnd(t *testing.T) {
	t.Parallel()
	const list, object = "list", "object"
	for _, test := range []struct {
		of, begin, repeat string
		status            int
	}{
		{list, "<Error>", "<Code>NoSuchBucket</Code>", http.StatusNotFound},
		{list, "<ListBucketResult>", "<Contents><Key>k</Key></Contents>", http.StatusOK},
		{list, "<ListBucketResult><Contents><Key>", "kkkkkkkkkkkkkkkkkkkk", http.StatusOK},
		{list, "", "", http.StatusOK},
		{object, "<Error>", "<Code>InternalError</Code>", http.StatusForbidden},
		{object, "", "", http.StatusOK},
	} {
		d, s := newDouble(t, testseed.Rand(t), 0), newService(t)
		s.put("a.ndjson", row(1))
		s.intercept(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodGet || r.URL.Query().Has("list-type") != (test.of == list) || r.URL.Query().Has("location") {
				return false
			}
			if test.repeat == "" {
				w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
			}
			w.WriteHeader(test.status)
			_, err := io.WriteString(w, test.begin)
			for text, n := strings.Repeat(test.repeat, 1000), 0; err == nil && text != "" && n < 256<<20; n += len(text) {
				_, err = io.WriteString(w, text)
			}
			if err == nil && test.repeat != "" {
				t.Errorf("all of %d %s%s… was read", test.status, test.begin, test.repeat)
			}
			return true
		})
		o := d.options(t, "s3://"+testBucket)
		o.State, o.S3 = t.TempDir(), S3{Endpoint: s.URL}
		_, err := Run(t.Context(), o)
		require.Error(t, err, test)
		require.Empty(t, d.rows)
	}
}
