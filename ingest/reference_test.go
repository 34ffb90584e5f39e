package ingest

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// The judge is the same rules written a second time, slow and over encoding/json, for bodies of any kind. It gives the
// answer, and the text that dump makes of the ops.

// value is a JSON value and its place in the body. Its grammar has been checked before.
type value struct {
	kind    byte // one of { [ " 0 t f n
	at, end int
	raw     string
	text    string // of a string
	members []member
	list    []value
}

type member struct {
	name string
	at   int // behind the quote
	value
}

type parser struct {
	body string
	i    int
	// What is unsafe, in the order of the body.
	unsafe []finding
}

// finding is a broken rule.
type finding struct {
	rank, at int
	text     string
}

func (p *parser) space() {
	for p.i < len(p.body) && strings.IndexByte(" \t\r\n", p.body[p.i]) >= 0 {
		p.i++
	}
}

func (p *parser) string() string {
	start := p.i
	for p.i++; p.body[p.i] != '"'; p.i++ {
		if p.body[p.i] != '\\' {
			continue
		}
		p.i++
		if p.body[p.i] != 'u' {
			continue
		}
		unit := func(i int) int64 {
			if !strings.HasPrefix(p.body[i:], `\u`) || len(p.body) < i+6 {
				return 0
			}
			n, _ := strconv.ParseInt(p.body[i+2:i+6], 16, 32)
			return n
		}
		first, second := unit(p.i-1), unit(p.i+5)
		p.i += 4
		if first >= 0xd800 && first < 0xe000 {
			if first < 0xdc00 && second >= 0xdc00 && second < 0xe000 {
				p.i += 6
			} else {
				p.unsafe = append(p.unsafe, finding{0, p.i - 5, reasonTexts[reasonSurrogate]})
			}
		}
	}
	p.i++
	var s string
	if err := json.Unmarshal([]byte(p.body[start:p.i]), &s); err != nil {
		panic(err)
	}
	return s
}

// value reads a value inside level containers.
func (p *parser) value(level int) (v value) {
	p.space()
	v.at, v.kind = p.i, p.body[p.i]
	if level > 32 && (v.kind == '{' || v.kind == '[') {
		p.unsafe = append(p.unsafe, finding{0, p.i, reasonTexts[reasonDepth]})
	}
	switch v.kind {
	case '{':
		p.i++
		seen := map[string]bool{}
		for p.space(); p.body[p.i] != '}'; p.space() {
			if p.body[p.i] == ',' {
				p.i++
				p.space()
			}
			m := member{at: p.i + 1}
			m.name = p.string()
			if seen[m.name] {
				p.unsafe = append(p.unsafe, finding{0, m.at, named(reasonDuplicate, m.name)})
			}
			seen[m.name] = true
			p.space()
			p.i++ // the colon
			m.value = p.value(level + 1)
			v.members = append(v.members, m)
		}
		p.i++
	case '[':
		p.i++
		for p.space(); p.body[p.i] != ']'; p.space() {
			if p.body[p.i] == ',' {
				p.i++
			}
			v.list = append(v.list, p.value(level+1))
		}
		p.i++
	case '"':
		v.text = p.string()
	case 't', 'n':
		p.i += 4
	case 'f':
		p.i += 5
	default:
		v.kind = '0'
		for p.i < len(p.body) && strings.IndexByte("+-0123456789.eE", p.body[p.i]) >= 0 {
			p.i++
		}
	}
	v.end = p.i
	v.raw = p.body[v.at:v.end]
	return v
}

func named(why reason, name string) string {
	var s string
	if err := json.Unmarshal([]byte(`"`+string(appendText(nil, why, []byte(name)))+`"`), &s); err != nil {
		panic(err)
	}
	return s
}

type judge struct {
	ws    *Workspace
	found []finding
	notes []string // entries of an object that is accepted all the same
}

