// Package testbrowser gives tests a headless Chromium. Only tests import it.
package testbrowser

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
)

// Open starts one with a profile of its own, and a window of this size, or skips the test where there is none.
// MILLRACE_BROWSER names another binary; `make test-browser` installs one when it can, and sets
// MILLRACE_REQUIRE_BROWSER so that nothing is skipped. Flags are those of Chromium, as name or name=value.
func Open(t *testing.T, width, height int, flags ...string) context.Context {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(find(t)), chromedp.UserDataDir(t.TempDir()),
		chromedp.WindowSize(width, height)}
	for _, flag := range append([]string{"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run",
		"disable-background-networking",
		"disable-component-update", "disable-sync", "disable-dev-shm-usage", "mute-audio", "hide-scrollbars"},
		flags...) {
		name, value, has := strings.Cut(flag, "=")
		if has {
			options = append(options, chromedp.Flag(name, value))
		} else {
			options = append(options, chromedp.Flag(name, true))
		}
	}
	// A browser that hangs fails the test after three minutes; nothing else depends on the time.
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(ctx))
	t.Cleanup(func() { require.NoError(t, chromedp.Cancel(ctx)) }) // before its profile is removed
	return ctx
}

// find is the binary.
func find(t *testing.T) string {
	t.Helper()
	path := os.Getenv("MILLRACE_BROWSER")
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && path == "" {
			path = found
		}
	}
	switch {
	case path == "" && os.Getenv("MILLRACE_REQUIRE_BROWSER") != "":
		t.Fatal("there is no Chromium")
	case path == "":
		t.Skip("there is no Chromium; make test-browser gets one")
	case testing.Short():
		t.Skip("a browser takes its time")
	}
	return path
}
