package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/cmd/millrace/operate"
	"millrace/loadtest/testaddr"
	"millrace/loadtest/testlog"
)

// binary is what the tests run: built once, from this tree, with the race detector when the tests have it.
var binary string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "millrace-test")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "millrace")
	build := exec.Command("go", "build", "-pgo=off", "-ldflags=-s", "-o", binary) // a profile would have everything built anew
	if underRace {
		build.Args = append(build.Args, "-race")
		if os.Getenv("GORACE") == "" { // a program with the race detector sleeps for a second before it ends, and many are started here
			os.Setenv("GORACE", "atexit_sleep_ms=10")
		}
	}
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		return 1
	}
	for _, v := range os.Environ() { // what the machine has set must not decide
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "MILLRACE_") && !isForTests(v) {
			os.Unsetenv(name)
		}
	}
	os.Setenv("NO_PROXY", "*") // for the commands that talk to nodes of a cluster in namespaces
	return m.Run()
}

// isForTests says whether a variable of the environment, name=value, tells tests what to do.
func isForTests(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.Contains([]string{"MILLRACE_STRESS", "MILLRACE_SEED", "MILLRACE_CORPUS", "MILLRACE_CLIENTS", "MILLRACE_MODEL_AREAS"}, name)
}

// site is a data directory with the addresses and the bootstrap file of its server, from start to start.
type site struct {
	dir, addr, admin, bootstrap string
	flags                       []string
}

const (
	allKey   = "all-0123456789abcdefghijklmnopqrstuvwxyz" // every permission
	trackKey = "track-0123456789abcdefghijklmnopqrstuvwx" // users.track
)

const bootstrapText = `
workspaces:
  - id: test
    name: Test
    plan: base
    rate_limits: {users.track: 1000000/1s, users.export.ids: 1000000/1s, users.merge: 1000000/1s}
    apps: [{id: 11ae5b4b-2445-4440-a04f-bf537764c9ad, name: iOS}]
    api_keys:
      - {name: all, key: ` + allKey + `, permissions: ["*"]}
      - {name: track, key: ` + trackKey + `, permissions: [users.track]}
    subscription_groups:
      - {id: 5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55, name: News, channel: email}
`

func newSite(t *testing.T, flags ...string) *site {
	dir := t.TempDir()
	s := &site{dir: filepath.Join(dir, "data"), addr: testaddr.Free(t), admin: "off", bootstrap: filepath.Join(dir, "bootstrap.yaml"), flags: flags}
	require.NoError(t, os.WriteFile(s.bootstrap, []byte(bootstrapText), 0o600))
	return s
}

func (s *site) url(path string) string { return "http://" + s.addr + path }

func (s *site) args(flags ...string) []string {
	args := []string{"serve", "--data", s.dir, "--listen", s.addr, "--admin", s.admin, "--bootstrap", s.bootstrap, "--min-free-bytes", "0", "--min-free-percent", "0"}
	return append(append(args, s.flags...), flags...)
}

// start starts the server and waits until it is ready.
func (s *site) start(t *testing.T, flags ...string) *process {
	t.Helper()
	p := startProcess(t, binary, s.args(flags...)...)
	p.waitReady(s.url("/readyz"))
	return p
}

// process is a program that a test has started, and ends.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	out, log testlog.Buffer
	ended    chan struct{}
	code     int // valid once ended; -1: killed
}

func startProcess(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Env = slices.DeleteFunc(os.Environ(), isForTests) // a server warns of variables that it doesn't know
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if strings.Contains(p.log.String(), "DATA RACE") {
			t.Errorf("%s", tail(p.log.String(), 20_000))
		}
		if t.Failed() {
			t.Logf("%s (pid %d) said:\n%s", filepath.Base(program), p.cmd.Process.Pid, tail(auditLines.ReplaceAllString(p.log.String(), ""), 4000))
		}
	})
	return p
}

var auditLines = regexp.MustCompile(`(?m)^.*"msg":"audit: .*\n`) // one for each change: too much to be told

func tail(s string, n int) string { return s[max(0, len(s)-n):] }

// kill is kill -9, and waits for the end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

func (p *process) signal(s os.Signal) { require.NoError(p.t, p.cmd.Process.Signal(s)) }

// exit waits for the end and returns the exit code.
func (p *process) exit(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.t.Fatalf("the process goes on after %v:\n%s", limit, tail(p.log.String(), 4000))
	}
	return p.code
}

// stop ends the server in order.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	require.Zero(p.t, p.exit(testPatience), p.log.String())
}

func (p *process) isAlive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// testPatience is how long tests wait for what must come. Nothing depends on how fast it is.
const testPatience = 4 * time.Minute

var patient = &http.Client{Timeout: testPatience, Transport: &http.Transport{DisableKeepAlives: true}}

