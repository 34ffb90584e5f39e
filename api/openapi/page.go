package openapi

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/url"
	"slices"
	"strings"
	"sync"

	"gopkg.in/yaml.v3"
)

//go:embed page.html
var pageText string

var page = sync.OnceValue(func() []byte {
	whole := read()
	link(whole, whole)
	var out bytes.Buffer
	t := template.Must(template.New("page").Funcs(pageFuncs).Parse(pageText))
	if err := t.Execute(&out, whole); err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return out.Bytes()
})

// pageFuncs are the functions that page.html calls on the document. The page follows the order of the document.
var pageFuncs = template.FuncMap{
	"at": member, "text": text, "elements": elements, "members": members, "markup": markup, "operations": operationsOf,
	"access": accessOf, "parameters": parametersOf, "headers": headersOf, "media": mediaOf, "body": bodyOf,
	"examples": examplesOf, "requests": requestsOf, "messages": messagesOf,
	"anchor": func(tag string) string { return "tag-" + strings.ReplaceAll(strings.ToLower(tag), " ", "-") },
}

type operation struct {
	Method, Path string
	Node         *yaml.Node
}

// field is a row: a parameter, a header, or a member of a body.
type field struct {
	Name, In, Type string
	Depth          int
	Required       bool
	Description    template.HTML
	Rules          []string
}

type example struct{ Name, Text string }

const (
	formMedia  = "application/x-www-form-urlencoded"
	scimAccess = "the SCIM token"
)

// methods are the methods of a path, in the order in which the page shows them.
var methods = []string{"get", "post", "put", "patch", "delete"}

// operationsOf returns the operations with a tag.
func operationsOf(whole *yaml.Node, tag string) (list []operation) {
	for path, item := range members(member(whole, "paths")) {
		for _, method := range methods {
			if n := member(item, method); n != nil && texts(n, "tags")[0] == tag {
				list = append(list, operation{strings.ToUpper(method), path, n})
			}
		}
	}
	return list
}

// accessOf returns what an operation requires of its caller.
func accessOf(n *yaml.Node) string {
	for _, requirement := range elements(n, "security") {
		if member(requirement, "scimToken") != nil {
			return scimAccess
		}
	}
	return text(n, "x-permission")
}

// described returns the row of a parameter or a header.
func described(name string, n *yaml.Node) field {
	row := fieldOf(name, member(n, "schema"), text(n, "required") == "true", 0)
	row.In = text(n, "in")
	if d := member(n, "description"); d != nil {
		row.Description = markup(d)
	}
	return row
}

func parametersOf(n *yaml.Node) (rows []field) {
	for _, e := range elements(n, "parameters") {
		rows = append(rows, described(text(e, "name"), e))
	}
	return rows
}

func headersOf(n *yaml.Node) (rows []field) {
	for name, h := range members(member(n, "headers")) {
		rows = append(rows, described(name, h))
	}
	return rows
}

// mediaOf returns the media type of a body; others have the same content.
func mediaOf(n *yaml.Node) string {
	for media := range members(member(n, "content")) {
		return media
	}
	return ""
}

// bodyOf lists the members of a body, with those of objects in it below them.
func bodyOf(n *yaml.Node) (rows []field) {
	schema := member(n, "content", mediaOf(n), "schema")
	if schema == nil {
		return nil
	}
	top := fieldOf("", schema, false, 0)
	if top.Description != "" || len(top.Rules) > 0 || member(schema, "properties") == nil {
		rows = append(rows, top)
	}
	return appendMembers(rows, schema, 0)
}

func examplesOf(n *yaml.Node) (list []example) {
	media := mediaOf(n)
	for _, e := range members(member(n, "content", media, "examples")) {
		value := member(e, "value")
		shown := example{Name: text(e, "summary"), Text: value.Value}
		if media == formMedia {
			form := url.Values{}
			for name, v := range members(value) {
				form.Set(name, text(v))
			}
			shown.Text = form.Encode()
		} else if value.Kind != yaml.ScalarNode {
			var indented bytes.Buffer
			if err := json.Indent(&indented, appendJSON(nil, value), "", "  "); err != nil {
				panic(fmt.Sprintf("BUG: %v", err))
			}
			shown.Text = indented.String()
		}
		list = append(list, shown)
	}
	return list
}

// messagesOf returns the messages in the examples of a failure.
func messagesOf(n *yaml.Node) (list []string) {
	for _, e := range members(member(n, "content", mediaOf(n), "examples")) {
		for _, name := range []string{"message", "detail"} {
			if m := text(e, "value", name); m != "" && !slices.Contains(list, m) {
				list = append(list, m)
			}
		}
	}
	return list
}

// requestsOf returns the examples of a request as commands for a shell; at least one.
func requestsOf(o operation) []example {
	list := examplesOf(member(o.Node, "requestBody"))
	if list == nil {
		list = []example{{}}
	}
	for i := range list {
		list[i].Text = curl(o, list[i].Text)
	}
	return list
}

