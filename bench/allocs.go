package main

import (
	"context"
	"errors"
	"fmt"

	"millrace/loadtest/body"
	"millrace/shard"
)

// allocations counts heap objects for each request in the steady state: known users, warm pools. Objects of the log and
// the workers count as well, and so do those that follow from the collector's clearing of pools.
func allocations(ctx context.Context, s *settings) (figures []Figure, err error) {
	e, err := openEngine(s, "data", shard.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for _, l := range cases[:2] {
		f, err := allocationsOf(ctx, s, e, l.name, l.mix)
		if err != nil {
			return nil, err
		}
		figures = append(figures, f...)
	}
	return figures, nil
}

func allocationsOf(
	ctx context.Context, s *settings, e *shard.Coordinator, name string, mix body.Mix,
) (figures []Figure, err error) {
	clients, err := newClients(e, s.bodies(mix), committers)
	if err != nil {
		return nil, err
	}
	// Each client sends its own few bodies again and again, so that after the first time round no user, name or phone
	// number is new.
	for _, c := range clients {
		for _, t := range c.templates {
			c.address(t)
		}
	}
	again := func(int, *client, *body.Template) {}
	for range 3 {
		err = each(clients, func(_ int, c *client) error {
			return sendEach(ctx, []*client{c}, len(c.templates), again)
		})
		if err != nil {
			return nil, err
		}
	}
	const decoded = 1000
	var rounds []float64
	for range s.Rounds {
		c := clients[0]
		n, err := mallocs(func() error {
			for range decoded {
				b, err := c.decode(c.template().Bytes)
				if err != nil {
					return err
				}
				b.Release()
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		rounds = append(rounds, float64(n)/decoded)
	}
	// The bound is not 0, since the runtime itself makes an object now and then.
	figures = append(figures, newFigure("ingest, "+name, "a request", rounds).want(atMost, 0.01))

	for _, n := range []int{committers, 1} {
		requests := max(500, 50*n)
		rounds = nil
		for range s.Rounds {
			made, err := mallocs(func() error {
				return sendEach(ctx, clients[:n], requests, again)
			})
			if err != nil {
				return nil, err
			}
			rounds = append(rounds, float64(made)/float64(requests))
		}
		f := newFigure(fmt.Sprintf("decode, commit, apply, %s, %d at once", name, n), "a request", rounds)
		if n > 1 {
			f = f.want(atMost, 2)
		}
		figures = append(figures, f)
	}
	made, err := mallocs(func() error {
		return sendEach(ctx, clients, 50*committers, func(_ int, c *client, t *body.Template) { c.address(t) })
	})
	return append(figures,
		newFigure("decode, commit, apply with new profiles, addresses and states, "+name, "a request",
			[]float64{float64(made) / (50 * committers)})), err
}
