package files

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"millrace/ingest/field"
)

// table is the meaning of the columns of CSV or Parquet. With a column `payload` they are the columns of a row. Without
// one the cells are members of the object, under their names, as in Braze's CSV of users.
type table struct {
	kind    Kind
	columns []tableColumn
	payload bool
	name    int // the column that names an event or a product; -1: none
	who     []column
}

type tableColumn struct {
	title    string
	member   []byte // `"title":`
	known    column
	form     form
	property string // of the event or product named owner
	owner    string
}

// form is how a cell becomes a value.
type form uint8

const (
	formGuessed form = iota // a boolean or a number if it looks like one, else text
	formText
	formBoolean
	formNumber
	formGroup    // id of a subscription group
	formState    // state of that group
	formProperty // of an event or a purchase
	formAlias    // a part of an alias
)

var formsOf = map[Kind]map[string]form{
	Attributes: {
		"first_name": formText, "last_name": formText, "home_city": formText, "country": formText, "dob": formText,
		"gender": formText, "language": formText, "time_zone": formText,
		"date_of_first_session": formText, "date_of_last_session": formText, "email_subscribe": formText,
		"push_subscribe":               formText,
		"email_open_tracking_disabled": formBoolean, "email_click_tracking_disabled": formBoolean,
		"subscription_group_id": formGroup, "subscription_state": formState,
	},
	Events: {"name": formText, "time": formText, "app_id": formText},
	Purchases: {"product_id": formText, "time": formText, "app_id": formText, "currency": formText,
		"price": formNumber, "quantity": formNumber},
}

// propertySeparator separates an event's name and a property's in the title of a column.
const propertySeparator = ".properties."

func newTable(titles []string, o Options) (*table, error) {
	t := &table{kind: o.Kind, name: -1}
	for i, title := range titles {
		if slices.Contains(titles[:i], title) && title != "" {
			return nil, &Fault{Line: 1,
				Text: fmt.Sprintf("the column %q is there more than once", field.ShortName(title))}
		}
		t.columns = append(t.columns, t.column(title, i))
		t.payload = t.payload || t.columns[i].known == columnPayload
	}
	if !t.payload && t.kind != Deletions {
		t.exact()
	}
	return t, t.check()
}

// exact turns columns whose spelling differs from that of the known ones into attributes, as in the CSV of users.
func (t *table) exact() {
	for i := range t.columns {
		if c := &t.columns[i]; c.title != strings.ToLower(c.title) {
			if c.known != columnNone {
				c.form = formGuessed
				c.member, _ = jsontext.AppendQuote(nil, c.title)
				c.member = append(c.member, ':')
			}
			c.known = columnNone
		}
	}
}

func (t *table) column(title string, i int) tableColumn {
	quoted, _ := jsontext.AppendQuote(nil, title) // titles are UTF-8
	c := tableColumn{title: title, member: append(quoted, ':'), form: formsOf[t.kind][title]}
	c.known = columnOf([]byte(title))
	switch c.known {
	case columnExternalID, columnEmail, columnPhone:
		c.form = formText
	case columnSvcID:
		c.form, c.member = formText, []byte(`"svc_id":`)
	case columnAliasName, columnAliasLabel:
		c.form = formAlias
	}
	if t.kind == Attributes {
		return c
	}
	if title == "name" && t.kind == Events || title == "product_id" && t.kind == Purchases {
		t.name = i
	}
	if owner, property, ok := strings.Cut(title, propertySeparator); ok {
		quoted, _ := jsontext.AppendQuote(nil, property)
		c.owner, c.property, c.form, c.member = owner, property, formProperty, append(quoted, ':')
	}
	return c
}

