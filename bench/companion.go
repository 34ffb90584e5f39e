package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/valyala/fasthttp"

	"millrace/loadtest"
	"millrace/loadtest/body"
	"millrace/wal/pause"
)

// The companion API beside the track load.
const (
	mergesPerSecond  = 3000 // so many are asked for beside the track load
	mergesPerRequest = 50
	mergeTarget      = 0.8 // part of the undisturbed track rate that is to be left then
	mergesApplied    = `millrace_merges_total{result="merged"}`

	statusUsers  = 50
	statusTarget = 10_000 // requests/s beside half of the track rate
	statusURIs   = 256    // different requests
	groupID      = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55"
)

// merge measures what is left of the track rate while 3,000 users a second are merged, each into another user. A merge
// counts when it has been applied, not when it is accepted.
func merge(ctx context.Context, s *settings) (figures []Figure, err error) {
	server, track, err := s.startWarm(ctx, "data", 64, s.bodies(mix225))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	pairs := &pairs{server: server}
	beside := &traffic{server: server, connections: 8, perSecond: mergesPerSecond / mergesPerRequest, fill: pairs.fill,
		status: fasthttp.StatusAccepted}
	var merged []float64
	rates, err := inTurns(ctx, s.Rounds,
		func(int) (float64, error) {
			if err := pairs.make(ctx, int(mergesPerSecond*2*s.Duration.Seconds())+mergesPerRequest); err != nil {
				return 0, err
			}
			var rate float64
			m, err := pairs.merged(ctx, func() (err error) {
				_, err = beside.during(ctx, func() (err error) {
					rate, err = track.measure(ctx)
					return err
				})
				return err
			})
			merged = append(merged, m)
			return rate, err
		},
		track.turn(ctx))
	if err != nil {
		return nil, err
	}
	figures = append(figures,
		newFigure("track beside 3,000 merges/s ÷ track alone, 225 objects, 64 connections", "",
			ratios(rates[0], rates[1]),
			Detail{"beside merges", median(rates[0]), "objects/s"}, Detail{"alone", median(rates[1]), "objects/s"},
			Detail{"merges applied", median(merged), "merges/s"}).want(atLeast, mergeTarget))

	alone := &traffic{server: server, connections: 8, fill: pairs.fill, status: fasthttp.StatusAccepted}
	rounds := make([]float64, s.Rounds)
	for i := range rounds {
		if err := pairs.make(ctx, int(mergesPerSecond*2*s.Duration.Seconds())+mergesPerRequest); err != nil {
			return figures, err
		}
		if rounds[i], err = pairs.merged(ctx, func() error {
			_, err := alone.during(ctx, func() error {
				for pairs.left() && ctx.Err() == nil {
					time.Sleep(time.Millisecond)
				}
				return ctx.Err()
			})
			return err
		}); err != nil {
			return figures, err
		}
	}
	return append(figures, newFigure("merges without other load, 50 a request, 8 connections", "merges/s", rounds)), nil
}

// pairs makes users for merges, two for each merge.
type pairs struct {
	server *process
	made   int64        // pairs
	used   atomic.Int64 // pairs
}

// make makes n more pairs: users with a name, some attributes and an event.
func (p *pairs) make(ctx context.Context, n int) error {
	for ; n > 0 && ctx.Err() == nil; n -= body.MaxPerArray {
		for _, side := range []string{"from", "into"} {
			var attributes, events []byte
			for i := range int64(body.MaxPerArray) {
				attributes = fmt.Appendf(attributes,
					`,{"external_id":"%s-%d","first_name":"Ada","home_city":"London","points":%d,"plan":"gold"}`,
					side, p.made+i, i)
				events = fmt.Appendf(events,
					`,{"external_id":"%s-%d","name":"signed up","time":"2026-01-02T03:04:05Z"}`, side,
					p.made+i)
			}
			text := fmt.Appendf(nil, `{"attributes":[%s],"events":[%s]}`, attributes[1:], events[1:])
			if err := post(p.server, "/users/track", text); err != nil {
				return err
			}
		}
		p.made += body.MaxPerArray
	}
	return ctx.Err()
}

// errUsedUp ends a connection's traffic when no pairs are left.
var errUsedUp = errors.New("nothing more to ask for")

// left says whether there are pairs for another request.
func (p *pairs) left() bool { return p.used.Load()+mergesPerRequest <= p.made }

