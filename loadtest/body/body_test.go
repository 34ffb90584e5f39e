package body

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nyaruka/phonenumbers/v2"
	"github.com/stretchr/testify/require"
)

type decoded map[string][]map[string]any

func decode(t *testing.T, b []byte) decoded {
	t.Helper()
	var d decoded
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	require.NoError(t, dec.Decode(&d), "%s", b)
	require.True(t, utf8.Valid(b))
	return d
}

func generator(t *testing.T, o Options) *Generator {
	t.Helper()
	g, err := New(o)
	require.NoError(t, err)
	return g
}

func everything() Options {
	return Options{Seed: 7, EmailShare: 0.1, AliasShare: 0.1, ErrorShare: 0.2, UnicodeShare: 0.2, EscapeShare: 0.2, Marker: "lt_seq", Users: 5000}
}

func identifierOf(object map[string]any) (IDKind, string) {
	if id, ok := object["external_id"].(string); ok {
		return ExternalID, id
	}
	if alias, ok := object["user_alias"].(map[string]any); ok {
		return Alias, alias["alias_name"].(string)
	}
	if email, ok := object["email"].(string); ok {
		return Email, email
	}
	return NoID, ""
}

func TestEachObjectIsWhatTheListSays(t *testing.T) {
	g := generator(t, everything())
	kinds, rules := map[IDKind]int{}, map[string]int{}
	for range 60 {
		b := g.Next()
		d := decode(t, b.Bytes)
		require.Len(t, b.Objects, len(d["attributes"])+len(d["events"])+len(d["purchases"]))
		for _, o := range b.Objects {
			object := d[o.Array.String()][o.Index]
			kinds[o.ID]++
			rules[o.Array.String()+": "+o.Rule]++
			if o.ID != NoID {
				kind, id := identifierOf(object)
				require.Equal(t, o.ID, kind)
				require.Equal(t, g.identifier(o), id)
			}
			if o.Refused() {
				require.True(t, breaks(o.Rule, object), "rule %q: %v", o.Rule, object)
				continue
			}
			if o.ID == Alias {
				require.Equal(t, false, object["_update_existing_only"])
			}
			requireAcceptable(t, o, object)
		}
	}
	require.Len(t, kinds, 4)
	want := 3
	for _, r := range refusals {
		want += len(r)
	}
	require.Len(t, rules, want, "every rule occurs")
}

// requireAcceptable applies the rules of section 2 of the contract.
func requireAcceptable(t *testing.T, o Object, object map[string]any) {
	t.Helper()
	switch o.Array {
	case Attributes:
		require.Equal(t, json.Number("1000000000"), object["lt_seq"])
		if phone, ok := object["phone"].(string); ok {
			n, err := phonenumbers.Parse(phone, "")
			require.NoError(t, err)
			require.True(t, phonenumbers.IsValidNumber(n), phone)
		}
		return
	case Events:
		require.Equal(t, o.Name, object["name"])
	case Purchases:
		require.Equal(t, o.Name, object["product_id"])
		require.Equal(t, o.Currency, object["currency"])
		quantity := 1.0
		if q, ok := object["quantity"].(json.Number); ok {
			quantity, _ = q.Float64()
		}
		require.Equal(t, float64(o.Quantity), quantity)
		price, err := object["price"].(json.Number).Float64()
		require.NoError(t, err)
		if o.Currency != "JPY" {
			price *= 100
		}
		require.Equal(t, o.Amount, int64(math.Round(price*quantity)))
	}
	_, err := time.Parse(time.RFC3339, object["time"].(string))
	require.NoError(t, err)
	properties := object["properties"].(map[string]any)
	require.Equal(t, json.Number("1000000000"), properties["lt_seq"])
	for name, v := range properties {
		require.NotNil(t, v)
		require.False(t, strings.HasPrefix(name, "$"))
		require.NotContains(t, []string{"time", "event_name", "product_id", "quantity", "price", "currency"}, name)
		if s, ok := v.(string); ok {
			require.LessOrEqual(t, utf8.RuneCountInString(s), 255)
		}
	}
}

// breaks tells whether an object really breaks the rule that it says.
func breaks(rule string, o map[string]any) bool {
	properties, _ := o["properties"].(map[string]any)
	has := func(name string) bool { _, ok := o[name]; return ok }
	text := func(v any) string { s, _ := v.(string); return s }
	switch rule {
	case "no identifier":
		kind, _ := identifierOf(o)
		return kind == NoID
	case "two identifiers":
		return has("external_id") && has("user_alias")
	case "external_id too long":
		return len(text(o["external_id"])) > 987
	case "email invalid":
		return strings.Contains(text(o["email"]), " ")
	case "email_subscribe invalid":
		return o["email_subscribe"] == "perhaps"
	case "duplicate member":
		return has("twice")
	case "name missing":
		return !has("name")
	case "name not a string":
		return text(o["name"]) == ""
	case "time missing":
		return !has("time")
	case "time invalid":
		return o["time"] == "yesterday at noon"
	case "dollar property":
		return properties["$amount"] != nil
	case "reserved property":
		return properties["event_name"] != nil
	case "long property text":
		return len(text(properties["essay"])) > 255
	case "null property":
		v, ok := properties["nothing"]
		return ok && v == nil
	case "product_id missing":
		return !has("product_id")
	case "currency invalid":
		return len(text(o["currency"])) != 3
	case "price missing":
		return !has("price")
	case "price not a number":
		return text(o["price"]) != ""
	case "quantity zero":
		return o["quantity"] == json.Number("0")
	case "quantity over 100":
		return o["quantity"] == json.Number("101")
	}
	return false
}

