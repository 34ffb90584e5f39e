package files

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
)

var defaults = ObjectOptions{Kind: Attributes, Time: "2026-11-23T00:00:00.000Z"}

// read returns what the rows of a file become, one row a line: kind and object, or the fault.
func read(t *testing.T, text string, format Format, o Options) (lines []string, err error) {
	t.Helper()
	return readFrom(t, text, format, Position{}, o)
}

func readFrom(t *testing.T, text string, format Format, at Position, o Options) (lines []string, err error) {
	t.Helper()
	options := defaults
	if o.Kind != "" {
		options.Kind = o.Kind
	}
	r, err := NewReader(strings.NewReader(text), int64(len(text)), format, at, o)
	if err != nil {
		return nil, err
	}
	for row := new(Row); ; {
		if err := r.Next(row); err == io.EOF {
			return lines, nil
		} else if err != nil {
			return lines, err
		}
		var object Object
		if fault := row.AppendObject(&object, &options); fault != "" {
			require.Empty(t, object.Text, "a fault leaves nothing")
			lines = append(lines, "- "+fault)
			continue
		}
		lines = append(lines, string(object.Kind)+object.Identifiers+" "+string(object.Text))
	}
}

func rows(t *testing.T, text string, format Format, o Options, want ...string) {
	t.Helper()
	got, err := read(t, text, format, o)
	require.NoError(t, err, text)
	require.Equal(t, want, got, text)
}

func TestNDJSON(t *testing.T) {
	f := func(line string, o Options, want string) {
		t.Helper()
		rows(t, line, NDJSON, o, want)
	}
	events, deletions := Options{Kind: Events}, Options{Kind: Deletions}
	f(`{"external_id":"a","payload":"{\"k\":\"\\\"\\u00e9\\\"\"}"}`, Options{}, `attributes {"external_id":"a","k":"\"\u00e9\""}`)
	f(` {"EXTERNAL_ID":"a", "PAYLOAD": {"k" : [1,{"a":"}"}]} } `, Options{}, `attributes {"external_id":"a","k" : [1,{"a":"}"}]}`)
	f(`{"external_id":12,"payload":"{}"}`, Options{}, `attributes {"external_id":12}`)
	f(`{"external_id":"a","email":"","phone":null,"payload":{"k":1}}`, Options{}, `attributes {"external_id":"a","k":1}`)
	f(`{"braze_id":"b","payload":{"k":1}}`, Options{}, `attributes {"svc_id":"b","k":1}`)
	f(`{"alias_name":"n","alias_label":"l","payload":{"k":1}}`, Options{}, `attributes {"user_alias":{"alias_name":"n","alias_label":"l"},"_update_existing_only":false,"k":1}`)
	f(`{"alias_name":"n","alias_label":"l","payload":{"name":"e","_update_existing_only":true}}`, events,
		`events {"user_alias":{"alias_name":"n","alias_label":"l"},"time":"2026-11-23T00:00:00.000Z","name":"e","_update_existing_only":true}`)
	f(`{"payload":{"user_alias":{"alias_name":"n","alias_label":"l"},"k":1}}`, Options{}, `attributes {"user_alias":{"alias_name":"n","alias_label":"l"},"k":1}`)
	f(`{"email":"e@x.de","phone":"+49","payload":{"k":1}}`, Options{}, `attributes {"email":"e@x.de","k":1}`)
	f(`{"phone":"+49","payload":{"k":1}}`, Options{}, `attributes {"phone":"+49","k":1}`)
	f(`{"payload":{"external_id":"a","k":1}}`, Options{}, `attributes {"external_id":"a","k":1}`)
	f(`{"external_id":"a","k":1}`, Options{}, `attributes {"external_id":"a","k":1}`)
	f(`{"external_id":"a","payload":"{\"_merge_objects\":\"true\",\"o\":{}}"}`, Options{}, `attributes {"external_id":"a","_merge_objects":true,"o":{}}`)
	f(`{"external_id":"a","_merge_objects": "true"}`, Options{}, `attributes {"external_id":"a","_merge_objects": true}`)
	f(`{"external_id":"a","kind":"events","payload":{"name":"e"}}`, Options{}, `events {"external_id":"a","time":"2026-11-23T00:00:00.000Z","name":"e"}`)
	f(`{"external_id":"a","payload":{"name":"e","time":"2020-01-01"}}`, events, `events {"external_id":"a","name":"e","time":"2020-01-01"}`)
	f(`{"external_id":"a","UPDATED_AT":"2021-01-01","payload":{"name":"e"}}`, events, `events {"external_id":"a","time":"2021-01-01","name":"e"}`)
	f(`{"external_id":"a","name":"e"}`, events, `events {"time":"2026-11-23T00:00:00.000Z","external_id":"a","name":"e"}`)
	f(`{"external_id":"a"}`, deletions, `deletionsexternal_ids "a"`)
	f(`{"BRAZE_ID":"b"}`, deletions, `deletionssvc_ids "b"`)
	f(`{"alias_name":"n","alias_label":"l"}`, deletions, `deletionsuser_aliases {"alias_name":"n","alias_label":"l"}`)

	f(`{"external_id":"a","svc_id":"b","payload":{}}`, Options{}, `- a row must have one identifier: more columns are filled in`)
	f(`{"external_id":"a","email":"b","payload":{}}`, Options{}, `- a row must have one identifier: more columns are filled in`)
	f(`{"alias_name":"n","payload":{}}`, Options{}, `- an alias needs 'alias_name' and 'alias_label'`)
	f(`{"external_id":"a","kind":"clicks","payload":{}}`, Options{}, `- 'kind' is not valid: want one of [attributes events purchases deletions]`)
	f(`{"external_id":"a","kind":"events","name":"e"}`, Options{}, `- 'kind' is "events", but there is no 'payload'`)
	f(`{"external_id":"a","KIND":"attributes","payload":null}`, Options{}, `- 'kind' is "attributes", but there is no 'payload'`)
	f(`{"external_id":"a","kind":"attributes"}`, deletions, `- 'kind' is "attributes", but there is no 'payload'`)
	f(`{"external_id":"a","kind":"premium"}`, Options{}, `attributes {"external_id":"a","kind":"premium"}`)
	f(`{"external_id":"a","kind":"deletions"}`, Options{}, `deletionsexternal_ids "a"`)
	f(`{"line":3,"row":2,"reason":"r","kind":"deletions","alias_name":"n","alias_label":"l"}`, events, `deletionsuser_aliases {"alias_name":"n","alias_label":"l"}`)
	f(`{"external_id":"a","kind":"deletions","vip":true}`, Options{}, `- 'kind' is "deletions", but there is 'vip', too: a deletion has an identifier and nothing else`)
	f(`{"external_id":"a","svc_id":"b","kind":"deletions"}`, Options{}, `- a row must have one identifier: more columns are filled in`)
	f(`{"external_id":"a","External_ID":"b","kind":"deletions"}`, Options{}, `- 'External_ID' is there more than once, or under another name`)
	f(`{"external_id":"a","payload":null}`, Options{}, `- 'payload' is required`)
	f(`{"external_id":"a","Payload":"","vip":true}`, Options{}, `- 'payload' is required`)
	f(`{"external_id":"a","payload":"","Payload":{"k":1}}`, Options{}, `attributes {"external_id":"a","k":1}`)
	f(`{"external_id":"a","payload":null}`, deletions, `deletionsexternal_ids "a"`)
	f(`{"external_id":"a","kind":"deletions","payload":""}`, Options{}, `deletionsexternal_ids "a"`)
	f(`{"external_id":"a","payload":"[1]"}`, Options{}, `- 'payload': it is not a JSON object`)
	f(`{"external_id":"a","payload":"{\"k\":1},{\"external_id\":\"b\"}"}`, Options{}, `- 'payload': text behind the JSON object`)
	f(`{"external_id":"a","payload":"{\"k\":\"1}"}`, Options{}, `- 'payload': a bracket or a quote is not closed`)
	f(`{"external_id":"a","payload":"{\"k\":[1}"}`, Options{}, `- 'payload': a bracket or a quote is not closed`)
	f(`{"email":"a"}`, deletions, `- a deletion needs 'external_id', 'svc_id', or 'alias_name' and 'alias_label'`)
	f(`{"external_id":"a","payload":{}}`, deletions, `- a deletion has no 'payload'`)
	f(`{"external_id":"a","first_name":"A"}`, deletions, `- there is 'first_name', too: a deletion has an identifier and nothing else`)
	f(`{"external_id":"a","kind":"premium"}`, deletions, `- 'kind' is not valid: want one of [attributes events purchases deletions]`)
	f(`{"line":3,"row":2,"reason":"r","external_id":"a","Updated_At":"2021-01-01"}`, deletions, `deletionsexternal_ids "a"`)
	f(`{"external_id":"a","updated_at":1769851800,"payload":{"name":"e"}}`, events, `events {"external_id":"a","time":1769851800,"name":"e"}`)
	f(`{"external_id":"a","external_id":"b","payload":{}}`, Options{}, `- 'external_id' is there more than once, or under another name`)
	f(`{"svc_id":"a","BRAZE_ID":"b","payload":{}}`, Options{}, `- 'BRAZE_ID' is there more than once, or under another name`)
	f(`{"external_id":"a","payload":{},"Payload":{"k":1}}`, Options{}, `- 'Payload' is there more than once, or under another name`)
	f(`{"external_id":"a","External_ID":"b"}`, deletions, `- 'External_ID' is there more than once, or under another name`)
	f(`{"external_id":"a","EXTERNAL_ID":null,"payload":{}}`, Options{}, `attributes {"external_id":"a"}`)
	f(`{"external_id":"a","EXTERNAL_ID":"b"}`, Options{}, `attributes {"external_id":"a","EXTERNAL_ID":"b"}`)
	f(`[1]`, Options{}, `- it is not a JSON object`)
	f(`{"a"`, Options{}, `- it is not a JSON object`)
	f(`{`, Options{}, `- a bracket or a quote is not closed`)

	existing := defaults
	existing.UpdateExistingOnly = true
	var row Row
	var object Object
	row.object = []byte(`{}`)
	require.Empty(t, row.AppendObject(&object, &existing))
	require.Equal(t, `{"_update_existing_only":true}`, string(object.Text))
}

