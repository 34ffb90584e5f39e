package profile

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

func TestNew(t *testing.T) {
	check := func(id op.IDKind, key, wantExport string) {
		t.Helper()
		b := New(nil, 9, id, []byte(key), 1_700_000_000_123_456)
		require.NoError(t, Check(b))
		gotID, gotKey := HomeID(b)
		require.Equal(t, id, gotID)
		require.Equal(t, key, string(gotKey))
		require.EqualValues(t, 9, Workspace(b))
		require.EqualValues(t, 1_700_000_000_123_456, Created(b))
		require.EqualValues(t, 1_700_000_000_123_456, Updated(b))
		require.JSONEq(t, wantExport, export(t, b, Export{}))
	}
	const created = `"created_at":"2023-11-14T22:13:20.123Z","push_subscribe":"subscribed","email_subscribe":"subscribed","total_revenue":0,"revenue_by_currency":{}`
	check(op.ExternalID, "u1", `{"user_aliases":[],`+created+`,"external_id":"u1"}`)
	check(op.Alias, string(op.AppendAliasKey(nil, []byte("l"), []byte("n"))), `{`+created+`,"user_aliases":[{"alias_name":"n","alias_label":"l"}]}`)
	check(op.Email, "a@b.co", `{"user_aliases":[],`+created+`,"email":"a@b.co"}`)
	check(op.Phone, "+4930123", `{"user_aliases":[],`+created+`,"phone":"+4930123"}`)
}

func TestHeaderOfOtherKinds(t *testing.T) {
	b := AppendHeader([]byte("x"), 5, op.Email, []byte("key"), 77, 123)[1:]
	require.Len(t, b, HeaderBytes+3)
	require.EqualValues(t, 5, Kind(b))
	SetUpdated(b, 124)
	require.EqualValues(t, 124, Updated(b))
	require.EqualValues(t, 123, Created(b))
	require.ErrorIs(t, Check(b), ErrInvalid)
}

