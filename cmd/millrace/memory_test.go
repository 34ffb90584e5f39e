package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"millrace/loadtest/testsize"
)

// The process stays within --memory, --store-cache and 144 MiB, with several times as much of profiles that grow.
func TestMemoryBoundsTheProcess(t *testing.T) {
	if underRace {
		t.Skip("the race detector takes many times the memory")
	}
	testsize.SkipSerial(t)
	s := newSite(t, "--memory", "64MiB", "--store-cache", "16MiB")
	p := s.start(t)
	idle := mostResident(t, p)
	users := testsize.Of(40_000, 12_000, 12_000)
	for size := 500; size < 4000; size += size / 2 {
		growUsers(t, s, users, size)
		t.Logf("%d users of %d bytes: %d MiB at most", users, size, mostResident(t, p)>>20)
	}
	most := mostResident(t, p)
	t.Logf("idle %d MiB, at most %d MiB", idle>>20, most>>20)
	require.Less(t, most, int64(64<<20+16<<20+overhead))
	p.stop()
}

// What --memory is shared out to comes to no more than it, and for small ones to no more than overhead beside it.
func TestPlanMemory(t *testing.T) {
	const mib = 1 << 20
	f := func(memory, inflight int64, want memoryPlan) {
		t.Helper()
		want.cache = 112 * mib
		require.Equal(t, want, planMemory(memory, 128*mib, inflight))
	}
	f(64*mib, 0, memoryPlan{entries: 32 * mib, memTable: 4 * mib, block: 2 * mib, deleted: 2 * mib, inflight: 32 * mib})
	f(1024*mib, 0, memoryPlan{entries: 1024*mib - (80+32+8+64-24)*mib, memTable: 16 * mib, block: 8 * mib, deleted: 8 * mib, inflight: 64 * mib})
	f(4096*mib, 0, memoryPlan{entries: 4096*mib - (320+128+32+256-24)*mib, memTable: 64 * mib, block: 32 * mib, deleted: 32 * mib, inflight: 256 * mib})
	f(4096*mib, 100*mib, memoryPlan{entries: 4096*mib - (320+128+32+100-24)*mib, memTable: 64 * mib, block: 32 * mib, deleted: 32 * mib, inflight: 100 * mib})
	f(1, 0, memoryPlan{entries: 1, memTable: 4 * mib, block: 2 * mib, deleted: 2 * mib, inflight: 32 * mib})
}

// What was in use at the last collection counts for some seconds.
func TestHeapInUse(t *testing.T) {
	var c collection
	at := time.Unix(1, 0)
	for range 2 {
		require.EqualValues(t, 7, c.inUse(7, 3, at))
		require.EqualValues(t, 7, c.inUse(7, 3, at.Add(longAgo-1)))
		require.Zero(t, c.inUse(7, 3, at.Add(longAgo)))
		require.EqualValues(t, 9, c.inUse(9, 4, at.Add(longAgo)), "another collection")
		at, c = at.Add(time.Hour), collection{}
	}
	_, _, before := heapBytes()
	runtime.GC()
	_, _, after := heapBytes()
	require.Greater(t, after, before)
}

func TestHeapLimit(t *testing.T) {
	const mib = 1 << 20
	require.EqualValues(t, 120*mib, heapLimit(200*mib, 130*mib, 50*mib, 20*mib), "80 lie outside of Go's heap")
	require.EqualValues(t, 200*mib, heapLimit(200*mib, 40*mib, 50*mib, 20*mib), "what is mapped may not be resident")
	require.EqualValues(t, 76*mib, heapLimit(200*mib, 250*mib, 60*mib, 40*mib), "what is in use can't be collected")
	resident, err := residentBytes()
	require.NoError(t, err)
	require.Greater(t, resident, int64(mib))
	mapped, _, _ := heapBytes()
	require.Greater(t, mapped, int64(mib))
}

// growUsers gives users attributes of so many bytes in all.
func growUsers(t *testing.T, s *site, users, size int) {
	t.Helper()
	const perRequest, clients = 75, 4
	var fields strings.Builder
	for i := 0; size > 0; i, size = i+1, size-200 {
		fmt.Fprintf(&fields, `,"field_%d":"%s"`, i, strings.Repeat("x", min(size, 200)))
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: clients}}
	defer client.CloseIdleConnections()
	var g errgroup.Group
	for c := range clients {
		g.Go(func() error {
			for first := c * perRequest; first < users; first += clients * perRequest {
				var body bytes.Buffer
				body.WriteString(`{"attributes":[`)
				for u := first; u < first+perRequest; u++ {
					if u > first {
						body.WriteByte(',')
					}
					fmt.Fprintf(&body, `{"external_id":"user-%d"%s}`, u, fields.String())
				}
				body.WriteString(`]}`)
				if err := sendTrack(client, s, body.Bytes()); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, g.Wait())
}

// sendTrack sends a request until it is taken: it may be refused for a while, which is what bounds memory.
func sendTrack(client *http.Client, s *site, body []byte) error {
	for {
		req, err := http.NewRequest("POST", s.url("/users/track"), bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+trackKey)
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		answer, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		switch resp.StatusCode {
		case http.StatusCreated:
			return nil
		case http.StatusServiceUnavailable:
		default:
			return fmt.Errorf("%d %s", resp.StatusCode, answer)
		}
	}
}

// mostResident is the most memory that the process has had.
func mostResident(t *testing.T, p *process) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			require.NoError(t, err)
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}
