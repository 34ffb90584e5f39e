package ingest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// fakeRouter places ops without a directory.
type fakeRouter struct {
	*op.Builder
	blocked map[string]bool // keys that are refused
}

func (r *fakeRouter) End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) bool {
	key := r.Buf[len(r.Buf)-keyLen:]
	if r.blocked[string(key)] {
		r.Abort(start)
		return false
	}
	r.Builder.End(start, kind, op.MakeFlags(flags, id), keyLen, 7)
	return true
}

func (r *fakeRouter) EndNumber(start int, kind op.Kind, flags op.Flags, number uint64) bool {
	r.Builder.End(start, kind, op.MakeFlags(flags|op.Resolved, op.SvcID), 0, number)
	return true
}

func (r *fakeRouter) Operator(int, []byte) int { return -1 }

func (r *fakeRouter) SvcID(text []byte) (uint64, bool) {
	return 42, string(text) == "known"
}

func track(t testing.TB, d *Decoder, ws *Workspace, body string) (reply string, status int, rec op.Record) {
	return trackWithin(t, Limits{}, d, ws, body)
}

func trackWithin(t testing.TB, limits Limits, d *Decoder, ws *Workspace, body string) (reply string, status int, rec op.Record) {
	var b op.Builder
	b.Reset(12)
	r := &fakeRouter{Builder: &b}
	sent := []byte(body)
	out, status := d.TrackWithin(limits, []byte("x"), sent, ws, &b, r, testNow, nil)
	require.Equal(t, body, string(sent), "the body is only read")
	require.Equal(t, "x", string(out[:1]))
	data := b.Finish(1, 2, 3)
	rec, err := op.ParseRecord(data[12:], nil)
	require.NoError(t, err)
	return string(out[1:]), status, rec
}

const testNow = 1_800_000_000_000

var testGroup = [16]byte{0x5a, 0x3c, 0xc8, 0xff, 0x9a, 0x0e, 0x4e, 0x2a, 0x8a, 0x3c, 0x0a, 0x8a, 0x7a, 0x1f, 0x0e, 0x55}

const (
	testGroupText = "5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55"
	testApp       = "11ae5b4b-2445-4440-a04f-bf537764c9ad"
)

// testWorkspace has one group, one app and one blocked id.
func testWorkspace() *Workspace {
	return &Workspace{
		Groups:  map[[16]byte]byte{testGroup: op.ChannelEmail},
		Apps:    map[string]struct{}{testApp: {}},
		Blocked: map[string]struct{}{"dummy": {}},
	}
}

var testPhones = field.NewPhones(0)

func testDecoder() *Decoder { return NewDecoder(Options{Phones: testPhones}) }

// ops checks the ops that a good request's objects become.
func ops(t *testing.T, body string, want ...string) {
	t.Helper()
	reply, status, rec := track(t, testDecoder(), testWorkspace(), body)
	require.Equal(t, 201, status, reply)
	require.NotContains(t, reply, "errors")
	require.NotContains(t, reply, "warnings")
	require.Equal(t, want, dump(rec))
}

// attrs is ops for one attributes object that has external_id u and these members; event and purchase do the same for
// theirs.
func attrs(t *testing.T, members, want string) {
	t.Helper()
	if want != "" {
		want = " " + want
	}
	ops(t, `{"attributes":[{"external_id":"u",`+members+`}]}`, `attributes external_id="u"`+want)
}

func event(t *testing.T, members, want string) {
	t.Helper()
	ops(t, `{"events":[{"external_id":"u","name":"n","time":"2026-11-21T04:23:01Z",`+members+`}]}`,
		`event external_id="u" "n" app=- time=1795234981000 `+want)
}

// refused checks that the only object of a request is refused with the text.
func refused(t *testing.T, array, object, text string) {
	t.Helper()
	reply, status, rec := track(t, testDecoder(), testWorkspace(), `{"`+array+`":[`+object+`]}`)
	require.JSONEq(t, `{"message":"Valid data must be provided in the 'attributes', 'events', or 'purchases' fields.","errors":[{"type":`+
		dumpString(text)+`,"input_array":"`+array+`","index":0}]}`, reply)
	require.Equal(t, 400, status)
	require.Empty(t, dump(rec))
}

// partly checks an object of which a part is left out.
func partly(t *testing.T, members, want, text string) {
	t.Helper()
	reply, status, rec := track(t, testDecoder(), testWorkspace(), `{"attributes":[{"external_id":"u",`+members+`}]}`)
	require.Equal(t, `{"attributes_processed":1,"message":"success","warnings":[{"type":"`+text+`","input_array":"attributes","index":0}]}`, reply)
	require.Equal(t, 201, status)
	require.Equal(t, []string{`attributes external_id="u"` + want}, dump(rec))
}

// An answer doesn't grow with everything that may be left out of a body.
func TestWarningsAreBounded(t *testing.T) {
	var members strings.Builder
	for i := range maxWarnings + 100 {
		fmt.Fprintf(&members, `,"a%d":{"$x":1}`, i)
	}
	reply, status, rec := track(t, testDecoder(), testWorkspace(), `{"attributes":[{"external_id":"u"`+members.String()+`,"b":1},{"external_id":"v","dob":"x"}]}`)
	require.Equal(t, 201, status)
	require.Equal(t, maxWarnings, strings.Count(reply, "is not valid"))
	require.Equal(t, 1, strings.Count(reply, "more is left out"))
	require.Contains(t, reply, `,{"type":"more is left out from here on","input_array":"attributes","index":0}]}`)
	require.Equal(t, []string{`attributes external_id="u" "~b":1`, `attributes external_id="v"`}, dump(rec))

	// When no more than that is left out, everything that is left out is reported.
	all := members.String()
	all = all[:strings.Index(all, fmt.Sprintf(`,"a%d":`, maxWarnings))]
	reply, _, _ = track(t, testDecoder(), testWorkspace(), `{"attributes":[{"external_id":"u"`+all+`}]}`)
	require.Equal(t, maxWarnings, strings.Count(reply, "is not valid"))
	require.NotContains(t, reply, "more is left out")
}

// bad checks a request that is refused as a whole.
func bad(t *testing.T, body, text string) {
	t.Helper()
	for _, ws := range []*Workspace{testWorkspace(), {ErrorObjects: true}} {
		reply, status, _ := track(t, testDecoder(), ws, body)
		want := `{"message":"` + text + `","errors":["` + text + `"]}`
		if ws.ErrorObjects {
			want = `{"message":"` + text + `","errors":[{"type":"` + text + `"}]}`
		}
		require.Equal(t, want, reply, body)
		require.Equal(t, 400, status)
	}
}

const goodEvent = `{"external_id":"u","name":"n","time":"2026-11-21T04:23:01Z"}`

