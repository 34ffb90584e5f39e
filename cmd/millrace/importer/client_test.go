package importer

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What is in front of a server may name the time at which it can be asked again, by a clock that differs from this
// machine's.
func TestRetryAfterATime(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now().Add(15 * time.Minute).UTC()
		w.Header().Set("Date", now.Format(http.TimeFormat))
		w.Header().Set("Retry-After", now.Add(40*time.Minute).Format(http.TimeFormat))
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	t.Cleanup(server.Close)
	o := Options{URL: []string{server.URL}}
	o.EnsureDefaults()
	call := &call{path: "/users/track"}
	require.NoError(t, newClient(&o).once(call))
	require.Greater(t, call.after, 30*time.Minute)
	require.LessOrEqual(t, call.after, 40*time.Minute)
}
