package ingest

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/ingest/stops"
	"millrace/loadtest/body"
	"millrace/loadtest/testseed"
	"millrace/shard/op"
)

// agree checks that Track, with each of the decoders, and the judge agree about a body. Tests give it a decoder that
// has learned names before, and one that never learns any.
func agree(t *testing.T, body string, decoders ...*Decoder) {
	t.Helper()
	ws := testWorkspace()
	wantReply, wantStatus, wantLines, fatal := judgeBody(body, ws)
	for _, d := range decoders {
		reply, status, rec := track(t, d, ws, body)
		require.Equal(t, wantStatus, status, "%s\n%s", body, reply)
		if fatal {
			require.True(t, json.Valid([]byte(reply)), reply)
			continue
		}
		require.Equal(t, wantReply, reply, body)
		if status == 201 {
			require.Equal(t, wantLines, dump(rec), body)
		}
	}
}

// unlearned is a decoder that knows no names and learns none.
func unlearned() *Decoder {
	d := testDecoder()
	d.learning = 0
	return d
}

func seeds() []string {
	s := []string{
		`{"attributes":[{"external_id":"u","a":1,"b":"x","c":{"d":[1,{"e":2}]},"email":"a@example.com","phone":"1"}],"events":[` + goodEvent + `]}`,
		`{"purchases":[{"external_id":5,"product_id":1,"currency":"USD","price":1.5,"quantity":2,"time":"2026-11-21","properties":{"a":[1,"x"]}}]}`,
		`{"events":[{"user_alias":{"alias_name":"n","alias_label":"l"},"name":"n","time":"12/1/2021","properties":{"a":{"b":"\ud83d\ude00"}}}],"attributes":[{}]}`,
		`{"attributes":[{"svc_id":"known","o":{"$add":[{"a":1}],"$remove":[{"$identifier_key":"a","$identifier_value":1}]},"_merge_objects":true}]}`,
		`{"attributes":[{"external_id":"u","l":{"add":["x"],"remove":[]},"i":{"inc":1},"t":{"$time":"2026-11-21"}}]}`,
		`{"attributes":[{"push_token_import":true,"push_tokens":[{"app_id":"` + testApp + `","token":"t"}]}]}`,
		`{"attributes":[{"external_id":"u","subscription_groups":[{"subscription_group_id":"` + testGroupText + `","subscription_state":"subscribed"}]}]}`,
		`{"attributes":[{"external_id":"u","current_location":{"longitude":1,"latitude":-2e1},"country":"de","time_zone":"x"}]}`,
		`{"attributes":[{"external_id":"u","a":"\u0000","\u0061":1}]}`,
		`{"attributes":[{"external_id":"\ud800","a":"\udc00\ud800"}]}`,
		`{"attributes":[` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `]}`,
		`{"attributes":[{"a":` + strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat("}", 40) + `}]}`,
		`{"attributes":[{"external_id":"u","a":["x","y","x",1,1.0,[],[],{"$time":"2026-11-21"},"2026-11-21"],"dob":"1/2/1971","gender":"Male","language":5,"x":1.` + strings.Repeat("5", 80) + `}]}`,
		`{"events":[{"a":-0.0e-5,"b":1e400,"c":` + strings.Repeat("9", 70) + `,"d":123456789012345678901234567890}]}`,
		"{\"x\":\"\x00\xff\",\"attributes\":[{}]}", `{}`, `[]`, `{"attributes":`, "",
	}
	return s
}

func FuzzTrack(f *testing.F) {
	for _, s := range seeds() {
		f.Add([]byte(s))
	}
	learned, never := testDecoder(), unlearned()
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<16 {
			return
		}
		agree(t, string(body), learned, never)
	})
}