// urlOf returns the path of an operation with the examples of its parameters.
func urlOf(o operation) string {
	path, query := o.Path, url.Values{}
	for _, p := range elements(o.Node, "parameters") {
		value := append(texts(p, "example"), text(p, "example"))[0] // one of a list is enough
		switch name, in := text(p, "name"), text(p, "in"); {
		case value == "":
		case in == "path":
			path = strings.Replace(path, "{"+name+"}", url.PathEscape(value), 1)
		case in == "query":
			query.Set(name, value)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}

// curl returns a request as a command for a shell, with the server in $MILLRACE and the key in $KEY.
func curl(o operation, body string) string {
	var b strings.Builder
	b.WriteString("curl -s ")
	if o.Method != "GET" && (o.Method != "POST" || body == "") {
		b.WriteString("-X " + o.Method + " ")
	}
	b.WriteString(`"$MILLRACE` + urlOf(o) + `"`)
	access := accessOf(o.Node)
	if access != "" {
		b.WriteString(` -H "Authorization: Bearer $KEY"`)
	}
	if access == scimAccess {
		b.WriteString(` -H "X-Request-Origin: $ORIGIN"`)
	}
	if body != "" {
		media := mediaOf(member(o.Node, "requestBody"))
		b.WriteString(` -H "Content-Type: ` + media + "\" -d '" + strings.ReplaceAll(body, "'", `'\''`) + "'")
	}
	return b.String()
}

func appendMembers(rows []field, n *yaml.Node, depth int) []field {
	if depth > 8 {
		panic("BUG: a schema contains itself")
	}
	required := texts(n, "required")
	for name, m := range members(member(n, "properties")) {
		rows = append(rows, fieldOf(name, m, slices.Contains(required, name), depth))
		rows = appendMembers(rows, m, depth+1)
	}
	if items := member(n, "items"); items != nil {
		rows = appendMembers(rows, items, depth)
	}
	if values := member(n, "additionalProperties"); values != nil && values.Kind == yaml.MappingNode {
		rows = append(rows, fieldOf("‹any name›", values, false, depth))
		rows = appendMembers(rows, values, depth+1)
	}
	for _, e := range elements(n, "oneOf") {
		rows = appendMembers(rows, e, depth)
	}
	return rows
}

func fieldOf(name string, n *yaml.Node, required bool, depth int) field {
	f := field{Name: name, Type: typeOf(n), Depth: depth, Required: required}
	f.Description = markup(member(n, "description"))
	if items := member(n, "items"); items != nil { // the rules of an array's elements are shown with the array
		if f.Description == "" {
			f.Description = markup(member(items, "description"))
		}
		f.Rules = rulesOf(items)
	}
	f.Rules = append(f.Rules, rulesOf(n)...)
	slices.Sort(f.Rules)
	f.Rules = slices.Compact(f.Rules)
	return f
}

func typeOf(n *yaml.Node) string {
	types := texts(n, "type")
	if one := text(n, "type"); one != "" {
		types = []string{one}
	}
	for i, t := range types {
		if items := member(n, "items"); t == "array" && items != nil {
			types[i] = "array of " + typeOf(items)
		}
	}
	if types == nil {
		for _, e := range elements(n, "oneOf") {
			types = append(types, typeOf(e))
		}
		types = slices.Compact(slices.DeleteFunc(types, func(s string) bool { return s == "any value" }))
	}
	if len(types) == 0 {
		return "any value"
	}
	return strings.Join(types, " or ")
}

// rulesOf returns in words what a schema allows besides its type.
func rulesOf(n *yaml.Node) (rules []string) {
	for _, rule := range []struct{ keyword, words string }{
		{"const", "always "}, {"format", "format "}, {"pattern", "matches "}, {"default", "default "},
		{"minimum", "at least "}, {"maximum", "at most "},
		{"maxLength", "characters: at most "}, {"maxItems", "elements: at most "},
	} {
		if v := member(n, rule.keyword); v != nil {
			rules = append(rules, rule.words+v.Value)
		}
	}
	if v := texts(n, "enum"); len(v) > 0 {
		rules = append(rules, "one of "+strings.Join(v, ", "))
	}
	var sets []string
	for _, e := range elements(n, AnyOf) {
		sets = append(sets, strings.Join(texts(e, "required"), " and "))
	}
	if len(sets) > 0 {
		rules = append(rules, "at least one of "+strings.Join(sets, ", "))
	}
	return rules
}

// markup renders the little of CommonMark that descriptions use: paragraphs, lists of lines that begin with "- ", and
// `code`.
func markup(n *yaml.Node) template.HTML {
	var b strings.Builder
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text(n)), "\n\n") {
		lines := strings.Split(paragraph, "\n")
		switch {
		case paragraph == "":
		case strings.HasPrefix(lines[0], "- "):
			b.WriteString("<ul>")
			for _, line := range lines {
				b.WriteString("<li>" + inline(strings.TrimPrefix(line, "- ")) + "</li>")
			}
			b.WriteString("</ul>")
		default:
			b.WriteString("<p>" + inline(paragraph) + "</p>")
		}
	}
	return template.HTML(b.String()) //nolint:gosec // built of escaped text alone
}

func inline(s string) string {
	parts := strings.Split(s, "`")
	for i, part := range parts {
		parts[i] = template.HTMLEscapeString(part)
		if i%2 == 1 && i < len(parts)-1 {
			parts[i] = "<code>" + parts[i] + "</code>"
		}
	}
	return strings.Join(parts, "")
}