// check finds faults that no row can make up for.
func (t *table) check() error {
	var titles [columnCount]string
	for _, c := range t.columns {
		if c.known == columnNone {
			continue
		}
		if other := titles[c.known]; other != "" {
			return &Fault{Line: 1, Text: fmt.Sprintf("the columns %q and %q mean the same", other, c.title)}
		}
		titles[c.known] = c.title
		if c.known >= columnExternalID && c.known <= columnPhone {
			t.who = append(t.who, c.known)
		}
	}
	has := func(c column) bool { return slices.Contains(t.who, c) }
	text := ""
	switch {
	case len(t.who) == 0:
		text = "the header has no column of an identifier: external_id, svc_id, braze_id, " +
			"alias_name and alias_label, email, or phone"
		if len(t.columns) == 1 && strings.ContainsAny(t.columns[0].title, ";\t|") {
			text += fmt.Sprintf("; its only cell is %q: want commas between cells", field.ShortName(t.columns[0].title))
		}
	case has(columnAliasName) != has(columnAliasLabel):
		text = "the header has only one of alias_name and alias_label"
	case t.kind == Deletions:
		text = t.besidesDeletions()
	case t.payload:
	case has(columnExternalID) && (has(columnAliasName) || has(columnSvcID)), has(columnSvcID) && has(columnAliasName):
		text = "the header has identifiers of more than one kind, and no payload"
	case t.kind != Attributes && t.name < 0:
		name := map[Kind]string{Events: "name", Purchases: "product_id"}[t.kind]
		text = fmt.Sprintf("%s without a payload need a column %s", t.kind, name)
	}
	if text != "" {
		return &Fault{Line: 1, Text: text}
	}
	return nil
}

// besidesDeletions says which column deletions can't have: it shows that the file is of something else. "" is none.
func (t *table) besidesDeletions() string {
	for _, c := range t.columns {
		if c.known == columnPayload || c.known == columnNone && c.title != "" {
			return fmt.Sprintf("deletions have no column %q", field.ShortName(c.title))
		}
	}
	return ""
}

// skips reports whether the cells of a column have no meaning: they are beside a payload.
func (t *table) skips(i int) bool { return t.payload && t.columns[i].known == columnNone }

// takeCells makes a row of its cells, if it has some. It returns its fault.
func (r *Row) takeCells() (fault string) {
	if r.untaken != nil {
		r.untaken.fill(r, r.cells)
		r.untaken = nil
	}
	return r.Fault
}

// fill makes a row of the cells.
func (t *table) fill(r *Row, cells []cell) {
	if t.payload || t.kind == Deletions {
		t.fillColumns(r, cells)
		return
	}
	from := len(r.scratch)
	r.scratch = append(r.scratch, '{')
	if r.Fault = t.appendMembers(r, cells); r.Fault != "" {
		return
	}
	if b := r.scratch; b[len(b)-1] == ',' {
		r.scratch = b[:len(b)-1]
	}
	r.scratch = append(r.scratch, '}')
	r.object = r.scratch[from:]
}

// fillColumns makes a row of columns that say whom it is about, and a payload.
func (t *table) fillColumns(r *Row, cells []cell) {
	var ends [columnCount][2]int
	for i := range t.columns {
		c, text := &t.columns[i], cells[i].text
		switch {
		case c.known == columnNone || len(text) == 0:
		case c.known == columnPayload:
			r.payload = text
		default:
			from := len(r.scratch)
			r.scratch = appendText(r.scratch, cells[i].asText(c.known))
			ends[c.known] = [2]int{from, len(r.scratch)}
		}
	}
	for known, e := range ends {
		if e[1] > 0 {
			r.columns[known] = r.scratch[e[0]:e[1]:e[1]]
		}
	}
}

// asText returns the cell of a column whose values are text, but which programs make one of numbers. The server takes a
// number for an external id, and for nothing else that names a user.
func (c cell) asText(to column) cell {
	switch to {
	case columnAliasName, columnAliasLabel, columnPhone:
		c.json = c.json && !digits(bytes.TrimPrefix(c.text, []byte("-")))
	}
	return c
}

func appendText(dst []byte, c cell) []byte {
	if c.json {
		return append(dst, c.text...)
	}
	dst, _ = jsontext.AppendQuote(dst, c.text) // the text is UTF-8
	return dst
}

