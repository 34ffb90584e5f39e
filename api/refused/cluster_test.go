package refused

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// net has the nodes of a cluster call one another.
type net struct {
	mu       sync.Mutex
	clusters map[uint32]*Cluster
	down     map[uint32]bool
	removed  uint32
}

type seat struct {
	*net
	self uint32
}

func (s seat) Self() uint32 { return s.self }

func (s seat) Nodes() []uint32 {
	return slices.DeleteFunc([]uint32{1, 2, 3}, func(node uint32) bool { return node == s.removed })
}

func (s seat) Call(ctx context.Context, node uint32, message []byte) ([]byte, error) {
	s.mu.Lock()
	c, down := s.clusters[node], s.down[node]
	s.mu.Unlock()
	if down || c == nil {
		return nil, errors.New("nobody answers")
	}
	return c.Serve(message)
}

func openNet(t *testing.T) (n *net, desks map[uint32]*desk) {
	n = &net{clusters: map[uint32]*Cluster{}, down: map[uint32]bool{}}
	desks = map[uint32]*desk{}
	for node := uint32(1); node <= 3; node++ {
		d := openDesk(t, nil)
		c, err := NewCluster(d.Store, seat{n, node})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.clusters[node].Close()) })
		n.clusters[node], desks[node] = c, d
	}
	return n, desks
}

func TestCluster(t *testing.T) {
	n, desks := openNet(t)
	for i := range 9 {
		d := desks[uint32(1+i%3)]
		d.offer("r", fmt.Sprintf(`{"external_id":"u%d"}`, i))
		if i%3 == 2 {
			for _, d := range desks {
				d.now.Add(1000)
			}
		}
	}
	c := n.clusters[2]
	var all []Entry
	for q := (Query{Limit: 2}); ; {
		page, err := c.List(t.Context(), q)
		require.NoError(t, err)
		all = append(all, page.Entries...)
		if !page.More {
			break
		}
		q.Before = page.Entries[len(page.Entries)-1].Seq
	}
	require.Len(t, all, 9)
	require.True(t, slices.IsSortedFunc(all, func(a, b Entry) int { return int(int64(b.Seq) - int64(a.Seq)) }))
	counts, missing, err := c.Counts(t.Context(), Query{})
	require.NoError(t, err)
	require.Empty(t, missing)
	require.Len(t, counts, 1)
	require.Equal(t, 9, counts[0].Refused)
	for _, e := range all {
		got, ok, err := c.Get(t.Context(), 1, e.ID())
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, e, got)
		id, ok := ParseID(e.ID().String())
		require.True(t, ok)
		require.Equal(t, e.ID(), id)
	}
	_, ok, err := c.Get(t.Context(), 1, ID{4, all[0].Seq})
	require.NoError(t, err)
	require.False(t, ok)
	removed, err := c.Remove(t.Context(), 1, all[0].ID(), all[1].ID(), all[8].ID())
	require.NoError(t, err)
	require.Equal(t, 3, removed)

	n.down[3] = true
	page, err := c.List(t.Context(), Query{Limit: 100})
	require.NoError(t, err)
	require.NotEmpty(t, page.Entries)
	require.Equal(t, []uint32{3}, page.Missing)
	_, missing, err = c.Counts(t.Context(), Query{})
	require.NoError(t, err)
	require.Equal(t, []uint32{3}, missing)
	require.False(t, slices.ContainsFunc(page.Entries, func(e Entry) bool { return e.Node == 3 }))
	_, err = c.Serve([]byte(`{"verb":"x"}`))
	require.Error(t, err)
	_, err = c.Serve([]byte(`?`))
	require.Error(t, err)
}