// judgeBody is what Track should do. fatal says that the status is 400 and that the answer says nothing else.
func judgeBody(body string, ws *Workspace) (reply string, status int, lines []string, fatal bool) {
	if !utf8.ValidString(body) || !json.Valid([]byte(body)) {
		return "", 400, nil, true
	}
	p := &parser{body: body}
	p.space()
	if p.body[p.i] != '{' {
		return "", 400, nil, true
	}
	p.i++
	seen := map[string]bool{}
	perArray := [arrays][]string{}
	counts := [arrays]int{}
	errs, warnings := [arrays][]string{}, [arrays][]string{}
	sent := [arrays]int{}
	for p.space(); p.body[p.i] != '}'; p.space() {
		if p.body[p.i] == ',' {
			p.i++
			p.space()
		}
		name := p.string()
		if seen[name] {
			return "", 400, nil, true
		}
		seen[name] = true
		p.space()
		p.i++
		p.space()
		a := arrayNamed([]byte(name))
		if a == arrays || p.body[p.i] != '[' {
			null := p.value(1).kind == 'n'
			if len(p.unsafe) > 0 || a != arrays && !null {
				return "", 400, nil, true
			}
			continue
		}
		if len(p.unsafe) > 0 {
			return "", 400, nil, true
		}
		p.i++
		for p.space(); p.body[p.i] != ']'; p.space() {
			if p.body[p.i] == ',' {
				p.i++
			}
			p.unsafe = nil
			p.space()
			level := 1
			if p.body[p.i] == '{' {
				level = 0
			}
			v := p.value(level)
			j := judge{ws: ws, found: p.unsafe}
			p.unsafe = nil
			line := j.object(a, v)
			index := sent[a]
			sent[a]++
			if len(j.found) > 0 {
				sort.SliceStable(j.found, func(x, y int) bool {
					if j.found[x].rank != j.found[y].rank {
						return j.found[x].rank < j.found[y].rank
					}
					return j.found[x].at < j.found[y].at
				})
				errs[a] = append(errs[a], errorEntry(j.found[0].text, a, index))
				continue
			}
			counts[a]++
			for _, note := range j.notes {
				warnings[a] = append(warnings[a], errorEntry(note, a, index))
			}
			if line != "" {
				perArray[a] = append(perArray[a], line)
			}
		}
		p.i++
		if sent[a] > 75 {
			return "", 400, nil, true
		}
	}
	var w strings.Builder
	w.WriteByte('{')
	accepted := 0
	for a := range perArray {
		lines = append(lines, perArray[a]...)
		accepted += counts[a]
		if counts[a] > 0 {
			fmt.Fprintf(&w, `"%s_processed":%d,`, arrayNames[a], counts[a])
		}
	}
	switch {
	case accepted > 0:
		w.WriteString(`"message":"success"`)
		status = 201
	case sent == [arrays]int{}:
		return "", 400, nil, true
	default:
		fmt.Fprintf(&w, `"message":"%s"`, nothingValid)
		status, lines = 400, nil
	}
	if all := slices.Concat(errs[0], errs[1], errs[2]); len(all) > 0 {
		fmt.Fprintf(&w, `,"errors":[%s]`, strings.Join(all, ","))
	}
	if all := slices.Concat(warnings[0], warnings[1], warnings[2]); len(all) > 0 {
		fmt.Fprintf(&w, `,"warnings":[%s]`, strings.Join(all, ","))
	}
	return w.String() + "}", status, lines, false
}

func errorEntry(text string, a array, index int) string {
	return fmt.Sprintf(`{"type":"%s","input_array":"%s","index":%d}`, appendEscaped(nil, []byte(text)), arrayNames[a], index)
}

func (j *judge) no(rank rank, at int, text string) {
	j.found = append(j.found, finding{int(rank), at, text})
}