// A payload that is an object is read together with its line, and a payload in a text by itself. Both become the same,
// and their faults have the same names.
func TestPayloadAsObjectOrText(t *testing.T) {
	for _, payload := range []string{
		`{}`, `{ }`, `{"a":1}`, `{"a" : [ {"b":"}"} , "]" ] , "c":null}`, `{"a":"\\"}`, `{"1234567\"":"12345678\\\"é"}`,
		`{"time":"x","_merge_objects":"true"}`, `{"_merge_objects":true,"_update_existing_only":false}`,
		`{"external_id":"inner"}`, `{"user_alias":{"alias_name":"n","alias_label":"l"}}`, `{"email":"E@x.y "}`,
		`{"a"}`, `{"a":}`, `{a:1}`, `{1}`, `{"a":1,,"b":2}`, `{"payload":{"a":1}}`,
	} {
		quoted, err := jsontext.AppendQuote(nil, payload)
		require.NoError(t, err)
		for _, who := range []string{`"external_id":"u",`, ``} {
			for _, kind := range []Kind{Attributes, Events} {
				var both [2]Object
				var faults [2]string
				for i, text := range []string{payload, string(quoted)} {
					line := `{` + who + `"payload":` + text + `,"time":"outer","_update_existing_only":true,"_merge_objects":"true"}`
					r, err := NewReader(strings.NewReader(line), int64(len(line)), NDJSON, Position{}, Options{})
					require.NoError(t, err)
					row := new(Row)
					require.NoError(t, r.Next(row))
					faults[i] = row.AppendObject(&both[i], &ObjectOptions{Kind: kind, Time: "2026-01-01"})
				}
				require.Equal(t, faults[1], faults[0], "%s %s", who, payload)
				require.Equal(t, both[1], both[0], "%s %s", who, payload)
				require.Equal(t, strings.Contains(payload, "_update_existing_only"), both[0].IsConditional, payload)
			}
		}
	}
}

