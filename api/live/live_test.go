package live

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/ingest"
	"millrace/shard"
	"millrace/shard/op"
)

// stage is an engine that a hub looks on at.
type stage struct {
	t      testing.TB
	hub    *Hub
	engine *shard.Coordinator
	now    int64
}

var newsGroup = [16]byte{15: 7}

func open(t testing.TB, o Options) *stage {
	s := &stage{t: t, hub: NewHub(o), now: time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC).UnixMilli()}
	var err error
	s.engine, err = shard.Open(shard.Options{Dir: t.TempDir(), Workers: 2, MemoryBytes: 16 << 20, StoreCacheBytes: 8 << 20, StoreMemTableBytes: 1 << 20, Tap: s.hub})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.engine.Close()) })
	return s
}

// track sends a body of /users/track.
func (s *stage) track(workspace uint32, body string) {
	s.t.Helper()
	b := s.engine.NewBatch(workspace, 9)
	defer b.Release()
	b.Source = op.SourceTrack
	ws := &ingest.Workspace{ID: workspace, Groups: map[[16]byte]byte{newsGroup: op.ChannelEmail}}
	reply, status := ingest.NewDecoder(ingest.Options{}).Track(nil, []byte(body), ws, &b.Builder, b, s.now)
	require.Equal(s.t, 201, status, string(reply))
	require.NoError(s.t, b.Commit())
}

func (s *stage) watch(f Filter, users ...uint64) *Viewer {
	s.t.Helper()
	v, err := s.hub.Watch(f)
	require.NoError(s.t, err)
	s.t.Cleanup(v.Close)
	v.SetUsers(users)
	return v
}

// seen is what a viewer has been shown by now: what is answered was shown.
func seen(t testing.TB, v *Viewer) (lines []string, left Left) {
	t.Helper()
	items, left, err := v.Read(context.Background(), time.Millisecond)
	require.NoError(t, err)
	for _, i := range items {
		lines = append(lines, fmt.Sprintf("%d %s %s %s", i.Workspace, i.Kind, i.Key, describe(i)))
		require.True(t, i.Body == nil || json.Valid(i.Body), "%s", i.Body)
		require.NotZero(t, i.Stamp)
	}
	return lines, left
}

func describe(i *Item) string {
	switch i.Kind {
	case Consent:
		return fmt.Sprintf("%s %s %v", i.Change.Kind, i.Change.Value, i.Change.On)
	case Purchase:
		return fmt.Sprintf("%s %v %s %d %s", i.Name, i.Price, i.Currency, i.Quantity, i.Body)
	}
	if i.Name != "" {
		return i.Name + " " + string(i.Body)
	}
	return string(i.Body)
}

const everything = `{"attributes":[
	{"external_id":"ada","first_name":"Ada","email":"ada@example.com","email_subscribe":"opted_in","score":{"inc":2},"tags":{"add":["a"],"remove":["b"]},
	 "subscription_groups":[{"subscription_group_id":"00000000-0000-0000-0000-000000000007","subscription_state":"subscribed"}],"gone":null},
	{"external_id":"bob","pets":{"$add":[{"id":1}],"$update":[{"$identifier_key":"id","$identifier_value":2,"$new_object":{"n":"x"}}],"$remove":[{"$identifier_key":"id","$identifier_value":3}]}},
	{"external_id":"nobody","_update_existing_only":true,"x":1}],
	"events":[{"external_id":"ada","name":"signed_up","time":"2026-01-02T03:04:05Z","properties":{"plan":"pro","n":1.5}},
	{"user_alias":{"alias_label":"l","alias_name":"nobody"},"name":"signed_up","time":"2026-01-02T03:04:05Z","_update_existing_only":true}],
	"purchases":[{"external_id":"bob","product_id":"book","currency":"EUR","price":9.5,"quantity":2,"time":"2026-01-02T03:04:05Z"}]}`

