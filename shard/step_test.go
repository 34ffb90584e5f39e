package shard

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testengine"
	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// stepper lets a log become durable record by record. Syncs of records beyond limit wait.
type stepper struct {
	e     atomic.Pointer[Engine]
	limit atomic.Uint64
}

func (s *stepper) String() string { return "step by step" }

func (s *stepper) MaybeError(o errorfs.Op) error {
	switch o.Kind {
	case errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo:
	default:
		return nil
	}
	for e := s.e.Load(); e != nil && strings.Contains(o.Path, "/log/") && e.Log().DurablePosition() >= s.limit.Load(); {
		time.Sleep(20 * time.Microsecond)
	}
	return nil
}

// stepped is an engine on a disk of its own whose log a test steps through.
type stepped struct {
	*Engine
	*stepper
	fs *vfs.MemFS
}

func openStepped(t *testing.T, fill func(t *testing.T, e *Engine), change ...func(o *Options)) *stepped {
	t.Helper()
	x := &stepped{stepper: &stepper{}, fs: vfs.NewCrashableMem()}
	x.limit.Store(math.MaxUint64)
	o := testOptions(errorfs.Wrap(x.fs, x.stepper))
	o.Log.MaxRecycled = -1
	for _, c := range change {
		c(&o)
	}
	e, err := openEngine(o)
	require.NoError(t, err)
	x.Engine = e
	t.Cleanup(func() { x.limit.Store(math.MaxUint64); e.Close() })
	fill(t, e)
	settle(t, e)
	x.e.Store(e)
	x.limit.Store(e.Log().DurablePosition())
	return x
}

// begin commits a request and returns when the log has taken it.
func (x *stepped) begin(t *testing.T, do func(t *testing.T, e *Engine)) (done chan struct{}) {
	done = make(chan struct{})
	before := x.Log().LastPosition()
	go func() {
		defer close(done)
		do(t, x.Engine)
	}()
	for x.Log().LastPosition() == before {
		select {
		case <-done: // the request has found nothing to do
			return done
		default:
			time.Sleep(20 * time.Microsecond)
		}
	}
	return done
}

// waiting says whether a record waits to become durable. It returns false when nothing is under way.
func (x *stepped) waiting() bool {
	for {
		durable, last := x.Log().DurablePosition(), x.Log().LastPosition()
		if last > durable {
			return true
		}
		if x.AppliedPosition() == durable && x.Stats().Outbox == 0 && x.Stats().Deferred == 0 && x.Log().LastPosition() == last {
			return false
		}
		time.Sleep(20 * time.Microsecond)
	}
}

// step makes the waiting records durable and waits until they are applied.
func (x *stepped) step() {
	to := x.Log().LastPosition()
	x.limit.Store(to)
	for x.AppliedPosition() < to {
		time.Sleep(20 * time.Microsecond)
	}
}

// playedRequest is a request of a client, as a test plays it.
type playedRequest struct {
	name string
	do   func(t *testing.T, e *Engine)
}

// play commits a batch and waits for it.
func play(name string, fill func(t *testing.T, e *Engine, b *Batch)) playedRequest {
	return playedRequest{name, func(t *testing.T, e *Engine) {
		b := e.NewBatch(1, 0)
		defer b.Release()
		fill(t, e, b)
		if err := b.Commit(); err != nil {
			t.Error(err)
		}
	}}
}

// stage makes the users of the stage. ada, bob and eve are identified, al is alias-only. All have something of each
// kind.
func stage(t *testing.T, e *Engine) {
	require.NoError(t, e.beginRenames(1)) // the first rename of a workspace has a record more
	b := e.NewBatch(1, 0)
	for i, name := range []string{"ada", "bob", "eve"} {
		addEvent(b, op.ExternalID, name, "made", 0)
		fields := [][]byte{attrField(op.AttrPhone, fmt.Sprint("+49", i)), attrField(op.AttrFirstName, name)}
		if name != "bob" {
			fields = append(fields, attrField(op.AttrEmail, name+"@example.com"), attrField(op.AttrEmailSubscribe, "opted_in"))
		}
		addAttributes(b, op.ExternalID, name, op.Contact, fields...)
	}
	addEvent(b, op.Alias, aliasKey("l", "al"), "made", 0)
	addAttributes(b, op.Alias, aliasKey("l", "al"), op.Contact, attrField(op.AttrEmail, "al@example.com"), attrField(op.AttrLastName, "Al"))
	require.NoError(t, b.Commit())
	b.Release()
	b = e.NewBatch(1, 0)
	for _, name := range []string{"ada", "bob", "eve"} {
		b.AddAlias(numberOf(t, e, op.ExternalID, name), []byte("crm"), []byte(name))
	}
	require.NoError(t, b.Commit())
	b.Release()
	// Which of two users has the smaller number decides who waits for whom. Numbers are hashes, so this differs from
	// run to run.
}

