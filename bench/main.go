// Command bench measures Millrace on the machine that it runs on: `make bench`, or `make bench
// BENCH_FLAGS="-part endtoend,replay"`.
//
// What a machine does in a second says little about another machine and, when the machine is shared, little about the
// next minute. So every figure that can be a ratio is one: both sides run in turns within one run, the ratio is taken
// round by round, and the median of the ratios counts (ratio.go).
//
//	parent ─▶ a child process for each part, so that no part finds the memory, the counters or the goroutines of another
//	           ├▶ the server, built from this checkout, on loopback with a data directory of its own
//	           └▶ a no-op handler, which is this binary again
//
// Invariants: the sides of a comparison get the same input from the same generator; a round with a wrong answer in it
// is an error, not a figure; every process that is started is ended, and every directory that is made is removed, also
// after an interrupt.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// part is a group of figures that is measured in a process of its own.
type part struct {
	name, about string
	run         func(context.Context, *settings) ([]Figure, error)
}

// parts in the order of the report.
var parts = []part{
	{"endtoend", "the server over HTTP, compared with a handler that does nothing", endToEnd},
	{"sustained", "a load that goes on for long", sustained},
	{"lone", "one request at a time", lone},
	{"decoder", "the decoder, compared with JSON libraries", decoders},
	{"logbytes", "bytes of the log for each byte of JSON", logBytes},
	{"allocs", "allocations of a request", allocations},
	{"memory", "memory of a resident profile, and the time of a full garbage collection", memory},
	{"hot", "all traffic for one user, compared with many users", hot},
	{"cold", "a state ten times the memory budget, compared with one in memory", cold},
	{"shared", "an address that many users share", shared},
	{"merge", "merges beside requests to /users/track", merge},
	{"filesin", "import of files, compared with requests to /users/track", filesIn},
	{"streams", "streams beside requests to /users/track, and how fast streams read the event log",
		oneAfterTheOther(streamBeside, streamOut, streamDelay)},
	{"status", "reads of subscription states beside requests to /users/track", status},
	{"console", "live viewers beside requests to /users/track, and the console's pages",
		oneAfterTheOther(consoleViewers, consolePages)},
	{"cluster", "three nodes on this machine, compared with one alone", cluster},
	{"replay", "kill -9 and the time until the server is ready again", replay},
}

// oneAfterTheOther makes a part of several.
func oneAfterTheOther(all ...func(context.Context, *settings) ([]Figure, error)) func(context.Context, *settings) (
	[]Figure, error) {
	return func(ctx context.Context, s *settings) (figures []Figure, err error) {
		for _, run := range all {
			f, err := run(ctx, s)
			if figures = append(figures, f...); err != nil {
				return figures, err
			}
		}
		return figures, nil
	}
}

func partNames() []string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// settings are the flags, as far as they bear on figures. They go into the results, so that a run can be repeated.
type settings struct {
	Parts    []string      `json:"parts"`
	Duration time.Duration `json:"duration_ns"` // of one side in one round
	Rounds   int           `json:"rounds"`
	Mixed    bool          `json:"mixed"`

	Profiles     int   `json:"profiles"`      // of part memory; 0: depends on the free memory
	ColdProfiles int   `json:"cold_profiles"` // of part cold
	ReplayBytes  int64 `json:"replay_bytes"`  // size of the log in part replay
	MaxProcs     int   `json:"server_gomaxprocs"`

	dir    string // parts write below it
	server string // the binary
}

// warmup precedes the first round of each side.
func (s *settings) warmup() time.Duration { return min(s.Duration, 2*time.Second) }

func (s *settings) validate() error {
	for _, name := range s.Parts {
		if !slices.Contains(partNames(), name) {
			return fmt.Errorf("-part: there is no %q; the parts are %s", name, strings.Join(partNames(), ", "))
		}
	}
	switch {
	case s.Duration < 10*time.Millisecond || s.Duration > time.Hour:
		return fmt.Errorf("-duration %v is not within 10ms and 1h", s.Duration)
	case s.Rounds < 1 || s.Rounds > 1000:
		return fmt.Errorf("-rounds %d is not within 1 and 1000", s.Rounds)
	case s.Profiles < 0 || s.Profiles > 100_000_000:
		return fmt.Errorf("-profiles %d is not within 0 and 100000000", s.Profiles)
	case s.ColdProfiles < 1000 || s.ColdProfiles > 100_000_000:
		return fmt.Errorf("-cold-profiles %d is not within 1000 and 100000000", s.ColdProfiles)
	case s.ReplayBytes < 1<<20 || s.ReplayBytes > 100<<30:
		return fmt.Errorf("-replay-bytes %d is not within 1 MiB and 100 GiB", s.ReplayBytes)
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if isChild(os.Args) {
		err = child(ctx, os.Args[2], os.Stdout)
	} else {
		err = run(ctx, os.Args[1:], os.Stdout)
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "bench:", err)
		stop()
		os.Exit(1)
	}
}

