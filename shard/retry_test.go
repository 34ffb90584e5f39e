package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/shard/effect"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// keyed are requests with an Idempotency-Key, each for one user. All count one event "e" for the user whom id and key
// name, and give the user the first name "last".
var keyed = []struct {
	what string
	id   op.IDKind
	key  string
	fill func(b *Batch)
}{
	{"by external id", op.ExternalID, "new", func(b *Batch) {
		addAttributes(b, op.ExternalID, "new", 0, attrField(op.AttrFirstName, "last"))
		addEvent(b, op.ExternalID, "new", "e", 0)
	}},
	{"by an email that the request sets", op.ExternalID, "new", func(b *Batch) {
		addAttributes(b, op.ExternalID, "new", op.Contact, attrField(op.AttrEmail, "new@example.com"))
		addAttributes(b, op.Email, "new@example.com", 0, attrField(op.AttrFirstName, "last"))
		addEvent(b, op.Email, "new@example.com", "e", 0)
	}},
	{"by a phone that it sets, twice", op.Phone, "+4977", func(b *Batch) {
		addAttributes(b, op.ExternalID, "ada", op.Contact, attrField(op.AttrPhone, "+4988"))
		addAttributes(b, op.Phone, "+4988", op.Contact, attrField(op.AttrPhone, "+4977"))
		addAttributes(b, op.Phone, "+4977", 0, attrField(op.AttrFirstName, "last"))
		addEvent(b, op.ExternalID, "ada", "e", 0)
	}},
	{"by an external id that was renamed", op.ExternalID, "bob", func(b *Batch) {
		addAttributes(b, op.ExternalID, "robert", 0, attrField(op.AttrFirstName, "first"))
		addAttributes(b, op.ExternalID, "bob", 0, attrField(op.AttrFirstName, "last"))
		addEvent(b, op.ExternalID, "robert", "e", 0)
	}},
	{"by a new email", op.Email, "fresh@example.com", func(b *Batch) {
		addAttributes(b, op.Email, "fresh@example.com", 0, attrField(op.AttrFirstName, "last"))
		addEvent(b, op.Email, "fresh@example.com", "e", 0)
	}},
	{"by a new address of an identified user", op.Email, "al2@example.com", func(b *Batch) {
		addEvent(b, op.ExternalID, "al", "e", 0)
		fields := [][]byte{attrField(op.AttrEmail, "al2@example.com"), attrField(op.AttrFirstName, "last")}
		addAttributes(b, op.ExternalID, "al", op.Contact, fields...)
	}},
}

// tryKeyed sends one of keyed, unless its answer is kept, as the door does. It returns whether an answer was kept.
func tryKeyed(t *testing.T, e *Engine, i int) (replay bool) {
	t.Helper()
	_, kept, err := e.Answer(1, []byte("key"))
	require.NoError(t, err)
	if kept {
		return true
	}
	b := e.NewBatch(1, 0)
	keyed[i].fill(b)
	b.KeepAnswer([]byte("key"), [32]byte{1}, 201, []byte("{}"))
	require.NoError(t, b.Commit())
	b.Release()
	return false
}

// requireOnce requires that the request has had its effect once, and that the effect is visible.
func requireOnce(t *testing.T, e *Engine, i int, what string) {
	t.Helper()
	users, err := e.Find(1, keyed[i].id, []byte(keyed[i].key))
	require.NoError(t, err)
	require.Len(t, users, 1, what)
	s, _ := profile.Event(users[0].Blob, []byte("e"))
	name, _ := profile.Attr(users[0].Blob, op.AttrFirstName)
	require.Equal(t, "1 last", fmt.Sprintf("%d %s", s.Count, name.Bytes()), what)
}

// Power is lost behind each record of a request with an Idempotency-Key, and the client sends the request again as soon
// as the server is there. The request has its effect once, and the effect is visible with the answer.
func TestFaultRetryByKey(t *testing.T) {
	for i := range keyed {
		x := openStepped(t, func(t *testing.T, e *Engine) {
			stage(t, e)
			c := castOf(t, e)
			rename := func(b *Batch) int { return b.RenameExternalID(c.bob, []byte("bob"), []byte("robert")) }
			require.Equal(t, effect.Done, outcome(t, e, rename))
			identify := func(b *Batch) int { return b.Identify(c.al, []byte("al"), profile.MergeIdentify) }
			require.Equal(t, effect.Done, outcome(t, e, identify))
		})
		var images []*vfs.MemFS
		testengine.Within(t, time.Minute, keyed[i].what, func() {
			done := x.begin(t, func(t *testing.T, e *Engine) { tryKeyed(t, e, i) })
			cut := func() { images = append(images, x.fs.CrashClone(vfs.CrashCloneCfg{})) }
			for cut(); x.waiting(); cut() {
				if len(images)%2 == 0 {
					require.NoError(t, x.Checkpoint())
				}
				x.step()
			}
			x.limit.Store(1 << 62)
			<-done
		})
		requireOnce(t, x.Engine, i, keyed[i].what)
		require.NoError(t, x.Close())
		for n, image := range images {
			what := fmt.Sprintf("%s: cut behind record %d of %d", keyed[i].what, n, len(images)-1)
			e := openTest(t, testOptions(image))
			require.Equal(t, n > 0, tryKeyed(t, e, i), what)
			requireOnce(t, e, i, what)
			settle(t, e)
			requireOnce(t, e, i, what)
			require.NoError(t, e.Close())
		}
	}
}
