package ingest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// usualBodies have objects of which the first teaches the decoder names. The others have these names with values that
// are as usual, or nearly so.
func usualBodies() (bodies []string) {
	texts := []string{`"x"`, `""`, `"2026-11-21T04:23:01.123Z"`, `"2026-11-21"`, `"1 and more"`, `"abc defghijklmnopqrstuvw"`, `"Sat 11 21 04:23:01.Z 2026"`,
		`"é"`, `"a\"b"`, `"` + strings.Repeat("x", maxNear) + `"`, `"` + strings.Repeat("x", maxNear+1) + `"`, `"` + strings.Repeat("x", 256) + `"`,
		`0`, `-0`, `-1`, `63`, `64`, `8191`, `8192`, `1234567`, `12345678`, `01`, `1.5`, `0.10`, `1234567.7654321`, `1.12345678`, `1.`, `1e2`, `1.5E2`,
		`true`, `false`, `truth`, `falsy`, `nulls`, `null`, `{"inc":1}`, `{"inc":1.0}`, `{"inc":1.5}`, `{"inc":-1}`, `{"inc":1 }`, `{"inc":1,"a":2}`, `[]`, `{}`}
	for _, v := range texts {
		for _, name := range []string{"a", "first_name", "country", "email", "email_subscribe", "time_zone", "name_of_16_bytes", "name_of_17_bytes_", "$a", ""} {
			member := `"` + name + `":`
			object := `{"external_id":"u",` + member + v + `}`
			teacher := `{"external_id":"u",` + member + `"x"}`
			bodies = append(bodies, `{"attributes":[`+strings.Join([]string{teacher, object, object, teacher}, ",")+`]}`)
			const rest = `"name":"n","time":"2026-11-21T04:23:01Z","properties":`
			object = `{"external_id":"u",` + rest + `{` + member + v + `,"b":` + v + `}}`
			teacher = `{"external_id":"u",` + rest + `{` + member + `1,"b":2}}`
			bodies = append(bodies, `{"events":[`+strings.Join([]string{teacher, object, object, teacher}, ",")+`]}`)
		}
		for _, name := range []string{"external_id", "product_id", "currency", "price", "quantity", "time", "app_id"} {
			members := map[string]string{"external_id": `"u"`, "product_id": `"p"`, "currency": `"USD"`, "price": `1.25`, "quantity": `3`,
				"time": `"2026-11-21T04:23:01Z"`, "app_id": `"` + testApp + `"`}
			members[name] = v
			var w strings.Builder
			for _, n := range []string{"external_id", "app_id", "product_id", "currency", "price", "quantity", "time"} {
				fmt.Fprintf(&w, `,"%s":%s`, n, members[n])
			}
			bodies = append(bodies, `{"purchases":[{`+w.String()[1:]+`},{`+w.String()[1:]+` }]}`)
		}
	}
	return bodies
}

// Members of the usual kinds are decoded in a way of their own. The result agrees with that of the general way.
func TestUsualMembers(t *testing.T) {
	learned, never := testDecoder(), unlearned()
	for _, b := range usualBodies() {
		agree(t, b, learned, never)
	}
}

// Names with long codes are written like others, and at most MaxProperties of them are written:
// a warning names the first of the others.
func TestManyUsualMembers(t *testing.T) {
	for _, value := range []string{`7`, `"x"`, `true`} {
		var w strings.Builder
		for k := range 200 {
			fmt.Fprintf(&w, `,"name_%d":%s`, k, value)
		}
		members := w.String()[1:]
		learned, attributes := testDecoder(), `{"external_id":"u",`+members+`}`
		for range 2 {
			agree(t, `{"attributes":[`+attributes+`,`+attributes+`]}`, learned)
		}
		event := goodEvent[:len(goodEvent)-1] + `,"properties":{` + members + `}}`
		for _, limit := range []int{1, 3, 199, 200, 201} {
			d := NewDecoder(Options{Phones: testPhones, MaxProperties: limit})
			reply, status, rec := track(t, d, testWorkspace(), `{"events":[`+event+`,`+event+`]}`)
			require.Equal(t, 201, status)
			for _, line := range dump(rec) {
				require.Equal(t, min(limit, 200), strings.Count(line, "name_"))
			}
			warning := fmt.Sprintf(`{"type":"property 'name_%d' and those after it are more than are kept"`, limit)
			require.Equal(t, limit < 200, strings.Contains(reply, warning))
			require.Equal(t, limit < 200, strings.Contains(reply, `"warnings":[`))
		}
	}
}

// Many long names have the same words, so the words of a long name are never taken for the whole name.
func TestWordsOfLongNames(t *testing.T) {
	d := testDecoder()
	for size := range maxNameSize {
		name := strings.Repeat("n", size)
		d.load([]byte(name + `":1`))
		w, hash := wordsOf(shapeEvent, []byte(name))
		same := size <= 16
		require.Equal(t, same, w == d.wordsAt(0, size, shapeEvent), size)
		require.Equal(t, same, hash == w.hash(), size)
	}
}
