package files

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/zeebo/xxh3"

	"millrace/ingest/field"
)

// column is the meaning of a column; columns without a meaning here are attributes, or are skipped.
type column int

const (
	columnNone column = iota - 1
	columnExternalID
	columnSvcID
	columnAliasName
	columnAliasLabel
	columnEmail
	columnPhone
	columnPayload
	columnKind
	columnUpdatedAt
	columnCount
)

// columnOf returns the meaning of a column of that name, in any case.
func columnOf(name []byte) column {
	if c := columnNamed(name); c != columnNone {
		return c
	}
	var lower [len("user_alias_label")]byte
	if len(name) > len(lower) {
		return columnNone
	}
	for i, c := range name {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		lower[i] = c
	}
	return columnNamed(lower[:len(name)])
}

// columnNamed is columnOf for names as they are usually written.
func columnNamed(name []byte) column {
	switch string(name) {
	case "external_id":
		return columnExternalID
	case "svc_id", "braze_id":
		return columnSvcID
	case "alias_name", "user_alias_name":
		return columnAliasName
	case "alias_label", "user_alias_label":
		return columnAliasLabel
	case "email":
		return columnEmail
	case "phone":
		return columnPhone
	case "payload":
		return columnPayload
	case "kind":
		return columnKind
	case "updated_at":
		return columnUpdatedAt
	}
	return columnNone
}

// Row is one row of a file: the columns that it has filled in, or the object itself.
type Row struct {
	Position
	// Fault is why the row can't become an object.
	Fault string
	// LeftOut says that a cell isn't in the object, because its column is a property of another event or product. It is
	// known once there is an object.
	LeftOut bool
	// Text is the row as it is in the file; nil in Parquet.
	Text []byte

	line    []byte              // of NDJSON, before it is taken apart
	columns [columnCount][]byte // JSON; nil: not filled in
	payload []byte              // the object of the column payload
	empty   bool                // a line has a payload in which there is nothing
	object  []byte              // the row, when it is an object itself
	scratch []byte              // holds what of the above isn't literally in the file
	facts   facts               // of object or payload, whichever is there
	known   bool                // facts are set
	other   []byte              // the name of a member that is not a column
	text    []byte              // JSON; of a line in a refused file, which has nothing else
	byAlias bool                // the columns name the user by an alias

	kindOfText Kind   // of a row that a text has become, when it doesn't say one itself
	header     []byte // of CSV
	table      *table // of Parquet
	untaken    *table // of CSV and Parquet, until AppendObject takes the cells, which a mere check doesn't need
	cells      []cell

	noted *note  // what is known of the line in its piece; nil: nothing
	piece []byte // which is only read
	made  []byte // an object that isn't literally in the file
}

func (r *Row) reset(at Position, text []byte) {
	r.Position, r.Fault, r.LeftOut, r.Text = at, "", false, text
	r.line, r.payload, r.object, r.scratch, r.known, r.other = nil, nil, nil, r.scratch[:0], false, nil
	r.byAlias, r.empty = false, false
	r.text, r.kindOfText, r.header, r.table, r.untaken, r.cells = nil, "", nil, nil, nil, nil
	r.columns = [columnCount][]byte{}
	r.noted = nil
}

// Object is what a row becomes.
type Object struct {
	Kind Kind
	// Text is the object in the form of /users/track; for deletions, the identifier in the form of /users/delete, for
	// the array Identifiers.
	Text        []byte
	Identifiers string
	// User is the same for all rows that name a user in the same way.
	User uint64
	// IsConditional says that it has `_update_existing_only`, with whatever value.
	IsConditional bool
}

// ObjectOptions are what rows leave open.
type ObjectOptions struct {
	// Kind of rows that don't have one.
	Kind Kind
	// Time, in ISO 8601, is the time of events and purchases that have none.
	Time string
	// UpdateExistingOnly adds `_update_existing_only`.
	UpdateExistingOnly bool
}

