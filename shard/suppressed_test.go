package shard

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testsize"
	"millrace/shard/books"
	"millrace/shard/identity"
	"millrace/shard/lookup"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/shard/store"
)

// suppressed reads a whole list, in pages.
func suppressed(t testing.TB, e *Engine, workspace uint32, q SuppressionQuery) (all []SuppressedAddress) {
	t.Helper()
	for {
		list, err := e.Suppressed(workspace, q)
		require.NoError(t, err)
		require.LessOrEqual(t, len(list), q.Most)
		all = append(all, list...)
		if len(list) < q.Most {
			return all
		}
		if q.Skip%2 == 0 { // the two ways of going on
			q.Skip += len(list)
		} else {
			q.After, q.Skip = list[len(list)-1].Place, 0
		}
	}
}

func emailsOf(list []SuppressedAddress) (emails []string) {
	for _, a := range list {
		emails = append(emails, a.Email)
	}
	return emails
}

// The lists are read by workspace, by time, in both directions, and in pages, also when they are longer than what is
// read at once. They are right when users come and go, when a state is taken back or set again, and after a start.
func TestSuppressed(t *testing.T) {
	testsize.SkipSerial(t)
	fs := vfs.NewMem()
	e := openTest(t, testOptions(fs))
	on, off := profile.State{Kind: profile.StateBounce, On: true}, profile.State{Kind: profile.StateBounce}
	bounces := SuppressionQuery{Kind: profile.StateBounce, Until: math.MaxInt64, Most: 10}
	unsubscribes := SuppressionQuery{Kind: profile.StateEmail, Until: math.MaxInt64, Most: 2, Down: true}
	track(t, e, "ann", attrField(op.AttrEmail, "ann@example.com"))
	track(t, e, "bob", attrField(op.AttrEmail, "bob@example.com"), attrField(op.AttrEmailSubscribe, "unsubscribed"))
	setAddress(t, e, op.Email, "Ann@example.com", on, email("unsubscribed"))
	setAddress(t, e, op.Email, "lifted@example.com", on, email("unsubscribed"))
	setAddress(t, e, op.Email, "lifted@example.com", off, email("opted_in"))
	setAddress(t, e, op.Email, "never@example.com", off, email("subscribed"))
	setAddress(t, e, op.Email, "cy@example.com", email("unsubscribed"))
	b := e.NewBatch(2, 9)
	b.SetAddressStates(op.Email, []byte("two@example.com"), on)
	require.NoError(t, b.Commit())
	b.Release()
	commitAs(t, e, op.SourceServer, func(b *Batch) { b.Delete(first(e.Find(1, op.ExternalID, []byte("ann")))[0].Number) })
	setAddress(t, e, op.Email, "bob@example.com", email("unsubscribed"))
	for range 3 {
		one := suppressed(t, e, 1, bounces)
		require.Len(t, one, 1)
		a := one[0]
		require.Equal(t, SuppressedAddress{Email: "ann@example.com", Since: a.Since, Actor: 7, Source: op.SourceEmailStatus, Place: a.Place}, a)
		require.Positive(t, a.Since)
		require.Len(t, suppressed(t, e, 2, bounces), 1)
		require.Empty(t, suppressed(t, e, 3, bounces))
		all := suppressed(t, e, 1, unsubscribes)
		require.Equal(t, []string{"bob@example.com", "cy@example.com", "ann@example.com"}, emailsOf(all))
		q := unsubscribes
		q.From, q.Until = all[1].Since, all[0].Since // the latter is left out
		require.Equal(t, all[1:2], suppressed(t, e, 1, q))
		q.Down, q.From = false, 0
		require.Equal(t, []SuppressedAddress{all[2], all[1]}, suppressed(t, e, 1, q))
		require.NoError(t, e.Close())
		e = openTest(t, testOptions(fs))
	}
	setAddress(t, e, op.Email, "ann@example.com", off)
	require.Empty(t, suppressed(t, e, 1, bounces))
	require.NoError(t, e.Checkpoint())
	rows := 0
	for i := range identity.Partitions {
		lower, upper := store.AppendBookKey(nil, uint8(i), store.BookSuppressed), store.AppendBookKey(nil, uint8(i), store.BookSuppressed+1)
		require.NoError(t, e.Store().Scan(lower, upper, func(_, _ []byte) error { rows++; return nil }))
	}
	require.Equal(t, 4, rows, "what was taken back or set anew leaves the index")
}

