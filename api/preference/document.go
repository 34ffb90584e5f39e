package preference

import (
	"html"
	"strings"

	tokens "golang.org/x/net/html"
)

// Page is what a preference center shows besides its HTML. No tags are replaced in it.
type Page struct {
	Title    string
	Viewport string // content of the viewport tag; empty: none
	Icons    []Icon
}

// Icon is a <link> in the head.
type Icon struct {
	Rel, Type, Sizes, Color, Href string
}

// Render makes the page of one user, a whole document: tags are replaced, and the form is filled in. submitURL is where
// the form goes, a path.
func (p Page) Render(text, submitURL string, s *Subscriber) []byte {
	return p.document(fill(replaceTags(text, submitURL, s), s))
}

// RenderForNobody makes a page that shows no user, to which an expired link leads. Its tags are replaced by nothing.
func (p Page) RenderForNobody(text string) []byte {
	return p.document(replaceTags(text, "", &Subscriber{}))
}

// document completes text to a document. Text that begins with a doctype, <html>, <head> or <body> already is one and
// gets what it lacks: the doctype, a title, and the tags of p in its head. Any other text becomes the body of a
// document.
func (p Page) document(text string) []byte {
	o := outlineOf(text)
	if !o.whole {
		return []byte("<!doctype html>\n<html>\n<head>\n<meta charset=\"utf-8\">\n" + p.head(true) +
			"</head>\n<body>\n" + text + "\n</body>\n</html>\n")
	}
	out := text[:o.head] + p.head(!o.title) + text[o.head:]
	if !o.doctype {
		out = "<!doctype html>\n" + out // without it browsers use quirks mode
	}
	return []byte(out)
}

// head returns the tags of p.
func (p Page) head(withTitle bool) string {
	var b strings.Builder
	if withTitle {
		b.WriteString("<title>" + html.EscapeString(p.Title) + "</title>\n")
	}
	if p.Viewport != "" {
		b.WriteString("<meta name=\"viewport\" content=\"" + html.EscapeString(p.Viewport) + "\">\n")
	}
	for _, i := range p.Icons {
		b.WriteString("<link")
		for _, a := range [][2]string{{"rel", i.Rel}, {"type", i.Type}, {"sizes", i.Sizes}, {"color", i.Color},
			{"href", i.Href}} {
			if a[1] != "" {
				b.WriteString(" " + a[0] + "=\"" + html.EscapeString(a[1]) + "\"")
			}
		}
		b.WriteString(">\n")
	}
	return b.String()
}

// outline is what document has to know about a text.
type outline struct {
	whole   bool
	doctype bool
	title   bool // has a title of its own
	head    int  // where tags for the head go
}

// outlineOf reads text up to its body.
func outlineOf(text string) (o outline) {
	z := tokens.NewTokenizer(strings.NewReader(text))
	at, inside := 0, false // of an element of the head that contains text
	for {
		kind := z.Next()
		raw := z.Raw()
		at += len(raw)
		switch kind {
		case tokens.ErrorToken:
			return o
		case tokens.DoctypeToken:
			o.whole, o.doctype, o.head = true, true, at
		case tokens.TextToken:
			if !inside && strings.TrimSpace(strings.TrimPrefix(string(raw), "\uFEFF")) != "" {
				return o
			}
		case tokens.EndTagToken:
			inside = false
		case tokens.StartTagToken, tokens.SelfClosingTagToken:
			switch name, _ := z.TagName(); string(name) {
			case "html", "head":
				o.whole, o.head = true, at
			case "title":
				o.title, inside = true, true
			case "style", "script", "noscript":
				inside = true
			case "base", "link", "meta":
			case "body":
				o.whole = true
				return o
			default: // the body begins without a tag
				return o
			}
		}
	}
}