func TestIdentifiers(t *testing.T) {
	one := func(members, want string) {
		t.Helper()
		ops(t, `{"attributes":[{`+members+`,"a":1}]}`, `attributes `+want+` "~a":1`)
	}
	one(`"external_id":"u"`, `external_id="u"`)
	one(`"external_id":"u","user_alias":null,"svc_id":null`, `external_id="u"`)
	one(`"external_id":12345`, `external_id="12345"`)
	one(`"external_id":-0`, `external_id="0"`)
	one(`"external_id":"\u00e9\n\u0000"`, `external_id="é\n\x00"`)
	one(`"external_id":"`+strings.Repeat("x", 987)+`"`, `external_id="`+strings.Repeat("x", 987)+`"`)
	one(`"svc_id":"known"`, `svc_id=42`)
	one(`"braze_id":"known"`, `svc_id=42`)
	one(`"user_alias":{"alias_name":"n","alias_label":"l"}`, `user_alias="l"/"n"/true+update-only`)
	one(`"user_alias":{"x":[{}],"alias_label":"l","alias_name":"n"},"_update_existing_only":false`, `user_alias="l"/"n"/true`)
	one(`"email":"A@Example.com"`, `email="a@example.com"`)
	one(`"phone":"(504) 327-7269"`, `phone="+15043277269"`)
	ops(t, `{"attributes":[{"email":null,"phone":"+15043277269"}]}`, `attributes phone="+15043277269"+contact "email":null`)
	one(`"external_id":"u","_update_existing_only":true`, `external_id="u"+update-only`)
	one(`"external_id":"u","_update_existing_only":null`, `external_id="u"`)
	ops(t, `{"attributes":[{"phone":"+15043277269","email":"a@example.com"}]}`, `attributes email="a@example.com"+contact "phone":"+15043277269"`)
	ops(t, `{"attributes":[{"email":"a@example.com","external_id":"u"}]}`, `attributes external_id="u"+contact "email":"a@example.com"`)
	ops(t, `{"events":[{"email":"bad","phone":"bad","external_id":"u","name":"n","time":"2026-11-21","_update_existing_only":true}]}`,
		`event external_id="u"+update-only+conditional "n" app=- time=1795219200000`)
	ops(t, `{"events":[{"email":"a@example.com","name":"n","time":"2026-11-21"}]}`,
		`event email="a@example.com"+conditional "n" app=- time=1795219200000`)

	reply, status, rec := track(t, testDecoder(), testWorkspace(), `{"attributes":[{"svc_id":"nobody","a":1}]}`)
	require.Equal(t, `{"attributes_processed":1,"message":"success"}`, reply)
	require.Equal(t, 201, status)
	require.Zero(t, rec.Count)

	none := "'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required"
	two := "You must specify only one of 'external_id', 'user_alias' or 'svc_id'"
	no := func(members, text string) {
		t.Helper()
		refused(t, "attributes", `{`+members+`}`, text)
		refused(t, "events", `{`+members+`}`, text) // without name and time: the identifier comes first
	}
	no(``, none)
	no(`"EXTERNAL_ID":"u"`, none)
	no(`"external_id":null`, none)
	no(`"external_id":""`, none)
	no(`"external_id":"","email":"a@example.com"`, none)
	no(`"svc_id":""`, none)
	no(`"external_id":"u","svc_id":"known"`, two)
	no(`"svc_id":"known","braze_id":"known"`, two)
	no(`"external_id":"u","user_alias":{"alias_name":"n","alias_label":"l"}`, two)
	no(`"external_id":true`, "'external_id' must be a String")
	no(`"external_id":1.0`, "'external_id' must be a String")
	no(`"external_id":{"a":1}`, "'external_id' must be a String")
	no(`"svc_id":1`, "'svc_id' must be a String")
	no(`"external_id":"`+strings.Repeat("x", 988)+`"`, "'external_id' must be fewer than 988 bytes")
	no(`"external_id":"dummy"`, "provided external_id is blacklisted and disallowed")
	no(`"user_alias":"a"`, "'user_alias' must be an object with 'alias_name' and 'alias_label'")
	no(`"user_alias":{}`, "'alias_name' is required")
	no(`"user_alias":{"alias_name":"n","alias_label":""}`, "'alias_label' is required")
	no(`"user_alias":{"alias_name":1,"alias_label":"l"}`, "'alias_name' must be a String")
	no(`"user_alias":{"alias_name":"`+strings.Repeat("x", 237)+`","alias_label":"l"}`, "'alias_name' must be fewer than 237 bytes")
	no(`"email":"bad"`, "The value provided for the 'email' field is not a valid email.")
	no(`"email":1`, "The value provided for the 'email' field is not a valid email.")
	no(`"phone":"123"`, "'phone' is not valid")
	no(`"phone":15043277269`, "'phone' is not valid")
	refused(t, "events", `{"name":5}`, none)
	refused(t, "attributes", `{"external_id":"u","_update_existing_only":1}`, "'_update_existing_only' is not valid")
	for _, object := range []string{`1`, `"x"`, `null`, `[{}]`} {
		refused(t, "attributes", object, "must be an object")
	}
}

// countingRouter gives most references and then no more.
type countingRouter struct {
	fakeRouter
	asked []string
	most  int
}

func (r *countingRouter) Operator(index int, name []byte) int {
	if r.asked = append(r.asked, fmt.Sprint(index, " ", string(name))); len(r.asked) > r.most {
		return -1
	}
	return 100 + len(r.asked)
}

// Operators get references, by their places among the composite values that are stored.
func TestOperatorsHaveReferences(t *testing.T) {
	d := testDecoder()
	f := func(members string, most int, asked []string, want string) {
		t.Helper()
		var b op.Builder
		b.Reset(0)
		r := &countingRouter{fakeRouter: fakeRouter{Builder: &b}, most: most}
		reply, status := d.Track(nil, []byte(`{"attributes":[{"external_id":5.5,"x":{"inc":1}},{"external_id":"u",`+members+`}]}`), testWorkspace(), &b, r, testNow)
		require.Equal(t, 201, status, string(reply))
		rec, err := op.ParseRecord(b.Finish(1, 2, 3), nil)
		require.NoError(t, err)
		require.Equal(t, asked, r.asked)
		require.Len(t, dump(rec), 1)
		require.Equal(t, want, dump(rec)[0][len(`attributes external_id="u"`):])
	}
	f(`"a":1,"b":"x","c":{"$time":"2026-11-21"},"l":["x"],"o":{"x":1},"facebook":{"id":"1"}`, 9, nil,
		` "~a":1 "~b":"x" "~c":t1795219200000 "~l":["x"] "~o":{"x":1} "facebook":{"id":"1"}`)
	f(`"l":["x"],"n":{"inc":1},"bad":{"$x":1},"o":{"x":1}," u ":{"add":["x"]},"twitter":{"id":1},"e":{"$add":[]}`, 9, []string{"1 n", "1  u ", "1 e"},
		` "~l":["x"] "~n":inc(1) "~o":{"x":1} "~u":update(["x"],[]) "twitter":{"id":1} "~e":edit() "":[1,101,3,102,4,103]`)
	f(`"o":{"x":1},"_merge_objects":true,"n":{"inc":1}`, 9, []string{"1 o", "1 n"}, `+merge "~o":{"x":1} "~n":inc(1) "":[0,101,1,102]`)
	f(`"a":{"inc":1},"b":{"inc":1},"c":{"inc":1}`, 2, []string{"1 a", "1 b", "1 c"}, ` "~a":inc(1) "~b":inc(1) "~c":inc(1) "":[0,101,1,102]`)
	f(`"a":{"inc":1}`, 0, []string{"1 a"}, ` "~a":inc(1)`)
	f(`"a":1`, 9, nil, ` "~a":1`)
}

// A setting of the workspace says what texts call a svc_id.
func TestTextsSayBrazeID(t *testing.T) {
	ws := testWorkspace()
	ws.Braze = true
	for object, text := range map[string]string{
		`{"svc_id_of":"x"}`:                   "'external_id', 'braze_id', 'user_alias', 'email' or 'phone' is required",
		`{"external_id":"u","svc_id":"k"}`:    "You must specify only one of 'external_id', 'user_alias' or 'braze_id'",
		`{"svc_id":5}`:                        "'braze_id' must be a String",
		`{"push_token_import":true}`:          "'push_token_import' needs 'push_tokens' and allows neither 'external_id' nor 'braze_id'",
		`{"external_id":"u","svc_id_":1e999}`: "'svc_id_' has an integer outside the signed 64-bit range or a number that is no finite double",
	} {
		reply, _, _ := track(t, testDecoder(), ws, `{"attributes":[`+object+`]}`)
		require.Contains(t, reply, `"type":"`+text+`"`)
	}
}

func TestBlockedProfile(t *testing.T) {
	var b op.Builder
	b.Reset(0)
	r := &fakeRouter{Builder: &b, blocked: map[string]bool{"u": true}}
	for _, body := range []string{
		`{"attributes":[{"external_id":"u","phone":"1"}],"events":[` + goodEvent + `,` + strings.Replace(goodEvent, `"u"`, `"v"`, 1) + `]}`,
		`{"events":[` + goodEvent + `,` + strings.Replace(goodEvent, `"u"`, `"v"`, 1) + `],"attributes":[{"external_id":"u","phone":"1"}]}`,
	} {
		b.Reset(0)
		reply, status := testDecoder().Track(nil, []byte(body), testWorkspace(), &b, r, testNow)
		require.Equal(t, `{"events_processed":1,"message":"success","errors":[`+
			`{"type":"provided external_id is blacklisted and disallowed","input_array":"attributes","index":0},`+
			`{"type":"provided external_id is blacklisted and disallowed","input_array":"events","index":0}]}`, string(reply))
		require.Equal(t, 201, status)
		require.Equal(t, 1, b.Count())
	}
}