func TestShows(t *testing.T) {
	s := open(t, Options{})
	s.track(1, `{"attributes":[{"external_id":"before","x":1}]}`)
	v := s.watch(Filter{})
	s.track(1, everything)
	lines, left := seen(t, v)
	require.Zero(t, left)
	require.ElementsMatch(t, []string{
		`1 consent ada email_subscribe opted_in false`,
		`1 consent ada subscription_group  true`,
		`1 attributes ada {"first_name":"Ada","email_subscribe":"opted_in","score":{"inc":2},"tags":{"add":["a"],"remove":["b"]},"subscription_groups":[{"subscription_group_id":"00000000-0000-0000-0000-000000000007","subscription_state":"subscribed"}],"gone":null,"email":"ada@example.com"}`,
		`1 attributes bob {"pets":{"$remove":[{"$identifier_key":"id","$identifier_value":3}],"$update":[{"$identifier_key":"id","$identifier_value":2,"$new_object":{"n":"x"}}],"$add":[{"id":1}]}}`,
		`1 event ada signed_up {"plan":"pro","n":1.5}`,
		`1 purchase bob book 9.5 EUR 2 `,
	}, lines, "what had no effect is not shown, and a state of a user not once more as that of his address")

	b := s.engine.NewBatch(1, 9)
	defer b.Release()
	b.SetAddressStates(op.Email, []byte("x@example.com"), shard.State{Kind: shard.Bounce, On: true})
	require.NoError(t, b.Commit())
	lines, _ = seen(t, v)
	require.Equal(t, []string{"1 consent x@example.com hard_bounce  true"}, lines)

	v.Close()
	require.Nil(t, s.hub.Look(&op.Record{}, 1), "nobody looks any more")
}

func TestFilters(t *testing.T) {
	s := open(t, Options{})
	of := func(id string) uint64 { return s.engine.HomeNumber(1, op.ExternalID, []byte(id)) }
	check := func(want int, f Filter, users ...uint64) {
		t.Helper()
		v := s.watch(f, users...)
		s.track(1, everything)
		s.track(2, `{"events":[{"external_id":"ada","name":"signed_up","time":"2026-01-02T03:04:05Z"}]}`)
		lines, left := seen(t, v)
		require.Len(t, lines, want, "%q", lines)
		require.Zero(t, left)
		v.Close()
	}
	check(7, Filter{})
	check(1, Filter{Workspace: 2})
	check(2, Filter{Kinds: Kinds(0).With(Event)})
	check(2, Filter{Kinds: Kinds(0).With(Purchase).With(Attributes), Workspace: 1, ByUser: true}, of("bob"))
	check(2, Filter{Name: "signed_up"})
	check(1, Filter{Name: "book"})
	check(1, Filter{Name: "pets"})
	check(1, Filter{Name: "first_name"})
	check(0, Filter{Name: "nothing"})
	check(2, Filter{ByUser: true, Workspace: 1}, of("ada")) // his states are as they were
	check(0, Filter{ByUser: true})
}

// Who looks for one user, or one name, sees it however much else comes; all others see a sample, and are told of how
// much.
func TestBeyondTheBudget(t *testing.T) {
	s := open(t, Options{Looks: 1000, PerSecond: 10_000})
	user, name, consent, all := s.watch(Filter{ByUser: true}, s.engine.HomeNumber(1, op.ExternalID, []byte("ada"))), s.watch(Filter{Name: "rare"}),
		s.watch(Filter{Kinds: Kinds(0).With(Consent)}), s.watch(Filter{})
	s.hub.mu.Lock() // no new budgets
	defer s.hub.mu.Unlock()
	const rounds, each = 20, 50
	for r := range rounds {
		body := `{"events":[`
		for i := range each {
			body += fmt.Sprintf(`{"external_id":"u%d","name":"usual","time":"2026-01-02T03:04:05Z"},`, r*each+i)
		}
		s.track(1, body[:len(body)-1]+`]}`)
	}
	s.track(1, `{"attributes":[{"external_id":"ada","email":"a@example.com","email_subscribe":"opted_in"}],"events":[{"external_id":"ada","name":"usual","time":"2026-01-02T03:04:05Z"}]}`)
	s.track(1, `{"events":[{"external_id":"bob","name":"rare","time":"2026-01-02T03:04:05Z"}]}`)
	lines, left := seen(t, user)
	require.Len(t, lines, 3)
	require.Zero(t, left)
	lines, left = seen(t, name)
	require.Len(t, lines, 1)
	require.Zero(t, left)
	lines, _ = seen(t, consent)
	require.Len(t, lines, 1)
	lines, left = seen(t, all)
	require.Less(t, len(lines), rounds*each)
	require.InDelta(t, rounds*each+2, len(lines)+int(left.Unseen), each)
	require.Zero(t, left.Out)
}