// Rows that name a user in the same way are of one user.
func TestUserOfARow(t *testing.T) {
	user := func(line string) uint64 {
		r, err := NewReader(strings.NewReader(line), int64(len(line)), NDJSON, Position{}, Options{})
		require.NoError(t, err)
		var row Row
		require.NoError(t, r.Next(&row))
		var object Object
		require.Empty(t, row.AppendObject(&object, &defaults))
		return object.User
	}
	for _, same := range [][]string{
		{`{"external_id":"a1","payload":{}}`, `{"payload":{},"EXTERNAL_ID":"\u00611"}`, `{"external_id":"a1","x":1}`, `{"payload":{"external_id":"a1"}}`},
		{`{"external_id":"17","payload":{}}`, `{"external_id":17}`},
		{`{"email":"A@x.de","payload":{}}`, `{"email":" a@X.de"}`},
		{`{"phone":"+49 30 1","payload":{}}`, `{"phone":"+49301"}`},
		{`{"alias_name":"n","alias_label":"l","payload":{}}`, `{"user_alias":{"alias_label":"l","alias_name":"n"}}`},
		{`{"svc_id":"n","payload":{}}`, `{"braze_id":"n"}`},
	} {
		for _, line := range same {
			require.Equal(t, user(same[0]), user(line), line)
		}
		require.NotEqual(t, user(same[0]), user(`{"external_id":"other"}`))
	}
}

func TestCSVOfRows(t *testing.T) {
	rows(t, "external_id,payload\r\ns1,\"{\"\"name\"\":\"\"A, \"\"\r\n}\"\r\n\r\n007,{}\r\n,{}\r\ns2,\r\n", CSV, Options{},
		"attributes {\"external_id\":\"s1\",\"name\":\"A, \"\r\n}", `attributes {"external_id":"007"}`, `attributes {}`, `- 'payload' is required`)
	rows(t, "\xef\xbb\xbfEMAIL,phone,ALIAS_LABEL,alias_name,kind,payload,line\na@b.de,,,,events,\"{\"\"name\"\":\"\"e\"\"}\",7\n,,l,n,,{},8", CSV, Options{},
		`events {"email":"a@b.de","time":"2026-11-23T00:00:00.000Z","name":"e"}`, `attributes {"user_alias":{"alias_name":"n","alias_label":"l"},"_update_existing_only":false}`)
	rows(t, "alias_label,alias_name\nl,\"n\"\"\"\n", CSV, Options{Kind: Deletions}, `deletionsuser_aliases {"alias_name":"n\"","alias_label":"l"}`)
	rows(t, "external_id,payload\ns1\ns2,{},\ns3,{}\n", CSV, Options{}, `- the row has 1 cells, the header has 2`, `- the row has 3 cells, the header has 2`, `attributes {"external_id":"s3"}`)
	rows(t, "external_id,payload\n", CSV, Options{})
	rows(t, "external_id,kind,payload\ns1,deletions,\ns2,events,\ns3,deletions,{}\n", CSV, Options{},
		`deletionsexternal_ids "s1"`, `- 'payload' is required`, `- a deletion has no 'payload'`)
	rows(t, "external_id,kind\ns1,deletions\ns2,premium\ns3,\n", CSV, Options{},
		`- 'kind' is "deletions", but there is no 'payload'`, `attributes {"external_id":"s2","kind":"premium"}`, `attributes {"external_id":"s3"}`)
	rows(t, "external_id,kind\ns1,deletions\ns2,events\n", CSV, Options{Kind: Deletions}, `deletionsexternal_ids "s1"`, `- 'payload' is required`)
}

// Cells of Braze's CSV of users become attributes.
func TestCSVOfUsers(t *testing.T) {
	text, err := os.ReadFile("testdata/users.csv")
	require.NoError(t, err)
	want, err := os.ReadFile("testdata/users.golden")
	require.NoError(t, err)
	got, err := read(t, string(text), CSV, Options{})
	require.NoError(t, err)
	require.Equal(t, string(want), strings.Join(got, "\n")+"\n")
	for _, line := range got {
		if _, object, ok := strings.Cut(line, "attributes "); ok {
			require.True(t, json.Valid([]byte(object)), line)
		}
	}
	rows(t, "external_id,name,time,seen.properties.n,seen.properties.text,other.properties.n\na,seen,2026-01-31,1,\"2\",3\nb,other,2026-01-31,1,2,3\nc,x,,,,\n", CSV, Options{Kind: Events},
		`events {"external_id":"a","name":"seen","time":"2026-01-31","properties":{"n":1,"text":"2"}}`,
		`events {"external_id":"b","name":"other","time":"2026-01-31","properties":{"n":3}}`,
		`events {"time":"2026-11-23T00:00:00.000Z","external_id":"c","name":"x"}`)
	rows(t, "braze_id,product_id,currency,price,quantity\nb,007,EUR,2.50,3\nb,7,EUR,much,\n", CSV, Options{Kind: Purchases},
		`purchases {"time":"2026-11-23T00:00:00.000Z","svc_id":"b","product_id":"007","currency":"EUR","price":2.50,"quantity":3}`, `- "price" is not valid`)
	rows(t, "user_alias_name,user_alias_label,email,External_ID\nn,l,e@x.de,1\n", CSV, Options{},
		`attributes {"_update_existing_only":false,"email":"e@x.de","External_ID":1,"user_alias":{"alias_name":"n","alias_label":"l"}}`)
	rows(t, "user_alias_name,user_alias_label,email\nn,,e@x.de\n,,e@x.de\n", CSV, Options{},
		`- an alias needs 'alias_name' and 'alias_label'`, `attributes {"email":"e@x.de"}`)
}

