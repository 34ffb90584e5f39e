package machine

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// benchShape describes the profiles of a benchmark: how many names there are, and how many ops made each profile.
type benchShape struct {
	events, products, attributes int
	ops                          int // of each user, before the measurement
}

// BenchmarkApplyRecords measures touching and applying records of 225 and 1,000 objects for random users, without log
// and look-ups. The users' profiles together don't fit the CPU's caches.
//
//	go test ./shard/machine -run '^$' -bench ApplyRecords -cpu 1 -benchtime 1000x
func BenchmarkApplyRecords(b *testing.B) {
	for _, objects := range []int{225, 1000} {
		b.Run(fmt.Sprintf("%dobjects", objects), func(b *testing.B) { benchApply(b, objects) })
	}
}

func benchApply(b *testing.B, objects int) {
	for _, shape := range []benchShape{{4, 4, 6, 12}, {24, 200, 12, 120}, {24, 200, 12, 400}, {24, 16, 12, 360}} {
		b.Run(fmt.Sprintf("%dproducts%dops", shape.products, shape.ops), func(b *testing.B) {
			const users, records = 40_000, 200
			w := benchWorker(b)
			size := fill(b, w, &shape, users)
			commits := make([]*Commit, records)
			rng := rand.New(rand.NewPCG(1, 2))
			at := benchNow
			for i := range commits {
				commits[i] = shape.record(b, rng, objects, users, &at)
			}
			position := uint64(1)
			do := func(c *Commit) {
				position++
				at += 1000
				postpone(c, at)
				c.At = position
				items := []*Commit{c}
				if err := w.Prefetch(items); err != nil {
					b.Fatal(err)
				}
				w.Lock()
				err := w.Apply(items)
				w.Unlock()
				if err != nil {
					b.Fatal(err)
				}
			}
			for i := range 3 * records {
				do(commits[i%records])
			}
			b.ReportAllocs()
			b.ResetTimer()
			before := cpuNanos(b)
			for i := range b.N {
				do(commits[i%records])
			}
			b.StopTimer()
			b.ReportMetric(float64(cpuNanos(b)-before)/float64(b.N)/float64(objects), "cpu-ns/object")
			b.ReportMetric(float64(size), "B/profile")
			b.ReportMetric(float64(w.arena.Used)/users, "B/block")
		})
	}
}

// postpone sets the time of all events and purchases in a record to at.
func postpone(c *Commit, at int64) {
	for rest := c.Rec.Ops; len(rest) > 0; {
		var o op.Op
		if o, rest = op.Next(rest); o.Kind() != op.Attributes {
			binary.LittleEndian.PutUint64(o.Body(), uint64(at)) // both bodies begin with the time
		}
	}
}

// cpuNanos is the CPU time of the process, without other work on the machine.
func cpuNanos(b *testing.B) int64 {
	var u unix.Rusage
	require.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u.Utime.Nano() + u.Stime.Nano()
}

const benchNow = int64(1_793_000_000_000)

// benchWorker is a worker that has partition 0 and all of its entries.
func benchWorker(b testing.TB) *Worker {
	m := New(Options{Count: 1, Workers: 1, MemoryBytes: 8 << 30, Addressable: 48 << 30, Limits: *profile.DefaultLimits()})
	b.Cleanup(m.Free)
	m.workers[0].parts[0].complete = true
	m.workers[0].complete.Store(true)
	return m.workers[0]
}

func benchNumber(user int) uint64 { return uint64(user)*0x9E3779B97F4A7C15>>8 | 1 }

// fill makes the users and returns the size of their profiles. The users share a few contents, since making one for
// each would take long.
func fill(b testing.TB, w *Worker, shape *benchShape, users int) (size int) {
	rng := rand.New(rand.NewPCG(3, 4))
	var made [64][]byte
	for i := range made {
		blob := profile.New(nil, 3, op.ExternalID, benchKey(i), benchNow)
		at := benchNow - 1_000_000_000
		c := shape.record(b, rng, shape.ops, 1, &at)
		for rest := c.Rec.Ops; len(rest) > 0; {
			var o op.Op
			o, rest = op.Next(rest)
			out, _ := w.ed.Apply(blob, o, &c.Rec, &w.m.limits)
			blob = slices.Clone(out)
		}
		made[i] = blob
		size += len(blob)
	}
	for i := range users {
		blob := slices.Clone(made[i%len(made)])
		copy(blob[profile.HeaderBytes:], benchKey(i))
		_, err := w.insert(w.parts[0], benchNumber(i), blob)
		require.NoError(b, err)
	}
	return size / len(made)
}

func benchKey(user int) []byte { return fmt.Appendf(nil, "user-%09d", user) }

// record makes a record of n objects, a third of each kind, 1 ms apart.
func (x *benchShape) record(b testing.TB, rng *rand.Rand, n, users int, at *int64) *Commit {
	var build op.Builder
	build.Reset(0)
	for i := range n {
		*at++
		user := rng.IntN(users)
		start := build.Begin()
		kind := []op.Kind{op.Attributes, op.Event, op.Purchase}[i%3]
		switch kind {
		case op.Attributes:
			first := rng.IntN(x.attributes)
			for j := range 4 {
				name := fmt.Appendf(nil, "attribute_%d", (first+j)%x.attributes)
				build.Buf = append(build.Buf, byte(0x80|(build.Intern(name)+op.ReservedCodes)&0x7f), byte((build.Intern(name)+op.ReservedCodes)>>7))
				build.Buf = op.AppendInt(build.Buf, rng.Int64N(60))
			}
		case op.Event:
			from := len(build.Buf)
			build.Buf = op.AppendEventBody(build.Buf)
			op.PutEvent(build.Buf[from:], *at, build.Intern(fmt.Appendf(nil, "Product %d Viewed", rng.IntN(x.events))), 0)
		case op.Purchase:
			from := len(build.Buf)
			build.Buf = op.AppendPurchaseBody(build.Buf)
			product := build.Intern(fmt.Appendf(nil, "sku-%d", 10000+rng.IntN(x.products)))
			op.PutPurchase(build.Buf[from:], *at, 1999, 1999, uint32(1+rng.IntN(3)), product, 0, [3]byte([]byte([]string{"USD", "USD", "EUR"}[rng.IntN(3)])))
		}
		key := benchKey(user)
		build.Buf = append(build.Buf, key...)
		build.End(start, kind, op.MakeFlags(0, op.ExternalID), len(key), benchNumber(user))
	}
	rec, err := op.ParseRecord(build.Finish(3, 1, *at*1000), nil)
	require.NoError(b, err)
	return &Commit{Rec: rec}
}
