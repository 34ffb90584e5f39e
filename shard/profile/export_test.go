package profile

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/op"
)

const fullUser = `{"created_at":"2024-01-02T03:04:05.678Z","external_id":"u\"1","user_aliases":[{"alias_name":"n","alias_label":"l"},{"alias_name":"n2","alias_label":"l"}],` +
	`"first_name":"Ada","last_name":"","home_city":"Köln","image_url":"https://x/y","country":"DE","language":"de","gender":"F","dob":"1990-01-31T00:00:00.000Z",` +
	`"date_of_first_session":"2024-01-01T00:00:00.000Z","date_of_last_session":"2024-02-01T00:00:00.000Z","last_coordinates":[6.96,50.0],"current_location":{"longitude":6.96,"latitude":50.0},` +
	`"email":"Ada@x.co","email_subscribe":"opted_in","email_open_tracking_disabled":true,"email_click_tracking_disabled":false,"marked_email_as_spam_at":"2024-01-03T00:00:00.000Z",` +
	`"push_subscribe":"unsubscribed","push_tokens":[{"app_id":"a","token":"t","device_id":"d"}],"phone":"+49221","time_zone":"Europe/Berlin",` +
	`"facebook":{"id":"1","likes":["a","b"],"num_friends":3},"twitter":{"id":9007199254740993,"screen_name":"ada"},` +
	`"devices":[{"model":"iPhone14,2","os":"iOS 17","carrier":null,"device_id":"d","idfv":"v","ad_tracking_enabled":true}],"email_hard_bounced_at":"2024-01-04T00:00:00.000Z",` +
	`"subscription_groups":[{"id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","status":"Subscribed"},{"id":"00000000-0000-0000-0000-000000000001","status":"Unsubscribed"}],` +
	`"custom_attributes":{"int":-9223372036854775808,"float":1.5,"whole":2.0,"tiny":1e-07,"text":"a\u0000b\n\\\u001f😀","when":"2024-02-29T12:00:00.005Z","yes":true,"list":[1,"a",[1,{"x":[2]}],{"o":{"p":[1]}}],"o":{}},` +
	`"custom_events":[{"name":"open","first":"0001-01-01T00:00:00.000Z","last":"2024-02-01T00:00:00.001Z","count":12}],` +
	`"purchases":[{"name":"sku","first":"2024-01-01T00:00:00.000Z","last":"2024-01-01T00:00:00.000Z","count":3}],` +
	`"total_revenue":12.30,"revenue_by_currency":{"USD":12.30,"JPY":500,"KWD":-0.001},` +
	`"apps":[{"app_id":"a","sessions":3,"first":"2024-01-01T00:00:00.000Z","last":"2024-02-01T00:00:00.000Z"}],"session_count":5}`

func digits(c [3]byte) int {
	switch string(c[:]) {
	case "JPY":
		return 0
	case "KWD":
		return 3
	}
	return 2
}

func imported(t testing.TB, line string) []byte {
	t.Helper()
	var im Importer
	b, err := im.Import(nil, 3, []byte(line), testStamp, ImportOptions{Digits: digits})
	require.NoError(t, err)
	require.NoError(t, Check(b))
	return b
}

func TestExportOfImport(t *testing.T) {
	b := imported(t, fullUser)
	require.Equal(t, fullUser, export(t, b, Export{Digits: digits}))
	v, _ := customOf(b, []byte("when"))
	require.Equal(t, op.Time, v.Tag())
	v, _ = customOf(b, []byte("whole"))
	require.Equal(t, op.Float, v.Tag())
	require.EqualValues(t, 3, Workspace(b))
	require.Equal(t, testStamp, Updated(b))
	_, changed, _, _ := ContactState(b, op.AttrEmailSubscribe)
	require.Equal(t, testStamp, changed)
}

