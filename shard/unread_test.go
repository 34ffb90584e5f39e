package shard

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/VictoriaMetrics/metrics"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/entries"
	"millrace/shard/identity"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/shard/store"
	"millrace/wal/memlog"
)

// emails are the users who have an email, by which most of their objects name them, and who has each home number: whoever
// came there first.
type emails struct {
	given map[string]bool
	first map[uint64]string
}

// of says whether an object of the user names them by email.
func (x *emails) of(r *rand.Rand, user string) bool {
	return x != nil && x.given[user] && r.IntN(4) > 0
}

// gives says whether an op gives the user an email.
func (x *emails) gives(r *rand.Rand, user string, kind op.Kind, flags op.Flags, home uint64) bool {
	if x == nil {
		return false
	}
	if !flags.Has(op.UpdateOnly) && x.first[home] == "" {
		x.first[home] = user
	}
	gives := kind == op.Attributes && x.first[home] == user && r.IntN(4) == 0
	x.given[user] = x.given[user] || gives
	return gives
}

// randomRecord is a record of objects for users by external id, or by the email that they have been given. Some external
// ids have the same home number, as with equal hashes. No emails: all are by external id.
func randomRecord(r *rand.Rand, stamp int64, x *emails) []byte {
	h := identity.NewHasher(testSecret)
	var b op.Builder
	b.Reset(0)
	b.Source, b.MaxArray = op.Source(r.IntN(3)), uint16(r.IntN(3)*2)
	for range 1 + r.IntN(12) {
		user := fmt.Sprint("u", r.IntN(40))
		home := h.Number(1, op.ExternalID, []byte(user))
		if r.IntN(4) == 0 {
			pair := fmt.Sprint("c", r.IntN(1+int(stamp/8000))) // new ones come until the end, when memory is short
			user, home = pair+string("abc"[r.IntN(3)]), h.Number(1, op.ExternalID, []byte(pair))
		}
		flags := op.MakeFlags(0, op.ExternalID)
		if r.IntN(10) == 0 {
			flags |= op.UpdateOnly
		}
		start := b.Begin()
		kind := []op.Kind{op.Attributes, op.Event, op.Event, op.Purchase}[r.IntN(4)]
		name := b.Intern(fmt.Append(nil, "name", r.IntN(5)))
		time := int64(1_700_000_000_000 + r.IntN(1_000_000_000))
		switch kind {
		case op.Event:
			b.Buf = op.AppendEventBody(b.Buf)
			op.PutEvent(b.Buf[start+op.OpHeaderBytes:], time, name, 0)
			b.Buf = append(binary.AppendUvarint(b.Buf, uint64(name)), op.AppendInt(nil, 7)...) // a property
		case op.Purchase:
			b.Buf = op.AppendPurchaseBody(b.Buf)
			op.PutPurchase(b.Buf[start+op.OpHeaderBytes:], time, r.Int64N(1000), 5, uint32(r.IntN(3)), name, 0, [3]byte{'E', 'U', byte('A' + r.IntN(3))})
		default:
			for range 1 + r.IntN(4) {
				b.Buf = append(b.Buf, randomField(r, &b)...)
			}
			if r.IntN(2) == 0 {
				flags |= op.MergeObjects
			}
		}
		byEmail := x.of(r, user)
		if x.gives(r, user, kind, flags, home) {
			flags |= op.Contact
		}
		if byEmail {
			user, flags = user+"@example.com", op.MakeFlags(flags|op.Resolved, op.Email)
		}
		b.Buf = append(b.Buf, user...)
		b.End(start, kind, flags, len(user), home)
	}
	return b.Finish(1, uint32(r.IntN(3)), stamp)
}

// randomField is an attribute, of any type and with any operator.
func randomField(r *rand.Rand, b *op.Builder) []byte {
	element := func() []byte { return op.AppendInt(nil, r.Int64N(6)) }
	array := slices.Concat(element(), element(), element())
	member := func(name string) []byte {
		return append(append([]byte{byte(len(name))}, name...), op.AppendInt(nil, r.Int64N(9))...)
	}
	value := [][]byte{
		op.AppendInt(nil, r.Int64N(100)), op.AppendString(nil, fmt.Append(nil, r.Uint64())), {byte(op.Null)}, {byte(op.True)},
		op.AppendBlock(nil, op.Array, array), op.AppendBlock(nil, op.Object, append(member("a"), member(fmt.Sprint("m", r.IntN(9)))...)),
		append([]byte{byte(op.Increment)}, op.AppendInt(nil, r.Int64N(9))[1:]...),
		op.AppendBlock(nil, op.Update, append(op.AppendBlock(nil, op.Array, array), op.AppendBlock(nil, op.Array, element())...)),
	}[r.IntN(8)]
	if r.IntN(4) == 0 {
		return attrField([]byte{op.AttrFirstName, op.AttrLastName, op.AttrPushSubscribe}[r.IntN(3)], "subscribed")
	}
	return append(binary.AppendUvarint(nil, uint64(op.ReservedCodes+b.Intern(fmt.Append(nil, "attr", r.IntN(6))))), value...)
}

// unread counts the changes that were kept unread.
var unread = metrics.GetOrCreateCounter("millrace_changes_unread_total")