// An error for an unreadable file says what is wrong and where.
func TestHostileFiles(t *testing.T) {
	f := func(text string, format Format, o Options, want string) {
		t.Helper()
		o.Strict = true
		_, err := read(t, text, format, o)
		var fault *Fault
		require.ErrorAs(t, err, &fault, "%.100q", text)
		require.Equal(t, want, fault.Error(), "%.100q", text)
	}
	short := Options{MaxRowBytes: 20, MaxColumns: 3}
	f("{\"a\":1}\n{\"a\":tru}\n", NDJSON, Options{}, "line 2, column 9: invalid character '}' in literal true (expecting 'e')")
	f("  {\"a\":1,}", NDJSON, Options{}, "line 1, column 10: invalid character '}' looking for beginning of object key string")
	f("\r\n{\"a\":1}]", NDJSON, Options{}, "line 2, column 8: invalid character ']' after top-level value")
	f("{\"a\":\"\n\"}", NDJSON, Options{}, "line 1, column 6: unexpected end of JSON input")
	f("{\"a\":1}\n\n[{}]", NDJSON, Options{}, "line 3: it is not a JSON object")
	f("{}\n{\"é\":\"\xff\"}", NDJSON, Options{}, "line 2, column 8: invalid UTF-8")
	f("{}\n"+strings.Repeat("x", 30), NDJSON, short, "line 2: the row is longer than 20 bytes")
	f(strings.Repeat("x", 21), NDJSON, short, "line 1: the row is longer than 20 bytes")
	f(strings.Repeat("\x00", 21), CSV, short, "line 1: the row is longer than 20 bytes")
	f("\xff\xfe{\x00", NDJSON, Options{}, "line 1, column 1: the file is UTF-16: want UTF-8")
	f("\x1f\x8b\x08", CSV, Options{}, "line 1, column 1: the file is compressed with gzip: decompress it first")
	f("PAR1", NDJSON, Options{}, "line 1, column 1: invalid character 'P' looking for beginning of value")
	f("", CSV, Options{}, "line 1: the file has no header")
	f("a,b,c,d", CSV, short, "line 1, column 7: the row has more than 3 cells")
	f("first_name,age\nA,3", CSV, Options{}, "line 1: the header has no column of an identifier: external_id, svc_id, braze_id, alias_name and alias_label, email, or phone")
	f("external_id;age\nA;3", CSV, Options{}, `line 1: the header has no column of an identifier: external_id, svc_id, braze_id, alias_name and alias_label, email, or phone; `+
		`its only cell is "external_id;age": want commas between cells`)
	f("external_id,age,age\n", CSV, Options{}, `line 1: the column "age" is there more than once`)
	f("external_id,EXTERNAL_ID,payload\n", CSV, Options{}, `line 1: the columns "external_id" and "EXTERNAL_ID" mean the same`)
	f("alias_name,alias_label,user_alias_name\n", CSV, Options{}, `line 1: the columns "alias_name" and "user_alias_name" mean the same`)
	f("svc_id,braze_id\n", CSV, Options{Kind: Deletions}, `line 1: the columns "svc_id" and "braze_id" mean the same`)
	f("external_id,braze_id\n", CSV, Options{}, "line 1: the header has identifiers of more than one kind, and no payload")
	f("alias_name,payload\n", CSV, Options{}, "line 1: the header has only one of alias_name and alias_label")
	f("external_id,payload\n", CSV, Options{Kind: Deletions}, `line 1: deletions have no column "payload"`)
	f("external_id,updated_at,first_name\n", CSV, Options{Kind: Deletions}, `line 1: deletions have no column "first_name"`)
	f("external_id,time\n", CSV, Options{Kind: Events}, "line 1: events without a payload need a column name")
	f("external_id,k\na,\"b\n\nc", CSV, Options{}, "line 2, column 3: a quote is not closed")
	f("external_id,k\na,\"b\"c\n", CSV, Options{}, "line 2, column 6: text behind a closing quote")
	f("external_id,k\n\"a\n\",b\"c\"\n", CSV, Options{}, "line 3, column 4: a quote inside of a cell that doesn't begin with one")
	f("external_id,k\ra,b\r", CSV, Options{}, "line 1, column 14: a carriage return without a line feed")
	f("external_id,k\na,\"\xc3\n\"\n", CSV, Options{}, "line 2, column 4: invalid UTF-8")
	f("external_id,k\n\xff,\"\n\"\n", CSV, Options{}, "line 2, column 1: invalid UTF-8")
	f("external_id,k\na\n", CSV, Options{}, "line 2: the row has 1 cells, the header has 2")
	for _, text := range []string{"", "PAR1", "PAR1PAR1", "PAR1\xff\xff\xff\xffPAR1", strings.Repeat("PAR1", 100), "external_id,k\n"} {
		_, err := read(t, text, Parquet, Options{})
		var fault *Fault
		require.ErrorAs(t, err, &fault, text)
		require.Contains(t, fault.Error(), "no Parquet that can be read")
	}
	_, err := read(t, "", "xml", Options{})
	require.ErrorContains(t, err, `format "xml"`)
}

type parquetUser struct {
	ExternalID string  `parquet:"external_id"`
	Name       *string `parquet:"first_name,optional"`
	Age        int32   `parquet:"age"`
	Score      float64 `parquet:"score"`
	Active     *bool   `parquet:"active,optional"`
	At         int64   `parquet:"at,timestamp(microsecond)"`
	Day        int32   `parquet:"day,date"`
}

type parquetRow struct {
	ID      *string `parquet:"EXTERNAL_ID,optional"`
	Email   *string `parquet:"EMAIL,optional"`
	Payload string  `parquet:"PAYLOAD"`
}

func parquetText[T any](t *testing.T, list ...T) string {
	t.Helper()
	return packedParquet(t, 3, &parquet.Uncompressed, list...)
}

func packedParquet[T any](t *testing.T, rowsPerGroup int64, codec compress.Codec, list ...T) string {
	t.Helper()
	var b bytes.Buffer
	w := parquet.NewGenericWriter[T](&b, parquet.MaxRowsPerRowGroup(rowsPerGroup), parquet.Compression(codec))
	_, err := w.Write(list)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.String()
}

