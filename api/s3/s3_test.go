package s3

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"
)

func init() { minio.DefaultRetryUnit = time.Microsecond }

const (
	// pastEnd is how much an answer without end has in fact, so that a test ends also where nothing bounds it.
	pastEnd = 8 * maxList
	tries   = 3
)

// endless is a service that answers with status, some bytes, and others without end. It counts what was taken.
type endless struct {
	*httptest.Server
	status       int
	begins, then string
	taken        atomic.Int64
	asked        atomic.Int64
}

func newEndless(t *testing.T, status int, begins, then string) *endless {
	e := &endless{status: status, begins: begins, then: then}
	e.Server = httptest.NewServer(http.HandlerFunc(e.answer))
	t.Cleanup(e.Close)
	return e
}

func (e *endless) answer(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	e.asked.Add(1)
	w.Header().Set("ETag", `"e"`)
	w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
	w.WriteHeader(e.status)
	n, err := io.WriteString(w, e.begins)
	more := strings.Repeat(e.then, 32<<10/len(e.then))
	for all := n; err == nil && all < pastEnd; all += n {
		n, err = io.WriteString(w, more)
		e.taken.Add(int64(n))
	}
}

// requireBounded requires that of each answer no more was taken than the bound, and what connections hold on the way.
func (e *endless) requireBounded(t *testing.T, most int64) {
	t.Helper()
	e.Close() // which waits for answers
	require.NotZero(t, e.asked.Load())
	require.Less(t, e.taken.Load(), e.asked.Load()*(most+8<<20))
}

// A service of credentials that says without end who the machine is costs no more than the bound.
func TestCredentialsWithoutEnd(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("t"), 0o600))
	const sts = `<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">` +
		`<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>`
	for name, c := range map[string]struct {
		variables    map[string]string
		status       int
		begins, then string
	}{
		"token of an instance": {nil, 200, "", "x"},
		"container":            {map[string]string{"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/a"}, 200, `{"Token":"`, "x"},
		"agent":                {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "URL"}, 200, `{"Token":"`, "x"},
		"agent with a token": {map[string]string{"AWS_CONTAINER_CREDENTIALS_FULL_URI": "URL",
			"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": token}, 200, `{"Token":"`, "x"},
		"STS":          {map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": token}, 200, sts, "x"},
		"error of STS": {map[string]string{"AWS_WEB_IDENTITY_TOKEN_FILE": token}, 403, "<Error><Code>", "x"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndless(t, c.status, c.begins, c.then)
			clearEnvironment(t)
			for variable, value := range c.variables {
				t.Setenv(variable, strings.Replace(value, "URL", e.URL, 1))
			}
			s := Service{Patience: time.Minute, Silence: time.Minute}
			role := s.role(http.DefaultTransport)
			if !strings.HasPrefix(name, "agent") {
				role.Endpoint = e.URL
			}
			_, err := role.Retrieve()
			require.ErrorContains(t, err, more(maxAnswer))
			e.requireBounded(t, maxAnswer)
		})
	}
}

// The names of an instance's roles come after a token, line by line.
func TestRolesWithoutEnd(t *testing.T) {
	clearEnvironment(t)
	e := newEndless(t, 200, "", "role\n")
	e.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			_, _ = io.WriteString(w, "token")
			return
		}
		e.answer(w, r)
	})
	s := Service{Patience: time.Minute}
	role := s.role(http.DefaultTransport)
	role.Endpoint = e.URL
	_, err := role.Retrieve()
	require.ErrorContains(t, err, more(maxAnswer))
	e.requireBounded(t, maxAnswer)
}

