package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// process is a server that bench has started: the real one or the no-op handler. Both say in a JSON line on standard
// error where they serve.
type process struct {
	cmd       *exec.Cmd
	address   string // host:port of the API; set once the process serves
	admin     string // host:port of the admin listener; "" for none
	data      string // directory of the real server
	serving   chan struct{}
	exited    chan struct{} // closed when the process has ended; err says how
	err       error
	cancelled atomic.Bool // ended because its context did

	mu   sync.Mutex
	tail []string // the last lines that the process wrote
}

const (
	apiKey = "bench-key-that-no-other-workspace-has-00000000"
	// bootstrap makes the workspace. Its rate limits are the highest possible ones; requests are counted all the same.
	bootstrap = `workspaces:
  - id: bench
    name: Bench
    rate_limits: {users.track: 1000000000/1s, users.track.bulk: 1000000000/1s, users.merge: 1000000000/1s, subscription.status.get: 1000000000/1s, subscription.status.set: 1000000000/1s}
    apps: [{id: 11ae5b4b-2445-4440-a04f-bf537764c9ad, name: iOS}]
    api_keys:
      - {name: bench, key: ` + apiKey + `, permissions: [users.track, users.track.bulk, users.merge, subscription.status.set, subscription.status.get]}
    subscription_groups:
      - {id: ` + groupID + `, name: News, channel: email}
`
)

// startServer starts the real server on a data directory below s.dir, with args and otherwise the defaults of its
// flags, and waits until it serves.
func startServer(ctx context.Context, s *settings, name string, args ...string) (*process, error) {
	file := filepath.Join(s.dir, "bootstrap.yaml")
	if err := os.WriteFile(file, []byte(bootstrap), 0o600); err != nil {
		return nil, err
	}
	data := filepath.Join(s.dir, name)
	args = append([]string{"serve", "--data", data, "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--bootstrap",
		file}, args...)
	p, err := start(ctx, s, s.server, args...)
	if err != nil {
		return nil, err
	}
	p.data = data
	return p, nil
}

// start starts a program and waits until it serves. The program outlives neither ctx nor this process.
func start(ctx context.Context, s *settings, program string, args ...string) (*process, error) {
	p := &process{cmd: exec.CommandContext(ctx, program, args...), serving: make(chan struct{}),
		exited: make(chan struct{})}
	p.cmd.Cancel = func() error {
		p.cancelled.Store(true)
		return p.cmd.Process.Kill()
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// such variables would be taken for flags
	p.cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "MILLRACE_") })
	if s.MaxProcs > 0 {
		p.cmd.Env = append(p.cmd.Env, "GOMAXPROCS="+strconv.Itoa(s.MaxProcs))
	}
	out, err := p.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	select {
	case <-p.serving:
		return p, nil
	case <-p.exited:
		return nil, fmt.Errorf("%s ended at once: %w\n%s", filepath.Base(program), p.err, p.lastLines())
	}
}

// read follows what the process writes until it ends.
func (p *process) read(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	once := sync.OnceFunc(func() { close(p.serving) })
	for lines.Scan() {
		p.mu.Lock()
		p.tail = append(p.tail[max(0, len(p.tail)-19):], lines.Text())
		p.mu.Unlock()
		var l struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &l) != nil {
			continue
		}
		switch l.Msg {
		case "admin listener":
			p.admin = l.Address
		case "serving":
			p.address = l.Address
			once()
		}
	}
	_, _ = io.Copy(io.Discard, out) // the rest, after a line that is too long
	p.err = p.cmd.Wait()
	close(p.exited)
}

func (p *process) lastLines() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.tail, "\n")
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// kill ends the process as a crash does.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails when the process has ended already
	<-p.exited
}

// stop ends the process in order, or by force when that takes too long.
func (p *process) stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(time.Minute):
		p.kill()
		return errors.New("the server did not stop within a minute")
	}
	if p.err != nil && !p.cancelled.Load() {
		return fmt.Errorf("server: %w\n%s", p.err, p.lastLines())
	}
	return nil
}

// metrics are the numbers in the server's /metrics. Under a name without its labels is the sum over all labels.
func (p *process) metrics(ctx context.Context) (map[string]float64, error) {
	text, err := get(ctx, "http://"+p.admin+"/metrics")
	if err != nil {
		return nil, err
	}
	values := make(map[string]float64)
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, " ")
		v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
		if err != nil {
			continue
		}
		if bare, _, labelled := strings.Cut(name, "{"); labelled {
			values[bare] += v
		}
		values[name] = v
	}
	return values, nil
}

// metric is one of the server's metrics.
func (p *process) metric(ctx context.Context, name string) (float64, error) {
	values, err := p.metrics(ctx)
	v, ok := values[name]
	if err == nil && !ok {
		err = fmt.Errorf("the server has no metric %s", name)
	}
	return v, err
}

// hasCaughtUp says whether all that the server has applied is in its store, and all events of it are packed.
func (p *process) hasCaughtUp(ctx context.Context) (bool, error) {
	of, err := p.metrics(ctx)
	return err == nil && of["millrace_checkpointed_position"] == of["millrace_log_applied_position"] &&
		of["millrace_eventlog_backlog_positions"] == 0, err
}

// adminToken is the token of the real server's admin listener.
func (p *process) adminToken() (string, error) {
	text, err := os.ReadFile(filepath.Join(p.data, "admin-token"))
	return strings.TrimSpace(string(text)), err
}

// operate makes a request of the admin API.
func (p *process) operate(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	token, err := p.adminToken()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://"+p.admin+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	return http.DefaultClient.Do(r)
}

// ask is operate for documents: it sends body and, unless answer is nil, decodes the answer into it.
func (p *process) ask(ctx context.Context, method, path string, body, answer any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	a, err := p.operate(ctx, method, path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	good, err := readGood(a)
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal([]byte(good), answer)
}

// get returns the body of a good answer.
func get(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	return readGood(a)
}

// readGood returns the body of an answer, if it is a good one.
func readGood(a *http.Response) (string, error) {
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err == nil && a.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s %.200s", a.Request.Method, a.Request.URL, a.Status, text)
	}
	return string(text), err
}

const walBytes = "millrace_wal_bytes_total"
