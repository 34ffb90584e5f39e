package files

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzRows reads anything as NDJSON and as CSV. Reading ends, with a Fault at worst. What a row becomes is one JSON
// value by its brackets. A reader that begins at any row reads the same from there as the first reader.
func FuzzRows(f *testing.F) {
	for _, text := range []string{
		"{\"external_id\":\"a\",\"payload\":\"{\\\"k\\\":1}\"}\n{\"external_id\":\"b\"}\r\n\n{",
		"{\"external_id\":\"a\",\"k\":\"\\n\xff\"}\n", "{\"external_id\":\"a\",\"\xff\":1}\n{}", "{\"external_id\":\"a\"}\xff",
		"{\"external_id\":\"a\",\"payload\":\"{\\\"k\\\":\\\"é\xff\\\"}\"}", "\xff\n{}", "\u00a0\n{\"external_id\":\"é\"}", "{\"a\":\xff}",
		"external_id,payload\na,\"{\"\"k\"\":1}\"\n\"b\n\",{}\n",
		"external_id,name,e.properties.n,subscription_group_id,subscription_state\na,e,1,g,subscribed\nb,\"'1'\",,,\n",
		"\xef\xbb\xbfEMAIL,PAYLOAD,KIND\nx,{},deletions", "alias_name,alias_label,k\n,,\n", "{\"payload\":{\"external_id\":\"a\",\"time\":\"t\",\"n\":[{}]},\"kind\":\"events\"}\n\n {\"svc_id\":\"b\",\"payload\":{\"k\":1}} \r\n\n{",
		"{\"external_id\":1,\"payload\":\" { } \"}\n{\"external_id\":\"a\",\"payload\":{\"time\":1,\"_update_existing_only\":true},\"email\":\"\"}", "{\"payload\":{\"_merge_objects\":\"true\"}}\n\v{}\n\v\n{\"user_alias\":{\"alias_name\":\"a\",\"alias_label\":\"b\"}}",
		"{\"payload\":\"\\ud800\"}", "\xff\xfe", "a,\"", "external_id\r",
	} {
		for kind := range Kinds {
			f.Add(text, kind, false)
			f.Add(text, kind, true)
		}
	}
	f.Fuzz(func(t *testing.T, text string, kind int, strict bool) {
		o := Options{Kind: Kinds[(kind%4+4)%4], MaxRowBytes: 100, MaxColumns: 10, Strict: strict}
		for _, format := range []Format{NDJSON, CSV} {
			fuzzRows(t, text, format, o)
		}
		requireCheck(t, text, o)
	})
}

func fuzzRows(t *testing.T, text string, format Format, o Options) {
	var fault *Fault
	r, err := NewReader(strings.NewReader(text), int64(len(text)), format, Position{}, o)
	if err != nil {
		require.ErrorAs(t, err, &fault)
		return
	}
	for n := int64(1); ; n++ {
		at := r.Position()
		require.Equal(t, n, at.Row)
		row, again := new(Row), new(Row)
		err := r.Next(row)
		other, otherErr := NewReader(strings.NewReader(text), int64(len(text)), format, at, o)
		require.NoError(t, otherErr)
		require.Equal(t, err, other.Next(again))
		if err == io.EOF {
			return
		}
		if err != nil {
			require.ErrorAs(t, err, &fault)
			return
		}
		require.Equal(t, row.Position, again.Position)
		require.LessOrEqual(t, len(row.Text), 100)
		var object Object
		if row.AppendObject(&object, &ObjectOptions{Kind: o.Kind, Time: "2026-01-01", UpdateExistingOnly: true}) != "" {
			require.Empty(t, object.Text)
			continue
		}
		requireOneValue(t, object.Text)
	}
}

// requireCheck compares the check of lines in pieces, of any size, with a Reader.
func requireCheck(t *testing.T, text string, o Options) {
	t.Helper()
	r, err := NewReader(strings.NewReader(text), int64(len(text)), NDJSON, Position{}, o)
	rows := int64(-1)
	for row := new(Row); err == nil; rows++ {
		err = r.Next(row)
	}
	if err == io.EOF {
		err = nil
	}
	for _, size := range []int{1, 7, 64, pieceBytes} {
		l, openErr := NewReader(strings.NewReader(text), int64(len(text)), NDJSON, Position{}, o)
		if openErr != nil {
			require.Equal(t, err, openErr)
			return
		}
		notes := NewNotes(1 << 20)
		if size == 64 {
			notes = NewNotes(40 * noteBytes) // for a part of the text
		}
		n, checkErr := l.(*lines).checkAll(size, notes, func(int64) error { return nil })
		require.Equal(t, err, checkErr, "%q in pieces of %d", text, size)
		if err == nil {
			require.Equal(t, rows, n, "%q in pieces of %d", text, size)
			requireNotes(t, text, o, notes)
		}
	}
}