// cast are the numbers of the users on the stage, taken before anything happens.
type cast struct{ ada, bob, eve, al uint64 }

func castOf(t *testing.T, e *Engine) cast {
	return cast{numberOf(t, e, op.ExternalID, "ada"), numberOf(t, e, op.ExternalID, "bob"), numberOf(t, e, op.ExternalID, "eve"), numberOf(t, e, op.Alias, aliasKey("l", "al"))}
}

// deeds are the requests that happen, two at a time.
func deeds(c cast) []playedRequest {
	f := func(name string, fill func(b *Batch)) playedRequest {
		return play(name, func(_ *testing.T, _ *Engine, b *Batch) { fill(b) })
	}
	l, crm := []byte("l"), []byte("crm")
	return []playedRequest{
		f("merge ada into bob", func(b *Batch) { b.Merge(c.ada, c.bob) }),
		f("merge bob into ada", func(b *Batch) { b.Merge(c.bob, c.ada) }),
		f("merge bob into eve", func(b *Batch) { b.Merge(c.bob, c.eve) }),
		f("merge ada into eve", func(b *Batch) { b.Merge(c.ada, c.eve) }),
		f("merge eve into ada", func(b *Batch) { b.Merge(c.eve, c.ada) }),
		f("merge al into ada", func(b *Batch) { b.Merge(c.al, c.ada) }),
		f("identify al as bob", func(b *Batch) { b.Identify(c.al, []byte("bob"), profile.MergeIdentify) }),
		f("identify al as bob, data orphaned", func(b *Batch) { b.Identify(c.al, []byte("bob"), profile.MergeNone) }),
		f("identify al as new", func(b *Batch) { b.Identify(c.al, []byte("new"), profile.MergeIdentify) }),
		f("identify al as ada", func(b *Batch) { b.Identify(c.al, []byte("ada"), profile.MergeIdentify) }),
		f("rename ada new", func(b *Batch) { b.RenameExternalID(c.ada, []byte("ada"), []byte("new")) }),
		f("rename bob new", func(b *Batch) { b.RenameExternalID(c.bob, []byte("bob"), []byte("new")) }),
		f("remove the id ada", func(b *Batch) { b.RemoveExternalID(c.ada, []byte("ada")) }),
		f("delete ada", func(b *Batch) { b.Delete(c.ada) }),
		f("delete bob", func(b *Batch) { b.Delete(c.bob) }),
		f("delete al", func(b *Batch) { b.Delete(c.al) }),
		f("alias x for ada", func(b *Batch) { b.AddAlias(c.ada, l, []byte("x")) }),
		f("alias x for bob", func(b *Batch) { b.AddAlias(c.bob, l, []byte("x")) }),
		f("alias crm y for ada", func(b *Batch) { b.AddAlias(c.ada, crm, []byte("y")) }),
		f("alias x for nobody", func(b *Batch) { b.AddAlias(0, l, []byte("x")) }),
		f("alias crm ada is x", func(b *Batch) { b.RenameAlias(c.ada, crm, []byte("ada"), []byte("x")) }),
		f("alias crm x is ada", func(b *Batch) { b.RenameAlias(c.ada, crm, []byte("x"), []byte("ada")) }),
		f("rename ada back", func(b *Batch) { b.RenameExternalID(c.ada, []byte("new"), []byte("ada")) }),
		f("remove the id new", func(b *Batch) { b.RemoveExternalID(c.ada, []byte("new")) }),
		f("alias l al is x", func(b *Batch) { b.RenameAlias(c.al, l, []byte("al"), []byte("x")) }),
		f("track ada", func(b *Batch) { addEvent(b, op.ExternalID, "ada", "t", 0) }),
		f("track bob", func(b *Batch) { addEvent(b, op.ExternalID, "bob", "t", 0) }),
		f("track new", func(b *Batch) { addEvent(b, op.ExternalID, "new", "t", 0) }),
		f("track ada by number", func(b *Batch) { eventNumber(b, c.ada, "t") }),
		f("track alias crm ada", func(b *Batch) { addEvent(b, op.Alias, aliasKey("crm", "ada"), "t", op.UpdateOnly) }),
		f("track alias x", func(b *Batch) { addEvent(b, op.Alias, aliasKey("l", "x"), "t", 0) }),
		f("track alias al", func(b *Batch) { addEvent(b, op.Alias, aliasKey("l", "al"), "t", 0) }),
		f("track alias crm y", func(b *Batch) { addEvent(b, op.Alias, aliasKey("crm", "y"), "t", 0) }),
		f("track email of ada", func(b *Batch) { addEvent(b, op.Email, "ada@example.com", "t", op.UpdateOnly) }),
		f("track phone of ada", func(b *Batch) { addEvent(b, op.Phone, "+490", "t", op.UpdateOnly) }),
		f("new email for ada", func(b *Batch) {
			addAttributes(b, op.ExternalID, "ada", op.Contact|op.UpdateOnly, attrField(op.AttrEmail, "new@example.com"))
		}),
		f("new email for al", func(b *Batch) {
			attributesNumber(b, c.al, op.Contact|op.UpdateOnly, attrField(op.AttrEmail, "new@example.com"))
		}),
		f("bob gets al's email", func(b *Batch) {
			addAttributes(b, op.ExternalID, "bob", op.Contact|op.UpdateOnly, attrField(op.AttrEmail, "al@example.com"))
		}),
	}
}

