package profile

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/op"
)

func merge(t testing.TB, keep, gone []byte, mode MergeMode) []byte {
	t.Helper()
	var e Editor
	keepBefore, goneBefore := slices.Clone(keep), slices.Clone(gone)
	out := slices.Clone(e.Merge(keep, gone, mode, testStamp+1, nil))
	require.NoError(t, Check(out))
	require.Equal(t, keepBefore, keep, "inputs are only read")
	require.Equal(t, goneBefore, gone)
	again := e.Merge(keep, gone, mode, testStamp+1, nil)
	require.Equal(t, out, again)
	for _, spare := range []int{unindexed, unindexed + len(gone), 8 * unindexed} { // in place, and outgrowing it
		h := house(keep, spare)
		h.inHand(0, func(e *Editor, b []byte) []byte {
			require.True(t, e.index.on)
			return e.Merge(b, gone, mode, testStamp+1, nil)
		})
		require.Equal(t, out, h.blob(), "what is merged field by field")
		h.checkIndex(t, []byte("nobody's"))
	}
	return out
}

// Attributes are taken from the merged user only when the kept one has no value (service.md 4.2).
func TestMergeAttributesWhereMissing(t *testing.T) {
	for _, code := range []int{op.AttrFirstName, op.AttrLastName, op.AttrGender, op.AttrDateOfBirth, op.AttrPhone, op.AttrTimeZone,
		op.AttrHomeCity, op.AttrCountry, op.AttrLanguage, op.AttrImageURL} {
		mine, theirs := set(t, user("k"), 0, code, "mine"), set(t, user("g"), 0, code, "theirs")
		require.Equal(t, `"mine"`, attr(t, merge(t, mine, theirs, MergeUsers), uint32(code)))
		require.Equal(t, `"theirs"`, attr(t, merge(t, user("k"), theirs, MergeUsers), uint32(code)))
		require.Equal(t, `"mine"`, attr(t, merge(t, mine, user("g"), MergeUsers), uint32(code)))
		require.Equal(t, ``, attr(t, merge(t, user("k"), theirs, MergeNone), uint32(code)))
	}
	keep := set(t, user("k"), 0, "both", "mine", "mine", 1)
	gone := set(t, user("g"), 0, "theirs", []any{1}, "both", 5)
	b := merge(t, keep, gone, MergeUsers)
	require.Equal(t, []string{`"mine"`, `1`, `[1]`}, []string{custom(t, b, "both"), custom(t, b, "mine"), custom(t, b, "theirs")})
	b = merge(t, keep, gone, MergeNone)
	require.Equal(t, ``, custom(t, b, "theirs"))
}

func TestMergeKeepsWhoItIs(t *testing.T) {
	keep, gone := New(nil, 3, op.Email, []byte("k@x.co"), 10), New(nil, 3, op.ExternalID, []byte("g"), 5)
	b := merge(t, keep, gone, MergeUsers)
	id, key := HomeID(b)
	require.Equal(t, []any{op.Email, "k@x.co", int64(10), testStamp + 1}, []any{id, string(key), Created(b), Updated(b)})
	require.Nil(t, ExternalID(b), "the merged user's external id is free again")
	var e Editor
	gone = slices.Clone(e.SetExternalID(New(nil, 3, op.Phone, []byte("+49"), 5), []byte("x")))
	gone = slices.Clone(e.SetExternalID(gone, []byte("y")))
	b = merge(t, keep, gone, MergeUsers)
	require.Nil(t, ExternalID(b))
	require.False(t, IsNamed(b, op.ExternalID, []byte("x")), "a deprecated one too")
}

// The kept profile gets the places in the log of the events of a merged profile, and of the profiles that were merged
// into that one before.
func TestMergeFormers(t *testing.T) {
	var e Editor
	keep := slices.Clone(e.AddFormer(user("k"), Former{1, 2, Place{}, Place{3, 4}, 0}))
	gone := slices.Clone(e.AddFormer(new(Editor).SetBorn(user("g"), Place{9, 9}), Former{5, 6, Place{7, 8}, Place{9, 10}, 0}))
	gone = slices.Clone(e.AddFormer(gone, Former{0, 11, Place{}, Place{12, 0}, 0}))
	for _, mode := range []MergeMode{MergeUsers, MergeIdentify, MergeNone} {
		b := merge(t, keep, gone, mode)
		var all []Former
		Formers(b, func(f Former) { all = append(all, f) })
		require.Equal(t, []Former{{1, 2, Place{}, Place{3, 4}, 0}, {5, 6, Place{7, 8}, Place{9, 10}, 0}, {0, 11, Place{}, Place{12, 0}, 0}}, all)
		var merged [][2]uint64
		Merged(b, func(number, home uint64) { merged = append(merged, [2]uint64{number, home}) })
		require.Equal(t, [][2]uint64{{1, 2}, {5, 6}}, merged)
		_, ok := Born(b)
		require.False(t, ok, "it is gone's")
	}
}

