package main

import (
	"context"
	"errors"

	"github.com/VictoriaMetrics/metrics"

	"millrace/loadtest/body"
	"millrace/shard"
)

// maxLogPerJSON is the target of the log's size for full requests.
const maxLogPerJSON = 0.50

// logBytes compares the bytes of the log, framing included, with those of the JSON from which they were made. First
// come new users, whose addresses cause messages between partitions; these are in the log, too. Then each has come
// several times.
func logBytes(ctx context.Context, s *settings) (figures []Figure, err error) {
	e, err := openEngine(s, "data", shard.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	for _, l := range cases {
		clients, err := newClients(e, s.bodies(l.mix), 1)
		if err != nil {
			return nil, err
		}
		fresh, err := logOf(ctx, clients, 512)
		if err != nil {
			return nil, err
		}
		if _, err := logOf(ctx, clients, 8192); err != nil {
			return nil, err
		}
		known, err := logOf(ctx, clients, 512)
		if err != nil {
			return nil, err
		}
		known.Name, fresh.Name = "log ÷ JSON bytes, "+l.name, "log ÷ JSON bytes, "+l.name+", new users"
		if l.mix == mix225 {
			known = known.want(atMost, maxLogPerJSON)
		}
		figures = append(figures, known, fresh)
	}
	return figures, nil
}

// logOf is the figure, without a name, of so many requests.
func logOf(ctx context.Context, clients []*client, requests int) (Figure, error) {
	var size, objects float64
	logged := metrics.GetOrCreateCounter(walBytes)
	before := logged.Get()
	err := sendEach(ctx, clients, requests, func(_ int, c *client, t *body.Template) {
		c.address(t)
		size += float64(len(t.Bytes))
		objects += float64(len(t.Objects))
	})
	written := float64(logged.Get() - before)
	return newFigure("", "", []float64{written / size}, Detail{"log", written / objects, "bytes/object"},
		Detail{"JSON", size / objects, "bytes/object"}), err
}
