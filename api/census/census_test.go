package census

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// paperStore has no users, but so much work in each partition, and fails as long as a test wants.
type paperStore struct {
	work  time.Duration
	fails func(partition uint8) error
	looks int
}

func (s *paperStore) Barrier() error { return nil }

func (s *paperStore) EachUser(_ uint32, partition uint8, _ uint64, _ int, _ func(shard.User) error) (uint64, error) {
	s.looks++
	time.Sleep(s.work)
	if s.fails != nil {
		return 0, s.fails(partition)
	}
	return 0, nil
}

func newCounter(t *testing.T, s Store, p Peers) *Counter {
	c, err := New(Options{Store: s, Peers: p})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// A count takes its share of the time; there is one at a time; it can be stopped, and its end is told.
func TestShareAndStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(t, &paperStore{work: time.Second}, nil)
		require.Equal(t, Status{}, c.Status(t.Context(), 1))
		require.False(t, c.Stop(t.Context(), 1))
		require.NoError(t, c.Start(t.Context(), 1))
		require.ErrorIs(t, c.Start(t.Context(), 1), ErrBusy)
		require.ErrorIs(t, c.Start(t.Context(), 2), ErrBusy)
		time.Sleep(4*64*time.Second + time.Millisecond)
		synctest.Wait()
		s := c.Status(t.Context(), 1)
		require.InDelta(t, 0.25, s.Running.Done, 0.001)
		require.Nil(t, c.Status(t.Context(), 2).Running, "of another workspace")
		time.Sleep(4 * 200 * time.Second)
		synctest.Wait()
		s = c.Status(t.Context(), 1)
		require.Nil(t, s.Running)
		require.Equal(t, 4*256*time.Second, s.Counted.Took)

		require.NoError(t, c.Start(t.Context(), 1))
		require.False(t, c.Stop(t.Context(), 2))
		require.True(t, c.Stop(t.Context(), 1))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s = c.Status(t.Context(), 1)
		require.NotNil(t, s.Counted, "what was counted before is still known")
		require.Equal(t, "it was stopped", s.Failed.Failed)
		require.NoError(t, c.Start(t.Context(), 1))
		require.NoError(t, c.Close())
		require.ErrorIs(t, c.Start(t.Context(), 1), shard.ErrClosed)
	})
}

// A part that can't be reached for a while is waited for; one that stays away ends the count, and it says why.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := time.Now().Add(30 * time.Second)
		store := &paperStore{fails: func(p uint8) error {
			if p == 7 && time.Now().Before(back) {
				return shard.ErrUnavailable
			}
			return nil
		}}
		c := newCounter(t, store, nil)
		require.NoError(t, c.Start(t.Context(), 1))
		time.Sleep(time.Minute)
		synctest.Wait()
		require.NotNil(t, c.Status(t.Context(), 1).Counted)
		require.Greater(t, store.looks, 256)

		back = back.Add(time.Hour)
		require.NoError(t, c.Start(t.Context(), 1))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, shard.ErrUnavailable.Error(), c.Status(t.Context(), 1).Failed.Failed)
	})
}

// paperPeers are nodes of which each holds some partitions; leaders change.
type paperPeers struct {
	self  uint32
	all   map[uint32]*Counter
	leads func(partition uint8) uint32
	lost  *sync.Map // nodes
}

func (p *paperPeers) Self() uint32                           { return p.self }
func (p *paperPeers) Owner(partition uint8) (uint32, uint64) { return p.leads(partition), 1 }

func (p *paperPeers) Nodes() (nodes []uint32) {
	for node := range p.all {
		nodes = append(nodes, node)
	}
	return nodes
}

func (p *paperPeers) Call(ctx context.Context, node uint32, message []byte) ([]byte, error) {
	if _, isLost := p.lost.Load(node); isLost {
		return nil, errors.New("lost")
	}
	return p.all[node].Serve(message)
}

// heldBy is a store that has one user in each partition of its own.
type heldBy struct {
	holds func(partition uint8) bool
	blob  []byte
}

func (s heldBy) Barrier() error { return nil }

func (s heldBy) EachUser(_ uint32, partition uint8, _ uint64, _ int, f func(shard.User) error) (uint64, error) {
	if !s.holds(partition) {
		return 0, shard.ErrUnavailable
	}
	time.Sleep(100 * time.Millisecond)
	return 0, f(shard.User{Number: uint64(partition)<<56 | 1, Blob: s.blob})
}

// In a cluster whose nodes hold a part each and whose leaders move while it is counted, everybody is counted once; there
// is one count at a time, and any node tells of it and stops it.
func TestCountInACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		user := someUser()
		all, lost := map[uint32]*Counter{}, &sync.Map{}
		leads := func(p uint8) uint32 { // those of both 2 and 3 change their leader each second
			if p < 64 {
				return 1
			}
			return 2 + uint32(time.Now().Unix()%2)
		}
		for node := uint32(1); node <= 3; node++ {
			store := heldBy{func(p uint8) bool {
				_, isLost := lost.Load(node)
				return (p < 64) == (node == 1) && !isLost
			}, user}
			all[node] = newCounter(t, store, &paperPeers{node, all, leads, lost})
		}
		require.NoError(t, all[1].Start(t.Context(), 1))
		time.Sleep(5 * time.Second)
		require.ErrorIs(t, all[2].Start(t.Context(), 9), ErrBusy)
		require.NotNil(t, all[3].Status(t.Context(), 1).Running)
		lost.Store(uint32(3), true)
		time.Sleep(30 * time.Second)
		lost.Delete(uint32(3))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		for _, c := range all {
			s := c.Status(t.Context(), 1)
			require.Nil(t, s.Failed)
			require.Equal(t, int64(256), s.Counted.Counts.Users)
			require.Equal(t, Tally{OptedIn: 256}, s.Counted.Counts.Email)
			require.Equal(t, []Group{{ID: [16]byte{1}, Tally: Tally{Unsubscribed: 256}}}, s.Counted.Counts.Groups)
			require.Zero(t, s.Counted.Counts.Group([16]byte{1}).Unknown(256))
			require.Equal(t, int64(256), s.Counted.Counts.Group([16]byte{2}).Unknown(256))
		}
		require.NoError(t, all[2].Start(t.Context(), 1))
		require.True(t, all[3].Stop(t.Context(), 1))
		time.Sleep(time.Minute)
		require.NotNil(t, all[1].Status(t.Context(), 1).Failed)
	})
}

// someUser is a profile with states.
func someUser() []byte {
	blob := profile.AppendHeader(nil, profile.KindUser, op.ExternalID, []byte("ada"), 1, 0)
	var ed profile.Editor
	blob = append([]byte{}, ed.SetState(blob, profile.StateChange{State: shard.State{Kind: shard.EmailState, Value: "opted_in"}})...)
	return append([]byte{}, ed.SetState(blob, profile.StateChange{State: shard.State{Kind: shard.GroupState, Group: [16]byte{1},
		Channel: op.ChannelEmail}})...)
}

func TestServeRefusesWhatItDoesNotKnow(t *testing.T) {
	c := newCounter(t, &paperStore{}, nil)
	_, err := c.Serve([]byte("{"))
	require.Error(t, err)
	_, err = c.Serve([]byte(`{"verb":"x"}`))
	require.ErrorContains(t, err, `no verb "x"`)
	_, err = New(Options{Store: &paperStore{}, Share: 2})
	require.ErrorContains(t, err, "Share is 2")
}