// requireNotes compares what rows become with their notes, from each row on, with what they become without notes.
func requireNotes(t *testing.T, text string, o Options, notes *Notes) {
	t.Helper()
	size := int64(len(text))
	plain, err := NewReader(strings.NewReader(text), size, NDJSON, Position{}, o)
	require.NoError(t, err)
	noted, err := notes.NewReader(strings.NewReader(text), size, NDJSON, Position{}, o)
	require.NoError(t, err)
	row, again := new(Row), new(Row)
	for n := 0; ; n++ {
		err := plain.Next(row)
		require.Equal(t, err, noted.Next(again), "%q", text)
		if err != nil {
			return
		}
		require.Equal(t, row.Position, again.Position, "%q", text)
		require.Equal(t, row.Text, again.Text, "%q", text)
		from, err := notes.NewReader(strings.NewReader(text), size, NDJSON, row.Position, o)
		require.NoError(t, err)
		later := new(Row)
		require.NoError(t, from.Next(later))
		require.Equal(t, row.Position, later.Position, "%q", text)
		options := ObjectOptions{Kind: o.Kind, Time: "2026-01-01", UpdateExistingOnly: n%2 == 1}
		var want, got Object
		fault := row.AppendObject(&want, &options)
		require.Equal(t, fault, again.MakeObject(&got, &options), "%q", text)
		require.Equal(t, string(want.Text), string(got.Text), "%q", text)
		if want.Text, got.Text = nil, nil; fault == "" {
			require.Equal(t, want, got, "%q", text)
		}
		require.Equal(t, fault, later.AppendObject(&got, &options), "%q", text)
	}
}

// requireOneValue requires that a text that is put between other values leaves them as they are.
func requireOneValue(t *testing.T, text []byte) {
	t.Helper()
	var w walk
	list := append(append([]byte(`{"a":`), text...), `,"b":1}`...)
	names := ""
	for w.begin(list); w.next(); {
		names += string(w.name)
	}
	require.NoError(t, w.err, "%q", text)
	require.Equal(t, "ab", names, "%q", text)
	if json.Valid(text) {
		var v map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(list, &v))
		require.Len(t, v, 2)
	}
}

// FuzzCSV compares the cells with those of encoding/csv. A table that encoding/csv accepts is read the same here. Text
// that is refused here is refused there, too, or has a bare carriage return or invalid UTF-8.
func FuzzCSV(f *testing.F) {
	for _, text := range []string{"external_id,k\na,\"b\"\"c\"\r\n", "external_id\n\"\"\"\"\n\n", "external_id,\"a\nb\"\n1,2", "external_id,k\n\"a\r\nb\",\n", "external_id\n\r"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		theirs, theirErr := csv.NewReader(strings.NewReader(text)).ReadAll()
		s := &sheet{o: Options{MaxColumns: 1000}}
		if err := s.open(strings.NewReader(text), int64(len(text)), Position{}, 1<<20); err != nil || strings.HasPrefix(text, "\xef\xbb\xbf") {
			return
		}
		var ours [][]string
		var err error
		for {
			var size int
			var lines int64
			if size, lines, err = s.record(); err != nil {
				break
			}
			s.pass(size)
			s.line += lines
			if len(s.cells) == 1 && len(s.cells[0].text) == 0 && !s.cells[0].quoted {
				continue
			}
			var cells []string
			for _, c := range s.cells {
				cells = append(cells, string(bytes.ReplaceAll(c.text, []byte("\r\n"), []byte("\n")))) // as theirs
			}
			ours = append(ours, cells)
		}
		switch {
		case err == io.EOF && theirErr == nil:
			require.Equal(t, theirs, ours)
		case err != io.EOF && theirErr == nil:
			var fault *Fault
			require.True(t, errors.As(err, &fault))
			require.Regexp(t, "carriage return|UTF-8|1000 cells|longer", fault.Text)
		}
	})
}
