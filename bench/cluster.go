package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"millrace/loadtest"
	"millrace/loadtest/body"
	"millrace/shard/cluster/placement"
	"millrace/wal/pause"
)

// Three nodes on one machine can show what an object costs them together. How fast they are with a machine each follows
// from that cost, not from the rates measured here.
const (
	clusterNodes = 3

	clusterCPUTarget    = 1.15 // CPU of an object on all nodes ÷ (nodes × that on one node alone)
	clusterBytesTarget  = 4    // bytes written for an object on all nodes ÷ those on one node alone
	clusterSkewTarget   = 0.7  // rate with all load sent to one node ÷ rate with the load spread over all
	clusterFailTarget   = 3    // seconds without a leader after kill -9
	clusterIdleTarget   = 0.05 // cores of a node that has nothing to do
	clusterChangeTarget = 0.7  // rate in the worst round while a node joins ÷ rate before

	// spreadTime is how long a cluster gets to spread its leaders over the nodes, before it counts as at rest.
	spreadTime = 10 * time.Second
	// changeTime bounds the wait for a cluster to come to rest.
	changeTime = 3 * time.Minute
)

// clusterFlags make all sides write what has changed to their stores, and pack their events, so often that these are
// part of a round, and after the same number of objects: 192 MiB of log are the least that six replicas of a node have
// together. What is left at the end of a round follows when no checkpoint was due for a while.
var clusterFlags = []string{"--checkpoint-bytes", "192MiB", "--checkpoint-interval", "10s", "--event-pack-after", "1s"}

// cluster measures three nodes on loopback against one node alone. In a round all sides get the same number of objects,
// and are charged for all that these cause: each round begins and ends with everything in the stores and all events
// packed. So it doesn't matter that the nodes, on the same cores, need several times as long.
func cluster(ctx context.Context, s *settings) (figures []Figure, err error) {
	alone, err := startServer(ctx, s, "alone", clusterFlags...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, alone.stop()) }()
	nodes, err := startCluster(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, nodes.stop()) }()

	idle, err := nodes.idle(ctx)
	if err != nil {
		return nil, err
	}
	figures = append(figures, idle)
	bodies := s.bodies(mix225)
	one, all := s.side(128, bodies, alone), s.side(128, bodies, nodes.processes...)
	first := s.side(128, bodies, nodes.processes...)
	first.asked = nodes.processes[:1]
	one.catchUp, all.catchUp, first.catchUp = true, true, true
	if err := warmUp(ctx, one, all); err != nil {
		return figures, err
	}
	perRound := max(int64(float64(one.requests)*s.Duration.Seconds()/s.warmup().Seconds()), 1)
	one.perRound, all.perRound, first.perRound = perRound, perRound, perRound
	rates, err := inTurns(ctx, s.Rounds, one.turn(ctx), all.turn(ctx), first.turn(ctx))
	if err != nil {
		return figures, err
	}
	cpu := ratios(all.cpu, one.cpu)
	for i := range cpu {
		cpu[i] /= clusterNodes
	}
	figures = append(figures,
		newFigure("CPU of an object, three nodes ÷ (3 × one node alone), 225 objects, 128 connections", "", cpu,
			Detail{"three nodes", median(all.cpu), "s per million objects"},
			Detail{"one node alone", median(one.cpu), "s per million objects"},
			Detail{"three nodes", median(rates[1]), "objects/s"},
			Detail{"one node alone", median(rates[0]), "objects/s"},
			Detail{"three nodes p50", median(all.p50), "ms"}, Detail{"p99", median(all.p99), "ms"}).
			want(atMost, clusterCPUTarget),
		newFigure("bytes written for an object, three nodes ÷ one node alone", "", ratios(all.written, one.written),
			Detail{"three nodes", median(all.written), "bytes"},
			Detail{"one node alone", median(one.written), "bytes"}).want(atMost, clusterBytesTarget),
		newFigure("all load sent to one node ÷ spread over all", "", ratios(rates[2], rates[1]),
			Detail{"to one node", median(rates[2]), "objects/s"},
			Detail{"spread", median(rates[1]), "objects/s"}).want(atLeast,
			clusterSkewTarget))

	load := s.side(128, bodies, nodes.processes...)
	joined, err := nodes.join(ctx, load)
	if err != nil {
		return figures, err
	}
	figures = append(figures, joined...)
	failed, err := nodes.failOver(ctx, load)
	return append(figures, failed), err
}