func TestMergeEmailOnlyWhenIdentifying(t *testing.T) {
	var e Editor
	gone := set(t, user("g"), 0, op.AttrEmail, "G@x.co", op.AttrEmailSubscribe, "unsubscribed", op.AttrEmailOpenTrackingOff, true)
	gone = slices.Clone(e.AddLeave(e.SetJoined(gone, op.Email, 5), op.Email, 6))
	gone = slices.Clone(e.SetAttr(gone, op.AttrMarkedEmailAsSpamAt, op.AppendTime(nil, 6)))
	f := func(keep []byte, mode MergeMode, wantEmail, wantState string, wantSwitches bool) {
		t.Helper()
		b := merge(t, keep, gone, mode)
		require.Equal(t, wantEmail, attr(t, b, op.AttrEmail))
		require.Equal(t, wantState, attr(t, b, op.AttrEmailSubscribe))
		_, spam := SpamMark(b)
		require.False(t, spam, "nor a mark")
		require.Zero(t, Joined(b, op.Email), "the caller's to say")
		require.True(t, find(b, tagLeave).none())
		require.Equal(t, wantSwitches, attr(t, b, op.AttrEmailOpenTrackingOff) == "true")
	}
	f(user("k"), MergeUsers, ``, ``, false)
	f(user("k"), MergeNone, ``, ``, false)
	f(user("k"), MergeIdentify, `"G@x.co"`, ``, true)
	f(set(t, user("k"), 0, op.AttrEmail, "k@x.co"), MergeIdentify, `"k@x.co"`, ``, false)
	f(set(t, user("k"), 0, op.AttrEmailSubscribe, "opted_in"), MergeIdentify, `"G@x.co"`, `"opted_in"`, true)
	_, _, _, ok := ContactState(merge(t, user("k"), gone, MergeIdentify), op.AttrEmailSubscribe)
	require.False(t, ok, "of a merged user no state is taken")
	gone = set(t, user("g"), 0, op.AttrEmailOpenTrackingOff, true)
	f(user("k"), MergeIdentify, ``, ``, false)
}

// service.md 4.2 lists no states, so push_subscribe is the kept user's, with its last change.
func TestMergePushState(t *testing.T) {
	var e Editor
	gone := slices.Clone(e.setContactState(user("g"), op.AttrPushSubscribe, []byte("unsubscribed"), 5, 6, 0))
	mine := slices.Clone(e.setContactState(user("k"), op.AttrPushSubscribe, []byte("opted_in"), 7, 8, 0))
	for _, mode := range []MergeMode{MergeUsers, MergeIdentify, MergeNone} {
		state, changed, actor, _ := ContactState(merge(t, mine, gone, mode), op.AttrPushSubscribe)
		require.Equal(t, []any{"opted_in", int64(7), uint32(8)}, []any{string(state), changed, actor})
		_, _, _, ok := ContactState(merge(t, user("k"), gone, mode), op.AttrPushSubscribe)
		require.False(t, ok, "of a merged user no state is taken")
	}
}

func TestMergeGroups(t *testing.T) {
	var e Editor
	one, two := [16]byte{1}, [16]byte{2}
	keep := slices.Clone(group(&e, user("k"), one, false, 1, 11))
	gone := slices.Clone(group(&e, group(&e, user("g"), one, true, 2, 22), two, true, 3, 33))
	b := merge(t, keep, gone, MergeUsers)
	subscribed, changed, actor, _ := GroupState(b, one)
	require.Equal(t, []any{false, int64(1), uint32(11)}, []any{subscribed, changed, actor})
	_, _, _, ok := GroupState(b, two)
	require.False(t, ok, "of a merged user no state is taken")
}