// Of all who are about to send an entry again one gets it: the node that has the entry decides.
func TestClaims(t *testing.T) {
	n, desks := openNet(t)
	for node := uint32(1); node <= 3; node++ {
		desks[node].offer("r", `{"external_id":"ada"}`)
	}
	page, err := n.clusters[1].List(t.Context(), Query{Limit: 10})
	require.NoError(t, err)
	require.Len(t, page.Entries, 3)
	var ids []ID
	for _, e := range page.Entries {
		ids = append(ids, e.ID())
	}
	claim := func(node uint32, wanted ...ID) []ID {
		claimed, err := n.clusters[node].Claim(t.Context(), wanted...)
		require.NoError(t, err)
		return claimed
	}
	require.Equal(t, ids[:1], claim(1, ids[0]))
	require.Empty(t, claim(2, ids[0]))
	require.ElementsMatch(t, ids[1:], claim(3, ids...))
	require.Empty(t, claim(1, ids...))
	require.NoError(t, n.clusters[2].Release(t.Context(), ids[1]))
	require.Equal(t, ids[1:2], claim(2, ids...))
	for _, d := range desks {
		d.now.Add(claimLife.Milliseconds())
	}
	require.ElementsMatch(t, ids, claim(1, ids...), "whoever had them is gone")
	require.NoError(t, n.clusters[1].Release(t.Context(), ids...))
	require.Equal(t, []ID{{9, 1}}, claim(1, ID{9, 1}), "a request for it shall find out that it is not there")
	n.down[3] = true
	claimed, err := n.clusters[1].Claim(t.Context(), ids...)
	require.ErrorIs(t, err, ErrAway)
	require.Len(t, claimed, 2)
	_, _, err = n.clusters[1].Get(t.Context(), 1, ids[slices.IndexFunc(ids, func(id ID) bool { return id.Node == 3 })])
	require.ErrorIs(t, err, ErrAway)
}

// A node that can't be reached when a user is deleted is told later, also by a process that has started since; what it
// has after its retention time is older than that.
func TestDebts(t *testing.T) {
	n, desks := openNet(t)
	for _, d := range desks {
		d.offer("r", `{"external_id":"ada"}`)
	}
	n.down[3] = true
	ada := Identifier(1, op.ExternalID, []byte("ada"))
	erased, err := n.clusters[1].Erase(t.Context(), []uint64{ada})
	require.NoError(t, err)
	require.Equal(t, 2, erased)
	n.clusters[1].debts.payAll(t.Context())
	require.Len(t, desks[3].list(Query{}), 1)

	require.NoError(t, n.clusters[1].Close())
	again, err := NewCluster(desks[1].Store, seat{n, 1})
	require.NoError(t, err)
	n.clusters[1] = again
	again.debts.payAll(t.Context())
	n.down[3] = false
	again.debts.payAll(t.Context())
	require.Empty(t, desks[3].list(Query{}))
	require.Empty(t, again.debts.owed)

	n.down[3] = true
	_, err = again.Erase(t.Context(), []uint64{ada})
	require.NoError(t, err)
	require.Len(t, again.debts.owed, 1)
	desks[1].now.Add(desks[1].options.Retention.Milliseconds() + 1)
	again.debts.payAll(t.Context())
	require.Empty(t, again.debts.owed, "nothing there is as old")
	_, err = again.Erase(t.Context(), make([]uint64, maxDebts+1))
	require.ErrorIs(t, err, errTooMany)
}

// Deletions that wait for a node that is out of reach have a bound. Removing the node from the cluster makes room for
// further ones, as the error says.
func TestDebtsOfARemovedNode(t *testing.T) {
	n, _ := openNet(t)
	c := n.clusters[1]
	n.down[3] = true
	_, err := c.Erase(t.Context(), make([]uint64, maxDebts))
	require.NoError(t, err)
	n.down[2] = true
	_, err = c.Erase(t.Context(), []uint64{1})
	require.ErrorIs(t, err, errTooMany)
	n.removed = 3
	_, err = c.Erase(t.Context(), []uint64{1})
	require.NoError(t, err)
	require.Len(t, c.debts.owed, 2, "what the node had is owed until it is too old")
	_, err = c.Erase(t.Context(), make([]uint64, maxDebts))
	require.ErrorIs(t, err, errTooMany)
}

// While a node is away, each deletion of a user finds that out anew. The log says so now and then.
func TestErasureSaysSeldomWhoIsAway(t *testing.T) {
	var said bytes.Buffer
	d := openDesk(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	c, err := NewCluster(d.Store, seat{&net{}, 1}) // nobody else is there
	require.NoError(t, err)
	for i := range uint64(100) {
		_, err := c.Erase(t.Context(), []uint64{i})
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	require.Less(t, strings.Count(said.String(), "level=WARN"), 10)
}

func TestIDs(t *testing.T) {
	for _, text := range []string{"", "x", "-1", "1-", "0-1", "0", "1-0", "99999999999-1", "1-2-3"} {
		_, ok := ParseID(text)
		require.False(t, ok, text)
	}
}