func TestExportFields(t *testing.T) {
	b := imported(t, fullUser)
	x := Export{SvcID: []byte("abc"), Number: 12345}
	f := func(want string, names ...string) {
		t.Helper()
		require.Equal(t, want, string(AppendJSON(nil, b, exported(t, names...), x)))
	}
	f(`{"external_id":"u\"1","country":"DE"}`, "country", "external_id")
	f(`{"svc_id":"abc"}`, "braze_id")
	f(`{"random_bucket":3753}`, "random_bucket")
	f(`{"dob":"1990-01-31T00:00:00.000Z"}`, "dob")
	f(`{"last_coordinates":[6.96,50.0]}`, "last_coordinates")
	f(`{}`, "appboy_id")
	x.Braze = true
	f(`{"braze_id":"abc"}`, "svc_id")
	f(`{"braze_id":"abc","appboy_id":"abc"}`, "braze_id", "appboy_id")
	x.Braze = false
	for code := uint32(32); code < op.ReservedCodes; code++ {
		require.Empty(t, op.AttrName(code), "the set has no bit for this code: widen it")
	}
	_, ok := Fields(0).AddField([]byte("campaigns_received"))
	require.False(t, ok)
	require.True(t, strings.HasPrefix(string(AppendJSON([]byte("x,"), b, 0, x)), `x,{"created_at"`))
	require.Equal(t, `{}`, string(AppendJSON(nil, user("u"), exported(t, "email"), x)))
}

// Some keys are always there, whatever a user has (export-shape.md).
func TestExportOfNothing(t *testing.T) {
	b := New(nil, 1, op.ExternalID, []byte("u"), 1e6)
	require.Equal(t, `{"created_at":"1970-01-01T00:00:01.000Z","external_id":"u","user_aliases":[],"svc_id":"abc","random_bucket":3753,`+
		`"email_subscribe":"subscribed","push_subscribe":"subscribed","total_revenue":0.0,"revenue_by_currency":{}}`, string(AppendJSON(nil, b, 0, Export{SvcID: []byte("abc"), Number: 12345})))
	require.Equal(t, `{"created_at":"1970-01-01T00:00:01.000Z","external_id":"u","user_aliases":[],"braze_id":"abc","appboy_id":"abc","random_bucket":3753,`+
		`"email_subscribe":"subscribed","push_subscribe":"subscribed","total_revenue":0.0,"revenue_by_currency":{}}`, string(AppendJSON(nil, b, 0, Export{SvcID: []byte("abc"), Braze: true, Number: 12345})))
}

// The default that an export has for somebody who has said nothing is imported as no consent, and a revenue of zero as
// no revenue.
func TestImportOfDefaults(t *testing.T) {
	b := imported(t, `{"external_id":"u","email":"a@x.co","email_subscribe":"subscribed","total_revenue":0.0,"revenue_by_currency":{}}`)
	require.False(t, HasStates(b))
	require.True(t, find(b, tagRevenue).none())
	for _, state := range []string{"opted_in", "unsubscribed"} {
		c, said := StateOf(imported(t, `{"external_id":"u","email_subscribe":"`+state+`"}`), State{Kind: StateEmail})
		require.True(t, said)
		require.Equal(t, state, c.Value)
	}
}

// Times to come are taken as now: a bounce that lies ahead couldn't be taken back.
func TestImportOfTimesToCome(t *testing.T) {
	b := imported(t, `{"external_id":"u","email":"a@x.co","created_at":"2999-01-01T00:00:00.000Z","email_hard_bounced_at":"2999-01-01T00:00:00.000Z"}`)
	require.Equal(t, testStamp, Created(b))
	require.Equal(t, testStamp, Updated(b))
	c, said := StateOf(b, State{Kind: StateBounce})
	require.True(t, said)
	require.Equal(t, testStamp, c.Changed)
}