// MakeObject is AppendObject to an empty Object. Text must only be read, and is valid as long as the row.
func (r *Row) MakeObject(o *Object, options *ObjectOptions) (fault string) {
	*o = Object{}
	if r.takeNoted(o, options) {
		return ""
	}
	o.Text = r.made[:0]
	fault = r.AppendObject(o, options)
	r.made = o.Text
	return fault
}

// AppendObject appends what the row becomes to Text of o. fault says why it becomes nothing; then nothing was appended.
func (r *Row) AppendObject(o *Object, options *ObjectOptions) (fault string) {
	if fault = r.takeCells(); fault != "" {
		return fault
	}
	if r.noted != nil {
		r.reset(r.Position, r.Text)
		r.line = r.Text
	}
	if r.line != nil {
		if err := r.takeApart(options.Kind); err != nil {
			return err.Error()
		}
		r.line = nil
	}
	if o.Kind, fault = r.kind(cmp.Or(r.kindOfText, options.Kind)); fault != "" {
		return fault
	}
	who, fault := r.identifier()
	if fault != "" {
		return fault
	}
	if o.Kind == Deletions {
		return r.appendIdentifier(o, who)
	}
	if r.payload == nil && (r.object == nil || r.empty) {
		return "'payload' is required"
	}
	if r.object != nil {
		return r.appendWhole(o, r.object, options)
	}
	if who == columnNone { // the payload itself says whom it is about
		return r.appendWhole(o, r.payload, options)
	}
	r.byAlias = who == columnAliasName
	from := len(o.Text)
	o.Text = append(o.Text, '{')
	o.Text = r.appendMember(o.Text, who)
	o.User = r.userOf(who)
	members, facts, err := r.factsOf(r.payload)
	if err != nil {
		o.Text = o.Text[:from]
		return fmt.Sprintf("'payload': %v", err)
	}
	o.Text = r.appendMissing(o.Text, o.Kind, facts, options)
	if facts.members {
		o.Text = append(o.Text, ',')
	}
	o.Text = appendRest(o.Text, members, facts)
	o.IsConditional = facts.existing || options.UpdateExistingOnly
	return ""
}

func (r *Row) kind(otherwise Kind) (Kind, string) {
	value := r.columns[columnKind]
	if isNothing(value) {
		return otherwise, ""
	}
	if isString(value) {
		if k := kindNamed(value[1 : len(value)-1]); k != "" {
			return k, ""
		}
	}
	return "", fmt.Sprintf("'kind' is not valid: want one of %v", Kinds)
}

// kindNamed returns the kind of that name, "" when there is none.
func kindNamed(name []byte) Kind {
	if i := slices.Index(Kinds, Kind(name)); i >= 0 {
		return Kinds[i]
	}
	return ""
}

// withoutPayload is why a row without a payload is refused: otherwise what says that the row is something else would
// become an attribute.
func withoutPayload(k Kind) string { return fmt.Sprintf("'kind' is %q, but there is no 'payload'", k) }

// identifier returns the column that says whom a row is about, with columnAliasName for an alias and columnNone for
// none.
func (r *Row) identifier() (column, string) {
	who, others := columnNone, 0
	for _, c := range []column{columnExternalID, columnSvcID, columnAliasName} {
		if r.columns[c] != nil || c == columnAliasName && r.columns[columnAliasLabel] != nil {
			who, others = c, others+1
		}
	}
	mail := r.columns[columnEmail] != nil || r.columns[columnPhone] != nil
	switch {
	case r.object != nil:
		return columnNone, ""
	case others > 1 || others == 1 && mail:
		return who, "a row must have one identifier: more columns are filled in"
	case who == columnAliasName && (r.columns[columnAliasName] == nil || r.columns[columnAliasLabel] == nil):
		return who, halfAnAlias
	case others == 1:
		return who, ""
	case r.columns[columnEmail] != nil:
		return columnEmail, ""
	case r.columns[columnPhone] != nil:
		return columnPhone, ""
	}
	return columnNone, ""
}

