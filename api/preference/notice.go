package preference

import (
	"bytes"
	_ "embed"
	"html/template"
)

// Notice is a page of the server's own: an error, or a word of thanks if the customer has no HTML for it.
type Notice struct {
	Title string
	Text  string
	Done  bool // what the page says was done; otherwise something is wrong
}

//go:embed notice.html
var noticeHTML string

var noticeTemplate = template.Must(template.New("notice").Parse(noticeHTML))

// Render returns the page.
func (n Notice) Render() []byte {
	var b bytes.Buffer
	if err := noticeTemplate.Execute(&b, n); err != nil {
		panic("BUG: " + err.Error()) // the template and the type are ours
	}
	return b.Bytes()
}