func TestTypicalSizeAndLimits(t *testing.T) {
	g := generator(t, Options{EmailShare: 0.02, AliasShare: 0.02, UnicodeShare: 0.05, EscapeShare: 0.03})
	total := 0
	for range 50 {
		b := g.Next()
		d := decode(t, b.Bytes)
		for _, a := range []string{"attributes", "events", "purchases"} {
			require.Len(t, d[a], MaxPerArray)
		}
		total += len(b.Bytes)
	}
	require.InDelta(t, 57_500, total/50, 2_500, "bytes of a typical body")
}

func TestSeedFixesTheBytes(t *testing.T) {
	run := func(seed uint64) []byte {
		o := everything()
		o.Seed = seed
		o.Skew = Zipf
		g := generator(t, o)
		var all []byte
		for range 5 {
			all, _ = g.appendTo(all, nil)
		}
		return all
	}
	require.Equal(t, run(3), run(3))
	require.NotEqual(t, run(3), run(4))
}

func TestAppendToKeepsWhatIsThere(t *testing.T) {
	o := everything()
	g, twin := generator(t, o), generator(t, o)
	dst, objects := g.appendTo([]byte("before"), []Object{{Name: "mine"}})
	b := twin.Next()
	require.Equal(t, "before"+string(b.Bytes), string(dst))
	require.Equal(t, append([]Object{{Name: "mine"}}, b.Objects...), objects)
}

func TestTemplateExchangesUsersAndSequence(t *testing.T) {
	o := everything()
	o.EmailShare, o.AliasShare = 0.2, 0.2
	g := generator(t, o)
	emails, phones := 0, 0
	for range 20 {
		tpl := g.Template()
		before := len(tpl.Bytes)
		for i := range tpl.Objects {
			tpl.SetUser(i, 400_000_000+i)
		}
		tpl.SetSequence(1234)
		require.Len(t, tpl.Bytes, before)
		d := decode(t, tpl.Bytes)
		for i, o := range tpl.Objects {
			object := d[o.Array.String()][o.Index]
			if o.ID == NoID {
				continue
			}
			require.Equal(t, 400_000_000+i, o.User)
			_, id := identifierOf(object)
			require.Equal(t, g.identifier(o), id)
			if o.Refused() {
				continue
			}
			if email, ok := object["email"].(string); ok && o.ID == ExternalID {
				emails++
				require.Equal(t, fmt.Sprintf("user.%d@example.org", o.User), email)
			}
			if phone, ok := object["phone"].(string); ok {
				phones++
				require.Equal(t, fmt.Sprintf("+12122%06d", o.User%1_000_000), phone)
			}
			marked := object
			if o.Array != Attributes {
				marked = object["properties"].(map[string]any)
			}
			require.Equal(t, json.Number("1000001234"), marked["lt_seq"])
		}
	}
	require.NotZero(t, emails)
	require.NotZero(t, phones)
}

func TestTemplateDoesNotAllocate(t *testing.T) {
	tpl := generator(t, everything()).Template()
	p := NewPicker(Uniform, 0, 1000, 1, 1)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		for i := range tpl.Objects {
			tpl.SetUser(i, p.Next())
		}
		tpl.SetSequence(5)
	}))
}

func TestZipfFollowsItsLaw(t *testing.T) {
	for _, exponent := range []float64{0.7, 0.99, 1, 1.4} {
		p := NewPicker(Zipf, exponent, 1000, 11, 1)
		sum := 0.0
		for k := 1; k <= 1000; k++ {
			sum += math.Pow(float64(k), -exponent)
		}
		counts := make([]float64, 1000)
		for range zipfDraws {
			counts[p.Next()]++
		}
		for _, k := range []int{1, 2, 3, 10, 50} {
			want := zipfDraws * math.Pow(float64(k), -exponent) / sum
			require.InDelta(t, want, counts[k-1], 5*math.Sqrt(want), "exponent %v, rank %d", exponent, k)
		}
	}
}