func TestEvents(t *testing.T) {
	ops(t, `{"events":[{"time":"2026-11-21T04:23:01.123Z","app_id":"a","name":"n","external_id":"u","more":[1,{"x":null}],"properties":null}]}`,
		`event external_id="u" "n" app=a time=1795234981123`)
	ops(t, `{"events":[{"external_id":"u","name":"n","time":"9999-12-31T23:59:59-05:00"}]}`, `event external_id="u" "n" app=- time=1800000000000`)
	ops(t, `{"events":[{"external_id":"u","name":"n","time":"2030-01-01T00:00:00Z","app_id":null}]}`, `event external_id="u" "n" app=- time=1800000000000`)
	event(t, `"properties":{"s":"x","i":-5,"f":1.5,"t":true,"b":false,"d":"2026-11-21"}`, `"s":"x" "i":-5 "f":f1.5 "t":true "b":false "d":"2026-11-21"`)
	event(t, `"properties":{"o":{ "a" : [1,"2026-11-21",null] },"l":[1,1.5,"x",true,null,{"a": 1},[1, [2]],[]]}`,
		`"o":json<{ "a" : [1,"2026-11-21",null] }> "l":[1,f1.5,"x",true,null,json<{"a": 1}>,json<[1, [2]]>,json<[]>]`)
	event(t, `"properties":{"o":{"\u0061":"\n"}}`, `"o":json<{"\u0061":"\n"}>`)
	event(t, `"properties":{"price":1}`, `"price":1`)

	no := func(members, text string) {
		t.Helper()
		refused(t, "events", `{"external_id":"u",`+members+`}`, text)
	}
	no(`"time":"2026-11-21"`, "'name' is required")
	no(`"name":null,"time":"bad"`, "'name' is required")
	no(`"name":"","time":"bad"`, "'name' is required")
	no(`"name":"n"`, "'time' is required")
	no(`"name":"n","time":null`, "'time' is required")
	no(`"name":"n","time":""`, "'time' is not valid")
	no(`"time":"","name":""`, "'name' is required")
	no(`"name":"n","time":"bad"`, "'time' is not valid")
	no(`"name":"n","time":1795234981`, "'time' is not valid")
	no(`"name":5,"time":"bad"`, "'name' is not valid")
	no(`"time":"bad","name":5`, "'time' is not valid")
	no(`"time":"2026-11-21","name":"n","app_id":5`, "'app_id' is not valid")
	long := strings.Repeat("é", 255)
	ops(t, `{"events":[{"external_id":"u","name":"`+long+`","time":"2026-11-21"}]}`, `event external_id="u" "`+long+`" app=- time=1795219200000`)
	no(`"time":"2026-11-21","name":"`+long+`x"`, "'name' must be at most 255 characters")

	props := func(properties, text string) {
		t.Helper()
		no(`"properties":`+properties+`,"name":"n","time":"2026-11-21"`, text)
	}
	event(t, `"properties":{"`+long+`":"`+long+`"}`, `"`+long+`":"`+long+`"`)
	props(`5`, "Invalid 'properties' field")
	props(`[]`, "Invalid 'properties' field")
	props(`{"time":1}`, "Invalid 'properties' field")
	props(`{"event_name":1}`, "Invalid 'properties' field")
	props(`{"":1}`, "a property name must not be empty")
	props(`{"$a":1}`, "the property name '$a' must not start with a dollar sign")
	props(`{"`+long+`x":1}`, "the property name '"+strings.Repeat("é", 32)+"…' must be at most 255 characters")
	props(`{"p":"`+long+`x"}`, "property 'p' must be at most 255 characters")
	props(`{"p":["`+long+`x"]}`, "property 'p' must be at most 255 characters")
	props(`{"a\"\\\n":null}`, "property 'a\"\\\n' must not be null")
	props(`{"p":["2026-11-21T00:00:00Z"]}`, "property 'p' must not have a datetime in an array")
	props(`{"p":[["2026-11-21"]]}`, "property 'p' must not have a datetime in an array")
	props(`{"p":1e999}`, "property 'p' has an integer outside the signed 64-bit range or a number that is no finite double")
	props(`{"p":[{"q":9223372036854775808}]}`, "property 'p' has an integer outside the signed 64-bit range or a number that is no finite double")
	no(`"properties":{"p":null},"name":5,"time":"2026-11-21"`, "'name' is not valid")
	no(`"properties":{"p":null},"name":"n"`, "'time' is required")
}

func TestPurchases(t *testing.T) {
	one := func(members, want string) {
		t.Helper()
		ops(t, `{"purchases":[{"external_id":"u","time":"2026-11-21",`+members+`}]}`, `purchase external_id="u" `+want)
	}
	one(`"product_id":"p","currency":"USD","price":12.12,"quantity":6`, `"p" app=- time=1795219200000 USD 7272 40283d70a3d70a3d x6`)
	one(`"product_id":1,"currency":"cad","price":-1,"quantity":null,"app_id":"a"`, `"1" app=a time=1795219200000 CAD -100 bff0000000000000 x1`)
	one(`"product_id":"p","currency":"USD","price":1.5`+strings.Repeat("0", 1000), `"p" app=- time=1795219200000 USD 150 3ff8000000000000 x1`)
	no := func(members, text string) {
		t.Helper()
		refused(t, "purchases", `{"external_id":"u",`+members+`}`, text)
	}
	no(`"product_id":"p","currency":"USD","time":"2026-11-21","price":1.5`+strings.Repeat("0", 1022), "'price' has a number of more than 1,024 characters")
	one(`"product_id":"p","currency":"JPY","price":1e2,"properties":{"a":1}`, `"p" app=- time=1795219200000 JPY 100 4059000000000000 x1 "a":1`)
	no(`"currency":"USD","price":1,"time":"2026-11-21"`, "'product_id' is required")
	no(`"product_id":"p","price":1,"time":"2026-11-21"`, "'currency' is required")
	no(`"product_id":"p","currency":"USD","time":"2026-11-21"`, "'price' is required")
	no(`"product_id":"p","currency":"USD","price":1`, "'time' is required")
	rest := `,"product_id":"p","time":"2026-11-21"`
	no(`"currency":"","price":1`+rest, "'currency' is not valid")
	no(`"currency":null,"price":""`+rest, "'currency' is required")
	no(`"currency":"USD","price":""`+rest, "'price' is not valid")
	no(`"currency":"USD","price":null`+rest, "'price' is required")
	no(`"currency":"USD","price":1,"product_id":"","time":""`, "'product_id' is required")
	no(`"currency":"USD","price":1,"product_id":"p","time":""`, "'time' is not valid")
	no(`"currency":"US","price":1`+rest, "'currency' is not valid")
	no(`"currency":5,"price":1`+rest, "'currency' is not valid")
	no(`"currency":"USD","price":"1"`+rest, "'price' is not valid")
	no(`"price":"1","currency":"XX"`+rest, "'price' is not valid")
	no(`"price":1e300,"currency":"USD"`+rest, "'price' is not valid")
	for _, q := range []string{"0", "-1", "101", "1.5", "100.5", "0.0", "-1.0", "101.0", "1e3", "1e300", "1e999", `"1"`, "true", "99999999999999999999"} {
		no(`"currency":"USD","price":1,"quantity":`+q+rest, "'quantity' is not valid")
	}
	for _, q := range []string{"100", "100.0", "1e2", "1E+2", "10000e-2", "100." + strings.Repeat("0", 1000)} {
		one(`"product_id":"p","currency":"USD","price":1,"quantity":`+q, `"p" app=- time=1795219200000 USD 10000 3ff0000000000000 x100`)
	}
	no(`"currency":"USD","price":1,"quantity":1.`+strings.Repeat("0", 1100)+rest, "'quantity' is not valid")
	for _, name := range []string{"time", "product_id", "quantity", "event_name", "price", "currency"} {
		no(`"currency":"USD","price":1,"properties":{"`+name+`":1}`+rest, "Invalid 'properties' field")
	}
}

