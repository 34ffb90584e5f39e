package shard_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/bodies"
	"millrace/shard/effect"
	"millrace/shard/eventlog"
	"millrace/shard/eventlog/event"
	"millrace/shard/op"
)

// eraseModel knows who has which names, and to whom the events belong.
type eraseModel struct {
	users  []*eraseUser
	events int
	gone   map[uint64]bool // numbers of who was deleted, and of who was merged into them
}

type eraseUser struct {
	names  []eraseName // names that lead to the user; the first external id is the current one
	events []string
	merged []uint64 // numbers of who was merged into the user
}

type eraseName struct {
	id  op.IDKind
	key string
}

func (m *eraseModel) find(n eraseName) *eraseUser {
	for _, u := range m.users {
		if slices.Contains(u.names, n) {
			return u
		}
	}
	return nil
}

func (m *eraseModel) remove(u *eraseUser) {
	m.users = slices.DeleteFunc(m.users, func(x *eraseUser) bool { return x == u })
}

// alive are the events that the event logs must have, in order.
func (m *eraseModel) alive() (all []string) {
	for _, u := range m.users {
		all = append(all, u.events...)
	}
	return slices.Sorted(slices.Values(all))
}

// eraseWorld is a cluster whose replicas have event logs.
type eraseWorld struct {
	t *testing.T
	r *rand.Rand
	shard.PaperCluster
	groups int
	logs   [][]*eventlog.Log // by node and group
	m      eraseModel
}

func openEraseWorld(t *testing.T, r *rand.Rand) *eraseWorld {
	w := &eraseWorld{t: t, r: r, groups: []int{2, 4}[r.IntN(2)], m: eraseModel{gone: map[uint64]bool{}}}
	w.PaperCluster = shard.OpenPaperCluster(t, r.Uint64(), w.groups)
	for node := range 2 {
		var logs []*eventlog.Log
		fs := vfs.NewMem()
		for i, e := range w.Replicas(node) {
			l, err := eventlog.Open(e, eventlog.Options{
				FS: fs, Dir: fmt.Sprint(i), Group: fmt.Sprint(i), Interval: time.Duration(1+node*3) * time.Millisecond, BlockBytes: 2 << 10, MaxDuty: 1,
				PackAfter: time.Duration(1+node*1000) * time.Millisecond, DeleteWithin: time.Duration(10+node*1000) * time.Millisecond,
				Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
			})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, l.Close()) })
			logs = append(logs, l)
		}
		w.logs = append(w.logs, logs)
	}
	return w
}

func (w *eraseWorld) request(fill func(b *shard.Batch)) {
	w.t.Helper()
	b := w.Coordinator().NewBatch(1, 0)
	defer b.Release()
	fill(b)
	require.NoError(w.t, b.Commit())
}

func (w *eraseWorld) external() eraseName {
	return eraseName{op.ExternalID, fmt.Sprint("u", w.r.IntN(8))}
}
func (w *eraseWorld) alias() eraseName {
	return eraseName{op.Alias, string(op.AppendAliasKey(nil, []byte("l"), fmt.Append(nil, "a", w.r.IntN(6))))}
}

func (w *eraseWorld) name() eraseName {
	if w.r.IntN(3) == 0 {
		return w.alias()
	}
	return w.external()
}

// number is the number of a user whom the model knows.
func (w *eraseWorld) number(u *eraseUser) uint64 {
	w.t.Helper()
	n := u.names[w.r.IntN(len(u.names))]
	users, err := w.Coordinator().Find(1, n.id, []byte(n.key))
	require.NoError(w.t, err)
	require.Len(w.t, users, 1, "%+v", n)
	return users[0].Number
}

// track sends an event under a name, or under the number of the user who has the name.
func (w *eraseWorld) track(n eraseName) {
	w.t.Helper()
	u := w.m.find(n)
	byNumber := u != nil && w.r.IntN(3) == 0
	number := uint64(0)
	if byNumber {
		number = w.number(u)
	}
	if u == nil {
		u = &eraseUser{names: []eraseName{n}}
		w.m.users = append(w.m.users, u)
	}
	w.m.events++
	name := fmt.Sprintf("e%05d", w.m.events)
	u.events = append(u.events, name)
	w.request(func(b *shard.Batch) {
		start := testengine.BeginEvent(&b.Builder, name)
		if byNumber {
			b.EndNumber(start, op.Event, 0, number)
			return
		}
		b.Buf = append(b.Buf, n.key...)
		b.End(start, op.Event, 0, n.id, len(n.key))
	})
}

