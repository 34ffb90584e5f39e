package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/model"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

// modelWorkspaces is how many workspaces the populations of the model are spread over. Many share one: their names
// differ.
const modelWorkspaces = 8

var modelSetup = &model.Setup{Groups: map[string]string{
	"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e01": "email",
	"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e02": "email",
	"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e03": "sms",
}}

func modelBootstrap() string {
	var b strings.Builder
	b.WriteString("workspaces:\n")
	for i := range modelWorkspaces {
		fmt.Fprintf(&b, "  - id: model%d\n    name: Model %d\n    rate_limits: {", i, i)
		for k, bucket := range []string{"users.track", "users.export.ids", "users.merge", "users.external_ids.rename", "users.external_ids.remove", "subscription.status.set",
			"subscription.status.get", "subscription.groups.get", "email.status", "email.blacklist", "email.bounce.remove", "email.spam.remove", "email.hard_bounces", "email.unsubscribe"} {
			fmt.Fprintf(&b, "%s%s: 1000000/1s", strings.Repeat(", ", min(k, 1)), bucket)
		}
		b.WriteString("}\n    api_keys:\n")
		for k, key := range modelKeys(i) {
			fmt.Fprintf(&b, "      - {name: key%d, key: %s, permissions: [\"*\"]}\n", k, key)
		}
		b.WriteString("    subscription_groups:\n")
		for id, channel := range modelSetup.Groups {
			fmt.Fprintf(&b, "      - {id: %s, name: %s-%s, channel: %s}\n", id, channel, id[34:], channel)
		}
	}
	return b.String()
}

func modelKeys(workspace int) []string {
	return []string{fmt.Sprintf("model%02d-first-0123456789abcdefghijkl", workspace), fmt.Sprintf("model%02d-other-0123456789abcdefghijkl", workspace)}
}

// judge runs sequences against a server, many at once.
type judge struct {
	options               model.Options
	seed                  uint64
	requests              int64        // how many are enough
	made                  atomic.Int64 // populations
	failed                atomic.Bool
	sent, reads, unknowns atomic.Int64

	mu          sync.Mutex
	differences []string // where, for those below
	found       []*model.Difference
}

func newJudge(t *testing.T, url func() string) *judge {
	areas, err := model.ParseAreas(os.Getenv("MILLRACE_MODEL_AREAS"))
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, IdleConnTimeout: 10 * time.Second}}
	j := &judge{seed: testseed.Of(t)}
	j.options = model.Options{Setup: modelSetup, Areas: areas, Patience: modelPatience, Client: &model.Client{HTTP: client, URL: url},
		Sent: &j.sent, Reads: &j.reads, Unknowns: &j.unknowns, Enough: j.isOver}
	return j
}

// population is one that nobody has had.
func (j *judge) population() *model.Population {
	n := int(j.made.Add(1))
	return &model.Population{Prefix: fmt.Sprintf("m%d-", n), Number: n, Keys: modelKeys(n % modelWorkspaces)}
}

// run sends sequences from so many goroutines until there were enough requests, or a difference.
func (j *judge) run(goroutines int) {
	var all sync.WaitGroup
	for k := range goroutines {
		all.Go(func() {
			for n := 0; !j.isOver(); n++ {
				j.sequence(uint64(k)<<32 | uint64(n))
			}
		})
	}
	all.Wait()
}

func (j *judge) isOver() bool { return j.failed.Load() || j.sent.Load() >= j.requests }

// waitFor waits until so many requests were sent.
func (j *judge) waitFor(requests int) {
	for j.sent.Load() < int64(requests) && !j.isOver() {
		time.Sleep(5 * time.Millisecond)
	}
}

func (j *judge) sequence(stream uint64) {
	r := rand.New(rand.NewPCG(j.seed, stream))
	q := model.NewSequence(j.options, j.population())
	d := q.Run(r, 20+r.IntN(180)/(1+r.IntN(4)))
	if d == nil {
		return
	}
	j.failed.Store(true)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.differences = append(j.differences, fmt.Sprintf("seed %d, sequence %d", j.seed, stream))
	j.found = append(j.found, d)
}

// report fails the test with the shortest sequences that can be found.
func (j *judge) report(t *testing.T) {
	t.Helper()
	for i, d := range j.found[:min(len(j.found), 2)] {
		model.Shrink(j.options, d, j.population, 20*time.Second)
		t.Errorf("%s\n%s", j.differences[i], d)
	}
}

// Users as the contract has them, over kills.
func TestModel(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	require.NoError(t, os.WriteFile(s.bootstrap, []byte(modelBootstrap()), 0o600))
	p := s.start(t)
	j := newJudge(t, func() string { return "http://" + s.addr })
	j.against(t, testsize.Of(1_000_000, 2000, 600), testsize.Of(2000, 2, 2), func(r *rand.Rand) {
		time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
		p.kill()
		p = s.start(t, bounds(r)...)
	})
}

// The same with requests at any node of a cluster, whose nodes are killed, and in the long versions paused.
func TestModelOfACluster(t *testing.T) {
	t.Parallel()
	c := emptyCluster(t, newNetwork(t, 3), []string{"--groups", "5", "--max-moves", "6"})
	c.founders = 3
	require.NoError(t, os.WriteFile(c.bootstrap, []byte(modelBootstrap()), 0o600))
	c.found()
	j := newJudge(t, func() string { return "http://" + c.nodes[rand.IntN(3)].addr })
	j.options.Keyed, j.options.InParts = true, true
	j.against(t, testsize.Of(200_000, 150, 60), testsize.Of(200, 1, 1), func(r *rand.Rand) {
		m := c.nodes[r.IntN(3)]
		if testsize.Stress() && r.IntN(2) == 0 {
			m.pause()
			time.Sleep(time.Duration(r.IntN(4000)) * time.Millisecond)
			m.resume()
		} else {
			m.kill()
			time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
			m.start()
		}
		c.waitReady()
	})
}

// against runs sequences while the server fails now and then, spread over all of them, and reports.
func (j *judge) against(t *testing.T, requests, failures int, fail func(*rand.Rand)) {
	t.Helper()
	j.requests = int64(requests)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		j.run(16)
	}()
	r := rand.New(rand.NewPCG(j.seed, 1<<63))
	done := 0
	for ; done < failures && !j.isOver(); done++ {
		j.waitFor(done * requests / (failures + 1))
		fail(r)
	}
	<-ended
	t.Logf("%d requests, %d reads, %d failures of the server, %d requests without an answer", j.sent.Load(), j.reads.Load(), done, j.unknowns.Load())
	j.report(t)
}

// modelPatience is how long the server may be away, and a merge may take. Nothing depends on how fast it is.
const modelPatience = testPatience