func TestParquet(t *testing.T) {
	name, yes, id, email := "Ann \"x\"", true, "a", "e@x.de"
	rows(t, parquetText(t, parquetUser{"a", &name, 74, 1.5, &yes, 1769851800123456, 20484}, parquetUser{ExternalID: "b"}), Parquet, Options{},
		`attributes {"external_id":"a","first_name":"Ann \"x\"","age":74,"score":1.5,"active":true,"at":"2026-01-31T09:30:00.123456Z","day":"2026-01-31"}`,
		`attributes {"external_id":"b","age":0,"score":0,"at":"1970-01-01T00:00:00Z","day":"1970-01-01"}`)
	rows(t, parquetText(t, parquetRow{&id, nil, `{"k":1}`}, parquetRow{nil, &email, `{"k":2}`}, parquetRow{&id, &email, `{"k":2}`}, parquetRow{&id, nil, ``}), Parquet, Options{},
		`attributes {"external_id":"a","k":1}`, `attributes {"email":"e@x.de","k":2}`, `- a row must have one identifier: more columns are filled in`, `- 'payload' is required`)
	type unsigned struct {
		ExternalID uint64 `parquet:"external_id"`
		Small      uint32 `parquet:"small"`
		Large      uint64 `parquet:"k"`
	}
	rows(t, parquetText(t, unsigned{1 << 63, 1<<32 - 1, 1<<64 - 1}), Parquet, Options{},
		`attributes {"external_id":9223372036854775808,"small":4294967295,"k":18446744073709551615}`)
	type numbered struct { // as programs make of columns in which all values look like numbers
		Name    *int64   `parquet:"alias_name"`
		Label   *int32   `parquet:"alias_label"`
		Phone   *float64 `parquet:"phone"`
		Email   *int64   `parquet:"email"`
		Payload string   `parquet:"payload"`
	}
	n, label, phone, fraction := int64(-7), int32(8), 14155552671.0, 1.5
	numbers := parquetText(t, numbered{Name: &n, Label: &label, Payload: `{"k":1}`}, numbered{Phone: &phone, Payload: `{"k":1}`}, numbered{Phone: &fraction, Payload: `{"k":1}`},
		numbered{Email: &n, Payload: `{"k":1}`})
	rows(t, numbers, Parquet, Options{}, `attributes {"user_alias":{"alias_name":"-7","alias_label":"8"},"_update_existing_only":false,"k":1}`, `attributes {"phone":"14155552671","k":1}`,
		`attributes {"phone":1.5,"k":1}`, `attributes {"email":-7,"k":1}`)
	type numberedUser struct {
		ExternalID int64  `parquet:"external_id"`
		Phone      uint64 `parquet:"phone"`
		Custom     int64  `parquet:"Phone"`
	}
	rows(t, parquetText(t, numberedUser{1, 14155552671, 5}), Parquet, Options{}, `attributes {"external_id":1,"phone":"14155552671","Phone":5}`)
	type numberedAlias struct {
		Name  int64  `parquet:"alias_name"`
		Label string `parquet:"alias_label"`
	}
	rows(t, parquetText(t, numberedAlias{7, "crm"}), Parquet, Options{Kind: Deletions}, `deletionsuser_aliases {"alias_name":"7","alias_label":"crm"}`)
	type nested struct {
		ExternalID string   `parquet:"external_id"`
		List       []string `parquet:"list"`
	}
	_, err := read(t, parquetText(t, nested{"a", []string{"b"}}), Parquet, Options{})
	require.ErrorContains(t, err, `the column "list" is of a type that isn't known: a list, a map or a group`)
	_, err = read(t, parquetText(t, parquetRow{&id, nil, strings.Repeat("x", 30)}), Parquet, Options{MaxRowBytes: 20})
	require.ErrorContains(t, err, "line 1: the row is longer than 20 bytes")
	_, err = read(t, parquetText(t, parquetRow{&id, nil, "\xff"}), Parquet, Options{})
	require.ErrorContains(t, err, "line 1, column 1: invalid UTF-8")
}

// Columns without a meaning beside a payload may be of any type: warehouses unload whole tables.
func TestParquetColumnsBesideAPayload(t *testing.T) {
	type whole struct {
		Tags    []string           `parquet:"tags,list"`
		Map     map[string]int64   `parquet:"map"`
		ID      string             `parquet:"external_id"`
		Group   struct{ A, B int } `parquet:"group"`
		Price   int64              `parquet:"price,decimal(2:18)"`
		Bytes   string             `parquet:"bytes"`
		Payload string             `parquet:"payload"`
	}
	rows(t, parquetText(t,
		whole{ID: "a", Tags: []string{"x", "y", "z"}, Map: map[string]int64{"k": 1, "l": 2}, Bytes: "\xff", Payload: `{"k":1}`},
		whole{ID: "b", Payload: `{"k":2}`},
	), Parquet, Options{}, `attributes {"external_id":"a","k":1}`, `attributes {"external_id":"b","k":2}`)
	type deleted struct {
		ID    string `parquet:"external_id"`
		Price int64  `parquet:"price,decimal(2:18)"`
	}
	_, err := read(t, parquetText(t, deleted{ID: "a"}), Parquet, Options{Kind: Deletions})
	require.ErrorContains(t, err, `deletions have no column "price"`)
	_, err = read(t, parquetText(t, deleted{ID: "a"}), Parquet, Options{})
	require.ErrorContains(t, err, `the column "price" is of a type that isn't known: DECIMAL(`)
}

// One row of a list may have more values than fit into memory.
func TestParquetColumnsBesideAPayloadAreNotRead(t *testing.T) {
	type listed struct {
		ID      string  `parquet:"external_id"`
		List    []int64 `parquet:"list"`
		Payload string  `parquet:"payload"`
	}
	text := []byte(parquetText(t, listed{"a", []int64{1, 2, 3}, `{"k":1}`}, listed{"b", []int64{4}, `{"k":2}`}))
	meta := parquetMetadata(t, string(text))
	list := meta.RowGroups[0].Columns[1].MetaData
	require.Equal(t, "list", list.PathInSchema[0])
	for n := range list.TotalCompressedSize {
		text[list.DataPageOffset+n] = 0xff
	}
	rows(t, string(text), Parquet, Options{}, `attributes {"external_id":"a","k":1}`, `attributes {"external_id":"b","k":2}`)
}