// Of headers without end no more is kept, whoever sends them: one transport carries all requests.
func TestHeadersWithoutEnd(t *testing.T) {
	clearEnvironment(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X", strings.Repeat("x", 1<<20))
		w.Header().Set("ETag", `"e"`)
		_, _ = io.WriteString(w, `{"AccessKeyID":"a","SecretAccessKey":"s","Code":"Success"}`)
	}))
	t.Cleanup(server.Close)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", server.URL)
	s := Service{Endpoint: server.URL, Region: "r", Addressing: ByPath, Patience: time.Minute, Silence: time.Minute, Tries: 1}
	client, err := s.Client()
	require.NoError(t, err)
	known, err := client.GetCreds()
	require.NoError(t, err)
	require.Empty(t, known.AccessKeyID)
	_, err = client.PutObject(t.Context(), "bucket", "key", strings.NewReader("x"), 1, minio.PutObjectOptions{})
	require.ErrorContains(t, err, "headers exceeded")
}

// Lists, errors and answers to uploads without end are errors; objects are read, however large.
func TestAnswersWithoutEnd(t *testing.T) {
	list := func(ctx context.Context, c *minio.Client) error {
		for o := range c.ListObjects(ctx, "bucket", minio.ListObjectsOptions{}) {
			if o.Err != nil {
				return o.Err
			}
		}
		return nil
	}
	get := func(ctx context.Context, c *minio.Client) error {
		o, err := c.GetObject(ctx, "bucket", "key", minio.GetObjectOptions{})
		if err == nil {
			_, err = io.Copy(io.Discard, o)
		}
		return err
	}
	put := func(ctx context.Context, c *minio.Client) error {
		_, err := c.PutObject(ctx, "bucket", "key", strings.NewReader("x"), 1, minio.PutObjectOptions{})
		return err
	}
	const listed = `<?xml version="1.0"?><ListBucketResult><Name>bucket</Name>`
	for name, c := range map[string]struct {
		status       int
		begins, then string
		ask          func(context.Context, *minio.Client) error
		most         int64
		wants        string
	}{
		"list":                {200, listed, "<Contents><Key>" + strings.Repeat("k", 1000) + "</Key></Contents>", list, maxList, more(maxList)},
		"name in a list":      {200, listed + "<Contents><Key>", "k", list, maxList, more(maxList)},
		"error for a list":    {403, "<Error><Code>", "x", list, maxList, ""},
		"error for an object": {403, "<Error><Code>", "x", get, maxAnswer, ""},
		"unavailable":         {503, "<Error><Code>", "x", get, maxAnswer, ""},
		"answer to an upload": {200, "", "x", put, maxAnswer, ""}, // nobody reads it, but connections are drained
		"error of an upload":  {403, "<Error><Code>", "x", put, maxAnswer, ""},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEndless(t, c.status, c.begins, c.then)
			s := Service{Endpoint: e.URL, Region: "r", Addressing: ByPath, Credentials: &Credentials{AccessKeyID: "a",
				SecretAccessKey: "s"}, Patience: time.Minute, Silence: time.Minute, Tries: tries}
			client, err := s.Client()
			require.NoError(t, err)
			if err = c.ask(t.Context(), client); c.status >= 300 || c.wants != "" {
				require.ErrorContains(t, err, c.wants)
			}
			e.requireBounded(t, c.most)
		})
	}
	t.Run("object", func(t *testing.T) {
		e := newEndless(t, 200, "", "x")
		s := Service{Endpoint: e.URL, Region: "r", Addressing: ByPath, Credentials: &Credentials{AccessKeyID: "a",
			SecretAccessKey: "s"}, Patience: time.Minute, Silence: time.Minute}
		client, err := s.Client()
		require.NoError(t, err)
		require.NoError(t, get(t.Context(), client))
		require.GreaterOrEqual(t, e.taken.Load(), int64(pastEnd))
	})
}