// attributesNumber writes the op of an attributes object by svc_id.
func attributesNumber(b *Batch, number uint64, flags op.Flags, fields ...[]byte) bool {
	start := b.Begin()
	for _, f := range fields {
		b.Buf = append(b.Buf, f...)
	}
	return b.EndNumber(start, op.Attributes, flags, number)
}

// seen is a text of everything that can be seen of the users from outside, without numbers.
func seen(t *testing.T, e *Engine) string {
	t.Helper()
	var lines []string
	for _, blob := range checkDirectory(t, e) {
		var aliases, deprecated, events []string
		profile.Aliases(blob, func(label, name []byte) { aliases = append(aliases, string(label)+"="+string(name)) })
		profile.DeprecatedIDs(blob, func(id []byte) { deprecated = append(deprecated, string(id)) })
		profile.Events(blob, func(name []byte, s profile.Summary) { events = append(events, fmt.Sprintf("%s*%d", name, s.Count)) })
		slices.Sort(aliases)
		slices.Sort(deprecated)
		slices.Sort(events)
		line := fmt.Sprintf("%q was %q, aliases %q, events %v", profile.ExternalID(blob), deprecated, aliases, events)
		for _, code := range []uint32{op.AttrFirstName, op.AttrLastName, op.AttrEmail, op.AttrPhone, op.AttrEmailSubscribe} {
			if v, ok := profile.Attr(blob, code); ok {
				line += fmt.Sprintf(", %s %s", op.AttrName(code), v.Bytes())
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// Of two requests, the second comes in at any step of the first. In the end the result is that of one request after the
// other, and the directory agrees with the profiles.
func TestClaimsAndMergesAreSerial(t *testing.T) {
	testsize.SkipSerial(t)
	r := testseed.Rand(t)
	n := len(deeds(cast{}))
	share := testsize.Of(1, 100, 100) // one in so many pairs
	always := map[string]string{      // pairs for which the rules were made
		"merge ada into bob":                "merge bob into ada",
		"merge bob into eve":                "merge ada into bob",
		"merge ada into eve":                "track ada by number",
		"merge bob into ada":                "delete ada",
		"identify al as bob":                "delete bob",
		"identify al as ada":                "remove the id ada",
		"identify al as new":                "merge al into ada",
		"alias crm y for ada":               "track alias crm y",
		"alias x for ada":                   "merge ada into bob",
		"rename ada new":                    "track new",
		"new email for al":                  "identify al as bob",
		"bob gets al's email":               "identify al as bob",
		"alias crm ada is x":                "alias crm x is ada",
		"identify al as bob, data orphaned": "merge bob into eve",
	}
	names := deeds(cast{})
	pairs, runs, most := 0, 0, 0
	for i := range n {
		for k := range n {
			if i == k || r.IntN(share) != 0 && always[names[i].name] != names[k].name {
				continue
			}
			pairs++
			serial := map[string]string{}
			for name, order := range map[string][2]int{"first, second": {i, k}, "second, first": {k, i}} {
				e := openTest(t, testOptions(vfs.NewMem()))
				stage(t, e)
				all := deeds(castOf(t, e))
				for _, which := range order {
					all[which].do(t, e)
					settle(t, e)
				}
				serial[seen(t, e)] = name
				require.NoError(t, e.Close())
			}
			for at := 1; ; at++ {
				got, steps, what := interleave(t, i, k, at)
				runs++
				require.Contains(t, serial, got, "%s, at step %d of %d", what, at, steps)
				if most = max(most, steps); at >= steps {
					break
				}
			}
		}
	}
	t.Logf("%d pairs, %d runs, at most %d steps", pairs, runs, most)
}

// interleave begins deed i, lets deed k come in when deed i waits for step number at, and returns what is seen when
// both have ended.
func interleave(t *testing.T, i, k, at int) (got string, steps int, what string) {
	var all []playedRequest
	x := openStepped(t, func(t *testing.T, e *Engine) {
		stage(t, e)
		all = deeds(castOf(t, e))
	})
	what = fmt.Sprintf("%q (%d), %q (%d)", all[i].name, i, all[k].name, k)
	testengine.Within(t, time.Minute, what, func() {
		first := x.begin(t, all[i].do)
		var second chan struct{}
		for x.waiting() {
			if steps++; steps == at {
				second = x.begin(t, all[k].do)
			}
			x.step()
		}
		if second == nil {
			second = x.begin(t, all[k].do)
			for x.waiting() {
				x.step()
			}
		}
		x.limit.Store(math.MaxUint64)
		<-first
		<-second
	})
	settle(t, x.Engine)
	got = seen(t, x.Engine)
	require.NoError(t, x.Close())
	return got, steps, what
}

// F19: power is lost behind each record of a deed. Afterwards the deed has happened once or not at all, and once if it
// was acknowledged.
func TestFaultCutDeeds(t *testing.T) {
	testsize.SkipSerial(t)
	for i := range deeds(cast{}) {
		var all []playedRequest
		x := openStepped(t, func(t *testing.T, e *Engine) {
			stage(t, e)
			all = deeds(castOf(t, e))
		})
		before := seen(t, x.Engine)
		name := all[i].name
		var images []*vfs.MemFS
		var acked []bool
		testengine.Within(t, time.Minute, name, func() {
			done := x.begin(t, all[i].do)
			cut := func() {
				images = append(images, x.fs.CrashClone(vfs.CrashCloneCfg{}))
				select {
				case <-done:
					acked = append(acked, true)
				default:
					acked = append(acked, false)
				}
			}
			for cut(); x.waiting(); cut() {
				if len(images)%2 == 0 {
					require.NoError(t, x.Checkpoint())
				}
				x.step()
			}
			x.limit.Store(math.MaxUint64)
			<-done
		})
		settle(t, x.Engine)
		after := seen(t, x.Engine)
		require.NoError(t, x.Close())
		for n, image := range images {
			e := openTest(t, testOptions(image))
			settle(t, e)
			got := seen(t, e)
			if n == 0 {
				require.Equal(t, before, got, "%s: nothing of it was durable", name)
			} else {
				require.Equal(t, after, got, "%s: cut behind record %d of %d, acknowledged: %v", name, n, len(images)-1, acked[n])
			}
			require.NoError(t, e.Close())
		}
	}
}