func parquetMetadata(t *testing.T, text string) *format.FileMetaData {
	t.Helper()
	f, err := parquet.OpenFile(strings.NewReader(text), int64(len(text)))
	require.NoError(t, err)
	return f.Metadata()
}

// readWithFooter reads a Parquet file whose footer was changed.
func readWithFooter(t *testing.T, text string, change func(*format.FileMetaData)) error {
	t.Helper()
	meta := parquetMetadata(t, text)
	change(meta)
	footer, err := thrift.Marshal(new(thrift.CompactProtocol), meta)
	require.NoError(t, err)
	end := len(text) - 8
	body := text[:end-int(binary.LittleEndian.Uint32([]byte(text[end:])))]
	_, err = read(t, body+string(binary.LittleEndian.AppendUint32(footer, uint32(len(footer))))+"PAR1", Parquet, Options{})
	return err
}

// What a file says of its rows is compared with the values that are there.
func TestParquetCountsRows(t *testing.T) {
	text := parquetText(t, parquetUser{ExternalID: "a"}, parquetUser{ExternalID: "b"}, parquetUser{ExternalID: "c"}, parquetUser{ExternalID: "d"})
	said := func(rows ...int64) error {
		return readWithFooter(t, text, func(meta *format.FileMetaData) {
			require.Len(t, meta.RowGroups, len(rows))
			meta.NumRows = 0
			for i, n := range rows {
				meta.RowGroups[i].NumRows = n
				meta.NumRows += n
			}
		})
	}
	require.NoError(t, said(3, 1))
	require.EqualError(t, said(3, 2), "line 5: the row can't be read: the file should have 5 rows")
	require.EqualError(t, said(3, 0), "line 4: the row can't be read: the file should have only 3 rows")
	require.EqualError(t, said(0, 1), "line 2: the row can't be read: the file should have only 1 rows")
	require.EqualError(t, said(0, 0), "line 1: the row can't be read: the file should have only 0 rows")
}

// Places in front of the file are damage, not a failure of whoever reads it.
func TestParquetPagesInFrontOfTheFile(t *testing.T) {
	text := parquetText(t, parquetUser{ExternalID: "a"})
	for name, place := range map[string]func(*format.ColumnMetaData) *int64{
		"dictionary": func(c *format.ColumnMetaData) *int64 { return &c.DictionaryPageOffset },
		"data":       func(c *format.ColumnMetaData) *int64 { c.DictionaryPageOffset = 0; return &c.DataPageOffset },
		"size":       func(c *format.ColumnMetaData) *int64 { return &c.TotalCompressedSize },
	} {
		err := readWithFooter(t, text, func(m *format.FileMetaData) { *place(&m.RowGroups[0].Columns[0].MetaData) = -1 })
		require.EqualError(t, err, `the pages of the column "external_id" can't be read: the footer is damaged`, name)
	}
}

// What a page says of itself is allocated, so that has a bound; not for columns that aren't read.
func TestParquetPagesAreBounded(t *testing.T) {
	type row struct {
		ID      string `parquet:"external_id,dict"`
		Payload string `parquet:"payload"`
		Other   string `parquet:"other"`
	}
	long := row{"a", `{"k":"` + strings.Repeat("x", 3000) + `"}`, strings.Repeat("y", 9000)}
	short := row{ID: "b", Payload: `{"k":1}`}
	text := packedParquet(t, 100, &parquet.Zstd, short, short, long)
	_, err := read(t, text, Parquet, Options{MaxPageBytes: 4000})
	require.NoError(t, err)
	_, err = read(t, text, Parquet, Options{MaxPageBytes: 3000})
	require.ErrorContains(t, err, `a page of the column "payload" has 30`)
	require.ErrorContains(t, err, ` bytes and 3 values: at most 3000 and 750 are read`)
	_, err = read(t, packedParquet(t, 100, &parquet.Zstd, long, row{ID: strings.Repeat("i", 5000)}), Parquet, Options{MaxPageBytes: 4000})
	require.ErrorContains(t, err, `a page of the column "external_id" has 5009 bytes and 2 values`, "a dictionary")
	_, err = read(t, parquetText(t, short, short, short, short, long), Parquet, Options{MaxPageBytes: 3000})
	require.ErrorContains(t, err, `a page of the column "payload" has 30`, "of a later row group")

	many := make([]row, 1001)
	for i := range many {
		many[i] = short
	}
	text = packedParquet(t, int64(len(many)), &parquet.Zstd, many...)
	_, err = read(t, text, Parquet, Options{MaxPageBytes: 4004})
	require.ErrorContains(t, err, `has 7101 bytes and 1001 values`)
	type ids struct {
		ID string `parquet:"external_id,dict"`
	}
	for version := range 2 {
		var b bytes.Buffer
		w := parquet.NewGenericWriter[ids](&b, parquet.DataPageVersion(version+1))
		_, err = w.Write(make([]ids, 1001))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		_, err = read(t, b.String(), Parquet, Options{MaxPageBytes: 4000})
		require.ErrorContains(t, err, `and 1001 values: at most 4000 and 1000 are read`)
		_, err = read(t, b.String(), Parquet, Options{MaxPageBytes: 4004})
		require.NoError(t, err)
	}

	// A header with 2 GB in a field that isn't known.
	text = parquetText(t, short)
	endless := "\xd8" + "\xff\xff\xff\xff\x07"
	_, err = read(t, text[:4]+endless+text[4+len(endless):], Parquet, Options{})
	require.EqualError(t, err, `a page of the column "external_id" can't be read: its header is damaged`)
}