func TestCustomAttributes(t *testing.T) {
	attrs(t, `"s":"x","i":9223372036854775807,"j":-9223372036854775808,"f":-0.5,"e":1E2,"t":true,"b":false,"n":null,"z":"","d":"12/1/2021"`,
		`"~s":"x" "~i":9223372036854775807 "~j":-9223372036854775808 "~f":f-0.5 "~e":f100 "~t":true "~b":false "~n":null "~z":"" "~d":t1638316800000`)
	attrs(t, `" a b ":1," a b":2`, `"~a b":1 "~a b":2`)
	attrs(t, `"d":"3001-01-01","w":"Sat 11 21 04:23:01.UTC 2026","m":"Saturday"`, `"~d":"3001-01-01" "~w":t1795234981000 "~m":"Saturday"`)
	attrs(t, `"i":{"inc":-3}`, `"~i":inc(-3)`)
	attrs(t, `"i":{"inc":-3.0},"j":{"inc":1e2},"k":{"inc":-0.0}`, `"~i":inc(-3) "~j":inc(100) "~k":inc(0)`)
	attrs(t, `"i":{"inc":-9223372036854775808.0},"j":{"inc":1e18}`, `"~i":inc(-9223372036854775808) "~j":inc(1000000000000000000)`)
	attrs(t, `"i":{"inc":3,"x":"y"}`, `"~i":{"inc":3,"x":"y"}`)
	attrs(t, `"a":[1,"x",{"b":[1,[2]]},[ 3 ],null,true]`, `"~a":[1,"x",{"b":[1,json<[2]>]},json<[ 3 ]>,null,true]`)
	attrs(t, `"a":{"add":["x"]},"r":{"remove":[1],"add":[2]},"n":{"add":["x"],"y":1}`, `"~a":update(["x"],[]) "~r":update([2],[1]) "~n":{"add":["x"],"y":1}`)
	attrs(t, `"o":{"a":{"b":null},"t":{"$time":"2026-11-21"}},"_merge_objects":false`, `"~o":{"a":{"b":null},"t":t1795219200000}`)
	attrs(t, `"a":[{"x":null,"y":1,"o":{"z":null}},null],"o":{"x":null,"l":[{"x":null}]}`, `"~a":[{"y":1,"o":{}},null] "~o":{"x":null,"l":[{}]}`)
	attrs(t, `"o":{"$time":"2026-11-21"}`, `"~o":t1795219200000`)
	attrs(t, `"o":{"t":{"$time":"3000-12-31T23:59:59Z"}}`, `"~o":{"t":t32535215999000}`)
	attrs(t, `"o":{}`, `"~o":{}`)
	ops(t, `{"attributes":[{"external_id":"u","o":{"a":1},"_merge_objects":true}]}`, `attributes external_id="u"+merge "~o":{"a":1}`)
	attrs(t, `"o":{"$add":[{"a":1},{"t":{"$time":"2026-11-21"}}]}`, `"~o":edit(0 [{"a":1},{"t":t1795219200000}];)`)
	attrs(t, `"o":{"$add":[{"a":1}],"$update":[{"$identifier_key":"a","$identifier_value":1,"$new_object":{"b":2}}],"$remove":[{"$identifier_key":"a","$identifier_value":"x"},{"$identifier_value":true,"$identifier_key":"c"}]}`,
		`"~o":edit(2 "a" "x";2 "c" true;1 "a" 1 {"b":2};0 [{"a":1}];)`)
	attrs(t, `"o":{"$add":[],"$remove":[{"$identifier_key":"a","$identifier_value":1}]},"p":{"$add":[]}`, `"~o":edit(2 "a" 1;) "~p":edit()`)
	// An attribute with a member that is not allowed is left out.
	for _, o := range []string{`{"a b":1}`, `{"a.b":1}`, `{"":1}`, `{"$x":1}`, `{"a":{"$y":1}}`, `{"s":"` + strings.Repeat("x", 256) + `"}`, `{"t":{"$time":"bad"}}`, `{"t":{"$time":"3001-01-01"}}`,
		`{"t":{"$time":"2026-11-21","x":1}}`, `{"$add":[1]}`, `{"$add":{}}`, `{"$add":[],"x":1}`, `{"$remove":[{"$identifier_key":"a"}]}`, `[{"$x":1}]`,
		`{"$remove":[{"$identifier_key":"a","$identifier_value":[]}]}`, `{"$update":[{"$identifier_key":"a","$identifier_value":1,"$new_object":1}]}`,
		`{"$add":[{"$add":[]}]}`, `{"$identifier_key":"x"}`, `[{"a":"` + strings.Repeat("x", 256) + `"}]`} {
		partly(t, `"o":`+o+`,"a":1`, ` "~a":1`, "'o' is not valid")
	}
	long := strings.Repeat("é", 255)
	attrs(t, `"`+long+`":"`+long+`"`, `"~`+long+`":"`+long+`"`)
	no := func(members, text string) {
		t.Helper()
		refused(t, "attributes", `{"external_id":"u",`+members+`}`, text)
	}
	no(`"a":"`+long+`x"`, "'a' must be at most 255 characters")
	no(`"a":["`+long+`x"]`, "'a' must be at most 255 characters")
	no(`"`+long+`x":1`, "the attribute name '"+strings.Repeat("é", 32)+"…' must have 1 to 255 characters")
	no(`" ":1`, "the attribute name ' ' must have 1 to 255 characters")
	for _, n := range []string{"1.5", "9223372036854775808.0", "-1e19", "1e300", `"1"`, "true", "null"} {
		no(`"a":{"inc":`+n+`}`, "'a' is not valid")
	}
	no(`"a":{"add":1}`, "'a' is not valid")
	no(`"a":{"b":[{"c":1e400}]}`, "'a' has an integer outside the signed 64-bit range or a number that is no finite double")
	no(`"a":-9223372036854775809`, "'a' has an integer outside the signed 64-bit range or a number that is no finite double")
	no(`"a":`+strings.Repeat("1", 65), "'a' has an integer outside the signed 64-bit range or a number that is no finite double")
	no(`"a":`+strings.Repeat("1", 4096), "'a' has an integer outside the signed 64-bit range or a number that is no finite double")
	attrs(t, `"a":0.`+strings.Repeat("1", 1022), `"~a":f0.1111111111111111`)
	attrs(t, `"a":`+strings.Repeat("1", 200)+`.5,"b":0.`+strings.Repeat("0", 400)+`1`, `"~a":f1.1111111111111111e+199 "~b":f0`)
	no(`"a":0.`+strings.Repeat("1", 1023), "'a' has a number of more than 1,024 characters")
	no(`"a":{"b":[0.`+strings.Repeat("1", 1023)+`]}`, "'a' has a number of more than 1,024 characters")
	no(`"b":1e400,"a":"`+long+`x"`, "'b' has an integer outside the signed 64-bit range or a number that is no finite double")
}

// An array that is set is a set of its values; of equal values the first counts. Values that are only similar stay, and
// so do objects.
func TestArraysAreSets(t *testing.T) {
	attrs(t, `"a":["a","a","b"]`, `"~a":["a","b"]`)
	attrs(t, `"a":["hotdog","hotdog","hotdog","pizza"],"b":["hotdog"]`, `"~a":["hotdog","pizza"] "~b":["hotdog"]`)
	attrs(t, `"a":["\u0061","b","a"]`, `"~a":["a","b"]`)
	attrs(t, `"a":[1,1.0,"1",true,1,1.0,"1",true,null,null,[1],[1],[ 1]]`, `"~a":[1,f1,"1",true,null,json<[1]>,json<[ 1]>]`)
	attrs(t, `"a":[{"b":1},{"b":1}]`, `"~a":[{"b":1},{"b":1}]`)
	attrs(t, `"a":{"b":["x","x"]}`, `"~a":{"b":["x","x"]}`)
	attrs(t, `"a":{"add":["x","y","x"]}`, `"~a":update(["x","y","x"],[])`)
	var list, want []string
	for i := range 10_000 {
		list = append(list, fmt.Sprint(i%5000))
		if i < 5000 {
			want = append(want, fmt.Sprint(i))
		}
	}
	attrs(t, `"a":[`+strings.Join(list, ",")+`],"b":[0,0]`, `"~a":[`+strings.Join(want, ",")+`] "~b":[0]`)
}

