package files

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"
)

// sourceOf returns what a refused file has of the first row of a file.
func sourceOf(t *testing.T, text string, format Format, o Options) string {
	t.Helper()
	r, err := NewReader(strings.NewReader(text), int64(len(text)), format, Position{}, o)
	require.NoError(t, err)
	row := new(Row)
	require.NoError(t, r.Next(row))
	require.NotEmpty(t, row.MakeObject(new(Object), &ObjectOptions{Kind: o.Kind, Time: defaults.Time}))
	return string(row.Source())
}

// A row that is in a refused file as text is taken again once it is corrected there, as it would have been in its file.
func TestRefusedTextIsTakenAgain(t *testing.T) {
	f := func(text string, format Format, kind Kind, wrong, right, want string) {
		t.Helper()
		source := sourceOf(t, text, format, Options{Kind: kind})
		line := func(text string) string {
			quoted, err := json.Marshal(text)
			require.NoError(t, err)
			return `{"line":7,"row":6,"reason":"r","kind":"` + string(kind) + `","text":` + string(quoted) + `}`
		}
		got, err := read(t, line(source), NDJSON, Options{})
		require.NoError(t, err)
		require.Contains(t, got[0], "- ", "as it was it is refused again")
		require.Contains(t, source, wrong)
		rows(t, line(strings.Replace(source, wrong, right, 1)), NDJSON, Options{}, want)
	}
	f(`{"external_id":"a","payload":{"k":1}`, NDJSON, Attributes, `1}`, `1}}`, `attributes {"external_id":"a","k":1}`)
	f(`{"external_id":"a","payload":"x","alias_name":"n"}`, NDJSON, Events, `"x","alias_name":"n"`, `"{\"name\":\"e\"}"`,
		`events {"external_id":"a","time":"2026-11-23T00:00:00.000Z","name":"e"}`)
	f(`{"external_id":"a","kind":"clicks","payload":{"name":"e"}}`, NDJSON, Attributes, `clicks`, `events`,
		`events {"external_id":"a","time":"2026-11-23T00:00:00.000Z","name":"e"}`)
	f(`{"external_id":"a","vip":true}`, NDJSON, Deletions, `,"vip":true`, ``, `deletionsexternal_ids "a"`)
	f("external_id,plan,n\nu1,pro\n", CSV, Attributes, "pro", "\"p,r\"\"o\",3", `attributes {"external_id":"u1","plan":"p,r\"o","n":3}`)
	f("\xef\xbb\xbfexternal_id,payload\r\nu1,\"{\"\"name\"\":\"\"e\"\"}\",x\r\n", CSV, Events, ",x", "",
		`events {"external_id":"u1","time":"2026-11-23T00:00:00.000Z","name":"e"}`)
	f("external_id,kind\nu1,events\n", CSV, Attributes, "kind\nu1,events", "plan\nu1,pro", `attributes {"external_id":"u1","plan":"pro"}`)

	type row struct {
		ExternalID string `parquet:"external_id"`
		Group      string `parquet:"subscription_group_id"`
		State      string `parquet:"subscription_state"`
		Plan       string `parquet:"plan"`
		N          int64  `parquet:"n"`
	}
	var b bytes.Buffer
	require.NoError(t, parquet.Write(&b, []row{{"u1", "g", "", `17`, 3}}))
	f(b.String(), Parquet, Attributes, `"g",`, `,`, `attributes {"external_id":"u1","plan":"17","n":3}`)
}

// What only looks like such a line is not one, and a text is one row.
func TestOtherTexts(t *testing.T) {
	f := func(line, want string) {
		t.Helper()
		rows(t, line, NDJSON, Options{}, want)
	}
	f(`{"external_id":"a","line":1,"row":1,"reason":"r","text":"{}"}`, `attributes {"external_id":"a","line":1,"row":1,"reason":"r","text":"{}"}`)
	f(`{"line":1,"row":1,"text":"{\"external_id\":\"a\"}"}`, `attributes {"line":1,"row":1,"text":"{\"external_id\":\"a\"}"}`)
	f(`{"line":1,"row":1,"reason":"r","external_id":"a","kind":"deletions","text":"{}"}`,
		`- 'kind' is "deletions", but there is 'text', too: a deletion has an identifier and nothing else`)
	f(`{"line":1,"row":1,"reason":"r","text":"external_id,k\na,1\nb,2"}`, `- 'text' has more than one row`)
	f(`{"line":1,"row":1,"reason":"r","text":"external_id,k"}`, `- 'text' is neither an object nor a row below its header`)
	f(`{"line":1,"row":1,"reason":"r","text":""}`, `- line 1: the file has no header`)
	f(`{"line":1,"row":1,"reason":"r","text":"{\"line\":1,\"row\":1,\"reason\":\"r\",\"text\":\"{}\"}"}`, `- 'payload' is required`)
}
