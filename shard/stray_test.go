package shard

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
)

// When the look-up of an op is out of date by the time of apply, apply itself defers the op. If the op's request has an
// Idempotency-Key, the kept answer is given only once the deferred op is visible, too, although the coordinator that
// sent it is lost: asking for the answer has the op released at once, and not only when a leader does so by itself.
// Answers to other requests don't wait for the op.
func TestAnswerWaitsForStrayOps(t *testing.T) { synctest.Test(t, testAnswerWaitsForStrayOps) }

func testAnswerWaitsForStrayOps(t *testing.T) {
	w := smallCluster(t, func(o *clusterOptions) {
		o.engine = func(o *replica.EngineOptions) { o.Patience = time.Minute }
	})
	coord, email := w.nodes[0].coord, emailIn(1, 0)
	users := []string{userIn(1, 0), userIn(1, 1), userIn(1, 2)}
	give := func(user string) {
		b := coord.NewBatch(1, 0)
		defer b.Release()
		addAttributes(b, op.ExternalID, user, op.Contact, attrField(op.AttrEmail, email))
		require.NoError(t, b.Commit())
	}
	give(users[0])
	key, other := keyIn(t, coord, w.groups[2]), []byte("other")
	b := coord.NewBatch(1, 0)
	addEvent(b, op.ExternalID, users[2], "e", 0)
	b.KeepAnswer(other, [32]byte{}, 201, []byte("{}"))
	require.NoError(t, b.Commit())
	b.Release()

	w.held.Store(true)
	sent := make(chan error, 1)
	go func() {
		b := coord.NewBatch(1, 0)
		defer b.Release()
		addEvent(b, op.Email, email, "e", 0)
		b.KeepAnswer(key, [32]byte{}, 201, []byte("{}"))
		sent <- b.Commit()
	}()
	eventually(t, "the answer is kept, and the op on its way", func() bool { return w.leader(2).Replica.Stats().OutboxKept > 0 })
	require.NoError(t, coord.Barrier())
	deleteAll(t, coord, op.ExternalID, users[0])
	give(users[1])
	give(users[2])
	g := w.groups[2]
	g.mu.Lock()
	g.dethrone(g.leader)
	g.mu.Unlock()
	err := <-sent
	require.True(t, errors.Is(err, replica.ErrUnknown) || errors.Is(err, ErrKept), err) // its coordinator may have tried again
	w.held.Store(false)
	w.move(g, w.anyNode(g))

	coord = w.nodes[1].coord
	eventually(t, "apply defers the op", func() bool { return w.deferred() > 0 })
	for _, key := range [][]byte{other, key} {
		asked := time.Now()
		require.NoError(t, coord.Barrier())
		_, kept, err := coord.Answer(1, key)
		require.True(t, kept)
		require.NoError(t, err)
		require.Less(t, time.Since(asked), maxSettleTime)
	}
	require.NoError(t, coord.Barrier())
	require.Zero(t, w.deferred())
	require.Equal(t, 2, eventCount(t, coord, op.ExternalID, users[1], "e")+eventCount(t, coord, op.ExternalID, users[2], "e"))
}

// Apply defers an op because the address that names its user is another user's by then. This op takes effect before the
// rest of its request, which has waited for an earlier op. Both are about one user.
func TestStraysComeBeforeTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := smallCluster(t, nil)
		coord, email, phone := w.nodes[0].coord, emailIn(2, 0), phoneIn(t, 1)
		was, is, other := userIn(1, 0), userIn(2, 1), userIn(1, 2)
		set := func(user string, field byte, value string) {
			b := coord.NewBatch(1, 0)
			defer b.Release()
			addAttributes(b, op.ExternalID, user, op.Contact, attrField(field, value))
			require.NoError(t, b.Commit())
		}
		set(was, op.AttrEmail, email)
		b := coord.NewBatch(1, 0)
		defer b.Release()
		addAttributes(b, op.Email, email, 0, attrField(op.AttrFirstName, "first"))
		addAttributes(b, op.ExternalID, is, op.Contact, attrField(op.AttrPhone, phone))
		addAttributes(b, op.Phone, phone, 0, attrField(op.AttrFirstName, "last"))
		require.NoError(t, b.ops.LookUp())
		require.GreaterOrEqual(t, b.ops.RestIn(), 0)
		deleteAll(t, coord, op.ExternalID, was) // while the request is on its way
		set(other, op.AttrEmail, email)
		set(is, op.AttrEmail, email)
		b.data = b.finish()
		require.NoError(t, b.carry())
		require.NoError(t, coord.Barrier())
		users, err := coord.Find(1, op.ExternalID, []byte(is))
		require.NoError(t, err)
		require.Len(t, users, 1)
		name, _ := profile.Attr(users[0].Blob, op.AttrFirstName)
		require.Equal(t, "last", string(name.Bytes()))
	})
}

// phoneIn is a phone number whose row is in a group.
func phoneIn(t *testing.T, group int) string {
	h := identity.NewHasher(testSecret)
	for n := range 1000 {
		phone := fmt.Sprintf("+4915112345%03d", n)
		if int(identity.Partition(h.Number(1, op.Phone, []byte(phone)))/128) == group-1 {
			return phone
		}
	}
	t.Fatal("no number")
	return ""
}

// deferred is how many deferred records wait at the groups' leaders.
func (c *testCluster) deferred() (n int) {
	for _, e := range c.leaders() {
		n += int(e.Stats().Deferred)
	}
	return n
}

// keyIn is an Idempotency-Key that a group keeps.
func keyIn(t *testing.T, e *Engine, g *testGroup) []byte {
	for i := range 10_000 {
		key := fmt.Append(nil, "key", i)
		if g.c.groupOf(identity.Partition(e.hasher.Number(1, op.NoID, key))) == g {
			return key
		}
	}
	t.Fatal("no key")
	return nil
}