// Each line has what is there, what comes, and what is there then ("" for nothing).
func TestCustomAttributes(t *testing.T) {
	f := func(before, change any, flags op.Flags, want string) {
		t.Helper()
		b := user("u")
		if before != nil {
			b = set(t, b, 0, "first", "stays", "x", before, "last", 1)
		}
		b = set(t, b, flags, "x", change)
		require.Equal(t, want, custom(t, b, "x"))
		if before != nil {
			require.Equal(t, `"stays"`, custom(t, b, "first"))
			require.Equal(t, `1`, custom(t, b, "last"))
		}
	}
	const merge = op.MergeObjects
	day := time.Date(2024, 2, 29, 12, 0, 0, 5e6, time.UTC)
	abc := []any{"a", "b", "c"}
	pets := []any{object{{"id", 1}, {"n", "rex"}}, object{{"id", 2}, {"n", "tom"}}, object{{"id", 1}, {"n", "ada"}}, "stray"}

	f(nil, 5, 0, `5`)
	f(5, -70000, 0, `-70000`)
	f(5, "five", 0, `"five"`)
	f("five", true, 0, `true`)
	f(1, 2.0, 0, `2.0`)
	f("", day, 0, `"2024-02-29T12:00:00.005Z"`)
	f("x", "", 0, `""`)
	f("x", jsonText(`[[1]]`), 0, `[[1]]`)
	f("x", nil, 0, ``)
	f(nil, nil, 0, ``)

	f(nil, inc(3), 0, `3`)
	f(5, inc(-7), 0, `-2`)
	f(1.5, inc(2), 0, `3.5`)
	f("x", inc(2), 0, `"x"`)
	f(int64(math.MaxInt64), inc(1), 0, `9223372036854775807`)
	f(int64(math.MinInt64), inc(-1), 0, `-9223372036854775808`)
	f(math.MaxFloat64, inc(math.MaxInt64), 0, `1.7976931348623157e+308`)

	f(nil, []any{}, 0, `[]`)
	f(abc, []any{"z"}, 0, `["z"]`)
	f(abc, update{add: []any{"d"}}, 0, `["a","b","c","d"]`)
	f(abc, update{add: []any{"a"}}, 0, `["b","c","a"]`)
	f(abc, update{add: []any{"x", "a", "x"}}, 0, `["b","c","a","x"]`)
	f(abc, update{remove: []any{"b", "q"}}, 0, `["a","c"]`)
	f(abc, update{add: []any{"d", "b"}, remove: []any{"a", "b"}}, 0, `["c","d"]`)
	f(abc, update{remove: abc}, 0, `[]`)
	f([]any{1, 1, 2}, update{add: []any{3}}, 0, `[1,1,2,3]`)
	f([]any{1, 1, 2}, update{add: []any{1}}, 0, `[2,1]`)
	f([]any{1}, update{remove: []any{1.0}}, 0, `[1]`)
	f(nil, update{add: abc}, 0, `["a","b","c"]`)
	f(nil, update{remove: abc}, 0, ``)
	f("text", update{add: abc}, 0, `["a","b","c"]`)
	f("text", update{remove: abc}, 0, `"text"`)

	f(nil, object{{"a", 1}, {"b", nil}}, 0, `{"a":1}`)
	f(object{{"a", 1}, {"b", 2}}, object{{"c", 3}}, 0, `{"c":3}`)
	f(object{{"a", 1}, {"b", 2}}, object{{"c", 3}, {"a", 9}}, merge, `{"a":9,"b":2,"c":3}`)
	f(object{{"a", 1}, {"b", 2}}, object{{"a", nil}, {"z", nil}}, merge, `{"b":2}`)
	f(object{{"o", object{{"p", 1}, {"q", 2}}}, {"r", 3}}, object{{"o", object{{"q", nil}, {"s", object{{"t", nil}, {"u", 1}}}}}}, merge, `{"o":{"p":1,"s":{"u":1}},"r":3}`)
	f(object{{"o", 1}}, object{{"o", object{{"p", nil}}}}, merge, `{"o":{}}`)
	f(object{{"o", object{{"p", 1}}}}, object{{"o", "text"}}, merge, `{"o":"text"}`)
	f("text", object{{"a", 1}}, merge, `{"a":1}`)

	f(pets, edits{{op.EditRemove, "id", 1, nil}}, 0, `[{"id":2,"n":"tom"},"stray"]`)
	f(pets, edits{{op.EditUpdate, "id", 2, object{{"id", 2}, {"age", 4}}}}, 0, `[{"id":1,"n":"rex"},{"id":2,"age":4},{"id":1,"n":"ada"},"stray"]`)
	f(pets, edits{{op.EditUpdate, "id", 1, object{{"age", 4}, {"n", nil}}}}, merge, `[{"id":1,"n":"rex","age":4},{"id":2,"n":"tom"},{"id":1,"n":"ada","age":4},"stray"]`)
	f(pets, edits{{op.EditRemove, "n", "rex", nil}, {op.EditUpdate, "id", 1, object{{"id", 3}}}, {op.EditUpdate, "id", 3, object{{"ok", true}}},
		{op.EditAdd, "", nil, []any{object{{"id", 1}}}}}, merge, `[{"id":2,"n":"tom"},{"id":3,"n":"ada","ok":true},"stray",{"id":1}]`)
	f(pets, edits{{op.EditUpdate, "id", 9, object{{"age", 4}}}, {op.EditRemove, "none", 1, nil}}, merge, `[{"id":1,"n":"rex"},{"id":2,"n":"tom"},{"id":1,"n":"ada"},"stray"]`)
	f(nil, edits{{op.EditAdd, "", nil, []any{object{{"id", 1}, {"z", nil}}}}}, 0, `[{"id":1}]`)
	f(nil, edits{{op.EditRemove, "id", 1, nil}}, 0, ``)
	f("text", edits{{op.EditUpdate, "id", 1, object{{"a", 1}}}}, 0, `"text"`)
	f("text", edits{{op.EditAdd, "", nil, []any{object{{"id", 1}}}}}, 0, `[{"id":1}]`)
}

func TestArraysKeepTheNewest(t *testing.T) {
	numbers := func(from, to int) (list []any) {
		for i := from; i < to; i++ {
			list = append(list, i)
		}
		return list
	}
	text := func(from, to int) string {
		var s []string
		for i := from; i < to; i++ {
			s = append(s, fmt.Sprint(i))
		}
		return "[" + strings.Join(s, ",") + "]"
	}
	b := set(t, user("u"), 0, "x", numbers(0, 40))
	require.Equal(t, text(15, 40), custom(t, b, "x"))
	b = set(t, b, 0, "x", update{add: numbers(40, 43)})
	require.Equal(t, text(18, 43), custom(t, b, "x"))
	// Removals make room before the oldest elements are dropped.
	b = set(t, b, 0, "x", update{add: []any{43}, remove: []any{30}})
	require.Equal(t, strings.Replace(text(18, 44), ",30,", ",", 1), custom(t, b, "x"))
	b = set(t, b, 0, "y", update{add: numbers(0, 1000)})
	require.Equal(t, text(975, 1000), custom(t, b, "y"))
	var objects []any
	for i := range 30 {
		objects = append(objects, object{{"id", i}})
	}
	b = set(t, b, 0, "z", edits{{op.EditAdd, "", nil, objects}})
	require.True(t, strings.HasPrefix(custom(t, b, "z"), `[{"id":5},`))

	var e Editor
	lim := DefaultLimits()
	lim.MaxArray = 2
	o, rec := attrsOp(t, 0, "x", []any{"a", "b", "c"})
	b, _ = apply(t, &e, b, o, rec, lim)
	require.Equal(t, `["b","c"]`, custom(t, b, "x"))
}