// Track and the judge agree about good bodies in which bytes were changed at random.
func TestMutations(t *testing.T) {
	r := testseed.Rand(t)
	learned, never := testDecoder(), unlearned()
	all := seeds()
	bodies, _ := bodies225(t, 1)
	all = append(all, string(bodies[0][:8000]))
	const alphabet = "\"\\{}[]:,0123456789-+.eEutfn \n\x00\xc3\xa9\xffa$"
	for range 20000 {
		b := []byte(all[r.IntN(len(all))])
		for range 1 + r.IntN(3) {
			if len(b) == 0 {
				break
			}
			switch i := r.IntN(len(b)); r.IntN(4) {
			case 0:
				b[i] = alphabet[r.IntN(len(alphabet))]
			case 1:
				b = append(b[:i], b[i+1:]...)
			case 2:
				b = append(b[:i:i], append([]byte{alphabet[r.IntN(len(alphabet))]}, b[i:]...)...)
			case 3:
				b = b[:i]
			}
		}
		agree(t, string(b), learned, never)
	}
}

// Track and the judge agree about objects that are put together at random from names and values that mean something.
func TestRandomObjects(t *testing.T) {
	seed := testseed.Of(t)
	g := objectMaker{rand.New(rand.NewPCG(seed, 2))}
	learned, never := testDecoder(), unlearned()
	accepted := 0
	for range 4000 {
		var w strings.Builder
		w.WriteString("{")
		order := g.Perm(3)
		for k, a := range order {
			if k > 0 {
				w.WriteString(",")
			}
			fmt.Fprintf(&w, `"%s":[`, arrayNames[a])
			for n := range g.IntN(4) {
				if n > 0 {
					w.WriteString(",")
				}
				w.WriteString(g.object(array(a)))
			}
			w.WriteString("]")
		}
		w.WriteString("}")
		agree(t, w.String(), learned, never)
		if _, status, _, _ := judgeBody(w.String(), testWorkspace()); status == 201 {
			accepted++
		}
	}
	require.Greater(t, accepted, 1000, "too few good bodies to prove anything")
}

type objectMaker struct{ *rand.Rand }

func (g objectMaker) pick(list ...string) string { return list[g.IntN(len(list))] }

