package main

import (
	"fmt"
	"math"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// startWithFiles starts a server that may open so many files.
func (s *site) startWithFiles(t *testing.T, files int) *process {
	return startProcess(t, "sh", append([]string{"-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, files), binary}, s.args()...)...)
}

// However many connections clients open, log and store can open their files.
func TestConnectionsLeaveFilesForTheEngine(t *testing.T) {
	s := newSite(t, "--segment-bytes", "64KiB", "--checkpoint-bytes", "64KiB", "--checkpoint-interval", "20ms", "--event-pack-after", "20ms")
	p := s.startWithFiles(t, leastFiles)
	p.waitReady(s.url("/readyz"))
	require.Contains(t, p.log.String(), `"allowed":112`)
	client := &http.Client{Timeout: time.Minute}
	track := func(user int) {
		object := fmt.Sprintf(`{"external_id":"user-%d","text":"%0200d"}`, user, user)
		body := `{"attributes":[` + strings.Repeat(object+",", 9) + object + `]}`
		a, err := call(client, http.MethodPost, s.url("/users/track"), allKey, body)
		require.NoError(t, err, tail(p.log.String(), 2000))
		require.Equal(t, 201, a.status, a.body)
	}
	track(0) // whose connection stays
	for range 2 * leastFiles {
		c, err := net.DialTimeout("tcp", s.addr, time.Second)
		if err != nil {
			break // the backlog is full: nothing accepts any more
		}
		defer c.Close()
	}
	for user := range 400 {
		track(user)
	}
	require.NotContains(t, p.log.String(), "too many open files")
	p.stop()
	s.start(t).stop()
}

// With fewer files than the engine needs by itself there is no start.
func TestTooFewFiles(t *testing.T) {
	s := newSite(t)
	p := s.startWithFiles(t, leastFiles-1)
	require.Equal(t, 1, p.exit(time.Minute))
	require.Contains(t, p.log.String(), "the limit of open files is 255, and at least 256 are needed")
}

func TestDivideConns(t *testing.T) {
	for _, test := range []struct {
		limit             int
		public, operators int
	}{{256, 112, 8}, {1024, 448, 32}, {20_000, 13_020, 930}, {32_768, 24_192, 1728}, {math.MaxInt, 1 << 30, 1 << 30}} {
		public, operators := divideConns(test.limit, engineFiles)
		require.Equal(t, []int{test.public, test.operators}, []int{public, operators}, test.limit)
		require.LessOrEqual(t, public+2*operators+min(engineFiles, test.limit/2), test.limit)
	}
}

// Neither --max-conns nor anything else adds to what connections may take.
func TestDivideCalls(t *testing.T) {
	for _, test := range []struct{ limit, maxConns, public, calls int }{
		{1024, 16384, 320, 128}, {1024, 100, 320, 348}, {32_768, 16384, 16512, 4224}, {65_536, 16384, 45184, 32896},
	} {
		conns, operators := divideConns(test.limit, nodeFiles)
		public, calls := divideCalls(conns, test.maxConns)
		require.Equal(t, []int{test.public, test.calls}, []int{public, calls}, test.limit)
		require.LessOrEqual(t, min(public, test.maxConns)+calls+2*operators+min(nodeFiles, test.limit/2), test.limit)
	}
}