func TestValuesStopGrowing(t *testing.T) {
	big := strings.Repeat("x", 60_000)
	b := set(t, user("u"), 0, "o", object{{"a", big}}, "after", 1)
	b = set(t, b, op.MergeObjects, "o", object{{"b", big}})
	require.Len(t, custom(t, b, "o"), len(big)+8, "merging beyond 100 KiB changes nothing")
	b = set(t, b, op.MergeObjects, "o", object{{"b", "small"}})
	require.True(t, strings.HasSuffix(custom(t, b, "o"), `,"b":"small"}`))
	require.Equal(t, `1`, custom(t, b, "after"))
	// The value grows beyond 64 KiB and shrinks again, so the field's header changes its size.
	b = set(t, b, 0, "o", big+big)
	require.Equal(t, `1`, custom(t, b, "after"))
	require.Equal(t, `"`+big+big+`"`, custom(t, b, "o"))
	b = set(t, b, 0, "o", "s")
	require.Equal(t, `1`, custom(t, b, "after"))
	require.Equal(t, `"s"`, custom(t, b, "o"))
}

func TestReservedAttributes(t *testing.T) {
	b := set(t, user("u"), 0, op.AttrFirstName, "Ada", op.AttrCurrentLocation, object{{"longitude", 1.5}, {"latitude", 2.0}}, "first_name", "custom")
	require.Equal(t, `"Ada"`, attr(t, b, op.AttrFirstName))
	require.Equal(t, `"custom"`, custom(t, b, "first_name"))
	b = set(t, b, 0, op.AttrFirstName, "Augusta Ada", op.AttrEmailClickTrackingOff, true)
	require.Equal(t, `"Augusta Ada"`, attr(t, b, op.AttrFirstName))
	require.Equal(t, `{"longitude":1.5,"latitude":2.0}`, attr(t, b, op.AttrCurrentLocation))
	b = set(t, b, 0, op.AttrFirstName, nil, op.AttrCurrentLocation, inc(4))
	require.Equal(t, ``, attr(t, b, op.AttrFirstName))
	require.Equal(t, `{"longitude":1.5,"latitude":2.0}`, attr(t, b, op.AttrCurrentLocation), "operators don't touch reserved attributes")
	require.Equal(t, testStamp, Updated(b))
}

func TestSubscriptionStates(t *testing.T) {
	one, two := [16]byte{1}, [16]byte{2}
	b := set(t, user("u"), 0, op.AttrSubscriptionGroups, []any{string(one[:]), true, string(two[:]), false, "short", true})
	subscribed, changed, actor, ok := GroupState(b, one)
	require.True(t, ok && subscribed)
	require.Equal(t, testStamp, changed)
	require.EqualValues(t, testActor, actor)
	subscribed, _, _, ok = GroupState(b, two)
	require.True(t, ok && !subscribed)
	_, _, _, ok = GroupState(b, [16]byte{3})
	require.False(t, ok)

	var e Editor
	b = e.SetState(b, StateChange{State{Kind: StateGroup, Group: one}, 5, 6, op.SourceStatusSet})
	subscribed, changed, actor, _ = GroupState(b, one)
	require.Equal(t, []any{false, int64(5), uint32(6)}, []any{subscribed, changed, actor})
	n := 0
	Groups(b, func([16]byte, bool, int64, uint32) { n++ })
	require.Equal(t, 2, n)
	b = e.ForgetState(b, State{Kind: StateGroup, Group: one})
	_, _, _, ok = GroupState(b, one)
	require.False(t, ok)

	for _, code := range []uint32{op.AttrEmailSubscribe, op.AttrPushSubscribe} {
		_, _, _, ok := ContactState(b, code)
		require.False(t, ok)
		b = set(t, b, 0, int(code), "unsubscribed")
		state, changed, actor, ok := ContactState(b, code)
		require.True(t, ok)
		require.Equal(t, []any{"unsubscribed", testStamp, uint32(testActor)}, []any{string(state), changed, actor})
		b = e.setContactState(b, code, []byte("opted_in"), 8, 9, 0)
		state, changed, actor, _ = ContactState(b, code)
		require.Equal(t, []any{"opted_in", int64(8), uint32(9)}, []any{string(state), changed, actor})
		b = set(t, b, 0, int(code), nil)
		state, changed, _, ok = ContactState(b, code)
		require.True(t, ok && state == nil, "removing is a change that is remembered")
		require.Equal(t, testStamp, changed)
		if code == op.AttrEmailSubscribe {
			b = e.ForgetState(b, State{Kind: StateEmail})
			_, _, _, ok = ContactState(b, code)
			require.False(t, ok)
		}
	}
	require.NoError(t, Check(b))
}

