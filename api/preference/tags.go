package preference

import (
	"regexp"
	"strconv"
	"strings"
)

// The tags of reference.md 6, with or without space inside. Everything else stays as it is: this is no template
// language, so there is nothing to inject into.
//
//	{{subscribed_state.${email_global}}}             opted_in, subscribed or unsubscribed
//	{{subscribed_state.${<group id>}}}               subscribed, unsubscribed or unknown; nothing for a group that does not exist
//	{% form_field_name :email_global_state %}        the name of the field that sets the first
//	{% form_field_name :subscription_group <id> %}   the name of the field that sets the second
//	{{preference_center_submit_url}}                 the address of the form
//	{{${email_address}}}                             the user's email address
var tag = regexp.MustCompile(`\{\{\s{0,8}(?:` +
	`subscribed_state\.\$\{\s{0,8}(?:(email_global)|(` + uuidForm + `))\s{0,8}\}|` +
	`(preference_center_submit_url)|` +
	`\$\{\s{0,8}(email_address)\s{0,8}\}` +
	`)\s{0,8}\}\}|` +
	`\{%-?\s{0,8}form_field_name\s{1,8}:(?:(email_global_state)|subscription_group\s{1,8}(` +
	uuidForm + `))\s{0,8}-?%\}`)

const uuidForm = `[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}`

// Groups of tag.
const (
	tagEmailState = 1 + iota
	tagGroupState
	tagSubmitURL
	tagAddress
	tagEmailField
	tagGroupField
)

// replaceTags replaces the tags by values, in one pass: tags in a value are not replaced. All values consist of
// letters, digits and _ - . / ~ (see plain), so they stand for themselves in text, in attributes with and without
// quotes, in addresses and in style; the email address is encoded to that alphabet.
func replaceTags(html, submitURL string, s *Subscriber) string {
	var out strings.Builder
	at := 0
	for _, m := range tag.FindAllStringSubmatchIndex(html, -1) {
		group := func(n int) string {
			if m[2*n] < 0 {
				return ""
			}
			return html[m[2*n]:m[2*n+1]]
		}
		out.WriteString(html[at:m[0]])
		at = m[1]
		switch {
		case group(tagEmailState) != "":
			out.WriteString(plain(s.Email))
		case group(tagGroupState) != "":
			out.WriteString(plain(s.Groups[strings.ToLower(group(tagGroupState))]))
		case group(tagSubmitURL) != "":
			out.WriteString(plain(submitURL))
		case group(tagAddress) != "":
			writeEncoded(&out, s.Address)
		case group(tagEmailField) != "":
			out.WriteString(emailField)
		default:
			out.WriteString(groupPrefix + strings.ToLower(group(tagGroupField)))
		}
	}
	out.WriteString(html[at:])
	return out.String()
}

// plain returns text that stands for itself anywhere in HTML, or nothing.
func plain(text string) string {
	for i := range len(text) {
		if b := text[i]; !letterOrDigit(b) && strings.IndexByte("_-./~", b) < 0 {
			return ""
		}
	}
	return text
}

func letterOrDigit(b byte) bool { return b >= '0' && b <= '9' || b|0x20 >= 'a' && b|0x20 <= 'z' }

// writeEncoded writes every character that is not a letter or digit as a numeric reference.
func writeEncoded(out *strings.Builder, text string) {
	for _, r := range text {
		if r < 0x80 && letterOrDigit(byte(r)) {
			out.WriteRune(r)
			continue
		}
		out.WriteString("&#" + strconv.Itoa(int(r)) + ";")
	}
}