// Times as Spark, Hive and Impala write them, and UUIDs.
func TestParquetTypesOfOtherWriters(t *testing.T) {
	type event struct {
		ID      uuid.UUID        `parquet:"external_id,uuid"`
		At      deprecated.Int96 `parquet:"updated_at"`
		Payload string           `parquet:"payload"`
	}
	id := uuid.MustParse("5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55")
	day := func(days uint32, ns uint64) deprecated.Int96 {
		return deprecated.Int96{uint32(ns), uint32(ns >> 32), 2440588 + days}
	}
	before := day(0, 86_399_999_999_999)
	before[2]--
	rows(t, parquetText(t, event{id, day(20484, 34_200_123_456_789), `{"name":"e"}`}, event{id, before, `{"name":"e"}`}),
		Parquet, Options{Kind: Events},
		`events {"external_id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","time":"2026-01-31T09:30:00.123456789Z","name":"e"}`,
		`events {"external_id":"5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55","time":"1969-12-31T23:59:59.999999999Z","name":"e"}`)
}

// Integers as doubles, which is what programs make of a column that has nulls. 1<<53 may have been 1<<53 + 1: as an
// identifier it could be somebody else's.
func TestParquetIntegersAsDoubles(t *testing.T) {
	type user struct {
		ID    float64 `parquet:"external_id"`
		Count float32 `parquet:"count"`
		Share float64 `parquet:"share"`
	}
	rows(t, parquetText(t, user{1, 2, 0.5}, user{1_234_567, 9_999_999, -1e6}, user{1<<53 - 1, 1<<24 - 1, 1234567.5}, user{1 << 53, 1 << 24, 1e-7}),
		Parquet, Options{},
		`attributes {"external_id":1,"count":2,"share":0.5}`,
		`attributes {"external_id":1234567,"count":9999999,"share":-1000000}`,
		`attributes {"external_id":9007199254740991,"count":16777215,"share":1.2345675e+06}`,
		`attributes {"external_id":9.007199254740992e+15,"count":1.6777216e+07,"share":1e-07}`)
}

// A file of any compression is read as it was written, or is bad: of LZ4 the library makes zeros, and damaged LZ4 takes
// it all memory that there is.
func TestCompressedParquet(t *testing.T) {
	type user struct {
		ExternalID int64 `parquet:"external_id,plain"`
		Age        int64 `parquet:"age,plain"`
	}
	r := testseed.Rand(t)
	var list []user
	var want []string
	for range 1000 {
		u := user{r.Int64(), r.Int64()}
		list, want = append(list, u), append(want, fmt.Sprintf(`attributes {"external_id":%d,"age":%d}`, u.ExternalID, u.Age))
	}
	for _, codec := range []compress.Codec{&parquet.Uncompressed, &parquet.Snappy, &parquet.Gzip, &parquet.Brotli, &parquet.Zstd} {
		rows(t, packedParquet(t, 1000, codec, list...), Parquet, Options{}, want...)
	}
	_, err := read(t, packedParquet(t, 1000, &parquet.Lz4Raw, list...), Parquet, Options{})
	require.ErrorContains(t, err, `the column "external_id" is compressed with LZ4_RAW, which can't be read`)
}

// Whatever byte of a Parquet file is changed, the reader answers and doesn't panic.
func TestDamagedParquet(t *testing.T) {
	r := testseed.Rand(t)
	name := "Ann"
	whole := parquetText(t, parquetUser{ExternalID: "a", Name: &name}, parquetUser{ExternalID: "b"}, parquetUser{ExternalID: "c"}, parquetUser{ExternalID: "d"})
	for range testsize.Of(20_000, 200, 100) {
		b := []byte(whole)
		for range 1 + r.IntN(3) {
			b[r.IntN(len(b))] = byte(r.IntN(256))
		}
		_, err := read(t, string(b), Parquet, Options{})
		var fault *Fault
		require.True(t, err == nil || errors.As(err, &fault), "%v", err)
	}
}

// A reader that begins at any row reads the same from there as one that has read the file from its beginning.
func TestPositions(t *testing.T) {
	var lines, cells strings.Builder
	cells.WriteString("\xef\xbb\xbfexternal_id,payload\r\n")
	lines.WriteString("\xef\xbb\xbf")
	var list []parquetRow
	for k := range 9 {
		id := fmt.Sprint("u", k)
		fmt.Fprintf(&lines, "{\"external_id\":%q}\r\n\n", id)
		fmt.Fprintf(&cells, "%s,\"{\n\"\"k\"\":%d}\"\n\n", id, k)
		list = append(list, parquetRow{&id, nil, fmt.Sprintf(`{"k":%d}`, k)})
	}
	for format, text := range map[Format]string{NDJSON: lines.String(), CSV: cells.String(), Parquet: parquetText(t, list...)} {
		all, err := read(t, text, format, Options{})
		require.NoError(t, err)
		require.Len(t, all, 9)
		r, err := NewReader(strings.NewReader(text), int64(len(text)), format, Position{}, Options{})
		require.NoError(t, err)
		for k := range 9 {
			at := r.Position()
			require.EqualValues(t, k+1, at.Row, format)
			rest, err := readFrom(t, text, format, at, Options{})
			require.NoError(t, err)
			require.Equal(t, all[k:], rest, "%s at %v", format, at)
			require.NoError(t, r.Next(new(Row)))
		}
	}
}

// TestCheck checks lines in pieces. It finds the faults where a reader finds them, the first one first, and what the
// check has found out about the file.
func TestCheck(t *testing.T) {
	line := `{"external_id":"a","text":"` + strings.Repeat("x", 50) + `"}` + "\n"
	for _, text := range []string{
		"", "\n\n", line, strings.Repeat(line, 20), strings.Repeat(line+"\r\n", 20) + "{}", "\xef\xbb\xbf" + line + "{",
		strings.Repeat(line, 5) + "{\"a\":\n" + strings.Repeat(line, 5) + "\xff\n", line + "\n" + strings.Repeat("x", 200) + "\n" + line,
		strings.Repeat(line, 3) + strings.Repeat("x", 200), line + line[:100-40] + "\xff" + line, "\xff\xfea",
	} {
		for _, strict := range []bool{true, false} {
			requireCheck(t, text, Options{MaxRowBytes: 100, Strict: strict})
		}
	}

	text := strings.Repeat(line, 20)
	check := func(r io.Reader, onWay func(int64) error) (int64, error) {
		l := &lines{o: Options{MaxRowBytes: 100}, window: window{r: r, max: 100}}
		return l.checkAll(300, nil, onWay)
	}
	var offsets []int64
	rows, err := check(strings.NewReader(text), func(at int64) error { offsets = append(offsets, at); return nil })
	require.NoError(t, err)
	require.EqualValues(t, 20, rows)
	require.True(t, slices.IsSorted(offsets))
	require.EqualValues(t, len(text), offsets[len(offsets)-1])

	gone := errors.New("gone")
	failing := func(text string) io.Reader { return io.MultiReader(strings.NewReader(text), iotest.ErrReader(gone)) }
	rows, err = check(failing(text), func(int64) error { return nil })
	require.Equal(t, gone, err)
	require.EqualValues(t, 20, rows)
	var fault *Fault
	_, err = check(failing(text+"\xff\n"), func(int64) error { return nil })
	require.ErrorAs(t, err, &fault)
	require.EqualValues(t, 21, fault.Line)

	_, err = check(strings.NewReader(text), func(int64) error { return gone })
	require.Equal(t, gone, err)
}

