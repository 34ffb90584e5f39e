package cluster

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// asker asks for users on one node.
type asker struct {
	c      *testCluster
	n      *Node
	hasher *identity.Hasher
}

func (c *testCluster) asker(node quorum.Node) *asker {
	n := c.node(node)
	secret, err := n.facts.Get().SecretKey()
	require.NoError(c.t, err)
	return &asker{c, n, identity.NewHasher(secret)}
}

// group is the group in which an identifier lies.
func (a *asker) group(id op.IDKind, key string) uint32 {
	return a.n.routes.GroupOf(identity.Partition(a.hasher.Number(testWorkspace, id, []byte(key))))
}

// name finds an identifier that lies in one of these groups.
func (a *asker) name(id op.IDKind, format string, groups ...uint32) string {
	for i := 0; ; i++ {
		if key := fmt.Sprintf(format, i); slices.Contains(groups, a.group(id, key)) {
			return key
		}
	}
}

// without are the user groups that have no replica on a node, and those that have one.
func (a *asker) without(node quorum.Node) (without, with []uint32) {
	d, _ := a.n.documents.Get()
	for id := uint32(1); int(id) < len(a.n.replicas); id++ {
		if p := d.Groups[id]; p.Holds(node) {
			with = append(with, id)
		} else {
			without = append(without, id)
		}
	}
	require.NotEmpty(a.c.t, with)
	require.NotEmpty(a.c.t, without)
	return without, with
}

// make makes a user who has an address.
func (a *asker) make(externalID, email string) {
	a.c.t.Helper()
	b := a.n.Coordinator().NewBatch(testWorkspace, 0)
	defer b.Release()
	addAttributes(b, op.ExternalID, externalID, op.Contact, testengine.AttrField(op.AttrEmail, email))
	require.NoError(a.c.t, b.Commit())
}

// questions are the requests that can be made about a user who has an address.
func (a *asker) questions(externalID, email string) map[string]func() error {
	coordinator := a.n.Coordinator()
	look := func(id op.IDKind, key string, extent shard.Extent) error {
		r := coordinator.NewReads(nil)
		r.Begin()
		if err := r.Expect(testWorkspace, extent, shard.Identifier{ID: id, Key: []byte(key)}); err != nil {
			return err
		}
		users, err := r.Find(testWorkspace, id, []byte(key))
		if err == nil && len(users) != 1 {
			err = fmt.Errorf("%d users", len(users))
		}
		return err
	}
	commit := func(fill func(b *shard.Batch)) error {
		b := coordinator.NewBatch(testWorkspace, 0)
		defer b.Release()
		fill(b)
		return b.Commit()
	}
	return map[string]func() error{
		"export by external id": func() error { return look(op.ExternalID, externalID, shard.OfUsers|shard.OfEmails) },
		"export by email":       func() error { return look(op.Email, email, shard.OfUsers|shard.OfEmails) },
		"export, unexpected":    func() error { return look(op.Email, email, 0) },
		"status": func() error {
			r := coordinator.NewReads(nil)
			r.Begin()
			return r.HeldStates(testWorkspace, []shard.Identifier{{ID: op.ExternalID, Key: []byte(externalID)}}, profile.State{Kind: profile.StateEmail}, func(profile.StateChange, bool) {})
		},
		"event by email": func() error { return commit(func(b *shard.Batch) { addEvent(b, op.Email, email, "asked") }) },
		"the address once more": func() error {
			return commit(func(b *shard.Batch) {
				addAttributes(b, op.ExternalID, externalID, op.Contact, testengine.AttrField(op.AttrEmail, email))
			})
		},
		"state": func() error {
			return commit(func(b *shard.Batch) {
				b.SetUserStates(op.ExternalID, []byte(externalID), 0, profile.State{Kind: profile.StateEmail, Value: "unsubscribed"})
			})
		},
	}
}

// inTime is what f returns, or an error when f takes too long.
func inTime(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	select {
	case err := <-done:
		return err
	case <-time.After(patience):
		return errors.New("no answer")
	}
}