func (j *judge) object(a array, v value) string {
	if v.kind != '{' {
		j.no(rankIdentifier, v.at, reasonTexts[reasonNotObject])
		j.numbers(v, rankValue, reasonNumber, "")
		return ""
	}
	get := func(names ...string) *value {
		for _, name := range names {
			for k := range v.members {
				if m := &v.members[k]; m.name == name && m.kind != 'n' {
					return &m.value
				}
			}
		}
		return nil
	}
	// Identifiers.
	id, key, flags := op.NoID, "", ""
	external, alias, service, email, phone := get("external_id"), get("user_alias"), get("svc_id", "braze_id"), get("email"), get("phone")
	importing, tokens := false, get("push_tokens")
	if x := get("push_token_import"); a == arrayAttributes && x != nil && x.kind == 't' {
		importing = true
	}
	primaries := 0
	for _, x := range []*value{external, alias, service} {
		if x != nil {
			primaries++
		}
	}
	if get("svc_id") != nil && get("braze_id") != nil {
		j.no(rankIdentifier, 0, reasonTexts[reasonTwoIdentifiers])
	}
	unknown := false
	none := reasonTexts[reasonNoIdentifier]
	switch {
	case primaries > 1:
		j.no(rankIdentifier, 0, reasonTexts[reasonTwoIdentifiers])
	case external != nil:
		id, key = op.ExternalID, external.text
		if external.kind == '0' && strings.Trim(external.raw, "-0123456789") == "" {
			if n, err := strconv.ParseInt(external.raw, 10, 64); err == nil {
				key = strconv.FormatInt(n, 10)
			} else {
				j.no(rankIdentifier, external.at, "'external_id' must be a String")
			}
		} else if external.kind != '"' {
			j.no(rankIdentifier, external.at, "'external_id' must be a String")
		}
		_, blocked := j.ws.Blocked[key]
		switch {
		case external.kind == '"' && key == "":
			j.no(rankIdentifier, external.at, none)
		case len(key) > 987:
			j.no(rankIdentifier, external.at, reasonTexts[reasonExternalIDLong])
		case blocked:
			j.no(rankIdentifier, external.at, reasonTexts[reasonBlocked])
		}
		key = strconv.Quote(key)
	case alias != nil:
		id = op.Alias
		var parts [2]string
		if alias.kind != '{' {
			j.no(rankIdentifier, alias.at, reasonTexts[reasonAliasType])
		} else {
			for k, name := range []string{"alias_name", "alias_label"} {
				m := alias.member(name)
				switch {
				case m == nil || m.kind == 'n' || m.kind == '"' && m.text == "":
					j.no(rankIdentifier, alias.at, named(reasonAliasMember, name))
				case m.kind != '"':
					j.no(rankIdentifier, alias.at, named(reasonNotString, name))
				case len(m.text) > 236:
					j.no(rankIdentifier, alias.at, named(reasonAliasLong, name))
				default:
					parts[k] = m.text
				}
			}
		}
		key = fmt.Sprintf("%q/%q/true", parts[1], parts[0])
	case service != nil:
		id, key = op.SvcID, "42"
		switch {
		case service.kind != '"':
			j.no(rankIdentifier, service.at, "'svc_id' must be a String")
		case service.text == "":
			j.no(rankIdentifier, service.at, none)
		default:
			unknown = service.text != "known"
		}
	case email != nil:
		id = op.Email
		if email.kind != '"' || !field.Email([]byte(email.text)) {
			j.no(rankIdentifier, email.at, reasonTexts[reasonEmail])
		}
		key = strconv.Quote(string(op.AppendEmailKey(nil, []byte(email.text))))
	case phone != nil:
		id = op.Phone
		e164, ok := testPhones.Parse(nil, []byte(phone.text))
		if phone.kind != '"' || !ok {
			j.no(rankIdentifier, phone.at, "'phone' is not valid")
		}
		key = strconv.Quote(string(e164))
	case !importing:
		j.no(rankIdentifier, 0, none)
	}
	if importing && (tokens == nil || len(tokens.list) == 0 || id == op.ExternalID || id == op.SvcID) {
		j.no(rankIdentifier, 0, reasonTexts[reasonPushImport])
	}
	updateOnly := id == op.Alias
	for _, m := range v.members {
		if m.name == "_update_existing_only" && m.kind != 'n' {
			updateOnly = m.kind == 't'
		}
	}
	if updateOnly {
		flags += "+update-only"
	}
	var line string
	switch a {
	case arrayAttributes:
		var body string
		var contact bool
		body, contact = j.attributes(v, id)
		if x := get("_merge_objects"); x != nil && x.kind == 't' {
			flags += "+merge"
		}
		if contact {
			flags += "+contact"
		}
		if importing && id == op.NoID && tokens != nil && len(tokens.list) > 0 {
			t := &tokens.list[0]
			app, token := t.member("app_id"), t.member("token")
			if app != nil && token != nil {
				id, key = op.Alias, fmt.Sprintf("%q/%q/true", "push_token", app.text+":"+token.text)
				flags = strings.TrimPrefix(flags, "+update-only")
			}
		}
		line = "attributes " + id.String() + "=" + key + flags + body
	case arrayEvents:
		line = j.event(v, id, key, flags)
	default:
		line = j.purchase(v, id, key, flags)
	}
	if unknown {
		return ""
	}
	return line
}