func TestMergeAliasesAndTokens(t *testing.T) {
	var e Editor
	token := func(token, device string) object {
		return object{{"app_id", "a"}, {"token", token}, {"device_id", device}}
	}
	keep, _ := e.AddAlias(set(t, user("k"), 0, op.AttrPushTokens, []any{token("1", "k1"), token("2", "k2")}), []byte("crm"), []byte("1"))
	keep = slices.Clone(keep)
	gone := set(t, New(nil, 3, op.Alias, op.AppendAliasKey(nil, []byte("crm"), []byte("2")), 1), 0, op.AttrPushTokens, []any{token("3", "g3"), token("2", "g2")})
	gone, _ = e.AddAlias(gone, []byte("web"), []byte("w"))
	gone = slices.Clone(gone)
	for _, mode := range []MergeMode{MergeUsers, MergeIdentify, MergeNone} {
		b := merge(t, keep, gone, mode)
		var all []string
		Aliases(b, func(label, name []byte) { all = append(all, string(label)+"="+string(name)) })
		require.Equal(t, []string{"crm=1", "crm=2", "web=w"}, all)
		require.Equal(t, `[{"app_id":"a","token":"3","device_id":"g3"},{"app_id":"a","token":"1","device_id":"k1"},{"app_id":"a","token":"2","device_id":"k2"}]`, attr(t, b, op.AttrPushTokens))
		require.Equal(t, attr(t, gone, op.AttrPushTokens), attr(t, merge(t, user("x"), gone, mode), op.AttrPushTokens))
	}
}

func TestMergeEvents(t *testing.T) {
	keep := event(t, event(t, event(t, user("k"), "both", noon), "both", noon+2*second), "mine", noon)
	gone := event(t, event(t, event(t, user("g"), "theirs", noon), "both", noon+second), "both", noon-40*day)
	b := merge(t, keep, gone, MergeUsers)
	s, _ := Event(b, []byte("both"))
	require.Equal(t, []any{uint64(4), noon - 40*day, noon + 2*second}, []any{s.Count, s.First, s.Last})
	require.Equal(t, []int64{noon / hour, noon / hour, noon / hour}, occurrences(s))
	_, ok := Event(b, []byte("mine"))
	require.True(t, ok)
	_, ok = Event(b, []byte("theirs"))
	require.True(t, ok)
	b = merge(t, keep, gone, MergeNone)
	s, _ = Event(b, []byte("both"))
	require.EqualValues(t, 2, s.Count)
	_, ok = Event(b, []byte("theirs"))
	require.False(t, ok)
}

// 'X times in Y days' counts what both profiles have had, with X at most 50 and Y at most 30 days before the newest
// (service.md 4.2).
func TestMergeRecent(t *testing.T) {
	keep, gone := user("k"), user("g")
	for i := range int64(40) {
		keep = event(t, buy(t, keep, "sku", noon-2*i*day/4, 1, 1, "USD"), "e", noon-2*i*day/4)
		gone = event(t, buy(t, gone, "sku", noon-(2*i+1)*day/4, 1, 1, "USD"), "e", noon-(2*i+1)*day/4)
	}
	b := merge(t, keep, gone, MergeUsers)
	e, _ := Event(b, []byte("e"))
	p, _ := Product(b, []byte("sku"))
	for _, s := range []Summary{e, p} {
		recent := occurrences(s)
		require.Equal(t, []any{uint64(80), 50}, []any{s.Count, len(recent)})
		require.Equal(t, []int64{(noon - 49*day/4) / hour, noon / hour}, []int64{recent[0], recent[49]}, "the newest of both, in turn")
		require.Equal(t, (noon-5*day)/hour, recent[29], "twenty in five days")
	}
	old := event(t, event(t, user("o"), "e", noon-31*day), "e", noon-29*day)
	e, _ = Event(merge(t, event(t, user("n"), "e", noon), old, MergeUsers), []byte("e"))
	require.Equal(t, []int64{(noon - 29*day) / hour, noon / hour}, occurrences(e))
	require.EqualValues(t, 3, e.Count)
}