func TestUniformAndHot(t *testing.T) {
	seen := map[int]bool{}
	p := NewPicker(Uniform, 0, 50, 1, 1)
	for range 2000 {
		seen[p.Next()] = true
	}
	require.Len(t, seen, 50)
	hot := NewPicker(Hot, 0, 50, 1, 1)
	for range 100 {
		require.Zero(t, hot.Next())
	}
}

func TestParseMix(t *testing.T) {
	f := func(text string, objects int, want Mix) {
		t.Helper()
		m, err := ParseMix(text, objects)
		require.NoError(t, err)
		require.Equal(t, want, m)
	}
	f("attributes,events,purchases", 225, Mix{75, 75, 75})
	f("attributes,events,purchases", 0, Mix{75, 75, 75})
	f("attributes,events,purchases", 100, Mix{34, 33, 33})
	f("events", 0, Mix{0, 75, 0})
	f("events", 10, Mix{0, 10, 0})
	f("events=3,purchases=1", 0, Mix{0, 75, 25})
	f("events=3, purchases", 8, Mix{0, 6, 2})

	fail := func(text string, objects int) {
		t.Helper()
		_, err := ParseMix(text, objects)
		require.Error(t, err)
	}
	fail("events", 76)
	fail("events", 225)
	fail("attributes,events,purchases", 226)
	fail("sessions", 10)
	fail("events,events", 10)
	fail("events=0", 10)
	fail("", 10)
	fail("events", -1)
}

func TestValidateRefuses(t *testing.T) {
	for _, change := range []func(*Options){
		func(o *Options) { o.Mix[Events] = 76 },
		func(o *Options) { o.Mix = Mix{-1, 3, 0} },
		func(o *Options) { o.EmailShare, o.AliasShare = 0.6, 0.6 },
		func(o *Options) { o.ErrorShare = math.NaN() },
		func(o *Options) { o.Users = MaxUsers + 1 },
		func(o *Options) { o.Prefix = `a"b` },
		func(o *Options) { o.Skew = "lumpy" },
		func(o *Options) { o.Exponent = -1 },
		func(o *Options) { o.Marker = `"` },
		func(o *Options) { o.MaxQuantity = 101 },
	} {
		o := everything()
		change(&o)
		_, err := New(o)
		require.Error(t, err)
	}
}

func TestManyPropertiesStayDistinct(t *testing.T) {
	g := generator(t, Options{Mix: Mix{3, 3, 3}, Properties: 60})
	tokens := json.NewDecoder(bytes.NewReader(g.Next().Bytes))
	requireDistinctMembers(t, tokens)
	none := generator(t, Options{Mix: Mix{1, 1, 1}, Properties: -1})
	require.NotContains(t, string(none.Next().Bytes), "properties")
}

// requireDistinctMembers walks one value and fails on a repeated member name.
func requireDistinctMembers(t *testing.T, d *json.Decoder) {
	t.Helper()
	token, err := d.Token()
	require.NoError(t, err)
	delim, ok := token.(json.Delim)
	if !ok {
		return
	}
	seen := map[string]bool{}
	for d.More() {
		if delim == '{' {
			name, err := d.Token()
			require.NoError(t, err)
			require.False(t, seen[name.(string)], "member %q twice", name)
			seen[name.(string)] = true
		}
		requireDistinctMembers(t, d)
	}
	_, err = d.Token()
	require.NoError(t, err)
}

func TestReadCorpus(t *testing.T) {
	in := `{"path":"/users/track","body":{"events":[{"name": "a"}]}}

{"path":"/users/delete","body":{"external_ids":["1"]}}
{"path":"/users/track/","body":{"attributes":[]}}`
	bodies, err := ReadCorpus(strings.NewReader(in))
	require.NoError(t, err)
	require.Equal(t, [][]byte{[]byte(`{"events":[{"name": "a"}]}`), []byte(`{"attributes":[]}`)}, bodies)
	_, err = ReadCorpus(strings.NewReader("{\"path\":1}"))
	require.ErrorContains(t, err, "line 1")
}

func BenchmarkNext(b *testing.B) {
	g, err := New(Options{EmailShare: 0.02, AliasShare: 0.02})
	if err != nil {
		b.Fatal(err)
	}
	dst, objects := g.appendTo(nil, nil)
	b.SetBytes(int64(len(dst)))
	for b.Loop() {
		dst, objects = g.appendTo(dst[:0], objects[:0])
	}
}

func BenchmarkTemplate(b *testing.B) {
	g, err := New(Options{EmailShare: 0.02, AliasShare: 0.02})
	if err != nil {
		b.Fatal(err)
	}
	t, p := g.Template(), NewPicker(Uniform, 0, 100_000, 1, 1)
	for b.Loop() {
		for i := range t.Objects {
			t.SetUser(i, p.Next())
		}
	}
}

// identifier is the identifier of an object's user, empty for NoID.
func (g *Generator) identifier(o Object) string {
	if o.ID == NoID {
		return ""
	}
	return string(AppendIdentifier(nil, g.o.Prefix, o.ID, o.User))
}
