package console

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Only so many pages are made at once; only so many requests wait, and not for long.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := newTurns()
		for range maxMaking {
			require.True(t, turns.begin(t.Context()))
		}
		began := time.Now()
		outcomes := make(chan bool, maxWaiting)
		for range maxWaiting {
			go func() { outcomes <- turns.begin(t.Context()) }()
		}
		synctest.Wait()
		require.False(t, turns.begin(t.Context()))
		require.Zero(t, time.Since(began), "there is no room to wait")
		turns.end()
		require.True(t, <-outcomes)
		for range maxWaiting - 1 {
			require.False(t, <-outcomes)
		}
		require.Equal(t, turnWait, time.Since(began))
		gone, leave := context.WithCancel(t.Context())
		leave()
		require.False(t, turns.begin(gone))
		for range maxMaking {
			turns.end()
		}
		require.Empty(t, turns.waiting)
		require.Empty(t, turns.making)
	})
}

// A page that can't be made now says so. Whatever a request has become, its turn is over; pages that are sent, and
// those that stay open, have none.
func TestTurnsOfPages(t *testing.T) {
	h := openHouse(t)
	b := h.signedIn()
	turns := h.console.turns
	require.Equal(t, 200, b.get(companyPath).status)
	require.Equal(t, 404, b.get("/console/w/nothing").status)
	require.Equal(t, 200, b.get("/console/audit/download").status)
	require.Equal(t, 400, b.post("/console/audit/check", "seq", "1").status)
	live, err := b.Get(h.url + demo + "/live/stream")
	require.NoError(t, err)
	defer live.Body.Close()
	require.Equal(t, 200, live.StatusCode)
	require.Empty(t, turns.making, "the live view is open")
	require.NoError(t, live.Body.Close())

	var making atomic.Int64 // a request that is cut off has no answer that would come after the write
	h.console.mux.HandleFunc("GET /console/failing", h.console.serve(&route{"GET", "/console/failing", anyPerson, func(v *visit) error {
		making.Store(int64(len(turns.making)))
		panic(http.ErrAbortHandler)
	}}))
	_, err = b.Get(h.url + "/console/failing")
	require.Error(t, err)
	require.EqualValues(t, 1, making.Load())
	require.Empty(t, turns.making)

	h.refuse(`{"events":[{"external_id":"ada","name":"left"}]}`)
	sent, api := 0, h.console.options.API
	h.console.options.API = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/refused/send") {
			sent++
			making.Store(int64(len(turns.making)))
		}
		api.ServeHTTP(w, r)
	})
	require.Contains(t, b.post(demo+"/refused/send", "rule", "required").text, "Refused again: 1")
	require.Equal(t, 1, sent)
	require.Zero(t, making.Load(), "sending again may take long")

	for range cap(turns.waiting) {
		turns.waiting <- struct{}{}
	}
	busy := b.get(companyPath)
	require.Equal(t, 503, busy.status)
	require.Contains(t, busy.text, errBusy.text)
	require.Equal(t, "1", busy.header.Get("Retry-After"))
}