func TestReservedAttributes(t *testing.T) {
	attrs(t, `"first_name":"Ada","last_name":null,"home_city":"x","image_url":"u","country":"Australia","language":"en","gender":"F","dob":"1980-02-29"`,
		`"first_name":"Ada" "last_name":null "home_city":"x" "image_url":"u" "country":"AU" "language":"en" "gender":"F" "dob":"1980-02-29"`)
	ops(t, `{"attributes":[{"external_id":"u","date_of_first_session":"2026-11-21","date_of_last_session":null,"marked_email_as_spam_at":"2026-11-21T04:23:01Z"}]}`,
		`attributes external_id="u"+contact "date_of_first_session":t1795219200000 "date_of_last_session":null "marked_email_as_spam_at":t1795234981000`)
	attrs(t, `"current_location":{"latitude":1,"x":[],"longitude":-2.5},"time_zone":"Eastern Time (US & Canada)"`,
		`"current_location":{"longitude":f-2.5,"latitude":f1} "time_zone":"America/New_York"`)
	attrs(t, `"current_location":{"latitude":"41.9","longitude":"-1.25e1"}`, `"current_location":{"longitude":f-12.5,"latitude":f41.9}`)
	attrs(t, `"email_open_tracking_disabled":true,"email_click_tracking_disabled":false,"push_subscribe":"opted_in","bio":"x","alias_name":1,"alias_label":[]`,
		`"email_open_tracking_disabled":true "email_click_tracking_disabled":false "push_subscribe":"opted_in"`)
	attrs(t, `"facebook":{"id":"1","likes":["a"],"num_friends":2},"twitter":{"id":5,"screen_name":"x"}`,
		`"facebook":{"id":"1","likes":["a"],"num_friends":2} "twitter":{"id":5,"screen_name":"x"}`)
	attrs(t, `"push_tokens":[{"app_id":"`+testApp+`","token":"t","device_id":"12345678"},{"token":"v","app_id":"`+testApp+`","device_id":null}]`,
		`"push_tokens":[{"app_id":"`+testApp+`","token":"t","device_id":"12345678"},{"app_id":"`+testApp+`","token":"v"}]`)
	attrs(t, `"push_tokens":[],"home_city":"x"`, `"home_city":"x"`)
	for _, v := range []string{`{"inc":1}`, `{"add":["a"]}`, `{"$remove":[]}`, `{"$time":"2026-11-21"}`} {
		partly(t, `"facebook":`+v, ``, "'facebook' is not valid")
	}
	contact := func(members, want string) {
		t.Helper()
		ops(t, `{"attributes":[{"external_id":"u",`+members+`}]}`, `attributes external_id="u"+contact `+want)
	}
	contact(`"email_subscribe":"unsubscribed"`, `"email_subscribe":"unsubscribed"`)
	contact(`"email":null,"phone":null`, `"email":null "phone":null`)
	contact(`"phone":"+15043277269"`, `"phone":"+15043277269"`)
	contact(`"subscription_groups":[{"subscription_group_id":"`+testGroupText+`","subscription_state":"subscribed"},{"subscription_state":"unsubscribed","use_double_opt_in_logic":true,"subscription_group_id":"`+strings.ToUpper(testGroupText)+`"}]`,
		`"subscription_groups":[`+dumpString(string(testGroup[:])+"\x01")+`,true,`+dumpString(string(testGroup[:])+"\x01")+`,false]`)

	partly(t, `"phone":"123"`, `+contact`, "'phone' is not valid")
	partly(t, `"phone":15043277269`, `+contact`, "'phone' is not valid")
	for _, name := range []string{"country", "language", "gender", "dob", "time_zone"} {
		for _, value := range []string{`"xx-"`, `5`, `true`, `{}`, `""`} {
			partly(t, `"`+name+`":`+value+`,"a":1`, ` "~a":1`, "'"+name+"' is not valid")
		}
	}
	partly(t, `"dob":"1981-02-29"`, ``, "'dob' is not valid")
	attrs(t, `"dob":"01/02/1971","gender":"female"`, `"dob":"1971-01-02" "gender":"F"`)
	attrs(t, `"dob":"1980-12-21T00:00:00.000Z","gender":"p"`, `"dob":"1980-12-21" "gender":"P"`)
	partly(t, `"country":"Atlantis","a":1`, ` "~a":1`, "'country' is not valid")
	partly(t, `"time_zone":"Mars"`, ``, "'time_zone' is not valid")

	no := func(members, text string) {
		t.Helper()
		refused(t, "attributes", `{"external_id":"u","phone":"1",`+members+`}`, text)
	}
	no(`"email":"bad"`, "The value provided for the 'email' field is not a valid email.")
	no(`"email":"bad","first_name":5`, "The value provided for the 'email' field is not a valid email.")
	no(`"first_name":5,"email":"bad"`, "'first_name' is not valid")
	no(`"dob":5,"email":"bad"`, "The value provided for the 'email' field is not a valid email.")
	no(`"email_subscribe":"x"`, "'email_subscribe' must be 'subscribed', 'unsubscribed', or 'opted_in'")
	no(`"email_subscribe":true`, "'email_subscribe' must be 'subscribed', 'unsubscribed', or 'opted_in'")
	no(`"push_subscribe":"x"`, "'push_subscribe' must be 'subscribed', 'unsubscribed', or 'opted_in'")
	no(`"first_name":5`, "'first_name' is not valid")
	no(`"first_name":"`+strings.Repeat("x", 256)+`"`, "'first_name' must be at most 255 characters")
	no(`"date_of_first_session":"x"`, "'date_of_first_session' is not valid")
	no(`"current_location":{"longitude":1}`, "'current_location' is not valid")
	no(`"current_location":"x"`, "'current_location' is not valid")
	for _, bad := range []string{`""`, `" 1"`, `"1 "`, `"x"`, `"1x"`, `"0x1p4"`, `"inf"`, `"NaN"`, `"1e999"`, `"1,5"`, `null`, `true`, `{}`, `"` + strings.Repeat("1", 2000) + `"`} {
		no(`"current_location":{"longitude":1,"latitude":`+bad+`}`, "'current_location' is not valid")
		no(`"current_location":{"longitude":`+bad+`,"latitude":1}`, "'current_location' is not valid")
	}
	no(`"email_open_tracking_disabled":"true"`, "'email_open_tracking_disabled' is not valid")
	no(`"email_subscription_info":{}`, "'email_subscription_info' may not be set")
	no(`"facebook":5`, "'facebook' is not valid")
	groups := func(value, text string) {
		t.Helper()
		no(`"subscription_groups":`+value, text)
	}
	array := "'subscription_groups' must be an array of objects with 'subscription_group_id' and 'subscription_state'"
	groups(`{}`, array)
	groups(`[1]`, array)
	groups(`[{"subscription_state":"subscribed"}]`, array)
	groups(`[{"subscription_group_id":"x","subscription_state":"subscribed"}]`, "'subscription_group_id' is not valid")
	groups(`[{"subscription_group_id":"00000000-0000-0000-0000-000000000001","subscription_state":"subscribed"}]`, "'subscription_group_id' is not valid")
	groups(`[{"subscription_group_id":"`+testGroupText+`","subscription_state":"opted_in"}]`, "'subscription_state' must be 'subscribed' or 'unsubscribed'")
	tokens := func(value, text string) {
		t.Helper()
		no(`"push_tokens":`+value, text)
	}
	tokens(`"x"`, "'push_tokens' must be an array of objects with 'app_id' and 'token'")
	tokens(`[{"token":"x"}]`, "'push_tokens' must be an array of objects with 'app_id' and 'token'")
	tokens(`[{"token":"x","app_id":"y"}]`, "the 'app_id' of a push token is not an app of this workspace")
	tokens(`[{"token":"","app_id":"`+testApp+`"}]`, "the 'token' of a push token is not valid")
	tokens(`[{"token":"x","app_id":"`+testApp+`","device_id":"1234567"}]`, "token import with 'device_id' must have a device_id less than 255 bytes and at least 8 bytes")
}