// appendMembers appends the members of an object, each followed by a comma.
func (t *table) appendMembers(r *Row, cells []cell) (fault string) {
	var group, state []byte
	var alias [2][]byte
	for i := range t.columns {
		c, at := &t.columns[i], cells[i]
		if len(at.text) == 0 || c.title == "" {
			continue
		}
		if k := kindNamed(at.text); c.known == columnKind && k != "" {
			return withoutPayload(k)
		}
		switch c.form {
		case formGroup:
			group = at.text
		case formState:
			state = at.text
		case formAlias:
			alias[c.known-columnAliasName] = at.text
		case formProperty:
		default:
			var value bool
			if r.scratch, value = appendValue(append(r.scratch, c.member...), at, c); !value {
				return fmt.Sprintf("%q is not valid", field.ShortName(c.title))
			}
			r.scratch = append(r.scratch, ',')
		}
	}
	if t.kind != Attributes {
		t.appendProperties(r, cells)
	}
	switch {
	case alias[0] != nil && alias[1] != nil:
		r.byAlias = true
		r.scratch = appendTexts(r.scratch, `"user_alias":{"alias_name":`, alias[0], `,"alias_label":`, alias[1], `},`)
	case alias[0] != nil || alias[1] != nil:
		return halfAnAlias
	}
	switch {
	case group != nil && state != nil:
		r.scratch = appendTexts(r.scratch, `"subscription_groups":[{"subscription_group_id":`, group,
			`,"subscription_state":`, state, `}],`)
	case group != nil || state != nil:
		return "'subscription_group_id' and 'subscription_state' belong together"
	}
	return ""
}

func appendTexts(dst []byte, before string, a []byte, between string, b []byte, after string) []byte {
	dst = append(dst, before...)
	dst, _ = jsontext.AppendQuote(dst, a)
	dst = append(dst, between...)
	dst, _ = jsontext.AppendQuote(dst, b)
	return append(dst, after...)
}

// appendProperties appends the properties whose columns belong to the row's event.
func (t *table) appendProperties(r *Row, cells []cell) {
	begun := false
	for i := range t.columns {
		c := &t.columns[i]
		if c.form != formProperty || len(cells[i].text) == 0 {
			continue
		}
		if c.owner != string(cells[t.name].text) {
			r.LeftOut = true
			continue
		}
		if !begun {
			r.scratch = append(r.scratch, `"properties":{`...)
			begun = true
		}
		r.scratch, _ = appendValue(append(r.scratch, c.member...), cells[i], c)
		r.scratch = append(r.scratch, ',')
	}
	if begun {
		r.scratch = append(r.scratch[:len(r.scratch)-1], '}', ',')
	}
}

// appendValue appends the meaning of a cell as JSON; ok is false when it isn't what its column requires.
func appendValue(dst []byte, c cell, to *tableColumn) (_ []byte, ok bool) {
	c = c.asText(to.known)
	plain := bytes.TrimSpace(c.text)
	switch {
	case c.json:
		return append(dst, c.text...), true
	case to.form == formBoolean:
		if ok = string(plain) == "true" || string(plain) == "false"; ok {
			dst = append(dst, plain...)
		}
		return dst, ok
	case to.form == formNumber:
		if ok = isNumber(plain); ok {
			dst = append(dst, plain...)
		}
		return dst, ok
	case to.title == "gender" && string(plain) == "nil":
		return append(dst, "null"...), true
	case to.form == formText || c.quoted && !inner(plain):
		return appendText(dst, c), true
	case inner(plain): // the text inside 'a', and inside """a""" in a quoted cell
		return appendText(dst, cell{text: plain[1 : len(plain)-1]}), true
	case string(plain) == "true" || string(plain) == "false" || isNumber(plain):
		return append(dst, plain...), true
	}
	return appendText(dst, c), true
}

// inner reports whether the text of a cell is itself in quotes.
func inner(b []byte) bool {
	return len(b) >= 2 && (b[0] == '\'' || b[0] == '"') && b[0] == b[len(b)-1]
}

// maxDigits is how many digits a number may have; with more, it is an identifier that happens to consist of digits.
const maxDigits = 18

// isNumber reports whether a cell is a JSON number without an exponent.
func isNumber(b []byte) bool {
	if len(b) > 0 && b[0] == '-' {
		b = b[1:]
	}
	whole, fraction, point := bytes.Cut(b, []byte{'.'})
	if !digits(whole) || len(whole) > 1 && whole[0] == '0' || point && !digits(fraction) {
		return false
	}
	return len(whole)+len(fraction) <= maxDigits
}

func digits(b []byte) bool {
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(b) > 0
}