func TestPushTokens(t *testing.T) {
	token := func(app, token, device string) object {
		return object{{"app_id", app}, {"token", token}, {"device_id", device}}
	}
	b := set(t, user("u"), 0, op.AttrPushTokens, []any{token("a", "1", "d1"), token("a", "2", "d2")})
	b = set(t, b, 0, op.AttrPushTokens, []any{token("a", "1", "d3"), token("b", "2", "d4"), token("b", "2", "d5")})
	require.Equal(t, `[{"app_id":"a","token":"2","device_id":"d2"},{"app_id":"a","token":"1","device_id":"d3"},{"app_id":"b","token":"2","device_id":"d5"}]`, attr(t, b, op.AttrPushTokens))
	var many []any
	for i := range 150 {
		many = append(many, token("a", fmt.Sprint(i), "d"))
	}
	b = set(t, b, 0, op.AttrPushTokens, many)
	v, _ := Attr(b, op.AttrPushTokens)
	require.Equal(t, 100, bytes.Count(v, []byte("device_id")))
	require.Equal(t, ``, attr(t, set(t, b, 0, op.AttrPushTokens, nil), op.AttrPushTokens))
}

// An external id that was renamed leads to the profile until the id is taken away, whether it is the home or not.
func TestExternalIDs(t *testing.T) {
	var e Editor
	f := func(b []byte, current string, deprecated ...string) {
		t.Helper()
		require.NoError(t, Check(b))
		require.Equal(t, current, string(ExternalID(b)))
		require.Equal(t, current != "", Identified(b))
		var old []string
		DeprecatedIDs(b, func(id []byte) { old = append(old, string(id)) })
		require.Equal(t, deprecated, old)
		for _, id := range append(old, current) {
			require.Equal(t, id != "", IsNamed(b, op.ExternalID, []byte(id)), id)
		}
		require.False(t, IsNamed(b, op.ExternalID, []byte("nobody's")))
	}
	id := func(s string) []byte { return []byte(s) }
	for _, room := range []int{0, 1000} {
		b := slices.Grow(user("home"), room)
		f(b, "home")
		b = slices.Clone(e.SetExternalID(b, id("home")))
		f(b, "home")
		b = slices.Clone(e.SetExternalID(b, id("second")))
		f(b, "second", "home")
		b = slices.Clone(e.SetExternalID(b, id("a third id")))
		f(b, "a third id", "home", "second")
		f(e.SetExternalID(slices.Clone(b), id("home")), "home", "second", "a third id")
		f(e.SetExternalID(slices.Clone(b), id("second")), "second", "home", "a third id")
		_, _, ok := e.RemoveDeprecatedID(b, id("a third id"))
		require.False(t, ok, "it is not deprecated")
		_, _, ok = e.RemoveDeprecatedID(b, id("nobody's"))
		require.False(t, ok)
		c, wasHome, ok := e.RemoveDeprecatedID(slices.Clone(b), id("second"))
		require.Equal(t, []bool{false, true}, []bool{wasHome, ok})
		f(c, "a third id", "home")
		c, wasHome, ok = e.RemoveDeprecatedID(slices.Clone(b), id("home"))
		require.Equal(t, []bool{true, true}, []bool{wasHome, ok})
		f(c, "a third id", "second")
		kind, key := HomeID(c)
		require.Equal(t, []any{op.NoID, 0}, []any{kind, len(key)})

		b = slices.Grow(New(nil, 1, op.Email, id("a@b.co"), 1), room)
		f(b, "")
		b = slices.Clone(e.SetExternalID(b, id("first")))
		f(b, "first")
		b = slices.Clone(e.SetExternalID(b, id("x")))
		f(b, "x", "first")
		require.Equal(t, `"a@b.co"`, attr(t, b, op.AttrEmail))
	}
	_, _, ok := e.RemoveDeprecatedID(user("home"), id("home"))
	require.False(t, ok, "the only id is not deprecated")
}

// An imported profile takes over the identity of the profile that it replaces, and the places of its events.
func TestReimport(t *testing.T) {
	var e Editor
	old := new(Editor).SetBorn(New(nil, 1, op.Alias, op.AppendAliasKey(nil, []byte("l"), []byte("n")), 1), Place{7, 8})
	old = slices.Clone(e.SetExternalID(e.SetExternalID(old, []byte("first")), []byte("second")))
	old = slices.Clone(e.AddFormer(old, Former{1, 2, Place{3, 4}, Place{5, 6}, 0}))
	fresh := set(t, user("second"), 0, op.AttrFirstName, "Ada")
	b := e.Reimport(slices.Clone(fresh), old)
	require.NoError(t, Check(b))
	kind, _ := HomeID(b)
	require.Equal(t, []any{op.Alias, "second", true}, []any{kind, string(ExternalID(b)), IsNamed(b, op.ExternalID, []byte("first"))})
	require.Equal(t, `"Ada"`, attr(t, b, op.AttrFirstName))
	at, _ := Born(b)
	require.Equal(t, Place{7, 8}, at)
	var former []Former
	Formers(b, func(f Former) { former = append(former, f) })
	require.Equal(t, []Former{{1, 2, Place{3, 4}, Place{5, 6}, 0}}, former)
}