func TestPushTokenImport(t *testing.T) {
	token := `"push_tokens":[{"app_id":"` + testApp + `","token":"t"}]`
	want := `"push_tokens":[{"app_id":"` + testApp + `","token":"t"}]`
	ops(t, `{"attributes":[{"push_token_import":true,`+token+`}]}`, `attributes user_alias="push_token"/"`+testApp+`:t"/true `+want)
	ops(t, `{"attributes":[{"push_token_import":true,"email":"a@example.com",`+token+`}]}`, `attributes email="a@example.com" `+want)
	text := "'push_token_import' needs 'push_tokens' and allows neither 'external_id' nor 'svc_id'"
	refused(t, "attributes", `{"push_token_import":true}`, text)
	refused(t, "attributes", `{"push_token_import":true,"push_tokens":[]}`, text)
	refused(t, "attributes", `{"push_token_import":true,"external_id":"u",`+token+`}`, text)
	refused(t, "attributes", `{"push_token_import":false,`+token+`}`, "'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required")
}

func TestUnsafeObjects(t *testing.T) {
	good := `{"external_id":"v","a":1}`
	one := func(object, text string) {
		t.Helper()
		reply, status, rec := track(t, testDecoder(), testWorkspace(), `{"attributes":[`+good+`,`+object+`,`+good+`]}`)
		require.Equal(t, `{"attributes_processed":2,"message":"success","errors":[{"type":"`+text+`","input_array":"attributes","index":1}]}`, reply)
		require.Equal(t, 201, status)
		require.Equal(t, []string{`attributes external_id="v" "~a":1`, `attributes external_id="v" "~a":1`}, dump(rec))
	}
	one(`{"external_id":"u","external_id":"u"}`, "member 'external_id' is there more than once")
	one(`{"external_id":"u","a":1,"\u0061":2}`, "member 'a' is there more than once")
	one(`{"external_id":"u","o":{"b":{"a":1,"a":2}}}`, "member 'a' is there more than once")
	one(`{"external_id":"u","o":{"a":{"a":1},"a":2}}`, "member 'a' is there more than once")
	for _, properties := range []string{`{"a":1,"a":1}`, `{"a":1,"\u0061":2}`, `{"a":null,"b":1,"a":2}`, `{"l":[{"a":1,"a":2}]}`} { // which columns of Parquet rely on
		refused(t, "events", `{"external_id":"u","name":"n","time":"2026-01-31T09:30:00Z","properties":`+properties+`}`, "member 'a' is there more than once")
		refused(t, "purchases", `{"external_id":"u","product_id":"n","currency":"EUR","price":1,"time":"2026-01-31T09:30:00Z","properties":`+properties+`}`, "member 'a' is there more than once")
	}
	one(`{"user_alias":{"x":{"y":1,"y":1}}}`, "member 'y' is there more than once")
	one(`{"external_id":"u","o":[[{"y":{"y":0},"y":1}]]}`, "member 'y' is there more than once")
	one(`{"external_id":"u","a":"\ud800"}`, "a string has an escaped surrogate without its other half")
	one(`{"external_id":"u","a":"\ud800\ud800\udc00"}`, "a string has an escaped surrogate without its other half")
	one(`{"external_id":"u","\udc00":1}`, "a string has an escaped surrogate without its other half")
	one(`{"external_id":"u","a":`+strings.Repeat("[", 33)+strings.Repeat("]", 33)+`}`, "the object is nested too deeply")
	one(`{"external_id":"u","a":`+strings.Repeat(`{"a":`, 33)+"1"+strings.Repeat("}", 33)+`}`, "the object is nested too deeply")
	one(strings.Repeat(`[`, 20000)+strings.Repeat("]", 20000), "the object is nested too deeply")
	attrs(t, `"a":`+strings.Repeat(`{"a":`, 32)+"1"+strings.Repeat("}", 32), `"~a":`+strings.Repeat(`{"a":`, 32)+"1"+strings.Repeat("}", 32))
	deep := strings.Repeat("[", 31) + strings.Repeat("]", 31)
	event(t, `"properties":{"a":`+deep+`}`, `"a":[json<`+deep[1:61]+`>]`)
	refused(t, "events", strings.Replace(goodEvent, `{`, `{"properties":{"a":[`+deep+`]},`, 1), "the object is nested too deeply")

	many := make([]string, 3000)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%d":%d`, i, i)
	}
	members := strings.Join(many, ",")
	reply, status, rec := track(t, testDecoder(), testWorkspace(), `{"attributes":[{"external_id":"u",`+members+`}]}`)
	require.Equal(t, 201, status, reply)
	require.Equal(t, 1, rec.Count)
	refused(t, "attributes", `{"external_id":"u",`+members+`,"k2999":1}`, "member 'k2999' is there more than once")
	refused(t, "attributes", `{"external_id":"u",`+members+`,"k5":1}`, "member 'k5' is there more than once")
}