// fill makes a request of merges.
func (p *pairs) fill(r *fasthttp.Request) error {
	first := p.used.Load()
	for ; ; first = p.used.Load() {
		if first+mergesPerRequest > p.made {
			return errUsedUp
		}
		if p.used.CompareAndSwap(first, first+mergesPerRequest) {
			break
		}
	}
	text := []byte(`{"merge_updates":[`)
	for i := first; i < first+mergesPerRequest; i++ {
		if i > first {
			text = append(text, ',')
		}
		text = fmt.Appendf(text,
			`{"identifier_to_merge":{"external_id":"from-%d"},"identifier_to_keep":{"external_id":"into-%d"}}`, i, i)
	}
	fillPost(r, p.server, "/users/merge", append(text, "]}"...))
	return nil
}

// merged calls f, waits until all merges that f has asked for are applied, and returns how many were applied a second.
func (p *pairs) merged(ctx context.Context, f func() error) (perSecond float64, err error) {
	before, err := p.server.metric(ctx, mergesApplied)
	if err != nil {
		return 0, err
	}
	start, used := time.Now(), p.used.Load()
	if err := f(); err != nil {
		return 0, err
	}
	asked := float64(p.used.Load() - used)
	for {
		after, err := p.server.metric(ctx, mergesApplied)
		took := time.Since(start)
		switch {
		case err != nil:
			return 0, err
		case after-before == asked:
			return asked / took.Seconds(), nil
		case after-before > asked || took > 10*time.Minute:
			return 0, fmt.Errorf("%v merges were requested, but %v were applied", asked, after-before)
		}
		if err := pause.For(ctx, 5*time.Millisecond); err != nil {
			return 0, err
		}
	}
}