// A service of credentials that says a byte now and then is given up like one that says nothing.
func TestCredentialsByDrips(t *testing.T) {
	clearEnvironment(t)
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"AccessKeyID":"a",`)
		for range 100 {
			time.Sleep(50 * time.Millisecond)
			_, _ = io.WriteString(w, " ")
			_ = http.NewResponseController(w).Flush()
			if r.Context().Err() != nil {
				return
			}
		}
		_, _ = io.WriteString(w, `"SecretAccessKey":"s"}`)
	}))
	t.Cleanup(e.Close)
	t.Setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", e.URL)
	s := Service{Patience: 100 * time.Millisecond}
	_, err := s.role(http.DefaultTransport).Retrieve()
	require.Error(t, err)
}

// drip is a body that gives a byte a second, without end.
type drip struct{}

func (drip) Read(p []byte) (int, error) {
	time.Sleep(time.Second)
	return copy(p, " "), nil
}

func (drip) Close() error { return nil }

func (drip) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: 403, Body: drip{}, Request: r}, nil
}

// A service is never silent when it says a byte a second, but is waited for no longer for that.
func TestAnswerByDrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Service{Endpoint: "http://s3.test", Region: "r", Credentials: &Credentials{AccessKeyID: "a", SecretAccessKey: "s"},
			Silence: time.Minute, Transport: drip{}, Tries: 1}
		client, err := s.Client()
		require.NoError(t, err)
		_, err = client.PutObject(t.Context(), "bucket", "key", strings.NewReader("x"), 1, minio.PutObjectOptions{})
		require.ErrorContains(t, err, "the answer takes longer than 10m0s")
	})
}

// slow carries objects, a KiB in a minute, either way.
type slow struct{}

func (slow) RoundTrip(r *http.Request) (*http.Response, error) {
	const size = 1 << 10
	answer := http.Header{"Etag": {`"e"`}, "Last-Modified": {time.Now().UTC().Format(http.TimeFormat)}}
	resp := &http.Response{StatusCode: 200, Header: answer, Body: http.NoBody, Request: r}
	if r.Body != nil {
		_, err := io.Copy(io.Discard, slowly{r.Body})
		return resp, err
	}
	resp.ContentLength = 60 * size
	answer.Set("Content-Length", fmt.Sprint(resp.ContentLength))
	resp.Body = io.NopCloser(slowly{strings.NewReader(strings.Repeat("x", 60*size))})
	return resp, nil
}

type slowly struct{ io.Reader }

func (s slowly) Read(p []byte) (int, error) {
	time.Sleep(time.Minute)
	return s.Reader.Read(p[:min(len(p), 1<<10)])
}

// What is carried may take any time, as long as something comes or goes.
func TestObjectsTakeTheirTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Service{Endpoint: "http://s3.test", Region: "r", Credentials: &Credentials{AccessKeyID: "a", SecretAccessKey: "s"},
			Silence: time.Minute, Transport: slow{}, Tries: 1}
		client, err := s.Client()
		require.NoError(t, err)
		const size = 60 << 10
		begin := time.Now()
		_, err = client.PutObject(t.Context(), "bucket", "key", strings.NewReader(strings.Repeat("x", size)), size,
			minio.PutObjectOptions{})
		require.NoError(t, err)
		require.Greater(t, time.Since(begin), maxSilences*s.Silence)
		begin = time.Now()
		o, err := client.GetObject(t.Context(), "bucket", "key", minio.GetObjectOptions{})
		require.NoError(t, err)
		defer o.Close()
		text, err := io.ReadAll(o)
		require.NoError(t, err)
		require.Len(t, text, size)
		require.Greater(t, time.Since(begin), maxSilences*s.Silence)
	})
}

// more is what an error says of an answer that has more than the bound.
func more(most int) string { return fmt.Sprintf("the answer has more than %d bytes", most) }

// clearEnvironment hides what this machine may have for AWS.
func clearEnvironment(t *testing.T) {
	for _, name := range []string{"AWS_ACCESS_KEY_ID", "AWS_ACCESS_KEY", "AWS_SECRET_ACCESS_KEY", "AWS_SECRET_KEY",
		"AWS_CONTAINER_AUTHORIZATION_TOKEN", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_WEB_IDENTITY_TOKEN_FILE"} {
		t.Setenv(name, "")
	}
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
}