func TestMergePurchases(t *testing.T) {
	keep := buy(t, buy(t, user("k"), "sku", noon, 100, 2, "USD"), "mine", noon+day, math.MaxInt64-5, 1, "CHF")
	gone := buy(t, buy(t, buy(t, user("g"), "sku", noon-day, -30, 3, "USD"), "sku", noon, 7, 1, "EUR"), "theirs", noon+2*day, 9, 1, "CHF")
	b := merge(t, keep, gone, MergeUsers)
	s, _ := Product(b, []byte("sku"))
	require.Equal(t, []any{uint64(6), noon - day, noon}, []any{s.Count, s.First, s.Last})
	require.Len(t, occurrences(s), 6)
	count, first, last := purchases(b)
	require.Equal(t, []any{uint64(8), noon - day, noon + 2*day}, []any{count, first, last})
	money := map[string]int64{}
	Revenue(b, func(c [3]byte, minor int64) { money[string(c[:])] = minor })
	require.Equal(t, map[string]int64{"USD": 70, "EUR": 7, "CHF": math.MaxInt64}, money)
	count, _, _ = purchases(merge(t, keep, gone, MergeNone))
	require.EqualValues(t, 3, count)
}

func TestMergeSessions(t *testing.T) {
	f := func(line string) []byte {
		t.Helper()
		var im Importer
		b, err := im.Import(nil, 3, []byte(line), testStamp, ImportOptions{})
		require.NoError(t, err)
		return b
	}
	keep := f(`{"external_id":"k","date_of_first_session":"2024-02-01T00:00:00Z","date_of_last_session":"2024-03-01T00:00:00Z","apps":[
		{"app_id":"ios","sessions":3,"first":"2024-02-01T00:00:00Z","last":"2024-03-01T00:00:00Z"},{"app_id":"web","sessions":1,"first":"2024-02-01T00:00:00Z","last":"2024-02-01T00:00:00Z"}]}`)
	gone := f(`{"external_id":"g","date_of_first_session":"2024-01-01T00:00:00Z","date_of_last_session":"2024-02-15T00:00:00Z","apps":[
		{"app_id":"tv","sessions":5,"first":"2024-02-01T00:00:00Z","last":"2024-02-15T00:00:00Z"},{"app_id":"ios","sessions":4,"first":"2024-01-01T00:00:00Z","last":"2024-01-03T00:00:00Z"}]}`)
	b := merge(t, keep, gone, MergeUsers)
	require.JSONEq(t, `{"apps":[{"app_id":"ios","sessions":7,"first":"2024-01-01T00:00:00.000Z","last":"2024-03-01T00:00:00.000Z"},
		{"app_id":"web","sessions":1,"first":"2024-02-01T00:00:00.000Z","last":"2024-02-01T00:00:00.000Z"}],"session_count":13,
		"date_of_first_session":"2024-01-01T00:00:00.000Z","date_of_last_session":"2024-03-01T00:00:00.000Z"}`,
		string(AppendJSON(nil, b, exported(t, "apps", "session_count", "date_of_first_session", "date_of_last_session"), Export{})))
	require.EqualValues(t, 9, Sessions(merge(t, user("x"), gone, MergeUsers)))
	require.Equal(t, `"2024-01-01T00:00:00.000Z"`, attr(t, merge(t, gone, keep, MergeUsers), op.AttrDateOfFirstSession))
	require.Equal(t, `"2024-03-01T00:00:00.000Z"`, attr(t, merge(t, gone, keep, MergeUsers), op.AttrDateOfLastSession))
}

func exported(t testing.TB, names ...string) Fields {
	t.Helper()
	var f Fields
	for _, name := range names {
		var ok bool
		f, ok = f.AddField([]byte(name))
		require.True(t, ok, name)
	}
	return f
}

func TestMergeBlocks(t *testing.T) {
	var e Editor
	lim := DefaultLimits()
	lim.MaxEventNames = 2
	keep, gone := event(t, event(t, user("k"), "1", noon), "2", noon), event(t, event(t, user("g"), "2", noon), "1", noon)
	require.False(t, Blocked(e.Merge(keep, gone, MergeUsers, 1, lim)))
	require.True(t, Blocked(e.Merge(keep, event(t, gone, "3", noon), MergeUsers, 1, lim)))
	blocked := slices.Clone(e.block(user("b")))
	require.True(t, Blocked(merge(t, blocked, gone, MergeUsers)))
	require.True(t, Blocked(merge(t, keep, blocked, MergeUsers)))
	require.False(t, Blocked(merge(t, keep, blocked, MergeNone)))
	require.True(t, Blocked(merge(t, blocked, blocked, MergeUsers)))
}