func TestIdentifiers(t *testing.T) {
	var e Editor
	b := New(nil, 1, op.Email, []byte("a@b.co"), 1)
	require.Nil(t, ExternalID(b))
	b = e.SetExternalID(b, []byte("id"))
	require.Equal(t, "id", string(ExternalID(b)))

	b, ok := e.AddAlias(b, []byte("crm"), []byte("1"))
	require.True(t, ok)
	b, ok = e.AddAlias(b, []byte("cr"), []byte("m1")) // same letters, other border
	require.True(t, ok)
	b, ok = e.AddAlias(b, []byte("crm"), []byte("1"))
	require.True(t, ok)
	b, ok = e.AddAlias(b, []byte("crm"), []byte("2"))
	require.False(t, ok)
	name, _ := aliasOf(b, []byte("crm"))
	require.Equal(t, "1", string(name))
	require.True(t, hasAlias(b, "cr", "m1"))
	b, ok = e.RenameAlias(b, []byte("crm"), []byte("1"), []byte("one"))
	require.True(t, ok)
	_, ok = e.RenameAlias(b, []byte("crm"), []byte("1"), []byte("x"))
	require.False(t, ok)
	var all []string
	Aliases(b, func(label, name []byte) { all = append(all, string(label)+"="+string(name)) })
	require.Equal(t, []string{"crm=one", "cr=m1"}, all)
	b = e.RemoveAlias(b, []byte("crm"), []byte("1"))
	require.True(t, hasAlias(b, "crm", "one"))
	b = e.RemoveAlias(b, []byte("crm"), []byte("one"))
	require.False(t, hasAlias(b, "crm", "one"))
	_, ok = aliasOf(b, []byte("crm"))
	require.False(t, ok)
}

const (
	second = int64(1000)
	hour   = 3600 * second
	day    = 24 * hour
	noon   = int64(1_750_000_000_000)
)

func recent(b []byte, tag byte, name string) []int64 {
	s, _ := summaryOf(b, tag, []byte(name))
	return occurrences(s)
}

func TestEvents(t *testing.T) {
	b := event(t, user("u"), "open", noon+500)
	s, ok := Event(b, []byte("open"))
	require.True(t, ok)
	require.Equal(t, []any{uint64(1), noon + 500, noon + 500}, []any{s.Count, s.First, s.Last})
	b = event(t, b, "other", noon)
	b = event(t, b, "open", noon+10*second)
	b = event(t, b, "open", noon-3*second) // out of order
	b = event(t, b, "open", noon-29*day)
	b = event(t, b, "open", noon-31*day) // counted, but not recent
	s, _ = Event(b, []byte("open"))
	require.Equal(t, []any{uint64(5), noon - 31*day, noon + 10*second}, []any{s.Count, s.First, s.Last})
	at := noon / hour
	require.Equal(t, []int64{at - 29*24, at, at, at}, occurrences(s))
	b = event(t, b, "open", noon+20*day) // moves the window
	require.Equal(t, []int64{at, at, at, at + 20*24}, recent(b, tagEvent, "open"))
	b = event(t, b, "open", noon+90*day)
	require.Equal(t, []int64{at + 90*24}, recent(b, tagEvent, "open"))
	require.Equal(t, testStamp, Updated(b))
	_, ok = Event(b, []byte("ope"))
	require.False(t, ok)
	_, ok = Product(b, []byte("open"))
	require.False(t, ok)
}

func TestWindowOfRecent(t *testing.T) {
	at := noon / hour
	begin, end := at*hour, at*hour+hour-1
	f := func(first, second int64, want ...int64) {
		t.Helper()
		require.Equal(t, want, recent(event(t, event(t, user("u"), "e", first), "e", second), tagEvent, "e"))
	}
	f(begin, end+30*day, at, at+720)
	f(end, begin+30*day+hour, at+721)
	f(end, begin-30*day, at-720, at)
	f(begin, end-30*day-hour, at)
	f(begin, begin+1024*hour, at+1024)
	f(begin, begin-1024*hour, at)
	f(begin, begin+2048*hour, at+2048)
}

func TestRecentKeepsFifty(t *testing.T) {
	b := user("u")
	var want []int64
	for i := range int64(120) {
		b = event(t, b, "e", noon+i*hour)
		want = append(want, noon/hour+i)
	}
	require.Equal(t, want[70:], recent(b, tagEvent, "e"))
	b = event(t, b, "e", noon)
	require.Equal(t, want[70:], recent(b, tagEvent, "e"), "older than all fifty")
	b = event(t, b, "e", noon+100*hour)
	want = slices.Insert(want, 101, noon/hour+100)
	require.Equal(t, want[71:], recent(b, tagEvent, "e"))
	full := len(b)
	b = event(t, b, "e", noon+100*day)
	require.Len(t, recent(b, tagEvent, "e"), 1)
	require.Equal(t, full-2*63, len(b), "room for all but the newest is given back")
	for range 60 {
		b = event(t, b, "e", noon+100*day)
	}
	require.Equal(t, slices.Repeat([]int64{(noon + 100*day) / hour}, 50), recent(b, tagEvent, "e"))
	require.Equal(t, full-2*63, len(b), "an hour takes the same however often")
}