// One who is shown more than he may be is told how much it was, and has more in the next second.
func TestSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHub(Options{PerSecond: 10})
		defer h.Close()
		v, err := h.Watch(Filter{})
		require.NoError(t, err)
		time.Sleep(slice / 2) // from here on, budgets are never given out at the instant in which the test applies
		b := op.Builder{}
		b.Reset(0)
		start := b.Begin()
		name := b.Intern([]byte("seen"))
		b.Buf = op.AppendEventBody(b.Buf)
		op.PutEvent(b.Buf[len(b.Buf)-16:], 1, name, 0)
		b.Buf = append(b.Buf, "ada"...)
		b.End(start, op.Event, op.MakeFlags(0, op.ExternalID), 3, 77)
		rec, err := op.ParseRecord(b.Finish(1, 0, 1), nil)
		require.NoError(t, err)
		apply := func(n int) {
			for range n {
				o, _ := op.Next(rec.Ops)
				h.Look(&rec, 1).Applied(&rec, o, 77)
			}
		}
		read := func() (int, Left) {
			items, left, err := v.Read(t.Context(), time.Hour)
			require.NoError(t, err)
			return len(items), left
		}
		apply(25)
		n, left := read()
		require.Equal(t, 10, n)
		require.Equal(t, Left{Out: 15}, left)
		time.Sleep(5 * time.Second)
		apply(11)
		n, left = read()
		require.Equal(t, 10, n, "what was not used is not saved up")
		require.Equal(t, Left{Out: 1}, left)
		for range 5 { // more than the buffer has room for: the oldest go
			time.Sleep(time.Second)
			apply(10)
		}
		n, left = read()
		require.Equal(t, 20, n)
		require.Equal(t, Left{Out: 30}, left)
		began := time.Now()
		n, _ = read()
		require.Zero(t, n)
		require.Equal(t, time.Hour, time.Since(began), "it waits, and no longer than it is told to")
		h.Close()
		_, _, err = v.Read(t.Context(), time.Hour)
		require.ErrorIs(t, err, ErrClosed)
		_, err = h.Watch(Filter{})
		require.ErrorIs(t, err, ErrClosed)
		v.Close()
	})
}

func TestBounds(t *testing.T) {
	h := NewHub(Options{MaxViewers: 1})
	v, err := h.Watch(Filter{})
	require.NoError(t, err)
	_, err = h.Watch(Filter{})
	require.ErrorIs(t, err, ErrFull)
	v.Close()
	v.Close()
	v, err = h.Watch(Filter{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = v.Read(ctx, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	v.Close()
	for _, o := range []Options{{MaxViewers: 1001}, {PerSecond: 9}, {Looks: 999}} {
		o.EnsureDefaults()
		require.Error(t, o.Validate())
	}
}

// While nobody watches, a record costs no allocation; and an object that is looked at and not shown costs none.
func TestAllocations(t *testing.T) {
	h := NewHub(Options{PerSecond: 10, Looks: 1 << 40})
	rec := op.Record{Workspace: 1}
	require.Zero(t, testing.AllocsPerRun(100, func() { require.Nil(t, h.Look(&rec, 10)) }))
	v, err := h.Watch(Filter{Workspace: 1, Kinds: Kinds(0).With(Purchase), ByUser: true})
	require.NoError(t, err)
	defer v.Close()
	var b op.Builder
	b.Reset(0)
	b.Append(op.Attributes, op.MakeFlags(0, op.ExternalID), 5, nil, []byte("ada"))
	rec, err = op.ParseRecord(b.Finish(1, 0, 1), nil)
	require.NoError(t, err)
	o, _ := op.Next(rec.Ops)
	require.Zero(t, testing.AllocsPerRun(100, func() { h.Look(&rec, 10).Applied(&rec, o, 5) }))
}