func TestBadRequests(t *testing.T) {
	f := func(body string, at int) {
		t.Helper()
		bad(t, body, fmt.Sprintf("Malformed JSON at byte %d", at))
	}
	f(``, 0)
	f(`[1,`, 3)
	f(`[] x`, 3)
	f(`nul`, 3)
	f(`{`, 1)
	f(`{} x`, 3)
	f("{}\x00", 2)
	f(`{"a":1,}`, 7)
	f(`{"events":[`+goodEvent+`],}`, 12+len(goodEvent)+1)
	f(`{"events":[`+goodEvent+`,]}`, 12+len(goodEvent))
	f(`{"events":[`+goodEvent+` 1]}`, 12+len(goodEvent))
	f(`{"events":[`+goodEvent, 11+len(goodEvent))
	f(`{"a":"`+"\x1f"+`"}`, 6)
	f(`{"a":"`+"\xc3("+`"}`, 6)
	f(`{"a":"xxxxxxx\n`+"é\xff"+`"}`, 17)
	f(`{"a":"\x"}`, 7)
	f(`{"a":"\u12g4"}`, 6)
	f(`{"a":tru}`, 8)
	f(`{"a":01}`, 6)
	f(`{"a":1.}`, 7)
	f(`{"a":-}`, 6)
	f(`{"a":1e}`, 7)
	f(`{"a":+1}`, 5)
	f(`{"a":.5}`, 5)
	f(`{"a" 1}`, 5)
	f(`{a:1}`, 1)
	f(`{"a":[1,]}`, 8)
	f(`{"a":[1 2]}`, 8)
	bad(t, "\xef\xbb\xbf{}", "Malformed JSON at byte 0: a byte order mark")
	bad(t, `{"attributes":[],"attributes":[]}`, "Malformed JSON at byte 18: member 'attributes' is there more than once")
	bad(t, `{"x":{"y":1,"y":1}}`, "Malformed JSON at byte 13: member 'y' is there more than once")
	bad(t, `{"x":"\ud800"}`, "Malformed JSON at byte 6: a string has an escaped surrogate without its other half")
	bad(t, `{"x":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)+`}`, "Malformed JSON at byte 37: the object is nested too deeply")
	for _, body := range []string{`[]`, `null`, ` "x" `, `-1.5e3`, `true`, `[{"events":[]}]`} {
		bad(t, body, "the body must be an object")
	}
	bad(t, `{"events":{}}`, "'events' must be an array")
	bad(t, `{"attributes":"x"}`, "'attributes' must be an array")
	bad(t, `{"purchases":1,"attributes":{}}`, "'attributes' must be an array")
	f(`{"attributes":`, 14)
	f(`{"attributes":{"external_id":"a"}]}`, 33)
	f(`{"events":5,"x":}`, 16)
	f(`{"events":tru}`, 13)
	f(`{"events":{}} x`, 14)
	bad(t, `{}`, nothingValid)
	bad(t, `{"attributes":[],"events":null,"x":1e999}`, nothingValid)
}

func TestLimits(t *testing.T) {
	list := func(n int) string { return strings.Repeat(goodEvent+",", n-1) + goodEvent }
	reply, status, rec := track(t, testDecoder(), testWorkspace(), `{"events":[`+list(75)+`]}`)
	require.Equal(t, `{"events_processed":75,"message":"success"}`, reply)
	require.Equal(t, 201, status)
	require.Equal(t, 75, rec.Count)
	bad(t, `{"events":[`+list(76)+`]}`, "Max Input Length Exceeded: 'events' must hold at most 75 objects")
	bad(t, `{"attributes":[`+strings.Repeat("0,", 1<<20), "Max Input Length Exceeded: 'attributes' must hold at most 75 objects")

	mau := &Workspace{MaxCombined: 50}
	attributes := strings.Repeat(`{"external_id":"u"},`, 25)
	_, status, rec = track(t, testDecoder(), mau, `{"events":[`+list(25)+`],"attributes":[`+attributes[:len(attributes)-1]+`]}`)
	require.Equal(t, 201, status)
	require.Equal(t, 50, rec.Count)
	reply, status, _ = track(t, testDecoder(), mau, `{"events":[`+list(26)+`],"attributes":[`+attributes[:len(attributes)-1]+`]}`)
	require.Equal(t, 400, status)
	require.Contains(t, reply, "together must hold at most 50 objects")

	// Properties with an array or an object in them may have 50 KB.
	properties := func(size int, first string) string {
		p := `{` + first
		for i := 0; size-len(p) > 240; i++ {
			p += fmt.Sprintf(`,"k%03d":"%s"`, i, strings.Repeat("x", 200))
		}
		p += `,"last":"`
		return p + strings.Repeat("x", size-len(p)-2) + `"}`
	}
	object := func(p string) string { return strings.Replace(goodEvent, `{`, `{"properties":`+p+`,`, 1) }
	for _, first := range []string{`"a":[]`, `"a":{}`} {
		require.Len(t, properties(51200, first), 51200)
		_, status, _ = track(t, testDecoder(), testWorkspace(), `{"events":[`+object(properties(51200, first))+`]}`)
		require.Equal(t, 201, status)
		refused(t, "events", object(properties(51201, first)), "'properties' with arrays or objects must be at most 50 KB")
	}
	small := testDecoder()
	for limit, says := range map[int]string{2048: "at most 2 KB", 2000: "at most 2000 bytes"} {
		small.MaxPropertiesBytes = limit
		reply, _, _ := track(t, small, testWorkspace(), `{"events":[`+object(properties(3000, `"a":[]`))+`]}`)
		require.Contains(t, reply, says)
	}
	_, status, _ = track(t, testDecoder(), testWorkspace(), `{"events":[`+object(properties(60000, `"a":1`))+`]}`)
	require.Equal(t, 201, status)

	// 256 properties are kept. The others are judged all the same.
	var some, want []string
	for i := range 300 {
		some = append(some, fmt.Sprintf(`"p%d":%d`, i, i))
		if i < 256 {
			want = append(want, fmt.Sprintf(`"p%d":%d`, i, i))
		}
	}
	many := `{"events":[` + object(`{`+strings.Join(some, ",")+`}`) + `]}`
	reply, status, rec = track(t, testDecoder(), testWorkspace(), many)
	require.Equal(t, 201, status)
	require.Contains(t, reply, `"warnings":[{"type":"property 'p256' and those after it are more than are kept",`+
		`"input_array":"events","index":0}]`)
	require.Equal(t, 1, strings.Count(reply, `"type"`))
	require.Contains(t, dump(rec)[0], strings.Join(want, " "))
	require.NotContains(t, dump(rec)[0], "p256")
	event(t, `"properties":{`+strings.Join(some[:256], ",")+`}`, strings.Join(want, " "))
	refused(t, "events", object(`{`+strings.Join(some, ",")+`,"x":null}`), "property 'x' must not be null")

	// A nested attribute may have 100 KB. A longer one is left out.
	nested := func(size int) string {
		o := `{"a":[` + strings.Repeat("1,", 50000)
		return o + strings.Repeat("1", 18) + strings.Repeat(" ", size-len(o)-20) + "]}"
	}
	reply, status, rec = track(t, testDecoder(), testWorkspace(), `{"attributes":[{"external_id":"u","o":`+nested(102400)+`}]}`)
	require.Equal(t, 201, status, reply)
	require.Greater(t, len(rec.Ops), 100000)
	partly(t, `"o":`+nested(102401), ``, "'o' is too large")
	partly(t, `"o":{"$add":[`+nested(102400)+`]}`, ``, "'o' is too large")
	partly(t, `"o":{"add":[`+strings.Repeat(" ", 102400)+`]}`, ``, "'o' is too large")
	attrs(t, `"o":[`+strings.Repeat(" ", 102398)+`]`, `"~o":[]`)
	partly(t, `"o":[`+strings.Repeat(" ", 102399)+`]`, ``, "'o' is too large")
}

func TestOrderOfEffect(t *testing.T) {
	purchase := `{"external_id":"p","product_id":"x","currency":"USD","price":1,"time":"2026-11-21"}`
	arrays := map[string]string{
		"attributes": `"attributes":[{"external_id":"a","x":"` + strings.Repeat("é", 200) + `"},{"external_id":"b"}]`,
		"events":     `"events":[` + goodEvent + `,{},` + goodEvent + `]`,
		"purchases":  `"purchases":[` + purchase + `,5]`,
	}
	want, wantStatus, wantRec := track(t, testDecoder(), testWorkspace(), `{`+arrays["attributes"]+`,`+arrays["events"]+`,`+arrays["purchases"]+`}`)
	require.Equal(t, 201, wantStatus)
	require.Len(t, dump(wantRec), 5)
	for _, order := range [][3]string{{"attributes", "purchases", "events"}, {"events", "attributes", "purchases"}, {"events", "purchases", "attributes"},
		{"purchases", "attributes", "events"}, {"purchases", "events", "attributes"}} {
		d := testDecoder()
		for range 3 { // buffers are used again
			reply, status, rec := track(t, d, testWorkspace(), `{`+arrays[order[0]]+`,"x":{},`+arrays[order[1]]+`,`+arrays[order[2]]+`}`)
			require.Equal(t, want, reply)
			require.Equal(t, 201, status)
			require.Equal(t, dump(wantRec), dump(rec), order)
		}
	}
	require.Equal(t, `{"attributes_processed":2,"events_processed":2,"purchases_processed":1,"message":"success","errors":[`+
		`{"type":"'external_id', 'svc_id', 'user_alias', 'email' or 'phone' is required","input_array":"events","index":1},`+
		`{"type":"must be an object","input_array":"purchases","index":1}]}`, want)
}

// White space may stand between any two tokens.
func TestWhiteSpace(t *testing.T) {
	body := `{"attributes":[{"external_id":"u","o":{"a":[1,{}],"b":{}},"l":[],"e":{"inc":1}}],"events":[` + goodEvent + `],"x":[{},[],{"a":[true,null]}]}`
	_, _, want := track(t, testDecoder(), testWorkspace(), body)
	for _, space := range []string{" ", "\n\t\r  "} {
		var spaced strings.Builder
		inString := false
		for _, c := range []byte(body) {
			inString = inString != (c == '"')
			if !inString && strings.IndexByte(`{}[]:,`, c) >= 0 {
				spaced.WriteString(space + string(c) + space)
			} else {
				spaced.WriteByte(c)
			}
		}
		reply, status, rec := track(t, testDecoder(), testWorkspace(), space+spaced.String()+space)
		require.Equal(t, 201, status, reply)
		require.Equal(t, dump(want), dump(rec))
	}
}

// A name that was written with escapes is not recognised later in the text that it stands for.
func TestEscapedNames(t *testing.T) {
	d := testDecoder()
	for range 2 {
		agree(t, `{"attributes":[{"external_id":"u","a\"b":1,"\\u0061":2,"c\n":3}]}`, d)
		agree(t, `{"attributes":[{"external_id":"u","a"b":1}]}`, d)
		agree(t, `{"attributes":[{"external_id":"u","a\"b":1,"\u0061":2,"a":3}]}`, d)
		agree(t, "{\"attributes\":[{\"external_id\":\"u\",\"a\\\"b\":1,\"\\\\u0061\":2,\"c\n\":3}]}", d)
	}
}

func TestOptions(t *testing.T) {
	var o Options
	o.EnsureDefaults()
	require.NoError(t, o.Validate())
	require.Equal(t, []int{32, 256, 51200}, []int{o.MaxDepth, o.MaxProperties, o.MaxPropertiesBytes})
	require.NotNil(t, o.Phones)
	for _, bad := range []Options{{MaxDepth: 1}, {MaxDepth: 39}, {MaxProperties: -1}, {MaxPropertiesBytes: -1}} {
		bad.EnsureDefaults()
		require.Error(t, bad.Validate())
	}
	d := NewDecoder(Options{MaxDepth: 2, MaxProperties: 1, MaxPropertiesBytes: 20, Phones: testPhones})
	reply, status, rec := track(t, d, testWorkspace(), `{"attributes":[{"external_id":"u","a":[[]]},{"external_id":"u","a":[[[]]]}]}`)
	require.Equal(t, 201, status)
	require.Contains(t, reply, `"errors":[{"type":"the object is nested too deeply","input_array":"attributes","index":1}]`)
	require.Equal(t, []string{`attributes external_id="u" "~a":[json<[]>]`}, dump(rec))
}

func TestPool(t *testing.T) {
	p := NewPool(Options{Phones: testPhones})
	d := p.Get()
	agree(t, `{"events":[`+goodEvent+`]}`, d)
	p.Put(d)
	require.Same(t, d.Phones, p.Get().Phones)
}

func TestApps(t *testing.T) {
	event := func(app string) string { return strings.Replace(goodEvent, "{", `{"app_id":`+app+`,`, 1) }
	d := testDecoder()
	for range 2 { // nothing is left of the request before
		agree(t, `{"events":[`+event(`"b"`)+`,`+event(`"a"`)+`,`+event(`"a"`)+`,`+event(`"\u0061"`)+`,`+event(`null`)+`,`+event(`"b"`)+`]}`, d)
		agree(t, `{"events":[`+event(`"a"`)+`,{"app_id":"a"},`+event(`"c"`)+`]}`, d)
	}
}

// A name that is a reserved one with blanks around it is refused as a custom attribute. Stored, it would look like the
// reserved one, and sent again as an export shows it, it would be the reserved one.
func TestReservedNamesWithBlanks(t *testing.T) {
	d, ws := testDecoder(), testWorkspace()
	for sent, name := range map[string]string{" email": " email", "email ": "email ", "\\u0020external_id": " external_id", "email_subscribe\\n": "email_subscribe\\u000a",
		" _update_existing_only": "", " _merge_objects ": "", " subscription_groups": "", " phone": "", " push_token_import": "", " bio": "", " alias_name": "",
		" braze_id": "", " email_subscription_info": "", " push_tokens": "", " first_name": "", "   user_alias   ": ""} {
		if name == "" {
			name = sent
		}
		for _, v := range []string{`"a@example.com"`, `5`, `null`, `true`, `{"a":1}`, `[]`} {
			for range 2 { // also when the name is known
				text, _, _ := track(t, d, ws, `{"attributes":[{"external_id":"u","`+sent+`":`+v+`},{"external_id":"v","a":1}]}`)
				require.Equal(t, `{"attributes_processed":1,"message":"success","errors":[{"type":"the attribute name '`+name+
					`' is reserved without the blanks around it","input_array":"attributes","index":0}]}`, text)
			}
		}
	}
	attrs(t, `" Email":1," emails ":2," a":3,"b c ":4`, `"~Email":1 "~emails":2 "~a":3 "~b c":4`)
	// Names elsewhere keep their blanks.
	event(t, `" name":"f","properties":{" time":1,"event_name ":2}`, `" time":1 "event_name ":2`)
}

// Limits of other endpoints: of all objects together, whatever the plan, and of those that name one user by the same
// identifier, however it is written.
func TestLimitsOfOtherEndpoints(t *testing.T) {
	bulk := Limits{Combined: 1000, PerUser: 100}
	list := func(n int, one func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = one(i)
		}
		return strings.Join(all, ",")
	}
	event := func(id string) string { return `{` + id + `,"name":"e","time":"2026-01-02T03:04:05Z"}` }
	user := func(i int) string { return event(fmt.Sprintf(`"external_id":"u%d"`, i%500)) }
	ask := func(limits Limits, body string) (string, int) {
		reply, status, _ := trackWithin(t, limits, testDecoder(), &Workspace{MaxCombined: 50}, body)
		return reply, status
	}
	reply, status := ask(bulk, `{"purchases":[],"events":[`+list(600, user)+`],"attributes":[`+list(400, func(i int) string { return fmt.Sprintf(`{"external_id":"u%d"}`, i) })+`]}`)
	require.Equal(t, 201, status, reply)
	require.Equal(t, `{"attributes_processed":400,"events_processed":600,"message":"success"}`, reply)
	for _, body := range []string{`{"events":[` + list(1001, user) + `]}`, `{"events":[` + list(600, user) + `],"attributes":[` + list(401, user) + `]}`} {
		reply, status = ask(bulk, body)
		require.Equal(t, 400, status)
		require.Contains(t, reply, `"errors":["Max Input Length Exceeded: 'attributes', 'events' and 'purchases' together must hold at most 1000 objects"]`)
	}
	_, status = ask(Limits{Combined: 1}, `{"events":[`+user(1)+`]}`)
	require.Equal(t, 201, status)
	reply, status = ask(Limits{Combined: 1}, `{"events":[`+user(1)+`],"attributes":[{"external_id":"u"}]}`)
	require.Equal(t, 400, status)
	require.Contains(t, reply, "together must hold at most 1 object\"")

	const many = `{"message":"Max Input Length Exceeded: at most 100 objects may name the same user","errors":["Max Input Length Exceeded: at most 100 objects may name the same user"]}`
	for _, same := range [][2]string{
		{`"external_id":"7"`, `"external_id":7`}, {`"email":"Ada@example.com"`, `"email":"ada@EXAMPLE.com"`}, {`"phone":"+14155552671"`, `"phone":"+1 (415) 555-2671"`},
		{`"user_alias":{"alias_name":"n","alias_label":"l"}`, `"user_alias":{"alias_label":"l","alias_name":"\u006e"}`}, {`"svc_id":"known"`, `"braze_id":"known"`},
	} {
		either := func(i int) string { return event(same[i%2]) }
		reply, status = ask(bulk, `{"events":[`+list(60, either)+`],"attributes":[`+list(40, either)+`]}`)
		require.Equal(t, 201, status, reply)
		reply, status = ask(bulk, `{"events":[`+list(60, either)+`],"attributes":[`+list(41, either)+`]}`)
		require.Equal(t, 400, status, same)
		require.Equal(t, many, reply)
	}
	// What isn't the same identifier, names nobody, or is refused.
	for _, n := range []struct {
		objects string
		status  int
	}{
		{list(200, func(i int) string {
			return event([]string{`"external_id":"a@example.com"`, `"email":"a@example.com"`}[i%2])
		}), 201},
		{list(101, func(int) string { return event(`"svc_id":"nobody's"`) }), 201},
		{list(101, func(int) string { return `{"external_id":"u"}` }) + `,` + event(`"external_id":"u"`), 201},
		{list(101, func(int) string { return `0` }), 400},
	} {
		reply, status = ask(bulk, `{"events":[`+n.objects+`]}`)
		require.Equal(t, n.status, status, reply)
		require.NotContains(t, reply, "Max Input")
	}

	// Users whose numbers end alike, which are counted together at first.
	users := make([]uint64, 300)
	for i := range users {
		users[i] = uint64(i)<<8 | 7
	}
	require.False(t, (&Decoder{users: slices.Clone(users)}).repeats(100))
	copy(users[100:], slices.Repeat([]uint64{1<<50 | 7}, 100))
	require.False(t, (&Decoder{users: slices.Clone(users)}).repeats(100))
	users[0] = 1<<50 | 7
	require.True(t, (&Decoder{users: users}).repeats(100))

	// It allocates nothing either.
	d, ws, body := testDecoder(), &Workspace{}, []byte(`{"attributes":[`+list(1000, func(i int) string { return fmt.Sprintf(`{"external_id":"u%d","plan":"pro"}`, i%10) })+`]}`)
	var b op.Builder
	var out []byte
	r := &fakeRouter{Builder: &b}
	once := func() {
		b.Reset(12)
		out, status = d.TrackWithin(bulk, out[:0], body, ws, &b, r, testNow, nil)
	}
	once()
	require.Equal(t, 201, status)
	require.Zero(t, testing.AllocsPerRun(5, once))
}