// nodes are the nodes of a cluster on loopback. processes[i] is node i+1.
type nodes struct {
	s         *settings
	processes []*process
	raft      []string // their addresses for one another
}

func startCluster(ctx context.Context, s *settings) (*nodes, error) {
	n := &nodes{s: s}
	for range clusterNodes + 1 { // one more than at first: the last one joins later
		address, err := freeAddress()
		if err != nil {
			return nil, err
		}
		n.raft = append(n.raft, address)
	}
	n.processes = make([]*process, clusterNodes)
	var starts errgroup.Group // nodes wait for one another, so all start at once
	for i := range n.processes {
		starts.Go(func() (err error) {
			n.processes[i], err = n.start(ctx, i)
			return err
		})
	}
	if err := starts.Wait(); err != nil {
		n.processes = slices.DeleteFunc(n.processes, func(p *process) bool { return p == nil })
		return nil, errors.Join(err, n.stop())
	}
	return n, n.untilAnswered(ctx)
}

// start starts node i+1.
func (n *nodes) start(ctx context.Context, i int) (*process, error) {
	var members []string
	for j, address := range n.raft[:clusterNodes] {
		members = append(members, fmt.Sprintf("%d=%s", j+1, address))
	}
	id := strconv.Itoa(i + 1)
	return startServer(ctx, n.s, "node"+id, append([]string{"--node", id, "--raft", n.raft[i], "--raft-insecure",
		"--members", strings.Join(members, ",")}, clusterFlags...)...)
}

func (n *nodes) stop() (err error) {
	for _, p := range n.processes {
		err = errors.Join(err, p.stop())
	}
	return err
}