// status measures reads of the subscription states of 50 users a request, alone and while the track load runs at half
// of its rate.
func status(ctx context.Context, s *settings) (figures []Figure, err error) {
	server, track, err := s.startWarm(ctx, "data", 64, s.bodies(mix225))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	full, err := track.measure(ctx)
	if err != nil {
		return nil, err
	}
	uris, err := subscribe(server, track.bodies)
	if err != nil {
		return nil, err
	}
	reads := &traffic{server: server, connections: 32, status: fasthttp.StatusOK, fill: inTurn(uris)}
	var alone, rates, p50, p99, tracked []float64
	perRequest := float64(mix225[body.Attributes] + mix225[body.Events] + mix225[body.Purchases])
	for range s.Rounds {
		a, err := reads.during(ctx, func() error { return pause.For(ctx, s.Duration) })
		if err != nil {
			return nil, err
		}
		alone = append(alone, a.perSecond)
		r, err := reads.during(ctx, func() error {
			report, err := track.run(ctx, loadtest.Options{Duration: s.Duration, Rate: max(1, full/perRequest/2)})
			if err == nil {
				tracked = append(tracked, report.ObjectsPerSecond)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		rates, p50, p99 = append(rates, r.perSecond), append(p50, r.quantile(50)), append(p99, r.quantile(99))
	}
	return []Figure{newFigure("subscription/status/get of 50 users, 32 connections", "requests/s", alone).want(atLeast,
		statusTarget), newFigure("subscription/status/get of 50 users, 32 connections, beside half of the track rate",
		"requests/s", rates,
		Detail{"p50", median(p50), "ms"}, Detail{"p99", median(p99), "ms"},
		Detail{"track beside", median(tracked), "objects/s"}, Detail{"track alone", full, "objects/s"}).want(atLeast,
		statusTarget)}, nil
}

// subscribe sets a state for every other user that the reads will ask for, and returns the URIs of these reads.
func subscribe(server *process, o body.Options) (uris []string, err error) {
	o.EnsureDefaults()
	for i := range statusURIs {
		uri := []byte("http://" + server.address + "/subscription/status/get?subscription_group_id=" + groupID)
		var ids []byte
		for j := range statusUsers {
			id := body.AppendIdentifier(nil, o.Prefix, body.ExternalID, (i*statusUsers+j)%o.Users)
			uri = append(append(uri, "&external_id[]="...), id...)
			if j%2 == 0 {
				ids = append(append(append(ids, ',', '"'), id...), '"')
			}
		}
		uris = append(uris, string(uri))
		text := fmt.Appendf(nil, `{"subscription_group_id":%q,"subscription_state":"subscribed","external_id":[%s]}`,
			groupID, ids[1:])
		if err := post(server, "/subscription/status/set", text); err != nil {
			return nil, err
		}
	}
	return uris, nil
}

// inTurn fills requests with the URIs, one after the other.
func inTurn(uris []string) func(*fasthttp.Request) error {
	var next atomic.Int64
	return func(r *fasthttp.Request) error {
		r.SetRequestURI(uris[next.Add(1)%int64(len(uris))])
		return nil
	}
}

// traffic sends requests to the server over some connections, one after the other on each connection: as fast as they
// are answered, or perSecond of them a second.
type traffic struct {
	server      *process
	connections int
	perSecond   float64
	fill        func(*fasthttp.Request) error // called by many goroutines
	status      int                           // the status of a right answer
}

// answered is the outcome of traffic.
type answered struct {
	perSecond float64
	latency   *hdrhistogram.Histogram // µs
}

func (a *answered) quantile(q float64) float64 { return float64(a.latency.ValueAtQuantile(q)) / 1000 }

// during sends traffic while f runs. A wrong answer is an error.
func (t *traffic) during(ctx context.Context, f func() error) (*answered, error) {
	client := &fasthttp.HostClient{Addr: t.server.address, MaxConns: t.connections, ReadBufferSize: 8 << 10}
	stop := make(chan struct{})
	failed := make(chan error, t.connections)
	histograms := make([]*hdrhistogram.Histogram, t.connections)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range histograms {
		histograms[i] = hdrhistogram.New(1, 60_000_000, 3)
		wg.Go(func() { failed <- t.send(ctx, client, start, i, stop, histograms[i]) })
	}
	err := f()
	took := time.Since(start)
	close(stop)
	wg.Wait()
	client.CloseIdleConnections()
	for range t.connections {
		err = errors.Join(err, <-failed)
	}
	a := &answered{latency: histograms[0]}
	for _, h := range histograms[1:] {
		a.latency.Merge(h)
	}
	a.perSecond = float64(a.latency.TotalCount()) / took.Seconds()
	return a, err
}

// send is one connection's part of the traffic. When the traffic has a rate, a request's latency counts from the time
// at which it was due.
func (t *traffic) send(
	ctx context.Context, client *fasthttp.HostClient, start time.Time, connection int, stop <-chan struct{},
	latency *hdrhistogram.Histogram,
) error {
	r, a := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(r)
	defer fasthttp.ReleaseResponse(a)
	r.Header.Set("Authorization", "Bearer "+apiKey)
	for n := connection; ; n += t.connections {
		due := time.Now()
		if t.perSecond > 0 {
			due = start.Add(time.Duration(float64(n) / t.perSecond * float64(time.Second)))
		}
		select {
		case <-stop:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
		if err := t.fill(r); errors.Is(err, errUsedUp) {
			return nil
		} else if err != nil {
			return err
		}
		if err := client.DoTimeout(r, a, time.Minute); err != nil {
			return fmt.Errorf("%s: %w", r.URI().Path(), err)
		}
		if a.StatusCode() != t.status {
			return fmt.Errorf("%s: %d %s", r.URI().Path(), a.StatusCode(), a.Body())
		}
		_ = latency.RecordValue(time.Since(due).Microseconds()) // beyond a minute there is no answer
	}
}

// fillPost makes a request that posts a body.
func fillPost(r *fasthttp.Request, server *process, path string, text []byte) {
	r.Header.SetMethod(fasthttp.MethodPost)
	r.SetRequestURI("http://" + server.address + path)
	r.Header.SetContentType("application/json")
	r.SetBody(text)
}

// post sends one request, which is answered 201.
func post(server *process, path string, text []byte) error {
	r, a := fasthttp.AcquireRequest(), fasthttp.AcquireResponse()
	defer fasthttp.ReleaseRequest(r)
	defer fasthttp.ReleaseResponse(a)
	r.Header.Set("Authorization", "Bearer "+apiKey)
	fillPost(r, server, path, text)
	if err := fasthttp.DoTimeout(r, a, time.Minute); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if a.StatusCode() != fasthttp.StatusCreated {
		return fmt.Errorf("%s: %d %s", path, a.StatusCode(), a.Body())
	}
	return nil
}