func TestExportNames(t *testing.T) {
	b := imported(t, `{"external_id":"u","subscription_groups":[{"id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","status":"subscribed"}],
		"apps":[{"app_id":"a","sessions":0,"first_used":"2024-01-01","last_used":"2024-01-01"}]}`)
	x := Export{GroupName: func(id [16]byte) string { return map[byte]string{0x5a: "News"}[id[0]] }, AppName: func(id []byte) string { return "app " + string(id) }}
	require.Equal(t, `{"subscription_groups":[{"id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","name":"News","status":"Subscribed"}],`+
		`"apps":[{"app_id":"a","name":"app a","sessions":0,"first":"2024-01-01T00:00:00.000Z","last":"2024-01-01T00:00:00.000Z"}]}`,
		string(AppendJSON(nil, b, exported(t, "apps", "subscription_groups"), x)))
}

func TestTotalRevenue(t *testing.T) {
	b := buy(t, buy(t, buy(t, user("u"), "a", noon, 1005, 1, "EUR"), "a", noon, 100, 1, "JPY"), "a", noon, 50, 1, "CHF")
	f := func(currency string, want string, rates map[string]float64) {
		t.Helper()
		x := Export{Digits: digits, Rate: func(c [3]byte) (float64, bool) { r, ok := rates[string(c[:])]; return r, ok }}
		if currency != "" {
			x.Currency = [3]byte([]byte(currency))
		}
		require.Equal(t, `{"total_revenue":`+want+`}`, string(AppendJSON(nil, b, exported(t, "total_revenue"), x)))
	}
	f("", "0.00", nil)
	f("EUR", "10.05", nil)
	f("EUR", "10.66", map[string]float64{"JPY": 0.0061})
	f("JPY", "1708", map[string]float64{"EUR": 160})
	f("", "11.06", map[string]float64{"EUR": 1.1})
	f("KWD", "3.350", map[string]float64{"EUR": 1. / 3})
	f("", "92233720368547758.07", map[string]float64{"EUR": math.MaxFloat64})
}

func TestAmounts(t *testing.T) {
	f := func(minor int64, digits int, want string) {
		t.Helper()
		require.Equal(t, want, string(appendAmount(nil, minor, digits)))
	}
	f(0, 2, "0.00")
	f(5, 2, "0.05")
	f(-5, 2, "-0.05")
	f(-12345, 2, "-123.45")
	f(7, 0, "7")
	f(math.MinInt64, 2, "-92233720368547758.08")
	f(math.MinInt64, 18, "-9.223372036854775808")
	f(1, 18, "0.000000000000000001")
}

func TestRandomBucket(t *testing.T) {
	var hits [10]int
	for i := range uint64(10_000) {
		n := randomBucket(i<<56 | i)
		require.Less(t, n, uint64(10_000))
		hits[n/1000]++
	}
	require.Greater(t, slices.Min(hits[:]), 850)
}