// waitReady waits until /readyz says so and returns how long that took.
func (p *process) waitReady(url string) time.Duration {
	p.t.Helper()
	start := time.Now()
	for time.Since(start) < testPatience {
		if !p.isAlive() {
			p.t.Fatalf("the server has ended with %d instead of serving:\n%s", p.code, tail(p.log.String(), 4000))
		}
		if r, err := patient.Get(url); err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return time.Since(start)
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	p.t.Fatalf("not ready after %v:\n%s", testPatience, tail(p.log.String(), 4000))
	return 0
}

// rss is the resident memory of the process, bytes.
func (p *process) rss() int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	require.NoError(p.t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	require.NoError(p.t, err)
	return pages * int64(os.Getpagesize())
}

// reply is a response, read.
type reply struct {
	status int
	header http.Header
	body   string
}

// message is the string that every answer has, "" when it hasn't.
func (a reply) message() string {
	var v struct {
		Message string `json:"message"`
	}
	if json.Unmarshal([]byte(a.body), &v) != nil {
		return ""
	}
	return v.Message
}

// call sends a request with a key; more are further headers, name and value.
func call(client *http.Client, method, url, key, body string, more ...string) (reply, error) {
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if method == http.MethodPost {
		r.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	for i := 0; i < len(more); i += 2 {
		r.Header.Set(more[i], more[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		return reply{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return reply{response.StatusCode, response.Header, string(text)}, err
}

func (s *site) post(t *testing.T, path, key, body string, more ...string) reply {
	t.Helper()
	a, err := call(patient, http.MethodPost, s.url(path), key, body, more...)
	require.NoError(t, err)
	require.NotEmpty(t, a.message(), a.body)
	return a
}

// export asks for users, again while it is told that nothing was done: nodes of a cluster may lose one another for a
// moment on a machine that has other work.
func (s *site) export(t *testing.T, body string) reply {
	t.Helper()
	for end := time.Now().Add(recovery); ; time.Sleep(100 * time.Millisecond) {
		if a := s.post(t, "/users/export/ids", allKey, body); !a.isUndone() || time.Now().After(end) {
			return a
		}
	}
}

// track adds an event to a user.
func (s *site) track(t *testing.T, user string, more ...string) reply {
	t.Helper()
	return s.post(t, "/users/track", allKey, fmt.Sprintf(`{"events":[{"external_id":%q,"name":"e","time":"2026-01-31T09:30:00Z"}]}`, user), more...)
}

// events is how many of them the user has.
func (s *site) events(t *testing.T, user string) (n int) {
	t.Helper()
	a := s.export(t, fmt.Sprintf(`{"external_ids":[%q],"fields_to_export":["external_id","custom_events"]}`, user))
	require.Equal(t, 201, a.status, a.body)
	var v struct {
		Users []struct {
			Events []struct {
				Name  string `json:"name"`
				Count int    `json:"count"`
			} `json:"custom_events"`
		} `json:"users"`
	}
	require.NoError(t, json.Unmarshal([]byte(a.body), &v))
	for _, u := range v.Users {
		for _, e := range u.Events {
			n += e.Count
		}
	}
	return n
}

// refused runs the program to its end, which must be a failure, and returns what it says.
func refused(t *testing.T, env []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testPatience)
	defer cancel()
	c := exec.CommandContext(ctx, binary, args...)
	c.Env = append(os.Environ(), env...)
	text, err := c.CombinedOutput()
	var exit *exec.ExitError
	require.True(t, errors.As(err, &exit), "%v: %v: %s", args, err, text)
	require.Equal(t, 1, exit.ExitCode(), "%v: %s", args, text)
	return string(text)
}

// runHere runs a command in this process. To start the program takes longer than what most commands do; how a process
// ends, tool and refused see.
func runHere(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testPatience)
	defer cancel()
	var out bytes.Buffer
	err := run(ctx, args, &out)
	return out.String(), err
}

// refusedHere is refused in this process.
func refusedHere(t *testing.T, args ...string) string {
	t.Helper()
	text, err := runHere(t, args...)
	require.Error(t, err, "%v: %s", args, text)
	var exit exitError
	require.False(t, errors.As(err, &exit), "%v: %v", args, err)
	return text + err.Error()
}

// A command whose output can't be written fails, also where it prints in pieces.
func TestOutputThatCannotBeWritten(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"entries":[{"seq":1,"what":"x"}],"message":"success"}`)
	}))
	defer server.Close()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	require.NoError(t, err)
	defer full.Close()
	for _, of := range []string{"version", "--help", "admin audit list --token t --json --server " + server.URL} {
		require.ErrorIs(t, run(t.Context(), strings.Fields(of), full), syscall.ENOSPC, of)
	}
	// To the server, whose keys it was, that isn't a full disk.
	file := filepath.Join(t.TempDir(), "bootstrap.yaml")
	require.NoError(t, os.WriteFile(file, []byte("workspaces: [{id: w, api_keys: [{name: k, permissions: [users.track]}]}]"), 0o600))
	err = run(t.Context(), []string{"serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--admin", "off", "--bootstrap", file}, full)
	require.ErrorIs(t, err, operate.ErrKeysUnseen)
	require.NotErrorAs(t, err, new(exitError))
}

// What libraries log while they are initialized doesn't reach standard error, which has lines of JSON alone: the
// standard logger is silenced before the library that does so.
func TestInitializationIsSilent(t *testing.T) {
	c := exec.Command(binary, "version")
	c.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	text, err := c.CombinedOutput()
	require.NoError(t, err)
	at := -1
	for _, path := range []string{"github.com/coreos/pkg/capnslog", "millrace/cmd/millrace/stdlog", "github.com/VictoriaMetrics/metrics"} {
		next := strings.Index(string(text), "init "+path+" ")
		require.Greater(t, next, at, "%s: %s", path, text)
		at = next
	}
}
