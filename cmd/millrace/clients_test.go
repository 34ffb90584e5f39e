package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The clients of other people work unchanged (decisions.md: that is the tie-breaker). MILLRACE_CLIENTS is the folder
// where `make clients` has installed them; loadtest/clients has the drivers.
func TestClients(t *testing.T) {
	t.Parallel()
	dir := os.Getenv("MILLRACE_CLIENTS")
	if dir == "" {
		t.Skip("SKIPPED: needs node and npm; make test-clients runs it")
	}
	drivers, err := filepath.Glob("../../loadtest/clients/*.js")
	require.NoError(t, err)
	require.NotEmpty(t, drivers)
	for _, driver := range drivers {
		t.Run(strings.TrimSuffix(filepath.Base(driver), ".js"), func(t *testing.T) {
			s := newSite(t)
			text := strings.Replace(bootstrapText, "channel: email}", "channel: email}\n      - {id: "+smsGroup+", name: Texts, channel: sms}", 1)
			require.NoError(t, os.WriteFile(s.bootstrap, []byte(text), 0o600))
			p := s.start(t)
			installed := filepath.Join(dir, filepath.Base(driver)) // node looks for packages from where the file is
			source, err := os.ReadFile(driver)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(installed, source, 0o600))
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			cmd := exec.CommandContext(ctx, "node", "--test", installed)
			cmd.Env = append(os.Environ(), "MILLRACE_URL="+s.url(""), "MILLRACE_KEY="+allKey, "MILLRACE_GROUP="+emailGroup, "MILLRACE_SMS_GROUP="+smsGroup)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			require.Contains(t, string(out), "fail 0")
			p.stop()
		})
	}
}

const (
	emailGroup = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55" // of bootstrapText
	smsGroup   = "0d1f6e6b-6a3c-4a49-8f0e-5b1c2c6d7e8f"
)
