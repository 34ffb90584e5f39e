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

// logBytes compares the bytes of the log, framing included, with those of the JSON from which they were made.
func logBytes(ctx context.Context, s *settings) (figures []Figure, err error) {
	e, err := openEngine(s, "data", shard.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	logged := metrics.GetOrCreateCounter(walBytes)
	for _, l := range cases {
		clients, err := newClients(e, s.bodies(l.mix), 1)
		if err != nil {
			return nil, err
		}
		const requests = 512
		size, before := 0, logged.Get()
		err = sendEach(ctx, clients, requests, func(_ int, c *client, t *body.Template) {
			c.address(t)
			size += len(t.Bytes)
		})
		if err != nil {
			return nil, err
		}
		after := logged.Get()
		f := newFigure("log ÷ JSON bytes, "+l.name, "", []float64{float64(after-before) / float64(size)},
			Detail{"log", float64(after-before) / float64(requests*l.mix.Total()), "bytes/object"},
			Detail{"JSON", float64(size) / float64(requests*l.mix.Total()), "bytes/object"})
		if l.mix == mix225 {
			f = f.want(atMost, maxLogPerJSON)
		}
		figures = append(figures, f)
	}
	return figures, nil
}