func (v *value) member(name string) *value {
	for k := range v.members {
		if v.members[k].name == name {
			return &v.members[k].value
		}
	}
	return nil
}

// flag judges a boolean.
func (j *judge) flag(m member) {
	if m.kind != 't' && m.kind != 'f' && m.kind != 'n' {
		j.no(rankValue, m.at, named(reasonNotValid, m.name))
	}
}

// number is the dump of a number; ok is false for a number that no value can hold.
func number(raw string) (s string, ok bool) {
	if strings.Trim(raw, "-0123456789") == "" {
		n, err := strconv.ParseInt(raw, 10, 64)
		return strconv.FormatInt(n, 10), err == nil
	}
	f, err := strconv.ParseFloat(raw, 64)
	return "f" + strconv.FormatFloat(f, 'g', -1, 64), err == nil && len(raw) <= 1024
}

// numbers judges every number in v.
func (j *judge) numbers(v value, r rank, why reason, name string) {
	if v.kind == '0' {
		_, ok := number(v.raw)
		switch {
		case ok:
		case len(v.raw) <= 1024 || strings.Trim(v.raw, "-0123456789") == "":
			j.no(r, v.at, named(why, name))
		case why == reasonNumber:
			j.no(r, v.at, named(reasonNumberLong, name))
		default:
			j.no(r, v.at, named(reasonPropertyNumberLong, name))
		}
	}
	for _, x := range v.list {
		j.numbers(x, r, why, name)
	}
	for _, m := range v.members {
		j.numbers(m.value, r, why, name)
	}
}

func runes(s string) int { return utf8.RuneCountInString(s) }

// str judges a member that must be a string of at most 255 characters.
func (j *judge) str(m member, integerToo bool) {
	switch {
	case m.kind == '"':
		if runes(m.text) > 255 {
			j.no(rankValue, m.value.at, named(reasonLong, m.name))
		}
	case m.kind == 'n':
	case integerToo && m.kind == '0' && strings.Trim(m.raw, "-0123456789") == "":
	default:
		j.no(rankValue, m.value.at, named(reasonNotValid, m.name))
	}
}

// required is a member that must be there; a name must also not be empty.
func (j *judge) required(v value, name string) *value {
	m := v.member(name)
	isName := name == "name" || name == "product_id"
	if m == nil || m.kind == 'n' || isName && m.kind == '"' && m.text == "" {
		j.no(rankRequired, 0, named(reasonRequired, name))
		return nil
	}
	return m
}

func (j *judge) time(v value) int64 {
	m := j.required(v, "time")
	if m == nil {
		return 0
	}
	t, ok := field.Time([]byte(m.text))
	if m.kind != '"' || !ok {
		j.no(rankValue, m.at, "'time' is not valid")
	}
	return min(t, testNow)
}

func conditional(id op.IDKind, flags string) string {
	if id != op.ExternalID || flags != "" {
		flags += "+conditional"
	}
	return flags
}

func app(v value) string {
	if m := v.member("app_id"); m != nil && m.text != "" {
		return m.text
	}
	return "-"
}

func (j *judge) event(v value, id op.IDKind, key, flags string) string {
	properties := ""
	for _, m := range v.members {
		if m.name != "properties" {
			j.numbers(m.value, rankValue, reasonNumber, m.name)
		}
		switch m.name {
		case "name", "app_id":
			j.str(m, false)
		case "properties":
			properties = j.properties(m.value, "time", "event_name")
		case "_update_existing_only":
			j.flag(member{name: m.name, at: m.value.at, value: m.value})
		}
	}
	name := j.required(v, "name")
	t := j.time(v)
	if len(j.found) > 0 {
		return ""
	}
	return fmt.Sprintf("event %s=%s%s %q app=%s time=%d%s", id, key, conditional(id, flags), name.text, app(v), t, properties)
}