// run is main without the process: it parses args, measures, prints the table to stdout and writes the results.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	var s settings
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	list := flags.String("part", "all", "what to measure, separated by commas: "+strings.Join(partNames(), ", "))
	flags.DurationVar(&s.Duration, "duration", 10*time.Second,
		"how long each side runs in each round; parts without HTTP run for a part of it")
	flags.IntVar(&s.Rounds, "rounds", 3, "number of rounds in which the sides take turns")
	flags.BoolVar(&s.Mixed, "mixed", false,
		"bodies as `millrace loadtest` sends them: 2 % of objects by email, 2 % by alias, 5 % of texts outside "+
			"ASCII, 3 % with escapes")
	flags.IntVar(&s.Profiles, "profiles", 0,
		"number of profiles of part memory (0: 10 million when 8 GiB are free, else 2 million)")
	flags.IntVar(&s.ColdProfiles, "cold-profiles", 2_000_000, "number of profiles of parts cold and console")
	flags.Int64Var(&s.ReplayBytes, "replay-bytes", 1_000_000_000, "size of the log that part replay replays")
	flags.IntVar(&s.MaxProcs, "server-gomaxprocs", 0, "GOMAXPROCS of both servers (0: Go's default)")
	jsonPath := flags.String("json", "", "also write the results as JSON to this `file`")
	flags.StringVar(&s.dir, "dir", "",
		"where temporary data goes: a `directory` on a real disk (default: the system's, unless that is in memory)")
	flags.StringVar(&s.server, "server", "", "measure this `binary` instead of building one")
	profilePath := flags.String("profile", "",
		"measure nothing: write a CPU profile of the server, under load for 3.5 times -duration, to this `file`")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if s.Parts = strings.Split(*list, ","); *list == "all" {
		s.Parts = partNames()
	}
	if err := s.validate(); err != nil {
		return err
	}
	if *jsonPath != "" { // fails before the minutes of measuring, not after them
		if err := os.MkdirAll(filepath.Dir(*jsonPath), 0o755); err != nil {
			return err
		}
	}
	base := s.dir
	if base == "" {
		base = diskDir()
	}
	var err error
	if s.dir, err = os.MkdirTemp(base, "millrace-bench-"); err != nil {
		return err
	}
	defer os.RemoveAll(s.dir)
	if s.server == "" {
		if s.server, err = build(ctx, s.dir, "-trimpath", "-pgo=auto"); err != nil {
			return err
		}
	}
	if *profilePath != "" {
		return profile(ctx, &s, *profilePath)
	}
	results := Results{Format: resultsFormat, Started: time.Now().UTC().Truncate(time.Second), Machine: inspect(s.dir),
		Settings: s}
	results.Machine.warn(os.Stderr)
	err = measure(ctx, &s, &results)
	return errors.Join(err, results.WriteText(stdout), results.write(*jsonPath))
}

// measure runs the parts one after the other. A part that fails does not keep the others from running.
func measure(ctx context.Context, s *settings, results *Results) error {
	var failed error
	for _, p := range parts {
		if !slices.Contains(s.Parts, p.name) || ctx.Err() != nil {
			continue
		}
		started := time.Now()
		figures, err := runPart(ctx, s, p.name)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("part %s: %w", p.name, err))
		}
		results.Figures = append(results.Figures, figures...)
		note("%s: done in %v", p.name, time.Since(started).Round(time.Second))
	}
	return errors.Join(failed, ctx.Err())
}

// build builds the server of this checkout.
func build(ctx context.Context, dir string, flags ...string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("bench must run within the module, which was not found: %w", err)
	}
	binary := filepath.Join(dir, "millrace")
	args := slices.Concat([]string{"build", "-o", binary}, flags, []string{"./cmd/millrace"})
	c := exec.CommandContext(ctx, "go", args...)
	c.Dir = strings.TrimSpace(string(root))
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the server: %w\n%s", err, out)
	}
	return binary, nil
}

// order says what a child process is to do. It is the child's second argument, as JSON.
type order struct {
	Part     string   `json:"part,omitempty"`
	Settings settings `json:"settings"`
	Dir      string   `json:"dir,omitempty"`
	Server   string   `json:"server,omitempty"`
	Noop     string   `json:"noop,omitempty"` // serve this answer instead
}

const childArg = "-child"

func isChild(args []string) bool { return len(args) == 3 && args[1] == childArg }

// self is the command line that gives a process of this binary an order.
func self(o order) (name string, args []string, err error) {
	if name, err = os.Executable(); err != nil {
		return "", nil, err
	}
	text, err := json.Marshal(o)
	return name, []string{childArg, string(text)}, err
}

// runPart has a child process do the part in a directory that is removed afterwards.
func runPart(ctx context.Context, s *settings, name string) ([]Figure, error) {
	dir, err := os.MkdirTemp(s.dir, name+"-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	program, args, err := self(order{Part: name, Settings: *s, Dir: dir, Server: s.server})
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, program, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // it has children of its own to end
	c.WaitDelay = 30 * time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.Stderr = os.Stderr
	var out bytes.Buffer
	c.Stdout = &out
	failed := c.Run()
	var figures []Figure
	if err := json.Unmarshal(out.Bytes(), &figures); err != nil && failed == nil {
		return nil, fmt.Errorf("read its figures: %w", err)
	}
	for i := range figures {
		figures[i].Part = name
	}
	return figures, failed
}

// child carries out an order.
func child(ctx context.Context, text string, stdout io.Writer) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("order: %w", err)
	}
	if o.Noop != "" {
		return serveNoop(ctx, o.Noop)
	}
	s := o.Settings
	s.dir, s.server = o.Dir, o.Server
	for _, p := range parts {
		if p.name != o.Part {
			continue
		}
		note("%s: %s", p.name, p.about)
		figures, err := p.run(ctx, &s) // after an error, the figures until then
		return errors.Join(err, json.NewEncoder(stdout).Encode(figures))
	}
	return fmt.Errorf("order for part %q", o.Part)
}

// note prints progress to standard error; standard output is for results.
func note(format string, a ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", a...) }
