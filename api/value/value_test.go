package value

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// An identifier reads the same here and in /users/track (ingest), which has digits of its own.
func TestID(t *testing.T) {
	for text, want := range map[string]string{`"a"`: "a", `"-0"`: "-0", "7": "7", "-7": "-7", "0": "0", "-0": "0",
		"9223372036854775807": "9223372036854775807", "-9223372036854775808": "-9223372036854775808"} {
		id, ok := Value(text).ID()
		require.True(t, ok, text)
		require.Equal(t, want, id, text)
	}
	for _, text := range []string{"9223372036854775808", "1.0", "1e2", "true", "null", "{}", "[1]", ""} {
		_, ok := Value(text).ID()
		require.False(t, ok, text)
	}
}

func TestCheckJSON(t *testing.T) {
	for _, good := range []string{`{}`, ` { } `, `{"a":[1,-0,0.5,1e9,-1.5E-7,true,false,null,"x",{},[]]}`, "{\"a\":\"\\u00e9\\n\\ud83d\\ude00\u00e9\"}", `{"a":"\ud800"}`,
		`{"a":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`} {
		_, err := Check([]byte(good))
		require.NoError(t, err, good)
	}
	for bad, offset := range map[string]int{
		``: 0, ` `: 1, `[`: 1, `nul`: 0, `[] x`: 3, `{`: 1, `{"a"`: 4, `{"a":`: 5, `{"a":1`: 6, `{"a":1,}`: 7, `{,}`: 1, `{a:1}`: 1, `{"a":01}`: 5, `{"a":1.}`: 7, `{"a":.5}`: 5, `{"a":+1}`: 5, `{"a":1e}`: 7, `{"a":-}`: 6,
		`{"a":tru}`: 5, `{"a":nul`: 5, `{"a":[1,]}`: 8, `{"a":[1 2]}`: 8, `{"a":"` + "\n" + `"}`: 6, `{"a":"\x"}`: 6, `{"a":"\u12g4"}`: 6, `{"a":"\u12`: 6, "{\"a\":\"\xff\"}": 6, "{\"a\":\"\xed\xa0\x80\"}": 6,
		"{\"a\":\"x": 7, `{} x`: 3, "{}\x00": 2, `{"a":1}{`: 7, "\ufeff{}": 0, `{"a":NaN}`: 5,
	} {
		_, err := Check([]byte(bad))
		require.Error(t, err, bad)
		require.Equal(t, offset, err.(*badJSON).offset, "%q: %v", bad, err)
	}
	for _, other := range []string{`[]`, ` null `, `"x"`, `-1.5`, `[{}]`} {
		_, err := Check([]byte(other))
		require.ErrorIs(t, err, errNoObject, other)
	}
	_, err := Check([]byte(`{"a":` + strings.Repeat("[", 2<<20)))
	require.ErrorContains(t, err, "deeply")
	require.Less(t, err.(*badJSON).offset, 1<<10) // B1: it does not walk on
}

func TestUnsafe(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	for text, want := range map[string]string{
		deep(32): "", deep(33): "deeply", `{"a":1,"b":{"a":1}}`: "", `{"a":1,"a":1}`: "member 'a' is there more than once", `{"a":1,"\u0061":1}`: "member 'a' is", `{"a":[{"b":1,"b":1}]}`: "member 'b' is",
		`{"` + strings.Repeat("é", 40) + `":1,"` + strings.Repeat("é", 40) + `":1}`: "member '" + strings.Repeat("é", 32) + "…' is", `{"a":"\ud800"}`: "surrogate",
		`{"\udc00":1}`: "surrogate", `{"a":"\ud83d\ude00"}`: "", `{"a":"\ud83dx"}`: "surrogate", `{"a":"\ud83d\u0041"}`: "surrogate", `{"\"\\":1,"x":"\""}`: "",
	} {
		v, err := Check([]byte(text))
		require.NoError(t, err, text)
		if want == "" {
			require.Empty(t, v.Unsafe(), text)
			continue
		}
		require.Contains(t, v.Unsafe(), want, text)
	}
	v, err := Check([]byte(`{"a":[{"b":1,"b":1},{}]}`))
	require.NoError(t, err)
	require.Empty(t, v.UnsafeRequest(), "objects in arrays are judged by who reads them")
	for n, want := range map[int]string{31: "", 32: "nested too deeply"} { // the body counts
		for _, of := range [][2]string{{"[", "]"}, {`{"a":`, "}"}} {
			v, err := Check([]byte(`{"a":` + strings.Repeat(of[0], n) + "1" + strings.Repeat(of[1], n) + `}`))
			require.NoError(t, err)
			require.Equal(t, want, v.UnsafeRequest())
			require.Equal(t, want, v.Unsafe())
		}
	}
}