func (g objectMaker) object(a array) string {
	var members []string
	add := func(chance int, name string, value func() string) {
		if g.IntN(100) < chance {
			members = append(members, `"`+name+`":`+value())
		}
	}
	one := func(list ...string) func() string { return func() string { return g.pick(list...) } }
	add(85, "external_id", one(`"u"`, `"u"`, `"v\u00e9"`, `12`, `-0`, `null`, `""`, `"dummy"`, `1.5`, `99999999999999999999`))
	add(8, "user_alias", one(`{"alias_name":"n","alias_label":"l"}`, `{"alias_label":"l","alias_name":"é","x":{"x":1}}`, `null`, `{"alias_name":1}`, `"x"`))
	add(8, g.pick("svc_id", "braze_id"), one(`"known"`, `"other"`, `null`, `5`, `""`))
	add(2, "braze_id", one(`"known"`, `null`))
	add(20, "email", one(`"a@example.com"`, `"B@Example.com"`, `null`, `"bad"`, `5`))
	add(20, "phone", one(`"+15043277269"`, `"(504) 327-7269"`, `null`, `"bad"`, `5`))
	add(10, "_update_existing_only", one(`true`, `false`, `null`, `1`))
	wild := func(list ...string) func() string {
		return func() string {
			if g.IntN(12) == 0 {
				return g.value(0)
			}
			return g.pick(list...)
		}
	}
	times := wild(`"2026-11-21T04:23:01.123Z"`, `"2026-11-21"`, `"2031-01-01"`, `"2013-07-16T19:20:30+1:00"`, `"bad"`, `"2026-11-20"`, `"2026-10-01"`, `""`, `5`, `null`)
	switch a {
	case arrayAttributes:
		for range g.IntN(6) {
			add(80, g.pick("a", "b", " a", "long name of an attribute", "c", "d", "$e", "", "ключ", "\\u0061b", " email", "bio\\t"), func() string { return g.value(0) })
		}
		text := one(`"x"`, `null`, `5`, `"F"`, `"prefer_not-to say"`, `"en"`, `"de"`, `"1980-01-01"`, `"12/21/1980"`, `"1980-12-21T00:00:00.000Z"`, `"subscribed"`, `"Europe/Berlin"`, `"2026-11-21"`, `{"a":1}`)
		for range g.IntN(3) {
			add(50, g.pick(op.AttrName(op.AttrFirstName), "country", "language", "gender", "dob", "date_of_first_session", "email_subscribe",
				"push_subscribe", "time_zone", "image_url", "email_open_tracking_disabled", "facebook", "twitter", "bio", "alias_name"), text)
		}
		add(10, "current_location", wild(`{"longitude":1,"latitude":2.5}`, `{"longitude":"x","latitude":2.5}`, `{"longitude":"1.5","latitude":"-2e1"}`, `{"longitude":"-0","latitude":"+.5"}`, `{"longitude":1,"latitude":"0x1"}`, `null`, `[]`, `{"latitude":-0,"longitude":1e2}`))
		add(10, "_merge_objects", wild(`true`, `false`, `null`, `"x"`))
		add(10, "subscription_groups", wild(`[]`, `null`, `[{"subscription_group_id":"`+testGroupText+`","subscription_state":"unsubscribed"}]`,
			`[{"subscription_group_id":"x","subscription_state":1}]`, `[5]`, `{}`))
		add(10, "push_tokens", wild(`[]`, `null`, `[{"app_id":"`+testApp+`","token":"t","device_id":"123456789"},{"app_id":"`+testApp+`","token":"v"}]`,
			`[{"app_id":"x","token":1}]`, `[{"token":1}]`, `5`))
		add(10, "push_token_import", wild(`true`, `false`, `null`))
		add(3, "email_subscription_info", wild(`1`, `null`))
	case arrayEvents:
		add(95, "name", wild(`"n"`, `"other event"`, `"n"`, `"n"`, `""`, `null`, `5`))
		add(95, "time", times)
		add(40, "properties", func() string { return g.properties() })
		add(40, "app_id", wild(`"a"`, `null`, `""`, `5`))
		add(10, "more", func() string { return g.value(0) })
	default:
		add(95, "product_id", wild(`"p"`, `7`, `"é"`, `"q"`, `"r"`, `""`, `1.5`, `null`))
		add(95, "currency", wild(`"USD"`, `"jpy"`, `"EUR"`, `"CHF"`, `"XXXX"`, `""`, `5`))
		add(95, "price", wild(`1`, `12.345`, `-0`, `1e2`, `-1.5`, `7`, `"1"`, `""`, `1e300`, `null`))
		add(50, "quantity", wild(`1`, `100`, `101`, `0`, `1.0`, `1e2`, `1.5`, `null`, `"1"`))
		add(95, "time", times)
		add(40, "properties", func() string { return g.properties() })
		add(40, "app_id", wild(`"a"`, `null`))
	}
	g.Shuffle(len(members), func(i, k int) { members[i], members[k] = members[k], members[i] })
	if g.IntN(30) == 0 && len(members) > 0 {
		members = append(members, members[0])
	}
	return "{" + strings.Join(members, g.pick(",", ", ")) + "}"
}

func (g objectMaker) properties() string {
	if g.IntN(15) == 0 {
		return g.pick(`null`, `5`, `[]`, `{}`)
	}
	var members []string
	for range 1 + g.IntN(6) {
		name := g.pick("a", "b", "c", "d", "a name that is longer than sixteen", "x1", "x2", "x3", "ключ", "\\u0061b", "price")
		if g.IntN(20) == 0 {
			name = g.pick("", "$a", "time", strings.Repeat("x", 256), strings.Repeat("é", 255))
		}
		members = append(members, `"`+name+`": `+g.value(0))
	}
	return "{" + strings.Join(members, ",") + "}"
}

