package main

import (
	"context"
	"errors"

	"millrace/loadtest/body"
	"millrace/shard"
)

const hotTarget = 0.5

// hot compares the rate when one user takes all traffic, which one worker has to apply, with that of many users: through the server, and
// in the engine alone, where the difference has nothing to hide behind.
func hot(ctx context.Context, s *settings) ([]Figure, error) {
	server, err := hotServer(ctx, s)
	if err != nil {
		return nil, err
	}
	engine, err := hotEngine(ctx, s)
	return []Figure{server, engine}, err
}

// skewed are the bodies of both sides: the same, but for who gets them.
func (s *settings) skewed() (hot, uniform body.Options) {
	hot, uniform = s.bodies(mix225), s.bodies(mix225)
	hot.Skew, hot.Prefix = body.Hot, "hot"
	return hot, uniform
}

func hotServer(ctx context.Context, s *settings) (f Figure, err error) {
	server, err := startServer(ctx, s, "server")
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	one, many := s.skewed()
	hot := &httpSide{s: s, process: server, connections: 64, bodies: one}
	uniform := &httpSide{s: s, process: server, connections: 64, bodies: many}
	for _, side := range []*httpSide{hot, uniform} {
		if err := side.warmup(ctx); err != nil {
			return f, err
		}
	}
	rates, err := inTurns(ctx, s.Rounds,
		func(int) (float64, error) { return hot.measure(ctx) },
		func(int) (float64, error) { return uniform.measure(ctx) })
	if err != nil {
		return f, err
	}
	return newFigure("one user ÷ 100,000 users, server, 64 connections", "", ratios(rates[0], rates[1]),
		Detail{"one user", median(rates[0]), "objects/s"}, Detail{"many", median(rates[1]), "objects/s"},
		Detail{"one user p99", median(hot.p99), "ms"}, Detail{"many p99", median(uniform.p99), "ms"}).want(atLeast, hotTarget), nil
}

func hotEngine(ctx context.Context, s *settings) (f Figure, err error) {
	e, err := openEngine(s, "engine", shard.Options{})
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	one, many := s.skewed()
	hot, err := newEngineSide(ctx, s, e, one)
	if err != nil {
		return f, err
	}
	uniform, err := newEngineSide(ctx, s, e, many)
	if err != nil {
		return f, err
	}
	rates, err := inTurns(ctx, s.Rounds, hot, uniform)
	if err != nil {
		return f, err
	}
	return newFigure("one user ÷ 100,000 users, engine without HTTP", "", ratios(rates[0], rates[1]),
		Detail{"one user", median(rates[0]), "objects/s"}, Detail{"many", median(rates[1]), "objects/s"}), nil
}