// Names are told apart within their object, however many it has, and however they are written.
func TestUnsafeNames(t *testing.T) {
	for n := range 40 {
		var names, inner []string
		for i := range n {
			names = append(names, fmt.Sprintf(`"n\u0030%d":{"x":[{"n0%d":1}]}`, i, i))
			inner = append(inner, fmt.Sprintf(`"i%d":0`, i))
		}
		object := `"o":{` + strings.Join(inner, ",") + `}`
		for _, more := range []string{"", object, `"x":1`, `"n":{},"n0":{}`} {
			text := `{` + strings.Trim(strings.Join(append(slices.Clone(names), more), ","), ",") + `}`
			v, err := Check([]byte(text))
			require.NoError(t, err, text)
			require.Empty(t, v.Unsafe(), text)
			require.Empty(t, v.UnsafeRequest(), text)
		}
		for i := range n {
			for _, twice := range []string{fmt.Sprintf(`"n0%d":1`, i), fmt.Sprintf(`"\u006e0%d":1`, i), fmt.Sprintf(`"o":{%s,"\u0069%d":1}`, strings.Join(inner, ","), i)} {
				text := `{` + strings.Join(append(slices.Clone(names), twice), ",") + `}`
				v, err := Check([]byte(text))
				require.NoError(t, err, text)
				require.Contains(t, v.Unsafe(), "more than once", text)
				require.Contains(t, v.UnsafeRequest(), "more than once", text)
			}
		}
	}
}

// What is read of every request of the companion API is read without a tree of it.
func TestUnsafeAllocations(t *testing.T) {
	v, err := Check([]byte(`{"subscription_group_id":"5a3cc8ff","subscription_state":"subscribed","external_id":["ada","bob"],"x":{"a":[[{"b":"c"}]],"d":"e"}}`))
	require.NoError(t, err)
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _ = v.UnsafeRequest() }), 10.0) // the names, and a function for each level
}

// The walker agrees with encoding/json about everything that both accept, and neither panics.
func FuzzJSON(f *testing.F) {
	for _, seed := range []string{`{"a":[1,"x\u00e9\ud83d\ude00",{"b":null}],"c":"\ud800","":true}`, `{"a" : [ ] , "b":{}}`, `{"\"\\":-1.5e3}`, "{\"a\":\"\xff\"}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := Check(text)
		if err != nil {
			if json.Valid(text) && utf8.Valid(text) && strings.HasPrefix(strings.TrimLeft(string(text), " \t\r\n"), "{") && !strings.Contains(err.Error(), "deeply") {
				t.Fatalf("refused: %v", err)
			}
			return
		}
		require.True(t, json.Valid(text))
		_ = v.UnsafeRequest()
		if v.Unsafe() != "" {
			return
		}
		var want any
		d := json.NewDecoder(strings.NewReader(string(v)))
		d.UseNumber()
		require.NoError(t, d.Decode(&want))
		require.Equal(t, want, walk(v))
		var quoted string
		require.NoError(t, json.Unmarshal(AppendQuoted(nil, string(v)), &quoted))
		require.Equal(t, string(v), quoted)
	})
}

func walk(v Value) any {
	switch {
	case v.IsObject():
		m := map[string]any{}
		for name, e := range v.Members() {
			m[name] = walk(e)
		}
		return m
	case v.IsArray():
		a := []any{}
		for _, e := range v.Elements() {
			a = append(a, walk(e))
		}
		return a
	case v.IsString():
		s, _ := v.Str()
		return s
	case string(v) == "null":
		return nil
	}
	if b, ok := v.Bool(); ok {
		return b
	}
	return json.Number(v)
}