func (j *judge) purchase(v value, id op.IDKind, key, flags string) string {
	quantity := int64(1)
	properties := ""
	for _, m := range v.members {
		if m.name != "properties" && (m.name != "quantity" || m.kind != '0') {
			j.numbers(m.value, rankValue, reasonNumber, m.name)
		}
		switch m.name {
		case "app_id", "product_id":
			j.str(m, m.name == "product_id")
		case "properties":
			properties = j.properties(m.value, "time", "product_id", "quantity", "event_name", "price", "currency")
		case "price":
			if m.kind != '0' && m.kind != 'n' {
				j.no(rankValue, m.value.at, "'price' is not valid")
			}
		case "quantity":
			f, err := strconv.ParseFloat(m.raw, 64)
			if m.kind != 'n' && (m.kind != '0' || err != nil || f < 1 || f > 100 || f != math.Trunc(f) || len(m.raw) > 1024) {
				j.no(rankValue, m.value.at, "'quantity' is not valid")
			} else if m.kind == '0' {
				quantity = int64(f)
			}
		case "_update_existing_only":
			j.flag(member{name: m.name, at: m.value.at, value: m.value})
		}
	}
	product, currency, price := j.required(v, "product_id"), j.required(v, "currency"), j.required(v, "price")
	t := j.time(v)
	if currency == nil || price == nil {
		return ""
	}
	code, digits, ok := field.Currency([]byte(currency.text))
	if currency.kind != '"' || !ok {
		j.no(rankValue, currency.at, "'currency' is not valid")
	}
	for _, f := range j.found {
		if f.rank <= int(rankValue) {
			return ""
		}
	}
	total, ok := field.MinorUnits([]byte(price.raw), digits, quantity)
	if !ok {
		j.no(rankValue, price.at, "'price' is not valid")
		return ""
	}
	f, _ := strconv.ParseFloat(price.raw, 64)
	if price.raw == "-0" {
		f = 0
	}
	name := product.text
	if product.kind == '0' {
		name, _ = number(product.raw)
	}
	return fmt.Sprintf("purchase %s=%s%s %q app=%s time=%d %s %d %016x x%d%s", id, key, conditional(id, flags), name, app(v), t, code[:], total,
		math.Float64bits(f), quantity, properties)
}

func (j *judge) properties(v value, reserved ...string) string {
	if v.kind != '{' {
		if v.kind != 'n' {
			j.no(rankProperty, v.at, reasonTexts[reasonProperties])
			j.numbers(v, rankValue, reasonNumber, "properties")
		}
		return ""
	}
	var w strings.Builder
	complex := false
	for k, m := range v.members {
		no := func(at int, why reason) { j.no(rankProperty, at, named(why, m.name)) }
		for _, r := range reserved {
			if m.name == r {
				no(m.value.at, reasonProperties)
			}
		}
		switch {
		case m.name == "":
			no(m.value.at, reasonPropertyNameEmpty)
		case m.name[0] == '$':
			no(m.value.at, reasonPropertyNameDollar)
		case runes(m.name) > 255:
			no(m.value.at, reasonPropertyNameLong)
		}
		j.numbers(m.value, rankProperty, reasonPropertyNumber, m.name)
		text := ""
		var scalar func(x value) string
		scalar = func(x value) string {
			switch x.kind {
			case '"':
				if runes(x.text) > 255 {
					no(x.at, reasonPropertyLong)
				}
				return dumpString(x.text)
			case '0':
				s, _ := number(x.raw)
				return s
			case '{', '[':
				return "json<" + x.raw + ">"
			}
			return x.raw
		}
		switch m.kind {
		case 'n':
			no(m.value.at, reasonPropertyNull)
		case '{':
			complex = true
			text = scalar(m.value)
		case '[':
			complex = true
			var list []string
			var times func(x value)
			times = func(x value) {
				if x.kind == '"' && field.LooksLikeTime([]byte(x.text)) {
					no(x.at, reasonPropertyTime)
				}
				for _, y := range x.list {
					times(y)
				}
			}
			for _, x := range m.list {
				times(x)
				list = append(list, scalar(x))
			}
			text = "[" + strings.Join(list, ",") + "]"
		default:
			text = scalar(m.value)
		}
		switch {
		case k < 256:
			fmt.Fprintf(&w, " %s:%s", dumpString(m.name), text)
		case k == 256:
			j.notes = append(j.notes, strings.ReplaceAll(reasonTexts[reasonManyProperties], "%", m.name))
		}
	}
	if complex && len(v.raw) > 51200 {
		j.no(rankProperty, v.at, strings.ReplaceAll(reasonTexts[reasonPropertiesBytes], "%", "50 KB"))
	}
	return w.String()
}