// An op has room for times that a profile hasn't.
func TestExtremeTimes(t *testing.T) {
	b := event(t, user("u"), "e", -1<<55)
	b = event(t, b, "e", -62135596800000) // year 1
	b = event(t, b, "e", -1)
	b = event(t, b, "e", 1<<55-1)
	s, _ := Event(b, []byte("e"))
	require.Equal(t, []any{uint64(4), int64(-1 << 47), int64(1<<47 - 1)}, []any{s.Count, s.First, s.Last})
}

func TestPurchases(t *testing.T) {
	b := buy(t, user("u"), "sku", noon, 1999, 1, "USD")
	b = buy(t, b, "sku", noon+day, 3*500, 3, "EUR")
	b = buy(t, b, "hat", noon-day, -700, 1, "USD")
	b = buy(t, b, "sku", noon, 10, 2, "EUR") // out of order, twice
	s, ok := Product(b, []byte("sku"))
	require.True(t, ok)
	require.Equal(t, []any{uint64(6), noon, noon + day}, []any{s.Count, s.First, s.Last})
	at := noon / hour
	require.Equal(t, []int64{at, at, at, at + 24, at + 24, at + 24}, occurrences(s))
	count, first, last := purchases(b)
	require.Equal(t, []any{uint64(7), noon - day, noon + day}, []any{count, first, last})
	money := map[string]int64{}
	Revenue(b, func(c [3]byte, minor int64) { money[string(c[:])] = minor })
	require.Equal(t, map[string]int64{"USD": 1299, "EUR": 1510}, money)

	b = buy(t, b, "bulk", noon, 1, 100, "USD")
	require.Len(t, recent(b, tagProduct, "bulk"), 50)
	b = buy(t, b, "bulk", noon+1, math.MaxInt64, 4_000_000_000, "USD")
	s, _ = Product(b, []byte("bulk"))
	require.EqualValues(t, 4_000_000_100, s.Count)
	Revenue(b, func(c [3]byte, minor int64) { money[string(c[:])] = minor })
	require.EqualValues(t, math.MaxInt64, money["USD"])
}

func TestDummyUsers(t *testing.T) {
	lim := DefaultLimits()
	lim.MaxEventNames, lim.MaxProductNames, lim.MaxAttributes = 3, 3, 3
	for kind := range 3 {
		var e Editor
		b := user("u")
		step := func(i int) (op.Op, *op.Record) {
			name := fmt.Sprint("name", i)
			switch kind {
			case 0:
				return eventOp(t, name, noon)
			case 1:
				return purchaseOp(t, name, noon, 1, 1, "USD")
			}
			return attrsOp(t, 0, name, i)
		}
		for i := range 6 {
			o, rec := step(i % 5)
			var verdict Verdict
			b, verdict = apply(t, &e, b, o, rec, lim)
			want := Applied
			if i == 3 {
				want = JustBlocked
			}
			require.Equal(t, want, verdict, "kind %d step %d", kind, i)
			require.Equal(t, i >= 3, Blocked(b))
		}
	}
}

func TestIgnoresWhatIsNoObject(t *testing.T) {
	var e Editor
	before := user("u")
	f := func(kind op.Kind, body []byte) {
		t.Helper()
		o, rec := one(t, testStamp, func(b *op.Builder) (op.Kind, op.Flags) {
			b.Buf = append(b.Buf, body...)
			return kind, 0
		})
		out, verdict := e.Apply(slices.Clone(before), o, rec, nil)
		require.Equal(t, Ignored, verdict)
		require.Equal(t, before, out)
	}
	f(op.Event, nil)
	f(op.Event, op.AppendEventBody(nil)[1:])
	f(op.Event, op.AppendEventBody(nil)) // the dictionary is empty
	f(op.Purchase, op.AppendPurchaseBody(nil)[1:])
	f(op.Purchase, op.AppendPurchaseBody(nil))
	f(op.Delete, nil)
	o, rec := one(t, testStamp, func(b *op.Builder) (op.Kind, op.Flags) {
		b.Buf = append(b.Buf, 1, byte(op.True), 200, 200, 200)
		return op.Attributes, 0
	})
	out, verdict := e.Apply(slices.Clone(before), o, rec, nil)
	require.Equal(t, Applied, verdict)
	require.NoError(t, Check(out))
}

func TestUpdatedNeverGoesBack(t *testing.T) {
	var e Editor
	b := user("u")
	SetUpdated(b, testStamp+5)
	o, rec := eventOp(t, "e", noon)
	b, _ = e.Apply(b, o, rec, nil)
	require.Equal(t, testStamp+5, Updated(b))
}