func (g objectMaker) value(level int) string {
	n := 19
	if level > 3 {
		n = 12
	}
	switch g.IntN(n) {
	case 0, 1:
		return g.pick(`"x"`, `""`, `"longer than eight bytes"`, `"é"`, `"\u00e9\n\ud83d\ude00 and more"`, `"Saturday is a long day, isn't it"`)
	case 2:
		return g.pick(`"2026-11-21"`, `"12/1/2021"`, `"3500-01-01"`, `"2026-11-21T04:23:01Z"`)
	case 3, 4:
		return g.pick(`0`, `1`, `-1`, `63`, `64`, `-65`, `9223372036854775807`, `-9223372036854775808`, `999999999999999999`, `-0`)
	case 5:
		return g.pick(`1.5`, `-0.0`, `1e22`, `1e23`, `9007199254740993.0`, `0.1`, `123456789012345678.9`, `5e-324`, `1e-400`, `0.`+strings.Repeat("3", 100), `1.`+strings.Repeat("3", 1100), `1.7976931348623157e308`)
	case 6:
		return g.pick(`true`, `false`)
	case 7:
		return g.pick(`null`, `true`)
	case 8:
		return g.pick(`[]`, `{}`)
	case 9:
		if g.IntN(8) == 0 {
			return g.pick(`1e400`, `9223372036854775808`, `"\ud800"`, `"`+strings.Repeat("é", 256)+`"`, `{"a":1,"a":2}`)
		}
		return `"` + strings.Repeat("é", g.IntN(255)) + `"`
	case 10:
		return g.pick(`{"inc":1}`, `{"inc":2.0}`, `{"inc":1.5}`, `{"add":["a"]}`, `{"remove":["a"],"add":[1]}`, `{"add":5}`, `{"$time":"2026-11-21"}`, `{"$time":5}`)
	case 11:
		return g.pick(`{"$add":[{"a":1}]}`, `{"$add":[{"$time":"2026-11-21"}]}`, `{"$remove":[{"$identifier_key":"a","$identifier_value":1}],"$add":[]}`,
			`{"$update":[{"$identifier_key":"a","$identifier_value":"x","$new_object":{"b":[1]}}]}`, `{"$update":[{"$identifier_key":"a","$identifier_value":"x"}]}`,
			`{"$remove":[{"$identifier_key":"a","$identifier_value":{"$time":"2026-11-21"}}]}`, `{"$remove":5}`, `{"$add":[],"x":1}`)
	case 12, 13, 14:
		var list []string
		for range g.IntN(5) {
			list = append(list, g.value(level+1))
			if g.IntN(5) == 0 {
				list = append(list, list[g.IntN(len(list))])
			}
		}
		return "[" + strings.Join(list, ",") + "]"
	default:
		var list []string
		names := []string{"a", "b", "c", "d e", "f.g", "$h", "i", "$time"}
		if g.IntN(3) > 0 {
			names = names[:3]
		}
		for _, k := range g.Perm(len(names))[:g.IntN(len(names))] {
			list = append(list, `"`+names[k]+`":`+g.value(level+1))
		}
		return "{" + strings.Join(list, ",") + "}"
	}
}

// In the steady state a request allocates nothing, whatever identifiers and texts it has, and whether or not objects
// are refused.
func TestAllocations(t *testing.T) {
	for _, o := range []body.Options{{Seed: 1}, {Seed: 2, EmailShare: 0.2, AliasShare: 0.2, UnicodeShare: 0.3, EscapeShare: 0.3, ErrorShare: 0.1}} {
		g, err := body.New(o)
		require.NoError(t, err)
		var bodies []body.Body
		for range 16 {
			bodies = append(bodies, g.Next())
		}
		d := testDecoder()
		var b op.Builder
		r := &fakeRouter{Builder: &b}
		ws := testWorkspace()
		var reply []byte
		all := func() {
			for _, x := range bodies {
				b.Reset(12)
				status := 0
				if reply, status = d.Track(reply[:0], x.Bytes, ws, &b, r, testNow); status != 201 || b.Count() < 180 {
					t.Fatalf("status %d, %d ops: %s", status, b.Count(), reply)
				}
			}
		}
		for range 4 {
			all()
		}
		require.Zero(t, testing.AllocsPerRun(5, all))
	}
}

