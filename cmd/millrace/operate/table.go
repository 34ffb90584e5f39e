package operate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"
)

// How `millrace admin` prints answers.

// member is a member of a JSON object, members are all of them in their order.
type (
	member struct {
		Name  string
		Value json.RawMessage
	}
	members []member
)

// UnmarshalJSON reads an object.
func (m *members) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("%.40q is not a JSON object", text)
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		one := member{Name: name.(string)}
		if err := d.Decode(&one.Value); err != nil {
			return err
		}
		*m = append(*m, one)
	}
	return nil
}

// remove removes a member and returns its value.
func (m *members) remove(name string) (value json.RawMessage) {
	for i, one := range *m {
		if one.Name == name {
			*m = append((*m)[:i:i], (*m)[i+1:]...)
			return one.Value
		}
	}
	return nil
}

func (m members) value(name string) json.RawMessage {
	for _, one := range m {
		if one.Name == name {
			return one.Value
		}
	}
	return nil
}

// text returns a value in readable form, "" when it is missing.
func (m members) text(name string) string { return cell(m.value(name)) }

// read reads the value of a member.
func (m members) read(name string, into any) error {
	if err := json.Unmarshal(m.value(name), into); err != nil {
		return fmt.Errorf("the answer can't be read: %w", err)
	}
	return nil
}

// into reads the whole object.
func (m members) into(v any) error {
	if err := json.Unmarshal(m.compact(), v); err != nil {
		return fmt.Errorf("the answer can't be read: %w", err)
	}
	return nil
}

// rows returns the objects in a list.
func (m members) rows(name string) (rows []members, err error) {
	if err := json.Unmarshal(m.value(name), &rows); err != nil {
		return nil, fmt.Errorf("the answer has no list %q: %w", name, err)
	}
	return rows, nil
}

func (m members) compact() []byte {
	b := []byte{'{'}
	for i, one := range m {
		if i > 0 {
			b = append(b, ',')
		}
		name, _ := json.Marshal(one.Name) // never fails
		b = append(append(append(b, name...), ':'), one.Value...)
	}
	return append(b, '}')
}

func (m members) indented() []byte {
	var b bytes.Buffer
	_ = json.Indent(&b, m.compact(), "", "  ") // the JSON was just read
	return b.Bytes()
}

// column is a column of a table: its title, and the member that it shows.
type column struct{ title, name string }

// table prints objects, one per line.
type table struct {
	columns []column
	w       *tabwriter.Writer
}

func (s *session) newTable(columns []column) *table {
	t := &table{columns, tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)}
	if s.JSON {
		t.w = tabwriter.NewWriter(io.Discard, 0, 8, 2, ' ', 0)
	}
	titles := make([]string, len(columns))
	for i, c := range columns {
		titles[i] = c.title
	}
	t.line(titles)
	return t
}

func (t *table) line(cells []string) {
	fmt.Fprintln(t.w, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
}

func (t *table) add(row members) {
	cells := make([]string, len(t.columns))
	for i, c := range t.columns {
		if cells[i] = row.text(c.name); cells[i] == "" {
			cells[i] = "-"
		}
	}
	t.line(cells)
}

func (t *table) flush() error { return t.w.Flush() }

// printList prints the objects in a list of the answer, or with --json the answer.
func (s *session) printList(answer members, name string, columns ...column) error {
	if s.JSON {
		return s.printJSON(answer)
	}
	rows, err := answer.rows(name)
	if err != nil {
		return err
	}
	return s.printRows(name, rows, columns...)
}

// printRows prints objects, or with --json a list of them under a name.
func (s *session) printRows(name string, rows []members, columns ...column) error {
	if s.JSON {
		list := make([][]byte, len(rows))
		for i, row := range rows {
			list[i] = row.compact()
		}
		return s.printJSON(members{{name, slices.Concat([]byte{'['}, bytes.Join(list, []byte{','}), []byte{']'})}})
	}
	t := s.newTable(columns)
	for _, row := range rows {
		t.add(row)
	}
	return t.flush()
}

// printObject prints the members of an object, one per line, or with --json the object.
func (s *session) printObject(answer members) error {
	if s.JSON {
		return s.printJSON(answer)
	}
	w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
	for _, m := range answer {
		fmt.Fprintf(w, "%s\t%s\n", m.Name, cell(m.Value))
	}
	return w.Flush()
}

// printDocument prints JSON for people who want to change it.
func (s *session) printDocument(answer members) error {
	if s.JSON {
		return s.printJSON(answer)
	}
	_, err := fmt.Fprintf(s.out, "%s\n", answer.indented())
	return err
}

func (s *session) printJSON(answer members) error {
	_, err := fmt.Fprintf(s.out, "%s\n", answer.compact())
	return err
}

// printable returns text without characters that have an effect on a terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '\uFFFD'
		}
		return r
	}, text)
}

// cell returns a JSON value in the form of a table: strings without quotes, lists with commas, objects as name=value,
// no control characters.
func cell(value json.RawMessage) string {
	var v any
	d := json.NewDecoder(bytes.NewReader(value))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return ""
	}
	switch v := v.(type) {
	case nil:
		return ""
	case string:
		return printable(v)
	case []any:
		var list []json.RawMessage
		_ = json.Unmarshal(value, &list)
		parts := make([]string, len(list))
		for i := range list {
			parts[i] = cell(list[i])
		}
		return strings.Join(parts, ",")
	case map[string]any:
		var object members
		_ = json.Unmarshal(value, &object)
		parts := make([]string, len(object))
		for i, m := range object {
			parts[i] = printable(m.Name) + "=" + cell(m.Value)
		}
		return strings.Join(parts, " ")
	}
	return string(value)
}