// halfAnAlias is why a row with one part of an alias is refused, even one with an email: that may be another user's.
const halfAnAlias = "an alias needs 'alias_name' and 'alias_label'"

func (r *Row) appendMember(dst []byte, who column) []byte {
	switch who {
	case columnExternalID:
		dst = append(dst, `"external_id":`...)
	case columnSvcID:
		dst = append(dst, `"svc_id":`...)
	case columnAliasName:
		return r.appendAlias(append(dst, `"user_alias":`...))
	case columnEmail:
		dst = append(dst, `"email":`...)
	case columnPhone:
		dst = append(dst, `"phone":`...)
	}
	return append(dst, r.columns[who]...)
}

func (r *Row) appendAlias(dst []byte) []byte {
	dst = append(append(dst, `{"alias_name":`...), r.columns[columnAliasName]...)
	dst = append(append(dst, `,"alias_label":`...), r.columns[columnAliasLabel]...)
	return append(dst, '}')
}

// userOf returns a hash of whom a row names. Whitespace, case and escapes may differ where the same user is meant.
func (r *Row) userOf(who column) uint64 {
	switch who {
	case columnAliasName:
		return hashOf(who, r.columns[columnAliasLabel]) ^ hashOf(who, r.columns[columnAliasName])*3
	case columnNone:
		return 0
	}
	return hashOf(who, r.columns[who])
}

func hashOf(who column, value []byte) uint64 {
	if isString(value) {
		if bytes.IndexByte(value, '\\') >= 0 {
			value, _ = jsontext.AppendUnquote(nil, value) // anything but a string is refused anyway
		} else {
			value = value[1 : len(value)-1]
		}
	}
	switch who {
	case columnEmail:
		value = bytes.ToLower(bytes.TrimSpace(value))
	case columnPhone:
		value = bytes.Map(func(c rune) rune {
			if c < '0' || c > '9' {
				return -1
			}
			return c
		}, value)
	}
	return xxh3.HashSeed(value, uint64(who))
}

// appendIdentifier is AppendObject for deletions.
func (r *Row) appendIdentifier(o *Object, who column) string {
	if r.object != nil {
		var fault string
		if who, fault = r.takeIdentifiers(r.object); fault != "" {
			return fault
		}
	}
	if r.payload != nil {
		return "a deletion has no 'payload'"
	}
	switch who {
	case columnExternalID:
		o.Identifiers, o.Text = "external_ids", append(o.Text, r.columns[who]...)
	case columnSvcID:
		o.Identifiers, o.Text = "svc_ids", append(o.Text, r.columns[who]...)
	case columnAliasName:
		o.Identifiers, o.Text = "user_aliases", r.appendAlias(o.Text)
	default:
		return "a deletion needs 'external_id', 'svc_id', or 'alias_name' and 'alias_label'"
	}
	o.User = r.userOf(who)
	return ""
}

// takeIdentifiers takes the members of an object for columns.
func (r *Row) takeIdentifiers(object []byte) (column, string) {
	twice, err := r.takeColumns(object)
	if err = cmp.Or(err, twice); err != nil {
		return columnNone, err.Error()
	}
	r.object = nil
	if _, fault := r.kind(Deletions); fault != "" {
		return columnNone, fault
	}
	if r.other != nil {
		return columnNone, "there is " + r.notAlone()
	}
	return r.identifier()
}

// notAlone says what a deletion has besides an identifier. It may be meant as an attribute, and must not delete the
// user.
func (r *Row) notAlone() string {
	return fmt.Sprintf("'%s', too: a deletion has an identifier and nothing else", field.ShortName(string(r.other)))
}

