package main

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What was packed is counted, by hour and by name.
func TestEventCounts(t *testing.T) {
	s := newAdminSite(t, "--checkpoint-interval", "100ms", "--event-pack-after", "1ms")
	p := s.start(t)
	require.Equal(t, 201, s.post(t, "/users/track", trackKey, `{"events":[{"external_id":"ada","name":"read","time":"2020-01-31T09:30:00Z"},{"external_id":"bob","name":"read","time":"2020-01-31T09:30:00Z"}],
		"purchases":[{"external_id":"ada","product_id":"book","currency":"EUR","price":9.5,"time":"2020-01-31T09:30:00Z"}]}`).status)
	token, err := os.ReadFile(filepath.Join(s.dir, "admin-token"))
	require.NoError(t, err)
	text := ""
	want := regexp.MustCompile(`"hours":\[\{"workspace":"test","type":"event","hour":"\d{4}-\d\d-\d\dT\d\d:00:00Z","count":2\},\{"workspace":"test","type":"purchase",.*"count":1\}\],"names":\[\{"workspace":"test","type":"event","name":"read","count":2\},\{"workspace":"test","type":"purchase","name":"book","count":1\}\]`)
	require.Eventually(t, func() bool {
		a, err := call(patient, http.MethodGet, "http://"+s.admin+"/admin/events/counts", strings.TrimSpace(string(token)), "")
		text = a.body
		return err == nil && want.MatchString(text)
	}, testPatience, 100*time.Millisecond, "%s", &text)
	p.stop()
}
