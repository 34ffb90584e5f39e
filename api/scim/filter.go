package scim

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	filter "github.com/scim2/filter-parser/v2"
)

// A filter is bounded, and so is what stands before its value: the library takes about a microsecond a byte, and backs up over names.
const (
	maxFilterBytes    = 512
	maxAttributeBytes = 128
)

// ParseFilter reads the one filter that there is (service.md 4.18), userName eq "…", and returns the name. Attribute and operator may be in any case, and the
// attribute may have the URN of its schema before it. Anything else is an error, and it is the answer.
//
// It parses an attribute expression, which has no nesting, rather than a whole filter: that grammar goes back over parentheses again and again.
func ParseFilter(text string) (userName string, err error) {
	text = strings.Trim(text, " ")
	if start := strings.IndexByte(text, '"'); start < 0 || start > maxAttributeBytes || len(text) > maxFilterBytes || !utf8.ValidString(text) {
		return "", errFilter
	}
	e, parseErr := filter.ParseAttrExp([]byte(text))
	if parseErr != nil {
		return "", errFilter
	}
	path := e.AttributePath
	if !strings.EqualFold(path.AttributeName, "userName") || path.SubAttribute != nil || e.Operator != filter.EQ ||
		path.URIPrefix != nil && !strings.EqualFold(strings.TrimSuffix(*path.URIPrefix, ":"), UserSchema) {
		return "", errFilter
	}
	quoted, ok := e.CompareValue.(string)
	if !ok || json.Unmarshal([]byte(`"`+quoted+`"`), &userName) != nil { // the library leaves escapes as they are
		return "", errFilter
	}
	// A "+" that was not escaped has become a space on its way through the query, where no address has one.
	return strings.ReplaceAll(userName, " ", "+"), nil
}
