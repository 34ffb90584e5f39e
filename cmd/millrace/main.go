// Command millrace is the server and its tools in one binary. Type cli has the commands.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"millrace/cmd/millrace/operate"
	_ "millrace/cmd/millrace/stdlog"
	"millrace/shard"
)

func main() {
	serves := slices.Contains(os.Args[1:], "serve")
	if serves {
		signal.Ignore(syscall.SIGHUP) // until the server is about to read what SIGHUP has it read again
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if !serves { // a command that waits for a pipe or a terminal doesn't notice the first signal: the second ends it
		context.AfterFunc(ctx, stop)
	}
	err := run(ctx, os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "millrace:", err)
	if e, ok := errors.AsType[exitError](err); ok {
		os.Exit(e.code)
	}
	os.Exit(1)
}

// exitError carries an exit code with a meaning of its own; see docs/operations.md.
type exitError struct {
	error
	code int
}

func (e exitError) Unwrap() error { return e.error }

// withHelp says where to read what may be said instead.
func withHelp(err error) error {
	wrong, ok := errors.AsType[*kong.ParseError](err)
	if !ok {
		return err
	}
	command := "millrace"
	if of := wrong.Context.Selected(); of != nil {
		command = of.FullPath()
	}
	return fmt.Errorf("%w; see %s --help", err, command)
}

const (
	exitDiskFailed = 3 // the disk has failed; nothing was acknowledged after that
	exitRefused    = 4 // an import has refused lines or rows, and taken all others
)

// run is main without the process: it parses args, runs the command and returns what went wrong.
func run(ctx context.Context, args []string, stdout io.Writer) error {
	var cli cli
	exited := errors.New("exit")
	out := &output{Writer: stdout}
	stdout = out
	parser, err := kong.New(&cli, kong.Name("millrace"),
		kong.Description("A server for bulk user data: acknowledged, durable and queryable in one step."),
		kong.DefaultEnvars("MILLRACE"), kong.UsageOnError(),
		kong.Writers(stdout, os.Stderr), kong.Exit(func(int) { panic(exited) }),
		flagReaders,
		kong.BindTo(ctx, (*context.Context)(nil)), kong.BindTo(stdout, (*io.Writer)(nil)))
	if err != nil {
		return err
	}
	defer func() { // --help prints and exits
		if p := recover(); p != nil && p != any(exited) {
			panic(p)
		}
	}()
	command, err := parser.Parse(args)
	if err != nil {
		return withHelp(err)
	}
	if err := cmp.Or(checkGiven(command.Flags()), checkBounds(command.Flags())); err != nil {
		return err
	}
	err = command.Run()
	switch {
	case errors.Is(err, operate.ErrRefused):
		return exitError{err, exitRefused}
	case command.Command() == "serve": // also while it starts or stops
		return withExitCode(err)
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		return interrupted{err}
	case err == nil:
		return out.err
	}
	return err
}

// output is the standard output of a command. It keeps the first error: where output is printed in pieces, nobody looks
// at the error of each.
type output struct {
	io.Writer
	err error
}

// Write prints a piece.
func (o *output) Write(p []byte) (n int, err error) {
	if n, err = o.Writer.Write(p); err != nil && o.err == nil {
		o.err = err
	}
	return n, err
}

// interrupted is the error of a command that was told to end, in the words of a user.
type interrupted struct{ error }

// Error says that the command was interrupted.
func (e interrupted) Error() string {
	return strings.ReplaceAll(e.error.Error(), context.Canceled.Error(), "interrupted")
}

// Unwrap returns the error in the words of package context.
func (e interrupted) Unwrap() error { return e.error }

// diskFailures are the errors of a disk that has failed, is full, or has become read-only after a failure.
var diskFailures = []error{syscall.EIO, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS}

// withExitCode gives the error of a server whose disk has failed the exit code for that.
func withExitCode(err error) error {
	if errors.Is(err, shard.ErrFailed) {
		return exitError{err, exitDiskFailed}
	}
	if slices.ContainsFunc(diskFailures, func(failure error) bool { return errors.Is(err, failure) }) {
		return exitError{fmt.Errorf("the disk has failed or is full: %w", err), exitDiskFailed}
	}
	return err
}

// version is set by the Makefile.
var version = "dev"

type versionCommand struct{}

// Run prints version, revision and Go version.
func (versionCommand) Run(stdout io.Writer) error {
	revision := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	_, err := fmt.Fprintf(stdout, "millrace %s (%s, %s)\n", version, revision, runtime.Version())
	return err
}