// While some groups have no leader, requests that read or look up in other groups are answered. Requests that concern
// the groups without a leader wait, and are answered when there is a leader again.
func TestHealthyGroupsDontWait(t *testing.T) {
	t.Parallel()
	const lost = 3
	c, f := startInFog(t, func(o *Options) {
		o.Groups, o.Replicas = 15, 2 // two of two nodes are a majority
		o.CommitTimeout, o.BarrierTimeout, o.LeaderWait, o.MaxReadLag = time.Hour, time.Hour, time.Hour, time.Hour
	})
	a := c.asker(1)
	healthy, sick := a.without(lost)
	here := slices.DeleteFunc(slices.Clone(healthy), func(g uint32) bool { return a.n.group(g) == nil })
	require.Equal(t, healthy, here, "of three nodes the two others have these")
	type user struct{ externalID, email string }
	well := user{a.name(op.ExternalID, "well-%d", healthy...), a.name(op.Email, "well-%d@example.com", healthy...)}
	half := user{a.name(op.ExternalID, "half-%d", healthy...), a.name(op.Email, "half-%d@example.com", sick...)}
	other := user{a.name(op.ExternalID, "other-%d", sick...), a.name(op.Email, "other-%d@example.com", healthy...)}
	for _, u := range []user{well, half, other} {
		a.make(u.externalID, u.email)
	}
	require.NoError(t, a.n.Coordinator().Barrier()) // so that the replicas here are current, and there are connections
	f.hide(lost)
	waiting := map[string]chan error{}
	for kind, u := range map[string]user{"a sick address": half, "a sick user": other} {
		for name, ask := range a.questions(u.externalID, u.email) {
			done := make(chan error, 1)
			waiting[name+" of "+kind] = done
			go func() { done <- ask() }()
		}
	}
	all := make(chan error, 1)
	go func() { all <- a.n.Coordinator().Barrier() }()
	for range 3 {
		for name, ask := range a.questions(well.externalID, well.email) {
			require.NoError(t, inTime(ask), name)
		}
		many := a.n.Coordinator().NewReads(nil)
		many.Begin()
		var list []shard.Identifier
		for _, g := range healthy {
			list = append(list, shard.Identifier{ID: op.ExternalID, Key: []byte(a.name(op.ExternalID, "nobody-%d", g))})
		}
		require.Greater(t, len(list), fewGroups)
		require.NoError(t, inTime(func() error { return many.Expect(testWorkspace, shard.OfUsers, list...) }))
	}
	for name, done := range waiting {
		select {
		case err := <-done: // under way to a node that is taken for hanging by now
			require.ErrorIs(t, err, replica.ErrUnknown, "%s: answered without a leader", name)
			delete(waiting, name)
		default:
		}
	}
	require.Empty(t, all, "who asks for all waits for all")
	f.hide(0)
	for name, done := range waiting {
		if err := <-done; err != nil {
			require.ErrorIs(t, err, replica.ErrUnknown, name)
		}
	}
	require.NoError(t, <-all)
}

// What one node has acknowledged, reads on another node see, wherever it lies. Behind the barrier of the identifier's
// group, there are barriers of the groups of the users to whom the identifier leads, and of their addresses, whether
// these were foreseen or not.
func TestReadsFollowWhatTheyFind(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, nil)
	a := c.asker(1)
	email := "user@example.com"
	at := a.group(op.Email, email)
	others := slices.DeleteFunc([]uint32{1, 2, 3, 4}, func(g uint32) bool { return g == at })
	externalID := a.name(op.ExternalID, "user-%d", others...)
	reader := quorum.Node(1) // leads neither group, so it gets records later
	for reader == a.n.routes.Leader(at) || reader == a.n.routes.Leader(a.group(op.ExternalID, externalID)) {
		reader++
	}
	r, w := c.asker(reader), c.asker(reader%3+1)
	w.make(externalID, email)
	reads := r.n.Coordinator().NewReads(nil)
	for i := range 30 {
		require.NoError(t, track(w.n.Coordinator(), "seen", externalID))
		reads.Begin()
		if i%2 == 0 {
			require.NoError(t, reads.Expect(testWorkspace, shard.OfUsers|shard.OfEmails, shard.Identifier{ID: op.Email, Key: []byte(email)}))
		}
		users, err := reads.Find(testWorkspace, op.Email, []byte(email))
		require.NoError(t, err)
		require.Len(t, users, 1)
		seen, _ := profile.Event(users[0].Blob, []byte("seen"))
		require.Equal(t, i+1, int(seen.Count), "an acknowledged event of a user who was found by an address")

		state := profile.State{Kind: profile.StateEmail, Value: []string{"unsubscribed", "opted_in"}[i%2]}
		b := w.n.Coordinator().NewBatch(testWorkspace, 0)
		b.SetAddressStates(op.Email, []byte(email), state)
		require.NoError(t, b.Commit())
		b.Release()
		reads.Begin()
		list := []shard.Identifier{{ID: op.ExternalID, Key: []byte(externalID)}}
		require.NoError(t, reads.HeldStates(testWorkspace, list, profile.State{Kind: profile.StateEmail}, func(held profile.StateChange, ok bool) {
			require.True(t, ok)
			require.Equal(t, state.Value, held.Value, "an acknowledged state of a user's address")
		}))
	}
}

// A follower that nobody reads hears from pings what its leader has committed, so that it can soon lead instead. The
// leader itself would not say so for an hour. For as long, it would not send again what a follower has missed, such as
// one whose replica was not open yet; the next request does that.
func TestPingsTellOfCommits(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3, func(o *Options) { o.Quorum.CommitTimeout = time.Hour })
	users := make([]string, 50)
	for i := range users {
		users[i] = fmt.Sprint("user ", i)
	}
	missed := true
	c.eventually(func() error {
		if missed {
			if err := track(c.node(1).Coordinator(), "e", users...); err != nil {
				return err
			}
		}
		missed = false
		for _, n := range c.all() {
			for id := uint32(1); id <= 4; id++ { // those of users
				g := n.group(id)
				if g == nil {
					missed = true
					return fmt.Errorf("node %d has no replica of group %d yet", n.self, id)
				}
				here := g.log.Status()
				for _, other := range c.all() {
					g := other.group(id)
					if g == nil {
						continue // told when it is that one's turn
					}
					there := g.log.Status()
					missed = missed || there.LastIndex < here.HandedBack
					if there.HandedBack < here.HandedBack {
						return fmt.Errorf("group %d: node %d is not as far as node %d", id, other.self, n.self)
					}
				}
			}
		}
		return nil
	})
}
