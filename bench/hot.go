package main

import (
	"context"
	"errors"

	"millrace/loadtest/body"
	"millrace/shard"
)

const (
	hotTarget        = 0.9
	deferredRequests = "millrace_deferred_requests_total"
)

// hot compares the rate of one user who gets all traffic, which one worker has to apply, with the rate of many users.
// It does so through the server, and in the engine alone, where no other cost hides the difference.
func hot(ctx context.Context, s *settings) ([]Figure, error) {
	server, err := hotServer(ctx, s)
	if err != nil {
		return nil, err
	}
	figures := []Figure{server}
	for _, l := range cases[:2] {
		f, err := hotEngine(ctx, s, l.name, l.mix)
		if err != nil {
			return figures, err
		}
		figures = append(figures, f)
	}
	return figures, nil
}

// skewed are the bodies of both sides. They differ in their users only.
func (s *settings) skewed(mix body.Mix) (hot, uniform body.Options) {
	hot, uniform = s.bodies(mix), s.bodies(mix)
	hot.Skew, hot.Prefix = body.Hot, "hot"
	return hot, uniform
}

func hotServer(ctx context.Context, s *settings) (f Figure, err error) {
	server, err := startServer(ctx, s, "server")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	one, many := s.skewed(mix225)
	hot := s.side(64, one, server)
	uniform := s.side(64, many, server)
	if err := warmUp(ctx, hot, uniform); err != nil {
		return f, err
	}
	var deferred []float64 // deferrals for each request of the hot side
	rates, err := inTurns(ctx, s.Rounds,
		func(int) (float64, error) {
			before, err := server.metric(ctx, deferredRequests)
			requests := hot.requests
			if err != nil {
				return 0, err
			}
			rate, err := hot.measure(ctx)
			if err != nil {
				return 0, err
			}
			after, err := server.metric(ctx, deferredRequests)
			deferred = append(deferred, (after-before)/float64(hot.requests-requests))
			return rate, err
		},
		uniform.turn(ctx))
	if err != nil {
		return f, err
	}
	return newFigure("one user ÷ 100,000 users, server, 225 objects, 64 connections", "", ratios(rates[0], rates[1]),
		Detail{"one user", median(rates[0]), "objects/s"}, Detail{"many", median(rates[1]), "objects/s"},
		Detail{"one user p99", median(hot.p99), "ms"}, Detail{"many p99", median(uniform.p99), "ms"},
		Detail{"one user's requests deferred", median(deferred), "times each"}).want(atLeast, hotTarget), nil
}

func hotEngine(ctx context.Context, s *settings, name string, mix body.Mix) (f Figure, err error) {
	e, err := openEngine(s, "engine "+name, shard.Options{})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	one, many := s.skewed(mix)
	hot, uniform := &engineSide{s: s, engine: e, bodies: one}, &engineSide{s: s, engine: e, bodies: many}
	if err := errors.Join(hot.warmup(ctx), uniform.warmup(ctx)); err != nil {
		return f, err
	}
	rates, err := inTurns(ctx, s.Rounds, hot.turn(ctx), uniform.turn(ctx))
	if err != nil {
		return f, err
	}
	return newFigure("one user ÷ 100,000 users, engine without HTTP, "+name, "", ratios(rates[0], rates[1]),
		Detail{"one user", median(rates[0]), "objects/s"}, Detail{"many", median(rates[1]), "objects/s"}), nil
}