// Each object that the load generator takes for good is accepted, and each that it takes for bad is refused.
func TestGenerator(t *testing.T) {
	seed := testseed.Of(t)
	g, err := body.New(body.Options{Seed: seed, EmailShare: 0.1, AliasShare: 0.1, UnicodeShare: 0.2, EscapeShare: 0.2, ErrorShare: 0.2})
	require.NoError(t, err)
	learned, never := testDecoder(), unlearned()
	for range 20 {
		x := g.Next()
		agree(t, string(x.Bytes), learned, never)
		reply, _, _ := track(t, learned, testWorkspace(), string(x.Bytes))
		var answer struct {
			Errors []struct {
				Array string `json:"input_array"`
				Index int
			}
		}
		require.NoError(t, json.Unmarshal([]byte(reply), &answer))
		refused, want := map[string]bool{}, map[string]bool{}
		for _, e := range answer.Errors {
			refused[fmt.Sprint(e.Array, " ", e.Index)] = true
		}
		for _, o := range x.Objects {
			if o.Refused() {
				want[fmt.Sprint(o.Array, " ", o.Index)] = true
			}
		}
		require.Equal(t, want, refused)
	}
}

// The log has to have at most 0.70 bytes for a byte of JSON.
func TestLogBytes(t *testing.T) {
	bodies, _ := bodies225(t, 16)
	d := testDecoder()
	sent, logged := 0, 0
	for _, body := range bodies {
		var b op.Builder
		b.Reset(12)
		d.Track(nil, body, testWorkspace(), &b, &fakeRouter{Builder: &b}, testNow)
		sent, logged = sent+len(body), logged+len(b.Finish(1, 2, 3))
	}
	require.Less(t, float64(logged)/float64(sent), 0.70)
}

// A request may have more names than the decoder keeps. What the decoder keeps afterwards is bounded.
func TestHostileNames(t *testing.T) {
	d := testDecoder()
	const good = `{"attributes":[{"external_id":"u","a":1,"b":2}],"events":[` + goodEvent + `]}`
	for round := range 40 {
		var w strings.Builder
		for k := range 20000 {
			fmt.Fprintf(&w, `,"%s%d_%d":0`, strings.Repeat("x", round), round, k)
		}
		_, status, rec := track(t, d, testWorkspace(), `{"attributes":[{"external_id":"u"`+w.String()+`}]}`)
		require.Equal(t, 201, status)
		require.Equal(t, 20000, len(rec.Names))
		agree(t, good, d)
		require.LessOrEqual(t, d.names.count, maxNames)
		require.LessOrEqual(t, len(d.others.places), setKeep)
	}
}

// Event names that share their first eight bytes, or that differ only by a zero byte at the end, are told apart.
func TestAlikeNames(t *testing.T) {
	var objects, want []string
	add := func(sent, name string) {
		objects = append(objects, `{"external_id":"u","time":"2026-11-21","name":"`+sent+`"}`)
		want = append(want, name)
	}
	for k := range 1000 {
		name := fmt.Sprintf("abcdefgh%d", k)
		add(name, name)
		name = strconv.Itoa(k)
		add(name, name)
		add(name+`\u0000`, name+"\x00")
	}
	d := testDecoder()
	for at := 0; at < len(objects); at += maxObjects { // the dictionary of a request has nothing of the one before
		end := min(at+maxObjects, len(objects))
		_, status, rec := track(t, d, testWorkspace(), `{"events":[`+strings.Join(objects[at:end], ",")+`]}`)
		require.Equal(t, 201, status)
		var got []string
		for rest := rec.Ops; len(rest) > 0; {
			var o op.Op
			o, rest = op.Next(rest)
			got = append(got, string(rec.Names.At(op.EventBody(o.Body()).Name())))
		}
		require.Equal(t, want[at:end], got)
	}
}