// untilAnswered waits until a request that concerns every group is answered: then all groups have leaders.
func (n *nodes) untilAnswered(ctx context.Context) error {
	var last error
	for end := time.Now().Add(changeTime); time.Now().Before(end); {
		if last = post(n.processes[0], "/users/track", everyGroup()); last == nil {
			return nil
		}
		if err := pause.For(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("the cluster did not become ready: %w", last)
}

// everyGroup is the body of a request for so many users that every group has some of them.
func everyGroup() []byte {
	var events []byte
	for i := range body.MaxPerArray {
		events = fmt.Appendf(events, `,{"external_id":"probe-%d","name":"probed","time":"2026-01-02T03:04:05Z"}`, i)
	}
	return fmt.Appendf(nil, `{"events":[%s]}`, events[1:])
}

// idle measures the CPU that a node takes when nobody asks it anything.
func (n *nodes) idle(ctx context.Context) (Figure, error) {
	if err := n.rest(ctx); err != nil {
		return Figure{}, err
	}
	if err := pause.For(ctx, spreadTime); err != nil {
		return Figure{}, err
	}
	for _, p := range n.processes {
		quiet(p.pid())
	}
	rounds := make([]float64, n.s.Rounds)
	for i := range rounds {
		before := cpuOf(n.processes)
		if err := pause.For(ctx, n.s.Duration); err != nil {
			return Figure{}, err
		}
		rounds[i] = (cpuOf(n.processes) - before) / n.s.Duration.Seconds() / float64(len(n.processes))
	}
	return newFigure("CPU of a node of an idle cluster", "cores", rounds).want(atMost, clusterIdleTarget), nil
}

// join measures the rate, round by round, while a fourth node joins under load and takes over its share of the groups.
// It is compared with the rate of the three nodes before, and with that of the four afterwards: the fourth one has no
// cores of its own here, so the first figure has also what it costs that the node is there at all.
func (n *nodes) join(ctx context.Context, load *httpSide) ([]Figure, error) {
	before, err := inTurns(ctx, n.s.Rounds, load.turn(ctx))
	if err != nil {
		return nil, err
	}
	added := map[string]any{"node": clusterNodes + 1, "address": n.raft[clusterNodes]}
	if err := n.processes[0].ask(ctx, http.MethodPost, "/admin/cluster/nodes", added, nil); err != nil {
		return nil, err
	}
	p, err := n.start(ctx, clusterNodes)
	if err != nil {
		return nil, err
	}
	n.processes = append(n.processes, p)
	worst, start := math.Inf(1), time.Now()
	for settled := false; !settled; {
		rate, err := load.measure(ctx)
		if err != nil {
			return nil, err
		}
		worst = min(worst, rate)
		if settled, err = n.settled(ctx); err != nil {
			return nil, err
		}
		if time.Since(start) > changeTime {
			return nil, errors.New("the cluster did not stop moving groups")
		}
	}
	took := time.Since(start).Seconds()
	if err := pause.For(ctx, spreadTime); err != nil {
		return nil, err
	}
	after, err := inTurns(ctx, n.s.Rounds, load.turn(ctx))
	if err != nil {
		return nil, err
	}
	during := slices.Repeat([]float64{worst}, n.s.Rounds)
	return []Figure{
		newFigure("rate in the worst round while a fourth node joins ÷ before", "", ratios(during, before[0]),
			Detail{"worst", worst, "objects/s"}, Detail{"three nodes before", median(before[0]), "objects/s"},
			Detail{"took", took, "s"}).want(atLeast, clusterChangeTarget),
		newFigure("rate in the worst round while a fourth node joins ÷ that of the four nodes afterwards", "",
			ratios(during, after[0]), Detail{"four nodes afterwards", median(after[0]), "objects/s"}),
	}, nil
}

// failOver kills a node under load and measures the time until a request that concerns every group is answered.
func (n *nodes) failOver(ctx context.Context, load *httpSide) (Figure, error) {
	rounds := make([]float64, 0, n.s.Rounds)
	for i := range n.s.Rounds {
		victim := 1 + i%(len(n.processes)-1) // not the first one, which is asked
		loading, end := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			// Some requests fail, because a node is killed meanwhile.
			_, _ = load.run(loading, loadtest.Options{Duration: changeTime})
		}()
		if err := pause.For(ctx, n.s.Duration); err != nil {
			end()
			return Figure{}, err
		}
		n.processes[victim].kill()
		start := time.Now()
		err := n.untilAnswered(ctx)
		rounds = append(rounds, time.Since(start).Seconds())
		end()
		<-ended
		if err != nil {
			return Figure{}, err
		}
		if n.processes[victim], err = n.start(ctx, victim); err != nil {
			return Figure{}, err
		}
		if err := n.rest(ctx); err != nil {
			return Figure{}, err
		}
	}
	return newFigure("kill -9 of a node under load: until every group is led again", "s", rounds).
		want(atMost, clusterFailTarget), nil
}

// settled says whether every group has its replicas, all replicas have a vote, and no group moves.
func (n *nodes) settled(ctx context.Context) (bool, error) {
	var status placement.Status
	if err := n.processes[0].ask(ctx, http.MethodGet, "/admin/cluster", nil, &status); err != nil {
		return false, err
	}
	for _, g := range status.Groups {
		if g.Leader == 0 || g.Doing != "" || g.Problem != "" {
			return false, nil
		}
		for _, r := range g.Replicas {
			if !r.Voter || r.Leaving || !r.Open {
				return false, nil
			}
		}
	}
	return len(status.Groups) > 0, nil
}

// rest waits until no group moves.
func (n *nodes) rest(ctx context.Context) error {
	for end := time.Now().Add(changeTime); time.Now().Before(end); {
		if settled, err := n.settled(ctx); err != nil || settled {
			return err
		}
		if err := pause.For(ctx, 200*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the cluster did not come to rest")
}

func cpuOf(processes []*process) (seconds float64) {
	for _, p := range processes {
		seconds += cpuSeconds(p.pid())
	}
	return seconds
}

// writtenOf is how many bytes processes have written to disk since they started.
func writtenOf(processes []*process) (bytes float64) {
	for _, p := range processes {
		if p, err := proc.Proc(p.pid()); err == nil {
			io, _ := p.IO()
			bytes += float64(io.WriteBytes)
		}
	}
	return bytes
}

// freeAddress is an address on loopback that nobody listens on.
func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