// A list may be much longer than the pages that are read of it, and have many entries of one time.
func TestLongSuppressionList(t *testing.T) {
	testsize.SkipSerial(t)
	e := openTest(t, testOptions(vfs.NewMem()))
	many := testsize.Short(40_000, 8_000)
	for i := 0; i < many; {
		commitAs(t, e, op.SourceEmailBlocklist, func(b *Batch) {
			for range 1000 {
				b.SetAddressStates(op.Email, fmt.Append(nil, "m", i, "@example.com"), profile.State{Kind: profile.StateBounce, On: true})
				i++
			}
		})
		if i == many/2 {
			require.NoError(t, e.Checkpoint())
		}
	}
	for _, down := range []bool{false, true} {
		q := SuppressionQuery{Kind: profile.StateBounce, Until: math.MaxInt64, Most: 777, Down: down}
		all := suppressed(t, e, 1, q)
		require.Len(t, all, many)
		require.True(t, slices.IsSortedFunc(all, func(a, b SuppressedAddress) int {
			if down {
				a, b = b, a
			}
			return a.Place.Compare(b.Place)
		}))
		q.Skip = many - 5
		require.Equal(t, all[many-5:], suppressed(t, e, 1, q))
		q.Skip = many
		require.Empty(t, suppressed(t, e, 1, q))
		q.Skip = math.MaxInt
		require.Empty(t, suppressed(t, e, 1, q))
	}
}

// requireSuppressed compares both lists with the rows of all addresses.
func requireSuppressed(t testing.TB, e *Engine, r *rand.Rand, emails []string, what string) {
	t.Helper()
	for _, kind := range []profile.StateKind{profile.StateBounce, profile.StateEmail} {
		want := map[string]profile.StateChange{}
		for _, email := range emails {
			require.NoError(t, e.ViewAddress(1, op.Email, []byte(email), func(row []byte) {
				if c, _ := profile.StateOf(row, profile.State{Kind: kind}); c.Suppresses() {
					want[email] = c
				}
			}))
		}
		all := suppressed(t, e, 1, SuppressionQuery{Kind: kind, Until: math.MaxInt64, Down: r.IntN(2) == 0, Most: 1 + r.IntN(5)})
		require.Len(t, all, len(want), "%s: %v", what, all)
		for _, a := range all {
			c := want[a.Email]
			require.Equal(t, SuppressedAddress{Email: a.Email, Since: c.Changed, Actor: c.Actor, Source: c.Source, Place: a.Place}, a, what)
		}
	}
}

// changing is the Nodes of a reader that reads a node from elsewhere; between its look at a list and its looks at rows
// something changes.
type changing struct {
	alone
	change func()
}

func (n changing) Local(uint8) *replica.Replica        { return nil }
func (n changing) Entry(number uint64) ([]byte, error) { return n.c.sole.Entry(number) }

func (n changing) SuppressedPage(
	partition uint8, q books.SuppressedQuery,
) (page []books.Suppression, next books.Suppression, err error) {
	page, next, err = n.c.sole.SuppressedPage(partition, q)
	if len(page) > 0 {
		n.change()
	}
	return page, next, err
}

// An address that is set again while a list is read is on it, once; one that leaves the list meanwhile isn't.
func TestSuppressedMeanwhile(t *testing.T) {
	testsize.SkipSerial(t)
	e := openTest(t, testOptions(vfs.NewMem()))
	setAddress(t, e, op.Email, "ann@example.com", email("unsubscribed"))
	all := SuppressionQuery{Kind: profile.StateEmail, Until: math.MaxInt64, Most: 3}
	for _, down := range []bool{false, true} {
		for state, want := range map[string][]string{"unsubscribed": {"ann@example.com"}, "subscribed": nil} {
			setAddress(t, e, op.Email, "ann@example.com", email("unsubscribed"))
			nodes := changing{alone{e.Coordinator}, func() { setAddress(t, e, op.Email, "ann@example.com", email(state)) }}
			r := lookup.NewReader(lookup.Options{Nodes: nodes, Hasher: e.hasher})
			q := all
			q.Down = down
			list, err := r.Suppressed(1, q)
			require.NoError(t, err)
			require.Equal(t, want, emailsOf(list), "%s", state)
		}
	}
}
