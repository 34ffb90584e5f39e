package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"millrace/loadtest/body"
	"millrace/wal/pause"
)

const (
	sharers       = 20_000
	sharedChanges = 50 // states in a request
	sharedEmail   = "everybody@example.com"
	bystanders    = 200 // requests a second

	sharedWait    = 100 // ms
	sharedWritten = 12  // MB
	sharedLookUp  = 10
)

// shared measures what an address that 20,000 users have costs. For a request that changes states of the address, it
// measures how long others wait and how much is written; for a request whose objects are addressed by it, the time.
func shared(ctx context.Context, s *settings) (figures []Figure, err error) {
	server, err := startServer(ctx, s, "data")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, server.stop()) }()
	users := min(sharers, s.ColdProfiles)
	for i := 0; i < users; i += body.MaxPerArray {
		if err := post(server, "/users/track", shareAddress(i, min(i+body.MaxPerArray, users))); err != nil {
			return nil, err
		}
	}
	quiet(server.pid())

	var waits, written, took []float64
	next := 0
	others := &traffic{server: server, connections: 1, perSecond: bystanders, status: fasthttp.StatusCreated,
		fill: func(r *fasthttp.Request) error {
			fillPost(r, server, "/users/track", eventsOf(fmt.Sprintf(`"external_id":"bystander-%d"`, next%1000), 1))
			next++
			return nil
		}}
	for range s.Rounds {
		before := writtenOf([]*process{server})
		a, err := others.during(ctx, func() error {
			if err := pause.For(ctx, 100*time.Millisecond); err != nil {
				return err
			}
			start := time.Now()
			err := post(server, "/v2/subscription/status/set", changesOf(sharedEmail))
			took = append(took, time.Since(start).Seconds()*1e3)
			return errors.Join(err, pause.For(ctx, 400*time.Millisecond))
		})
		if err != nil {
			return nil, err
		}
		quiet(server.pid())
		waits = append(waits, a.quantile(100))
		written = append(written, (writtenOf([]*process{server})-before)/1e6)
	}
	rates, err := inTurns(ctx, max(s.Rounds, 9), timed(server, `"email":"`+sharedEmail+`"`),
		timed(server, `"external_id":"sharer-0"`))
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("an address of %d users", users)
	return []Figure{
		newFigure(name+", 50 states set by a request: others wait at most", "ms", waits,
			Detail{"the request", median(took), "ms"},
			Detail{"others", bystanders, "requests/s"}).want(atMost, sharedWait),
		newFigure(name+", 50 states set by a request: written, others included", "MB",
			written).want(atMost, sharedWritten),
		newFigure(name+": 75 events by it ÷ by external id", "", ratios(rates[0], rates[1]),
			Detail{"by the address", median(rates[0]), "ms"},
			Detail{"by external id", median(rates[1]), "ms"}).
			want(atMost, sharedLookUp),
	}, nil
}

// shareAddress gives users the address.
func shareAddress(from, to int) []byte {
	var objects []string
	for i := from; i < to; i++ {
		objects = append(objects, fmt.Sprintf(`{"external_id":"sharer-%d","email":%q}`, i, sharedEmail))
	}
	return []byte(`{"attributes":[` + strings.Join(objects, ",") + `]}`)
}

// changesOf is a body that sets a state of an address to and fro.
func changesOf(address string) []byte {
	var changes []string
	for i := range sharedChanges {
		changes = append(changes, fmt.Sprintf(`{"subscription_group_id":%q,"subscription_state":%q,"emails":[%q]}`,
			groupID, [2]string{"subscribed", "unsubscribed"}[i%2], address))
	}
	return []byte(`{"subscription_groups":[` + strings.Join(changes, ",") + `]}`)
}

// eventsOf is a body with n events of one user.
func eventsOf(identifier string, n int) []byte {
	event := fmt.Sprintf(`{%s,"name":"seen","time":"2026-01-02T03:04:05Z"}`, identifier)
	return []byte(`{"events":[` + strings.Repeat(event+",", n-1) + event + `]}`)
}

// timed returns a side of inTurns that measures how long a request of 75 events takes, in ms.
func timed(server *process, identifier string) func(int) (float64, error) {
	return func(int) (float64, error) {
		start := time.Now()
		err := post(server, "/users/track", eventsOf(identifier, body.MaxPerArray))
		return time.Since(start).Seconds() * 1e3, err
	}
}