// Changes for which nobody has read the profile have the same result as if somebody had, over restarts, crashes and
// checkpoints, also for users whose external ids have the same home number.
func TestUnreadIsAsIfRead(t *testing.T) {
	seed := testseed.Of(t)
	for round := range testsize.Of(200, 3, 1) {
		r := rand.New(rand.NewPCG(seed, uint64(round)))
		var records []memlog.Record
		emails := &emails{map[string]bool{}, map[uint64]string{}}
		for i := range testsize.Short(300, 120) {
			data := randomRecord(r, int64(1000*(i+1)), emails)
			records = append(records, memlog.Record{Position: uint64(i + 1), Count: uint32(binary.LittleEndian.Uint32(data[28:])), Payload: data})
		}
		var want map[string]string
		for i, shape := range []struct {
			memory  int64
			changes int
		}{{64 << 20, 0}, {2000, -1}, {2000, 0}, {2000, 1}, {4000, 3}, {20_000, 1000}} {
			before := unread.Get()
			got := playShaped(t, rand.New(rand.NewPCG(seed, uint64(round*100+i))), records, func(o *replica.EngineOptions) {
				o.MemoryBytes, o.MaxDeltaChanges = shape.memory, shape.changes
			})
			isUnread := unread.Get() > before
			if shape.memory != 20_000 { // whether anything leaves that much depends on when checkpoints end
				require.Equal(t, shape.memory < 1<<20 && shape.changes >= 0, isUnread, "%+v", shape)
			}
			if want == nil {
				want = got
			}
			alike(t, want, got, fmt.Sprintf("round %d, %+v", round, shape))
		}
	}
}

// playShaped gives records to a replica that is restarted and crashes. It returns the contents that result once
// everything has been read.
func playShaped(t *testing.T, r *rand.Rand, records []memlog.Record, shape func(o *replica.EngineOptions)) map[string]string {
	t.Helper()
	fs, log := vfs.NewCrashableMem(), &memlog.Log{}
	open := func() *Engine {
		o := replicaOptions(fs, log, 0, identity.Partitions)
		o.Workers = 1 + r.IntN(3)
		shape(&o.EngineOptions)
		e, err := openGroup(o)
		require.NoError(t, err)
		return e
	}
	e := open()
	homes := map[uint64]bool{}
	for rest := records; len(rest) > 0; {
		n := min(1+r.IntN(30), len(rest))
		for _, m := range rest[:n] {
			log.Add(m.Position, m.Count, m.Payload)
			rec, err := op.ParseRecord(m.Payload, nil)
			require.NoError(t, err)
			for ops := rec.Ops; len(ops) > 0; {
				var o op.Op
				o, ops = op.Next(ops)
				homes[o.Number()] = true
			}
		}
		deliver(e, rest[:n], 1+r.IntN(10))
		rest = rest[n:]
		switch r.IntN(8) {
		case 0:
			require.NoError(t, e.Close())
			e = open()
		case 1:
			before := e
			log = log.Clone()
			fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: r.IntN(101), RNG: rand.New(rand.NewPCG(r.Uint64(), 1))})
			e = open()
			require.NoError(t, before.Close())
		case 2, 3, 4:
			require.NoError(t, e.Checkpoint())
		case 5:
			for home := range homes {
				if _, err := e.Entry(home); r.IntN(3) == 0 {
					require.NoError(t, err)
				}
			}
		case 6:
			require.NoError(t, e.Store().DB.Compact(t.Context(), []byte("e"), []byte("f"), false))
		}
	}
	require.NoError(t, e.WaitApplied(log.DurablePosition()))
	for home := range homes {
		_, err := e.Entry(home)
		require.NoError(t, err)
	}
	defer func() { require.NoError(t, e.Close()) }()
	return contents(t, e)
}

// Deltas fold to the same profile in whatever groups Pebble gives the operands, from the newest or from the oldest.
func TestFoldInAnyGroups(t *testing.T) {
	r := testseed.Rand(t)
	limits := profile.DefaultLimits()
	key := store.AppendEntryKey(nil, 7<<56|9)
	merger := store.NewMerger(limits, func(uint64) {})
	fold := func(includesBase bool, values ...[]byte) []byte { // the oldest first
		if r.IntN(2) == 0 {
			m, err := merger.Merge(key, values[0])
			require.NoError(t, err)
			for _, v := range values[1:] {
				require.NoError(t, m.MergeNewer(v))
			}
			v, closer, err := m.Finish(includesBase)
			require.NoError(t, err)
			defer closer.Close()
			return slices.Clone(v)
		}
		m, err := merger.Merge(key, values[len(values)-1])
		require.NoError(t, err)
		for _, v := range slices.Backward(values[:len(values)-1]) {
			require.NoError(t, m.MergeOlder(v))
		}
		v, closer, err := m.Finish(includesBase)
		require.NoError(t, err)
		defer closer.Close()
		return slices.Clone(v)
	}
	for range testsize.Of(5000, 200, 50) {
		var values [][]byte
		if r.IntN(2) == 0 {
			values = append(values, profile.New(nil, 1, op.ExternalID, []byte("u1"), 5))
		}
		for i := range 1 + r.IntN(12) {
			rec, err := op.ParseRecord(randomRecord(r, int64(100*i), nil), nil)
			require.NoError(t, err)
			for ops := rec.Ops; len(ops) > 0; {
				var o op.Op
				o, ops = op.Next(ops)
				d, ok := entries.AppendChange(entries.AppendDelta(nil, 1, op.ExternalID, fmt.Append(nil, "u", 1+r.IntN(8)/7)), o, &rec, profile.Place{Position: uint64(i)})
				require.True(t, ok)
				entries.Delta(d).SetSize(1)
				values = append(values, d)
			}
		}
		want := fold(true, values...)
		for len(values) > 1 {
			i := r.IntN(len(values) - 1)
			n := 2 + r.IntN(len(values)-i-1)
			values = slices.Replace(values, i, i+n, fold(i == 0 && r.IntN(2) == 0, values[i:i+n]...))
		}
		require.Equal(t, want, fold(true, values...))
	}
}