// A change that fits is made in the blob's own memory, any other in scratch.
func TestInPlace(t *testing.T) {
	var e Editor
	o, rec := eventOp(t, "event", noon)
	in := append(make([]byte, 0, 500), user("u")...)
	out, _ := e.Apply(in, o, rec, nil)
	require.Same(t, &in[0], &out[0])
	tight := slices.Clip(user("u"))
	out2, _ := e.Apply(tight, o, rec, nil)
	require.NotSame(t, &tight[0], &out2[0])
	require.Equal(t, out, out2)
	// Scratch may be passed in again, also clipped.
	out2, _ = e.Apply(slices.Clip(out2), o, rec, nil)
	out, _ = e.Apply(out, o, rec, nil)
	require.Equal(t, out, out2)
	out3, _ := e.Apply(out2[:len(out2):len(out2)], func() op.Op { o, _ := eventOp(t, "event2", noon); return o }(), rec, nil)
	require.NoError(t, Check(out3))
}

func TestApplyDoesNotAllocate(t *testing.T) {
	var e Editor
	b := user("u")
	b = set(t, b, 0, "plan", "free", "visits", 1, "tags", []any{"a", "b"}, "address", object{{"city", "Berlin"}, {"zip", "10115"}}, op.AttrFirstName, "Ada", op.AttrEmailSubscribe, "subscribed")
	b = event(t, b, "open", noon)
	b = buy(t, b, "sku", noon, 100, 1, "USD")
	b = append(make([]byte, 0, 4096), b...)
	f := func(name string, o op.Op, rec *op.Record) {
		b, _ = e.Apply(b, o, rec, nil)
		require.Zero(t, testing.AllocsPerRun(200, func() { b, _ = e.Apply(b, o, rec, nil) }), name)
	}
	o, rec := eventOp(t, "open", noon+5)
	f("event", o, rec)
	o, rec = eventOp(t, "open", noon-5*second)
	f("event out of order", o, rec)
	o, rec = purchaseOp(t, "sku", noon, 100, 3, "USD")
	f("purchase", o, rec)
	o, rec = attrsOp(t, op.MergeObjects, "plan", "paid", "visits", inc(1), "tags", update{add: []any{"c"}, remove: []any{"a"}},
		"address", object{{"city", "Bonn"}, {"zip", nil}}, op.AttrFirstName, "Eva", op.AttrEmailSubscribe, "opted_in")
	f("attributes", o, rec)
	o, rec = attrsOp(t, 0, "pets", edits{{op.EditRemove, "id", 1, nil}, {op.EditAdd, "", nil, []any{object{{"id", 1}}}}})
	f("array edits", o, rec)
	require.NoError(t, Check(b))
}

// An op for a dummy user costs linear time. The test requires only that it ends and that the result is right.
func TestTwentyThousandNames(t *testing.T) {
	var e Editor
	b := user("u")
	var blocked int
	first := 0
	if testing.Short() { // most names come at once, by merges of users with a few
		const part = 500
		for ; first < 19_500; first += part {
			some := user("v")
			for i := range part {
				o, rec := eventOp(t, fmt.Sprintf("event-%d", first+i), noon)
				some, _ = e.Apply(some, o, rec, nil)
			}
			b = bytes.Clone(e.Merge(b, some, MergeUsers, testStamp, nil))
		}
	}
	for i := first; i < 20_001; i++ {
		o, rec := eventOp(t, fmt.Sprintf("event-%d", i), noon)
		var verdict Verdict
		b, verdict = e.Apply(b, o, rec, nil)
		if verdict == JustBlocked {
			blocked = i
		}
	}
	require.Equal(t, 20_000, blocked)
	require.NoError(t, Check(b))
	other := bytes.Clone(b)
	out := e.Merge(other, other, MergeUsers, testStamp, nil)
	n := 0
	Events(out, func(_ []byte, s Summary) { n += int(s.Count) })
	require.Equal(t, 40_002, n)
}