// TestNotes tests which lines are plain, that notes are bounded, and that notes of another text aren't used.
func TestNotes(t *testing.T) {
	noted := func(text string, size, most int) *Notes {
		t.Helper()
		l := &lines{o: Options{MaxRowBytes: 1000, Strict: true}, window: window{r: strings.NewReader(text), max: 1000}}
		notes := NewNotes(most)
		_, err := l.checkAll(size, notes, func(int64) error { return nil })
		require.NoError(t, err)
		return notes
	}
	f := func(line string, want noteForm) {
		t.Helper()
		notes := noted(line, pieceBytes, 1<<20)
		require.Len(t, notes.pieces, 1, line)
		require.Len(t, notes.pieces[0].lines, 1, line)
		require.Equal(t, want, notes.pieces[0].lines[0].form, line)
		requireNotes(t, line, Options{Kind: Attributes}, notes)
		requireNotes(t, line, Options{Kind: Events}, notes)
	}
	f(" \r\n", noteBlank)
	f(`{"external_id":"a","k":1}`, noteObject)
	f(`{"external_id":"a","payload":{"k":[{}]}}`, noteObject)
	f(`{"payload":{"external_id":"a"},"kind":"events","other":{"a":"}"}}`, noteObject)
	f(`{"svc_id":"a","payload":"{\"k\":\"\\u00e9\"}","updated_at":1}`, noteQuoted)
	f(`{"external_id":"a","payload":"{\"k\":tru}"}`, noteRow)
	f(`{"external_id":"a","payload":{"_merge_objects":"true"}}`, noteRow)
	f(`{"email":"a","payload":{}}`, noteRow)
	f(`{"external_id":"a","External_ID":"b","payload":{}}`, noteRow)
	f(`{"external_id":"a","kind":"clicks","payload":{}}`, noteRow)
	f(`{"external_id":"a","kind":"deletions"}`, noteRow)
	f(`{"external_id":"a","payload":""}`, noteRow)

	require.EqualValues(t, noteBytes, reflect.TypeFor[note]().Size())
	text := strings.Repeat(`{"external_id":"a","payload":{"time":1}}`+"\n", 100)
	require.Zero(t, len(noted(text, 400, 0).pieces))
	few := noted(text, 400, 50*noteBytes)
	require.LessOrEqual(t, few.bytes, 50*noteBytes)
	require.Len(t, few.pieces, 5)
	requireNotes(t, text, Options{}, few)
	all := noted(text, 400, 1<<20)
	lines := 0
	for _, p := range all.pieces {
		lines += len(p.lines)
	}
	require.Equal(t, 100, lines)
	other := text[:1000] + strings.ReplaceAll(text[1000:], `"a"`, `"b"`)
	requireNotes(t, other, Options{}, all)
	requireNotes(t, text[:410], Options{}, all)
}

// TestNotesOfAnything makes lines of everything that may be in one, in any order, and compares what they become with
// their notes with what they become without notes.
func TestNotesOfAnything(t *testing.T) {
	r := testseed.Rand(t)
	members := []string{
		`"external_id":"a"`, `"external_id":1`, `"EXTERNAL_ID":"b"`, `"svc_id":"s"`, `"braze_id":"s"`, `"alias_name":"n"`, `"alias_label":"l"`,
		`"user_alias":{"alias_name":"n","alias_label":"l"}`, `"email":"E@x.de "`, `"phone":"+49 1"`, `"email":""`, `"phone":null`, `"kind":"events"`,
		`"kind":"attributes"`, `"kind":"deletions"`, `"kind":"clicks"`, `"Kind":null`, `"updated_at":"2021-01-01"`, `"time":"2020-01-01"`,
		`"_update_existing_only":true`, `"_merge_objects":"true"`, `"_merge_objects": true`, `"k" : [1,{"a":"}"}]`, `"k":"\"\u00e9\\"`, `"k":tru`, `"k":`, `k`, ``,
	}
	var object func(depth int) string
	object = func(depth int) string {
		var all []string
		for range r.IntN(5) {
			all = append(all, members[r.IntN(len(members))])
		}
		if depth == 0 && r.IntN(4) > 0 {
			payload := object(1)
			switch r.IntN(6) {
			case 0:
				payload = []string{`null`, `""`, `[1]`, `"x"`, `"\ud800"`}[r.IntN(5)]
			case 1, 2:
				text, _ := jsontext.AppendQuote(nil, payload)
				payload = string(text)
			}
			at := r.IntN(len(all) + 1)
			all = slices.Insert(all, at, `"payload":`+payload)
		}
		blank := []string{"", "", "", " ", "\r", "\v"}[r.IntN(6)]
		return blank + "{" + strings.Join(all, ","+blank) + "}" + blank
	}
	for range testsize.Of(100_000, 2_000, 500) {
		var text string
		for range 1 + r.IntN(4) {
			text += []string{"", "\n", object(0)}[min(r.IntN(12), 2)] + []string{"\n", "\r\n"}[r.IntN(2)]
		}
		requireCheck(t, text, Options{Kind: Kinds[r.IntN(len(Kinds))], MaxRowBytes: 300, Strict: r.IntN(3) == 0})
	}
}
