package ingest

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// This file has the judge's rules for attributes objects.

var decimalText = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)

// coordinate returns the number that a place's member is or, as a string, has; else nothing.
func coordinate(v *value) string {
	switch {
	case v == nil:
		return ""
	case v.kind == '0':
		return v.raw
	case v.kind != '"' || len(v.text) > 1024 || !decimalText.MatchString(v.text):
		return ""
	}
	if _, err := strconv.ParseFloat(v.text, 64); err != nil {
		return ""
	}
	if v.text == "-0" {
		return "-0.0" // not the integer
	}
	return v.text
}

func (j *judge) attributes(v value, id op.IDKind) (body string, contact bool) {
	var w strings.Builder
	var email, phone string
	for _, m := range v.members {
		at := m.value.at
		put := func(text string) { fmt.Fprintf(&w, " %s:%s", dumpString(m.name), text) }
		no := func(why reason) { j.no(rankValue, at, named(why, m.name)) }
		value := []byte(m.text)
		code := op.AttrCode([]byte(m.name))
		if code != 0 || classOther != first(classifyAttribute([]byte(m.name))) {
			j.numbers(m.value, rankValue, reasonNumber, m.name) // first, but for a custom attribute's name
		}
		if code == op.AttrEmail && id != op.Email {
			contact = true
			switch {
			case m.kind == 'n':
				email = ` "email":null`
			case m.kind == '"' && field.Email(value):
				email = ` "email":` + dumpString(m.text)
			default:
				no(reasonEmail)
			}
		}
		if code == op.AttrPhone && id != op.Phone {
			contact = true
			e164, ok := testPhones.Parse(nil, value)
			switch {
			case m.kind == 'n':
				phone = ` "phone":null`
			case m.kind == '"' && ok:
				phone = ` "phone":` + dumpString(string(e164))
			default:
				j.notes = append(j.notes, "+'phone' is not valid")
			}
		}
		switch m.name {
		case "_update_existing_only", "_merge_objects", "push_token_import":
			j.flag(member{name: m.name, at: at, value: m.value})
		case "email_subscription_info":
			no(reasonForbidden)
		}
		switch m.name {
		case "_update_existing_only", "_merge_objects", "push_token_import", "email_subscription_info", "bio", "alias_name", "alias_label",
			"external_id", "user_alias", "svc_id", "braze_id", "email", "phone":
			continue
		}
		if code == 0 {
			j.custom(&w, m)
			j.numbers(m.value, rankValue, reasonNumber, m.name)
			continue
		}
		contact = contact || code == op.AttrEmailSubscribe || code == op.AttrSubscriptionGroups
		if m.kind == 'n' {
			if code != op.AttrSubscriptionGroups {
				put("null")
			}
			continue
		}
		switch code {
		case op.AttrCurrentLocation:
			lon, lat := coordinate(m.member("longitude")), coordinate(m.member("latitude"))
			if lon == "" || lat == "" {
				no(reasonNotValid)
				continue
			}
			put(fmt.Sprintf(`{"longitude":%s,"latitude":%s}`, asFloat(lon), asFloat(lat)))
			continue
		case op.AttrEmailOpenTrackingOff, op.AttrEmailClickTrackingOff:
			j.flag(member{name: m.name, at: at, value: m.value})
			put(m.raw)
			continue
		case op.AttrPushTokens:
			if list := j.tokens(m); list != "[]" {
				put(list)
			}
			continue
		case op.AttrSubscriptionGroups:
			put(j.groups(m))
			continue
		case op.AttrFacebook, op.AttrTwitter:
			if m.kind != '{' {
				no(reasonNotValid)
				continue
			}
			switch text, ok := j.nested(m); {
			case ok && text[0] == '{':
				put(text)
			case ok: // an operator or a time
				j.notes = append(j.notes, named(reasonNotValid, m.name))
			}
			continue
		}
		if m.kind != '"' {
			switch code {
			case op.AttrCountry, op.AttrLanguage, op.AttrGender, op.AttrDateOfBirth, op.AttrTimeZone:
				j.notes = append(j.notes, named(reasonNotValid, m.name))
			case op.AttrEmailSubscribe:
				no(reasonEmailSubscribe)
			case op.AttrPushSubscribe:
				no(reasonPushSubscribe)
			default:
				no(reasonNotValid)
			}
			continue
		}
		text, ok, why := m.text, true, reasonNotValid
		switch code {
		case op.AttrFirstName, op.AttrLastName, op.AttrHomeCity:
			ok, why = runes(m.text) <= 255, reasonLong
		case op.AttrImageURL:
			ok = len(m.text) <= 2048
		case op.AttrCountry:
			var c [2]byte
			c, ok = field.Country(value)
			text = string(c[:])
		case op.AttrLanguage:
			text, ok = field.Language(value)
		case op.AttrGender:
			text, ok = judgeGender(text)
		case op.AttrDateOfBirth:
			var date [10]byte
			date, ok = field.DateOfBirth(value)
			text = string(date[:])
		case op.AttrDateOfFirstSession, op.AttrDateOfLastSession, op.AttrMarkedEmailAsSpamAt:
			var t int64
			if t, ok = field.Time(value); ok {
				put(fmt.Sprintf("t%d", t))
				continue
			}
		case op.AttrEmailSubscribe:
			ok, why = text == "subscribed" || text == "unsubscribed" || text == "opted_in", reasonEmailSubscribe
		case op.AttrPushSubscribe:
			ok, why = text == "subscribed" || text == "unsubscribed" || text == "opted_in", reasonPushSubscribe
		case op.AttrTimeZone:
			text, ok = field.TimeZone(value)
		}
		switch {
		case ok:
		case code == op.AttrCountry || code == op.AttrLanguage || code == op.AttrGender || code == op.AttrDateOfBirth || code == op.AttrTimeZone:
			j.notes = append(j.notes, named(why, m.name)) // left out
			continue
		default:
			no(why)
			continue
		}
		put(dumpString(text))
	}
	// The phone is judged last, once it is known to be an attribute.
	for k, note := range j.notes {
		if note[0] == '+' {
			j.notes = append(append(j.notes[:k:k], j.notes[k+1:]...), note[1:])
			break
		}
	}
	return w.String() + email + phone, contact
}