// Operators that are impossible are reported under the references that the op has for them.
func TestUnmet(t *testing.T) {
	var e Editor
	b := set(t, user("u"), 0, "max", math.MaxInt64)
	b = set(t, b, 0, "min", math.MinInt64)
	b = set(t, b, 0, "text", "x")
	f := func(want []Unmet, fields ...any) {
		t.Helper()
		o, rec := attrsOp(t, op.MergeObjects, fields...)
		out, verdict := e.Apply(slices.Clone(b), o, rec, &Limits{MaxArray: 25, MaxValueBytes: 40, MaxAttributes: 100})
		require.Equal(t, Applied, verdict)
		require.NoError(t, Check(out))
		require.Equal(t, want, slices.Clip(append([]Unmet(nil), e.Unmet...)))
		b = slices.Clone(out)
	}
	refs := func(pairs ...any) []any { return pairs }
	add := func(list ...any) update { return update{list, nil} }
	remove := func(list ...any) update { return update{nil, list} }

	f(nil, "max", inc(1)) // an op of before, or one of too many
	f([]Unmet{{7, OutOfRange}, {9, OutOfRange}}, "max", inc(1), "n", inc(1), "min", inc(-1), op.AttrOperators, refs(0, 7, 1, 8, 2, 9))
	require.Equal(t, `9223372036854775807`, custom(t, b, "max"))
	f(nil, "max", inc(-1), "min", inc(1), op.AttrOperators, refs(0, 7, 1, 8))
	f([]Unmet{{3, NotArray}, {5, NotArray}}, "list", []any{"x"}, "text", remove("x"), "none", remove("x"), "text", edits{{op.EditRemove, "id", 1, nil}}, op.AttrOperators, refs(1, 3, 2, 4, 3, 5))
	require.Equal(t, `"x"`, custom(t, b, "text"))

	updates := func(ids ...any) (list edits) {
		for _, id := range ids {
			list = append(list, edit{op.EditUpdate, "id", id, object{{"id", 9}}})
		}
		return list
	}
	f(nil, "objects", []any{object{{"id", 1}}, object{{"id", 2}}})
	f([]Unmet{{1, NoMatch}, {2, NoMatch}, {5, NoMatch}, {6, NotArray}}, "objects", updates(3), "objects", updates(1, 3), "objects", updates(2),
		"objects", edits{{op.EditRemove, "id", 3, nil}}, "none", updates(1), "text", updates(1), op.AttrOperators, refs(0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6))
	require.Equal(t, `[{"id":9},{"id":9}]`, custom(t, b, "objects"))
	f([]Unmet{{1, NoMatch}}, "objects", append(updates(3), edit{op.EditAdd, "", nil, []any{object{{"id", 3}}}}), op.AttrOperators, refs(0, 1))
	require.Equal(t, `[{"id":9},{"id":9},{"id":3}]`, custom(t, b, "objects"))
	f(nil, "objects", nil)

	for name, v := range map[string]any{"text": "x", "list": []any{"x"}, "yes": true, "when": time.Unix(1, 0), "o": object{{"a", 1}}} {
		f(nil, name, v)
		was := custom(t, b, name)
		f([]Unmet{{4, NotNumber}}, name, inc(1), "n", inc(1), op.AttrOperators, refs(0, 4, 1, 5))
		require.Equal(t, was, custom(t, b, name))
	}
	f(nil, "o", nil)
	long := strings.Repeat("y", 30)
	f([]Unmet{{2, TooLarge}}, "list", add(long, long+"2"), "list", add("z"), op.AttrOperators, refs(0, 1, 1, 2))
	f(nil, "o", object{{"a", long}}, op.AttrOperators, refs(0, 1))
	f([]Unmet{{1, TooLarge}}, "o", object{{"b", long}}, op.AttrOperators, refs(0, 1))
	f(nil, "text", remove("x"), op.AttrOperators, refs(5, 1))
	f(nil, "text", remove("x"), op.AttrOperators, "x")
	f(nil, "text", remove("x"), op.AttrOperators, refs("x", "y", 0))
	f(nil, "a", 1)
}

// TestValuesKeepTheirRoom: a value that changes its length moves the fields behind it once, not each time. Too much
// room is given back, and nobody sees unused room.
func TestValuesKeepTheirRoom(t *testing.T) {
	text := func(n int) string { return strings.Repeat("x", n) }
	b := set(t, user("a"), 0, op.AttrFirstName, text(5), op.AttrCountry, "de", "plan", text(5), "n", 1, "after", 2)
	exact := len(b)
	b = set(t, b, 0, op.AttrFirstName, text(14), "plan", text(14), "n", 1<<30)
	grown := len(b)
	require.Less(t, grown-exact, 2*(9+7)+4+7, "rounded up to eight bytes each")
	for _, n := range []int{3, 14, 1, 0, 9, 14} {
		b = set(t, b, 0, op.AttrFirstName, text(n), "plan", text(n), "n", n-7, "flag", true)
		b = set(t, b, 0, "flag", nil)
		require.NoError(t, Check(b))
		require.Len(t, b, grown)
		require.Equal(t, `"`+text(n)+`"`, attr(t, b, op.AttrFirstName))
		require.Equal(t, []string{`"` + text(n) + `"`, strconv.Itoa(n - 7), `2`, `"de"`},
			[]string{custom(t, b, "plan"), custom(t, b, "n"), custom(t, b, "after"), attr(t, b, op.AttrCountry)})
	}
	b = set(t, b, 0, "plan", text(200))
	b = set(t, b, 0, "plan", text(14))
	require.Less(t, len(b), grown+8, "what is much too large")
	b = set(t, b, 0, "plan", []any{1, 2}, op.AttrFirstName, nil)
	b = set(t, b, 0, "plan", update{add: []any{3}})
	require.NoError(t, Check(b))
	require.Equal(t, []string{`[1,2,3]`, ``}, []string{custom(t, b, "plan"), attr(t, b, op.AttrFirstName)})
}