// The totals of three random profiles are the same whoever is merged into whom. No counts, revenue, sessions or aliases
// are lost.
func TestMergeConserves(t *testing.T) {
	rng := testseed.Rand(t)
	for range 60 {
		profiles := make([][]byte, 3)
		var total totals
		for i := range profiles {
			profiles[i] = randomProfile(t, rng, i)
			total.add(t, profiles[i])
		}
		a, b, c := profiles[0], profiles[1], profiles[2]
		left := merge(t, merge(t, a, b, MergeUsers), c, MergeUsers)
		right := merge(t, a, merge(t, b, c, MergeUsers), MergeUsers)
		other := merge(t, c, merge(t, b, a, MergeIdentify), MergeUsers)
		var want totals
		want.add(t, left)
		for _, m := range [][]byte{right, other} {
			var got totals
			got.add(t, m)
			require.Equal(t, want, got)
		}
		require.Equal(t, total.sums(), want.sums())
	}
}

type totals struct {
	events, products map[string]Summary
	recent           map[string][]int64
	money            map[string]int64
	sessions         uint64
	aliases          map[string]bool
}

func (x *totals) add(t testing.TB, b []byte) {
	t.Helper()
	if x.money == nil {
		*x = totals{map[string]Summary{}, map[string]Summary{}, map[string][]int64{}, map[string]int64{}, 0, map[string]bool{}}
	}
	collect := func(m map[string]Summary, kind string) func([]byte, Summary) {
		return func(name []byte, s Summary) {
			x.recent[kind+string(name)] = occurrences(s)
			s.recent = nil
			s.Count += m[string(name)].Count
			m[string(name)] = s
		}
	}
	Events(b, collect(x.events, "e"))
	Products(b, collect(x.products, "p"))
	Revenue(b, func(c [3]byte, minor int64) { x.money[string(c[:])] += minor })
	x.sessions += Sessions(b)
	Aliases(b, func(label, name []byte) { x.aliases[string(label)+"="+string(name)] = true })
}

// sums are the totals for which adding up three profiles gives the same as merging them.
func (x *totals) sums() any {
	counts := map[string]uint64{}
	for name, s := range x.events {
		counts["e"+name] = s.Count
	}
	for name, s := range x.products {
		counts["p"+name] = s.Count
	}
	return []any{counts, x.money, x.sessions, x.aliases}
}

func randomProfile(t testing.TB, rng *rand.Rand, i int) []byte {
	t.Helper()
	var e Editor
	b := user(fmt.Sprint("u", i))
	for range rng.IntN(150) {
		at := noon + rng.Int64N(60)*day + rng.Int64N(1000)*second
		switch rng.IntN(8) {
		case 0:
			b = buy(t, b, fmt.Sprint("p", rng.IntN(3)), at, rng.Int64N(10000)-2000, uint32(1+rng.IntN(5)), []string{"USD", "EUR", "JPY"}[rng.IntN(3)])
		case 1:
			alias, _ := e.AddAlias(b, []byte(fmt.Sprint("l", rng.IntN(3))), []byte(fmt.Sprint("n", i, rng.IntN(3))))
			b = slices.Clone(alias)
		case 2:
			b = slices.Clone(e.setSessions(b, Sessions(b)+uint64(rng.IntN(5))))
		default:
			b = event(t, b, fmt.Sprint("e", rng.IntN(3)), at)
		}
	}
	return b
}

func TestMergeOfManyIsNotQuadratic(t *testing.T) {
	var e Editor
	keep, gone := user("k"), user("g")
	build := func(b []byte, prefix string) []byte {
		for i := range 20_000 {
			b = appendSummary(b, tagEvent, fmt.Appendf(nil, "%s-%d", prefix, i), Summary{1, noon, noon, firstAndLast(1, noon, noon)})
		}
		return b
	}
	keep, gone = build(keep, "k"), build(gone, "g")
	start := time.Now()
	out := e.Merge(keep, gone, MergeUsers, 1, nil)
	t.Logf("20,000 + 20,000 names: %v", time.Since(start))
	require.True(t, Blocked(out))
	require.NoError(t, Check(out))
}