// judgeGender has a list of its own (decisions.md D9).
func judgeGender(s string) (letter string, ok bool) {
	letter, ok = map[string]string{"m": "M", "male": "M", "f": "F", "female": "F", "o": "O", "other": "O", "n": "N", "not applicable": "N", "p": "P",
		"prefer not to say": "P"}[strings.NewReplacer("_", " ", "-", " ").Replace(lowerASCII(s))]
	return letter, ok
}

func lowerASCII(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

func asFloat(raw string) string {
	f, _ := strconv.ParseFloat(raw, 64)
	if raw == "-0" {
		f = 0
	}
	return "f" + strconv.FormatFloat(f, 'g', -1, 64)
}

func (j *judge) tokens(m member) string {
	if m.kind != '[' {
		j.no(rankValue, m.value.at, reasonTexts[reasonTokenArray])
		return ""
	}
	var list []string
	for _, x := range m.list {
		app, token, device := x.member("app_id"), x.member("token"), x.member("device_id")
		if x.kind != '{' || app == nil || token == nil {
			j.no(rankValue, x.at, reasonTexts[reasonTokenArray])
			continue
		}
		if _, ok := j.ws.Apps[app.text]; !ok || app.kind != '"' {
			j.no(rankValue, app.at, reasonTexts[reasonTokenApp])
		}
		if token.kind != '"' || token.text == "" || len(token.text) > 4096 {
			j.no(rankValue, token.at, reasonTexts[reasonTokenText])
		}
		text := `{"app_id":` + dumpString(app.text) + `,"token":` + dumpString(token.text)
		if device != nil && device.kind != 'n' {
			if device.kind != '"' || len(device.text) < 8 || len(device.text) > 255 {
				j.no(rankValue, device.at, reasonTexts[reasonDeviceID])
			}
			text += `,"device_id":` + dumpString(device.text)
		}
		list = append(list, text+"}")
	}
	return "[" + strings.Join(list, ",") + "]"
}

func (j *judge) groups(m member) string {
	if m.kind != '[' {
		j.no(rankValue, m.value.at, reasonTexts[reasonGroupArray])
		return ""
	}
	var list []string
	for _, x := range m.list {
		id, state := x.member("subscription_group_id"), x.member("subscription_state")
		if x.kind != '{' || id == nil || state == nil {
			j.no(rankValue, x.at, reasonTexts[reasonGroupArray])
			continue
		}
		group, ok := field.UUID([]byte(id.text))
		channel, exists := j.ws.Groups[group]
		if id.kind != '"' || !ok || !exists {
			j.no(rankValue, id.at, reasonTexts[reasonGroupID])
		}
		if state.kind != '"' || state.text != "subscribed" && state.text != "unsubscribed" {
			j.no(rankValue, state.at, reasonTexts[reasonGroupState])
		}
		list = append(list, dumpString(string(group[:])+string([]byte{channel})), strconv.FormatBool(state.text == "subscribed"))
	}
	return "[" + strings.Join(list, ",") + "]"
}

// isReservedName says whether a name in an attributes object is not that of a custom attribute.
func isReservedName(name string) bool {
	switch name {
	case "_update_existing_only", "_merge_objects", "push_token_import", "email_subscription_info", "bio", "alias_name", "alias_label",
		"external_id", "user_alias", "svc_id", "braze_id", "email", "phone":
		return true
	}
	return op.AttrCode([]byte(name)) != 0
}

func (j *judge) custom(w *strings.Builder, m member) {
	name, ok := field.AttributeName([]byte(m.name))
	if !ok {
		j.no(rankValue, m.value.at, named(reasonAttributeName, m.name))
		name = []byte(m.name)
	}
	if string(name) != m.name && isReservedName(string(name)) {
		j.no(rankValue, m.value.at, named(reasonAttributeBlanks, m.name))
	}
	text := ""
	switch m.kind {
	case '"':
		if t, ok := field.AttributeTime([]byte(m.text)); ok {
			text = fmt.Sprintf("t%d", t)
			break
		}
		if runes(m.text) > 255 {
			j.no(rankValue, m.value.at, named(reasonLong, m.name))
		}
		text = dumpString(m.text)
	case '0':
		text, _ = number(m.raw)
	case '{', '[':
		if text, ok = j.nested(m); !ok {
			return
		}
	default:
		text = m.raw
	}
	fmt.Fprintf(w, " %s:%s", dumpString("~"+string(name)), text)
}

// nested is the dump of an attribute that is an object or an array; ok is false when the attribute is left out.
func (j *judge) nested(m member) (text string, ok bool) {
	ok = true
	isOperator := false
	if m.kind == '{' {
		text, isOperator = j.operator(m, &ok)
	}
	if !isOperator {
		text = j.tree(m, m.value, false, false, &ok)
	}
	switch {
	case !ok:
		j.notes = append(j.notes, named(reasonNotValid, m.name))
	case len(m.raw) > 102400:
		j.notes = append(j.notes, named(reasonTooLarge, m.name))
		ok = false
	}
	return text, ok
}

// tree is the dump of a value within a nested attribute. In an array, objects have no null members.
func (j *judge) tree(owner member, v value, inObject, inArray bool, ok *bool) string {
	var list []string
	switch v.kind {
	case '{':
		if len(v.members) == 1 && v.members[0].name == "$time" && v.members[0].kind == '"' {
			if t, good := field.AttributeTime([]byte(v.members[0].text)); good {
				return fmt.Sprintf("t%d", t)
			}
		}
		for _, m := range v.members {
			*ok = *ok && m.name != "" && runes(m.name) <= 255 && field.NestedKey([]byte(m.name))
			if text := j.tree(owner, m.value, true, inArray, ok); text != "null" || !inArray {
				list = append(list, dumpString(m.name)+":"+text)
			}
		}
		return "{" + strings.Join(list, ",") + "}"
	case '[':
		for _, x := range v.list {
			text := "json<" + x.raw + ">"
			if x.kind != '[' {
				text = j.tree(owner, x, inObject, true, ok)
			}
			// The attribute's own array is a set of its values, but objects in it are kept as they are. (A $time is a
			// time, not an object.)
			if again := slices.Contains(list, text); again && !inObject && text[0] != '{' {
				continue
			}
			list = append(list, text)
		}
		return "[" + strings.Join(list, ",") + "]"
	case '"':
		if runes(v.text) > 255 {
			if inObject {
				*ok = false
			} else {
				j.no(rankValue, v.at, named(reasonLong, owner.name))
			}
		}
		return dumpString(v.text)
	case '0':
		s, _ := number(v.raw)
		return s
	}
	return v.raw
}

// operator is the dump of an object that has only the names of an operator.
func (j *judge) operator(m member, ok *bool) (text string, is bool) {
	only := func(names string) bool {
		for _, x := range m.members {
			if !strings.Contains(names, " "+x.name+" ") {
				return false
			}
		}
		return len(m.members) > 0
	}
	notValid := named(reasonNotValid, m.name)
	list := func(v *value) string {
		if v == nil {
			return "[]"
		}
		if v.kind != '[' {
			if len(j.found) == 0 || j.found[len(j.found)-1].text != notValid {
				j.no(rankValue, m.value.at, notValid)
			}
			return ""
		}
		return j.tree(m, *v, true, false, ok)
	}
	switch {
	case only(" inc "):
		text, isNumber := number(m.members[0].raw)
		isInt := isNumber && text[0] != 'f'
		if f, _ := strconv.ParseFloat(m.members[0].raw, 64); isNumber && !isInt && f == math.Trunc(f) && f >= -1<<63 && f < 1<<63 {
			text, isInt = strconv.FormatInt(int64(f), 10), true
		}
		if m.members[0].kind != '0' || !isInt {
			var ignored bool
			j.tree(m, m.value, false, false, &ignored)
			j.no(rankValue, m.value.at, notValid)
		}
		return "inc(" + text + ")", true
	case only(" add remove "):
		return "update(" + list(m.member("add")) + "," + list(m.member("remove")) + ")", true
	case only(" $add $update $remove "):
		return j.edits(m, ok), true
	}
	return "", false
}

func (j *judge) edits(m member, ok *bool) string {
	var w strings.Builder
	w.WriteString("edit(")
	for _, name := range []string{"$remove", "$update", "$add"} {
		v := m.member(name)
		if v == nil {
			continue
		}
		if v.kind != '[' {
			*ok = false
			continue
		}
		if name == "$add" {
			for _, x := range v.list {
				*ok = *ok && x.kind == '{' && !isTime(x)
			}
			if tree := j.tree(m, *v, true, false, ok); len(v.list) > 0 {
				w.WriteString("0 " + tree + ";")
			}
			continue
		}
		for _, x := range v.list {
			key, match, object := x.member("$identifier_key"), x.member("$identifier_value"), x.member("$new_object")
			if x.kind != '{' || key == nil || match == nil || key.kind != '"' || strings.IndexByte("[n", match.kind) >= 0 || match.kind == '{' && !isTime(*match) {
				*ok = false
				continue
			}
			k, v := j.tree(m, *key, true, true, ok), j.tree(m, *match, true, true, ok)
			if name == "$remove" {
				*ok = *ok && len(x.members) == 2
				fmt.Fprintf(&w, "2 %s %s;", k, v)
				continue
			}
			if object == nil || object.kind != '{' || isTime(*object) || len(x.members) != 3 {
				*ok = false
				continue
			}
			fmt.Fprintf(&w, "1 %s %s %s;", k, v, j.tree(m, *object, true, true, ok))
		}
	}
	return w.String() + ")"
}

func isTime(v value) bool {
	if len(v.members) != 1 || v.members[0].name != "$time" || v.members[0].kind != '"' {
		return false
	}
	_, ok := field.AttributeTime([]byte(v.members[0].text))
	return ok
}

func first(c class, _ reason) class { return c }
