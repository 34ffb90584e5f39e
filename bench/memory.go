package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"millrace/ingest"
	"millrace/loadtest/body"
	"millrace/shard"
	"millrace/shard/op"
)

// profileBytes is the size of the profiles that memory is measured with.
const profileBytes = 200

// memory fills an engine with profiles of 200 bytes and measures the memory of the process. No checkpoint runs before
// the measurement, so the first figure does not have the store's own memory; a second figure has it.
func memory(ctx context.Context, s *settings) (figures []Figure, err error) {
	n := s.Profiles
	if n == 0 {
		if n = 2_000_000; bytesOf(meminfo().MemAvailableBytes) >= 8<<30 {
			n = 10_000_000
		}
	}
	e, err := openEngine(s, "data",
		shard.Options{MemoryBytes: unbounded, CheckpointBytes: unbounded, CheckpointInterval: 1000 * time.Hour})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	pad, err := fitPad(e, n)
	if err != nil {
		return nil, err
	}
	// The first profiles bring with them what any number of profiles needs: buffers, pools, decoders.
	makers := newMakers(e, pad)
	first := n / 100
	if err := makeProfiles(ctx, makers, 0, first); err != nil {
		return nil, err
	}
	before := weigh()
	if err := makeProfiles(ctx, makers, first, n); err != nil {
		return nil, err
	}
	after := weigh()
	for _, user := range []int{0, first, n - 1} { // profiles have the intended size
		if size, err := sizeOf(e, user); err != nil || size != profileBytes {
			return nil, errors.Join(err, fmt.Errorf("profile %d has %d bytes, want %d", user, size, profileBytes))
		}
	}
	each := float64(after-before) / float64(n-first)
	figures = append(figures,
		newFigure(fmt.Sprintf("resident memory of a profile of %d bytes, %d of them", profileBytes, n),
			"bytes", []float64{each},
			Detail{"process", float64(after), "bytes"}).want(atMost, 220))
	figures = append(figures,
		newFigure("full garbage collection with these profiles", "ms", collections(5)).want(atMost, 5))

	start := time.Now()
	if err := e.Replica().Checkpoint(); err != nil {
		return nil, err
	}
	took := time.Since(start)
	each = float64(weigh()-before) / float64(n-first)
	runtime.KeepAlive(makers) // until the last weight: their decoders are part of the first
	return append(figures, newFigure("resident memory of a profile after a checkpoint, with the store's memory",
		"bytes", []float64{each},
		Detail{"checkpoint", took.Seconds(), "s"})), nil
}

// weigh is the resident memory after everything that can be given back to the system was given back.
func weigh() int64 {
	runtime.GC()
	debug.FreeOSMemory()
	return residentBytes()
}

// collections times n full garbage collections, in ms.
func collections(n int) []float64 {
	runtime.GC()
	var ms []float64
	for range n {
		start := time.Now()
		runtime.GC()
		ms = append(ms, float64(time.Since(start).Nanoseconds())/1e6)
	}
	return ms
}

// maker creates profiles. It is a client whose body is one array of attributes, into which the users are written in
// place.
type maker struct {
	client client
	body   []byte
	ids    []int // where the digits of each user begin
}

const (
	profilePrefix  = "profile-"
	profileDigits  = 10
	profilesInBody = body.MaxPerArray
)

func newMakers(e *shard.Coordinator, pad int) []*maker {
	var makers []*maker
	for range committers {
		m := &maker{client: client{engine: e, decoder: ingest.NewDecoder(ingest.Options{}),
			workspace: &ingest.Workspace{ID: 1}}}
		text := `{"attributes":[`
		for i := range profilesInBody {
			if i > 0 {
				text += ","
			}
			text += `{"external_id":"` + profilePrefix
			m.ids = append(m.ids, len(text))
			text += strings.Repeat("0", profileDigits) +
				`","first_name":"Ada","plan":"professional","visits":12,"about":"` +
				strings.Repeat("x", pad) + `"}`
		}
		m.body = []byte(text + `]}`)
		makers = append(makers, m)
	}
	return makers
}

// create creates the users from..from+74, with user n-1 in place of those from n on.
func (m *maker) create(from, n int) error {
	for i, at := range m.ids {
		copy(m.body[at:at+profileDigits], fmt.Appendf(nil, "%0*d", profileDigits, min(from+i, n-1)))
	}
	b, err := m.client.decode(m.body)
	if err != nil {
		return err
	}
	if err := b.Commit(); err != nil {
		return err
	}
	b.Release()
	return nil
}

func makeProfiles(ctx context.Context, makers []*maker, from, to int) error {
	clients := make([]*client, len(makers))
	for i, m := range makers {
		clients[i] = &m.client
	}
	return each(clients, func(i int, _ *client) error {
		for at := from + i*profilesInBody; at < to && ctx.Err() == nil; at += len(makers) * profilesInBody {
			if err := makers[i].create(at, to); err != nil {
				return err
			}
		}
		return ctx.Err()
	})
}

// fitPad finds how much text makes a profile of profileBytes. It uses a user who is needed for nothing else, because a
// value keeps the room that it has once had.
func fitPad(e *shard.Coordinator, user int) (int, error) {
	const trial = 40
	m := newMakers(e, trial)[0]
	if err := m.create(user, user+1); err != nil {
		return 0, err
	}
	size, err := sizeOf(e, user)
	pad := trial + profileBytes - size
	if err == nil && pad < 0 {
		err = fmt.Errorf("a small profile has %d bytes already", size-trial)
	}
	return pad, err
}

func sizeOf(e *shard.Coordinator, user int) (int, error) {
	found, err := e.Find(1, op.ExternalID, fmt.Appendf(nil, "%s%0*d", profilePrefix, profileDigits, user))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("user %d: %d profiles", user, len(found))
	}
	if err != nil {
		return 0, err
	}
	return len(found[0].Blob), nil
}