func (w *eraseWorld) anybody() *eraseUser {
	if len(w.m.users) == 0 {
		return nil
	}
	return w.m.users[w.r.IntN(len(w.m.users))]
}

func (u *eraseUser) externals() (keys []string) {
	for _, n := range u.names {
		if n.id == op.ExternalID {
			keys = append(keys, n.key)
		}
	}
	return keys
}

func (w *eraseWorld) step() {
	u := w.anybody()
	switch k := w.r.IntN(12); {
	case k < 6 || u == nil:
		w.track(w.name())
	case k == 6:
		if keep := w.anybody(); keep != u {
			w.merge(u, keep)
		}
	case k == 7:
		if fresh := w.external(); len(u.externals()) > 0 && w.m.find(fresh) == nil {
			w.rename(u, fresh.key)
		}
	case k == 8:
		if ids := u.externals(); len(ids) > 1 {
			w.removeID(u, ids[1+w.r.IntN(len(ids)-1)])
		}
	case k == 9:
		n := w.alias()
		if w.m.find(n) != nil || slices.ContainsFunc(u.names, func(n eraseName) bool { return n.id == op.Alias }) {
			return
		}
		label, name, _ := op.SplitAliasKey([]byte(n.key))
		w.request(func(b *shard.Batch) { b.AddAlias(w.number(u), label, name) })
		u.names = append(u.names, n)
	default:
		w.delete(u)
	}
}

// merge merges gone into keep. Of gone's names only the aliases lead to keep afterwards.
func (w *eraseWorld) merge(gone, keep *eraseUser) {
	from := w.number(gone)
	w.request(func(b *shard.Batch) { b.Merge(from, w.number(keep)) })
	w.Settle(w.t)
	w.m.remove(gone)
	keep.merged = append(append(keep.merged, gone.merged...), from)
	keep.events = append(keep.events, gone.events...)
	for _, n := range gone.names {
		if n.id == op.Alias {
			keep.names = append(keep.names, n)
		}
	}
}

// rename gives a user another external id; the old one still leads to the user.
func (w *eraseWorld) rename(u *eraseUser, fresh string) {
	w.request(func(b *shard.Batch) { b.RenameExternalID(w.number(u), []byte(u.externals()[0]), []byte(fresh)) })
	u.names = append([]eraseName{{op.ExternalID, fresh}}, u.names...)
}

// removeID takes an external id that is not the current one away from a user.
func (w *eraseWorld) removeID(u *eraseUser, id string) {
	number := w.number(u)
	w.request(func(b *shard.Batch) { b.RemoveExternalID(number, []byte(id)) })
	u.names = slices.DeleteFunc(u.names, func(n eraseName) bool { return n == eraseName{op.ExternalID, id} })
}

func (w *eraseWorld) delete(u *eraseUser) {
	number := w.number(u)
	w.request(func(b *shard.Batch) { b.Delete(number) })
	w.m.remove(u)
	for _, number := range append(u.merged, number) {
		w.m.gone[number] = true
	}
	w.check(0, fmt.Sprintf("after the deletion of %v", u.names))
}

// groupOf is the index of the group that holds a number.
func (w *eraseWorld) groupOf(number uint64) int { return int(number>>56) * w.groups / 256 }

// checkDeletions requires that the deletions in each log name only places of that log, since places in one log mean
// nothing in another. It returns how many deletions came from other groups.
func (w *eraseWorld) checkDeletions() (messages int) {
	for group, e := range w.Replicas(0) {
		require.NoError(w.t, e.ReadLog(1, math.MaxUint64, func(_ uint64, _ uint32, payload []byte) error {
			rec, err := op.ParseRecord(payload, nil)
			require.NoError(w.t, err)
			for rest := rec.Ops; len(rest) > 0; {
				var o op.Op
				o, rest = op.Next(rest)
				isMessage := o.Kind() == op.Message
				if isMessage {
					isMessage = w.groupOf(uint64(o.Body()[0])<<56) != group // the sender
					o = op.Op(effect.MessageRecord(o.Body())[op.HeaderBytes:])
				}
				if o.Kind() != op.Delete {
					continue
				}
				require.NoError(w.t, bodies.EachErased(o.Body(), func(x bodies.Erased) { require.Equal(w.t, group, w.groupOf(x.Number)) }))
				if isMessage {
					messages++
				}
			}
			return nil
		}))
	}
	return messages
}