func TestImportOfOthers(t *testing.T) {
	f := func(line string, id op.IDKind, key string) []byte {
		t.Helper()
		b := imported(t, line)
		gotID, gotKey := HomeID(b)
		require.Equal(t, id, gotID)
		require.Equal(t, key, string(gotKey))
		return b
	}
	f(`{"external_id":"x","email":"a@b.co"}`, op.ExternalID, "x")
	b := f(`{"user_aliases":[{"alias_name":"n","alias_label":"l"}],"email":"a@b.co"}`, op.Alias, "\x01\x00ln")
	require.Equal(t, 1, strings.Count(export(t, b, Export{}), "alias_name"))
	b = f(`{"email":"A@b.co","first_name":null,"unknown":[1]}`, op.Email, "a@b.co")
	require.Equal(t, `"A@b.co"`, attr(t, b, op.AttrEmail))
	f(`{"phone":"+49"}`, op.Phone, "+49")
	b = f(`{"external_id":"x","dob":"1980-12-21","last_coordinates":[6.5,-7]}`, op.ExternalID, "x")
	require.Contains(t, export(t, b, Export{}), `"dob":"1980-12-21T00:00:00.000Z","last_coordinates":[6.5,-7],"current_location":{"longitude":6.5,"latitude":-7},`)

	b = imported(t, `{"external_id":"x","created_at":"2020-07-10 15:00:00.000 UTC","total_revenue":12.345,"custom_events":[{"name":"e","first":"2024-01-01T00:00:00Z","last":"2024-01-09T00:00:00+02:00","count":4}]}`)
	require.Equal(t, time.Date(2020, 7, 10, 15, 0, 0, 0, time.UTC).UnixMicro(), Created(b))
	Revenue(b, func(c [3]byte, minor int64) { require.Equal(t, "USD 1235", fmt.Sprintf("%s %d", c[:], minor)) })
	require.Len(t, recent(b, tagEvent, "e"), 2)

	var im Importer
	b, err := im.Import([]byte("before"), 1, []byte(`{"external_id":"x","apps":[{"name":"iOS","sessions":6000000,"first":"2024-01-01","last":"2024-01-01"}]}`), 5,
		ImportOptions{AppID: func(name []byte) []byte { return []byte("id of " + string(name)) }})
	require.NoError(t, err)
	require.Equal(t, "before", string(b[:6]))
	_, ok := summaryOf(b[6:], tagApp, []byte("id of iOS"))
	require.True(t, ok)
	require.True(t, Blocked(b[6:]), "too many sessions")
}

func TestImportRefuses(t *testing.T) {
	f := func(line, why string) {
		t.Helper()
		var im Importer
		out, err := im.Import([]byte("x"), 3, []byte(line), testStamp, ImportOptions{})
		require.ErrorIs(t, err, errImport)
		require.ErrorContains(t, err, why)
		require.Equal(t, "x", string(out))
	}
	f(``, "no valid JSON")
	f(`[]`, "not an object")
	f(`{"external_id":"x"} x`, "no valid JSON")
	f("{\"external_id\":\"\xff\"}", "no valid JSON")
	f(`{"external_id":"\ud800"}`, "no valid JSON")
	f(`{"external_id":"\ud83d\u0041"}`, "no valid JSON")
	f(`{}`, "no identifier")
	f(`{"external_id":""}`, "no identifier")
	f(`{"external_id":5}`, "external_id is not a string")
	f(`{"external_id":"`+strings.Repeat("x", 70_000)+`"}`, "no identifier")
	f(`{"external_id":"x","external_id":"y"}`, "twice")
	f(`{"external_id":"x","user_aliases":[{"alias_name":"n"}]}`, "alias_label is missing")
	f(`{"external_id":"x","user_aliases":[5]}`, "user_aliases: not an object")
	f(`{"external_id":"x","created_at":"soon"}`, "created_at is not a time")
	f(`{"external_id":"x","email_subscribe":"maybe"}`, "email_subscribe")
	f(`{"external_id":"x","first_name":1}`, "first_name is not a string")
	f(`{"external_id":"x","dob":"yesterday"}`, "dob is not a time")
	f(`{"external_id":"x","last_coordinates":[1]}`, "last_coordinates")
	f(`{"external_id":"x","last_coordinates":["1",2]}`, "last_coordinates")
	f(`{"external_id":"x","push_tokens":{}}`, "not an array")
	f(`{"external_id":"x","custom_attributes":[]}`, "not an object")
	f(`{"external_id":"x","custom_attributes":{"a":1,"a":2}}`, "twice")
	f(`{"external_id":"x","custom_attributes":{"a":{"b":1,"b":2}}}`, "twice")
	f(`{"external_id":"x","custom_attributes":{"":1}}`, "name of 0 bytes")
	f(`{"external_id":"x","custom_attributes":{"a":9223372036854775808}}`, "64 bits")
	f(`{"external_id":"x","custom_attributes":{"a":1e400}}`, "out of range")
	f(`{"external_id":"x","custom_attributes":{"a":`+strings.Repeat(`{"a":`, 40)+`1`+strings.Repeat(`}`, 41)+`}`, "too deep")
	f(`{"external_id":"x","custom_attributes":{"a":`+strings.Repeat(`[`, 400)+strings.Repeat(`]`, 400)+`}}`, "")
	f(`{"external_id":"x","custom_events":[{"name":"e","first":"2024-01-02","last":"2024-01-01","count":4}]}`, "don't agree")
	f(`{"external_id":"x","custom_events":[{"name":"e","first":"2024-01-01","last":"2024-01-01","count":0}]}`, "don't agree")
	f(`{"external_id":"x","custom_events":[{"name":"e","first":"2024-01-01","last":"2024-01-01","count":1.5}]}`, "not a count")
	f(`{"external_id":"x","custom_events":[5]}`, "custom_events: not an object")
	f(`{"external_id":"x","purchases":[{"name":"e","first":"2024-01-01","last":"2024-01-01","count":1},{"name":"e","first":"2024-01-01","last":"2024-01-01","count":1}]}`, `name "e"`)
	f(`{"external_id":"x","subscription_groups":[{"id":"5a3c","status":"subscribed"}]}`, "no UUID")
	f(`{"external_id":"x","subscription_groups":[{"id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","status":"x"}]}`, "status")
	f(`{"external_id":"x","revenue_by_currency":{"usd":1}}`, "not a currency")
	f(`{"external_id":"x","revenue_by_currency":{"USD":"1"}}`, "not a number")
	f(`{"external_id":"x","revenue_by_currency":{"USD":1e300}}`, "out of range")
	f(`{"external_id":"x","revenue_by_currency":{"USD":184467440737095516.155}}`, "out of range")
	f(`{"external_id":"x","apps":[{"name":"iOS","sessions":6,"first":"2024-01-01","last":"2024-01-01"}]}`, "apps")
}

