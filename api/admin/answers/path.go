package answers

import (
	"net/url"
	"strings"
)

// Path joins segments, which may contain any character, to the path of a request. Each is escaped, also one or two
// dots, which would lead elsewhere.
func Path(segments ...string) string {
	var b strings.Builder
	for _, s := range segments {
		b.WriteByte('/')
		if s == "." || s == ".." {
			b.WriteString(strings.ReplaceAll(s, ".", "%2E"))
		} else {
			b.WriteString(url.PathEscape(s))
		}
	}
	return b.String()
}