// appendWhole appends an object that itself says whom it is about.
func (r *Row) appendWhole(o *Object, object []byte, options *ObjectOptions) string {
	object, facts, err := r.factsOf(object)
	if err != nil {
		return err.Error()
	}
	o.User = facts.user()
	o.Text = append(o.Text, '{')
	n := len(o.Text)
	if o.Text = r.appendMissing(o.Text, o.Kind, facts, options); len(o.Text) > n {
		o.Text = append(o.Text[:n], o.Text[n+1:]...) // removes its comma
		if facts.members {
			o.Text = append(o.Text, ',')
		}
	}
	o.Text = appendRest(o.Text, object, facts)
	o.IsConditional = facts.existing || options.UpdateExistingOnly
	return ""
}

// appendMissing appends the members that an object lacks, each preceded by a comma.
func (r *Row) appendMissing(dst []byte, kind Kind, facts *facts, options *ObjectOptions) []byte {
	if kind != Attributes && !facts.time {
		if at := r.columns[columnUpdatedAt]; at != nil {
			dst = append(append(dst, `,"time":`...), at...)
		} else {
			dst = append(append(append(dst, `,"time":"`...), options.Time...), '"')
		}
	}
	switch {
	case facts.existing:
	case options.UpdateExistingOnly:
		dst = append(dst, `,"_update_existing_only":true`...)
	case r.byAlias: // without it /users/track makes no users of aliases, as it does of all other columns but svc_id
		dst = append(dst, `,"_update_existing_only":false`...)
	}
	return dst
}

// facts are what has to be known of an object to combine it with other members.
type facts struct {
	members    bool // it has members
	time       bool
	existing   bool
	mergeAt    int // where the value of `_merge_objects` begins, when it is the string "true"
	identifier [columnCount][]byte
	alias      []byte
}

// factsOf returns the facts of the row's object or payload, and that object without surrounding blanks. They may have
// been found already when the row was taken apart, which goes over the same members.
func (r *Row) factsOf(object []byte) ([]byte, *facts, error) {
	object = bytes.TrimSpace(object)
	if r.known {
		return object, &r.facts, nil
	}
	r.facts = facts{}
	var w walk
	for w.begin(object); w.next(); {
		r.facts.note(w.name, w.value, w.at-len(w.value))
	}
	return object, &r.facts, w.err
}

// note takes note of a member whose value begins at an index of the object.
func (f *facts) note(name, value []byte, at int) {
	f.members = true
	switch string(name) {
	case "time":
		f.time = true
	case "_update_existing_only":
		f.existing = true
	case "_merge_objects":
		if string(value) == `"true"` {
			f.mergeAt = at
		}
	case "external_id":
		f.identifier[columnExternalID] = value
	case "svc_id", "braze_id":
		f.identifier[columnSvcID] = value
	case "email":
		f.identifier[columnEmail] = value
	case "phone":
		f.identifier[columnPhone] = value
	case "user_alias":
		f.alias = value
	}
}

// isNamed reports whether the object says whom it is about. One that doesn't is refused, or a line of a refused file.
func (f *facts) isNamed() bool {
	return f.alias != nil || slices.ContainsFunc(f.identifier[:], func(value []byte) bool { return value != nil })
}

// user is Row.userOf for an object that itself says whom it is about.
func (f *facts) user() uint64 {
	if f.alias != nil && f.identifier[columnExternalID] == nil && f.identifier[columnSvcID] == nil {
		var r Row
		var w walk
		for w.begin(f.alias); w.next(); {
			if c := columnOf(w.name); c == columnAliasName || c == columnAliasLabel {
				r.columns[c] = w.value
			}
		}
		return r.userOf(columnAliasName)
	}
	for _, c := range []column{columnExternalID, columnSvcID, columnEmail, columnPhone} {
		if f.identifier[c] != nil {
			return hashOf(c, f.identifier[c])
		}
	}
	return 0
}

// appendRest appends an object from its first member on. "_merge_objects":"true" becomes what /users/track knows, since
// both forms are in use.
func appendRest(dst, object []byte, f *facts) []byte {
	if f.mergeAt == 0 {
		return append(dst, object[1:]...)
	}
	dst = append(append(dst, object[1:f.mergeAt]...), "true"...)
	return append(dst, object[f.mergeAt+len(`"true"`):]...)
}