func TestDecimals(t *testing.T) {
	f := func(text string, digits int, want int64) {
		t.Helper()
		b := imported(t, `{"external_id":"x"}`)
		var im Importer
		b, err := im.Import(b[:0], 1, []byte(`{"external_id":"x","revenue_by_currency":{"USD":`+text+`}}`), 1, ImportOptions{Digits: func([3]byte) int { return digits }})
		require.NoError(t, err)
		Revenue(b, func(_ [3]byte, minor int64) { require.Equal(t, want, minor, text) })
	}
	f("12.30", 2, 1230)
	f("-0.5", 2, -50)
	f("0.005", 2, 1)
	f("-0.005", 2, -1)
	f("0.00499999999999999999999999", 2, 0)
	f("7", 0, 7)
	f("7.5", 0, 8)
	f("1.5e3", 2, 150000)
	f("92233720368547758.07", 2, math.MaxInt64)
	f("-92233720368547758.08", 2, math.MinInt64)
}

// Any profile that ops can make is the same after an export and an import.
func TestRoundTripOfRandomProfiles(t *testing.T) {
	rng := testseed.Rand(t)
	var im Importer
	for i := range 100 {
		b := randomProfile(t, rng, i)
		for range 10 {
			value := randomValue(rng)
			if list, ok := value.([]any); ok { // as ingest sets it
				seen := map[string]bool{}
				value = slices.DeleteFunc(list, func(v any) bool {
					key := fmt.Sprintf("%T %v", v, v)
					_, isObject := v.(object)
					again := !isObject && seen[key]
					seen[key] = true
					return again
				})
			}
			b = set(t, b, op.MergeObjects, fmt.Sprint("name", rng.IntN(5)), value)
		}
		want := export(t, b, Export{})
		again, err := im.Import(nil, 3, []byte(want), testStamp, ImportOptions{})
		require.NoError(t, err)
		require.NoError(t, Check(again))
		require.JSONEq(t, want, export(t, again, Export{}))
	}
}