// Names with the same hash, in one place and in two, are told apart. The hash is not seeded, so anybody can make such
// names.
func TestCollidingNames(t *testing.T) {
	halves := func(name string) (first, second uint64) {
		return binary.LittleEndian.Uint64([]byte(name)), binary.LittleEndian.Uint64(append([]byte(name[8:]), make([]byte, 8)...))
	}
	const name = "fifteen letters"
	first, second := halves(name)
	// twin is a name with the same hash, in the same place or another one. The second half of the name makes up for the
	// difference that the first half makes.
	inverse := uint64(1) // of hashSecond
	for range 6 {
		inverse *= 2 - hashSecond*inverse
	}
	r := rand.New(rand.NewPCG(1, 1))
	twin := func(in shape) string {
		mine, its := makeTag(shapeEventProperties, len(name)), makeTag(in, len(name))
		for range 1 << 24 {
			var half [8]byte
			for k := range half {
				half[k] = "abcdefghijklmnopqrstuvwxyz012345"[r.IntN(32)]
			}
			difference := first ^ binary.LittleEndian.Uint64(half[:]) ^ uint64(mine^its)<<tagShift
			need := (second*hashSecond ^ difference) * inverse
			if need>>56 != 0 || stops.Bits(need|'x'<<56) != 0 {
				continue
			}
			text := binary.LittleEndian.AppendUint64(half[:], need)
			return string(text[:15])
		}
		t.Fatal("no twin")
		return ""
	}
	hashOf := func(in shape, name string) uint64 {
		_, hash := wordsOf(in, []byte(name))
		return hash
	}
	same, elsewhere := twin(shapeEventProperties), twin(shapePurchaseProperties)
	require.Equal(t, hashOf(shapeEventProperties, name), hashOf(shapeEventProperties, same))
	require.Equal(t, hashOf(shapeEventProperties, name), hashOf(shapePurchaseProperties, elsewhere))
	require.NotEqual(t, name, same)
	learned := testDecoder()
	purchase := func(members string) string {
		return `{"external_id":"u","product_id":"p","currency":"USD","price":1,"time":"2026-11-21","properties":{` + members + `}}`
	}
	member := func(name string) string { return `"` + name + `":1` }
	for _, names := range [][]string{{name}, {same}, {name, same}, {same, name}, {elsewhere}, {elsewhere, same, name}, {name, elsewhere, name}} {
		var members []string
		for _, n := range names {
			members = append(members, member(n))
		}
		all := strings.Join(members, ",")
		for range 2 {
			agree(t, `{"events":[{"external_id":"u","name":"n","time":"2026-11-21","properties":{`+all+`}}],"purchases":[`+purchase(all)+`]}`, learned)
		}
	}
}

// Recorded requests of real clients get the statuses that the real service gave. A recording of a mock that answered
// 201 to everything proves nothing.
func TestCorpus(t *testing.T) {
	dir := os.Getenv("MILLRACE_CORPUS")
	if dir == "" {
		dir = "../../shared/corpus"
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("no corpus")
	}
	d, sent, compared := testDecoder(), 0, 0
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 16<<20)
		for lines.Scan() {
			var rec struct {
				Source, Path string
				Body         json.RawMessage
				RawBody      *string         `json:"raw_body"`
				Status       int             `json:"expect_status"`
				Expect       json.RawMessage `json:"expect_body"`
				Kind         string
			}
			require.NoError(t, json.Unmarshal(lines.Bytes(), &rec))
			if rec.Path != "/users/track" {
				continue
			}
			body := string(rec.Body)
			if rec.RawBody != nil {
				body = *rec.RawBody
			}
			sent++
			agree(t, body, d)
			reply, status, _ := track(t, d, testWorkspace(), body)
			if (rec.Status == 201 || rec.Status == 400) && rec.Kind != "client-emitted-under-mock" {
				compared++
				require.Equal(t, rec.Status, status, "%s\n%s\n%s", rec.Source, body, reply)
			}
			if rec.Kind == "vcr-recorded-real-service" && rec.Status == 201 {
				require.JSONEq(t, string(rec.Expect), reply)
			}
		}
		require.NoError(t, lines.Err())
		require.NoError(t, f.Close())
	}
	t.Logf("%d requests, %d with a status", sent, compared)
	require.NotZero(t, compared)
}