// An identifier of a deleted user may lead to a number at which somebody else is by now. That user is spared.
func TestErasedInOtherGroupsSparesOthers(t *testing.T) {
	w := openEraseWorld(t, testseed.Rand(t))
	name := func(key string) eraseName { return eraseName{op.ExternalID, key} }
	w.track(name("x"))
	first := w.m.find(name("x"))
	home := w.number(first)
	w.rename(first, "first")
	w.removeID(first, "x")
	w.track(name("x"))
	second := w.m.find(name("x"))
	require.NotEqual(t, home, w.number(second))
	w.rename(second, "second")
	w.removeID(second, "x")
	for i := 0; ; i++ {
		n := name(fmt.Sprint("keep", i))
		w.track(n)
		keep := w.m.find(n)
		if w.groupOf(w.number(keep)) != w.groupOf(home) {
			w.merge(second, keep)
			w.delete(keep)
			break
		}
	}
	w.check(1, "at the end")
	w.checkTold(1)
	require.Equal(t, home, w.number(first))
	require.NotZero(t, w.checkDeletions())
}

// check compares the events that the event logs of a node give out with the model.
func (w *eraseWorld) check(node int, when string) {
	w.t.Helper()
	w.CatchUp(w.t)
	got := w.exported(node, eventlog.Query{})
	want := w.m.alive()
	for _, name := range want {
		require.Equal(w.t, 1, got[name], "%s: event %s of a user who is there", when, name)
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		_, found := slices.BinarySearch(want, name)
		require.True(w.t, found, "%s: event %s of a user who is deleted", when, name)
	}
	for _, u := range w.m.users {
		numbers := append([]uint64{w.number(u)}, u.merged...)
		of, err := w.Coordinator().EventsOf(1, numbers[w.r.IntN(len(numbers))])
		require.NoError(w.t, err)
		his := slices.Sorted(maps.Keys(w.exported(node, eventlog.Query{Of: of})))
		require.Equal(w.t, slices.Sorted(slices.Values(u.events)), his, "%s: events of %v", when, u.names)
	}
}

// exported counts the events that the event logs of a node give out, by name.
func (w *eraseWorld) exported(node int, q eventlog.Query) map[string]int {
	w.t.Helper()
	got := map[string]int{}
	for _, l := range w.logs[node] {
		require.NoError(w.t, l.Export(context.Background(), q, func(e *event.Event) error {
			got[string(e.Name)]++
			return nil
		}))
	}
	return got
}

// checkTold requires that streams hear of each user who is gone, in whatever group's log the user's events were, and of
// nobody else.
func (w *eraseWorld) checkTold(node int) {
	w.t.Helper()
	w.CatchUp(w.t)
	told := map[uint64]bool{}
	for _, l := range w.logs[node] {
		f := l.Follow(0, eventlog.Query{Kinds: []op.Kind{op.Delete}}, time.Time{})
		_, err := f.Read(context.Background(), math.MaxUint64, func(e *event.Event) error {
			told[e.Number] = true
			return nil
		})
		require.NoError(w.t, err)
	}
	require.Equal(w.t, w.m.gone, told)
}

// Deleting a user erases the events of all users who were merged into them, in whatever group's log these are, and
// nobody else's, not even those of users who had the same names before or have them since.
func TestErasedInOtherGroups(t *testing.T) {
	testsize.SkipSerial(t)
	seed := testseed.Of(t)
	rounds, steps := testsize.Of(20, 4, 4), 300
	messages := 0
	for round := range rounds {
		w := openEraseWorld(t, rand.New(rand.NewPCG(seed, uint64(round))))
		for step := range steps {
			w.step()
			switch w.r.IntN(20) {
			case 0:
				w.Move()
			case 1:
				for _, l := range w.logs[w.r.IntN(2)] {
					require.NoError(t, l.Pack())
				}
			case 2:
				for _, e := range w.Replicas(w.r.IntN(2)) {
					require.NoError(t, e.Checkpoint())
				}
			case 3:
				w.check(w.r.IntN(2), fmt.Sprintf("round %d, step %d", round, step))
			}
		}
		w.check(0, "at the end")
		w.check(1, "at the end")
		w.checkTold(0)
		w.checkTold(1)
		messages += w.checkDeletions()
		for _, logs := range w.logs {
			for _, l := range logs {
				require.NoError(t, l.Verify(context.Background()))
			}
		}
	}
	require.NotZero(t, messages, "no deletion has reached another group")
}
