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
	var out bytes.Buffer
	t := template.Must(template.New("page").Parse(pageText))
	if err := t.Execute(&out, pageOf(made().node)); err != nil {
		panic(fmt.Sprintf("BUG: %v", err))
	}
	return out.Bytes()
})

// What the page shows, in the order of the document.
type (
	pageData struct {
		Title, Version, Summary string
		Description             template.HTML
		Tags                    []*tagData
	}
	tagData struct {
		Name, Anchor string
		Description  template.HTML
		Operations   []operationData
	}
	operationData struct {
		ID, Method, Path, Summary string
		Description               template.HTML
		Deprecated                bool
		Access, Bucket, Limit     string // Limit is the default of Bucket
		Parameters                []fieldData
		Media                     string // of the request
		Body                      []fieldData
		Requests                  []exampleData
		Successes, Failures       []responseData
	}
	// fieldData is a row: a parameter, a header, or a member of a body.
	fieldData struct {
		Name, In, Type string
		Depth          int
		Required       bool
		Description    template.HTML
		Rules          []string

		example string // of a parameter
	}
	responseData struct {
		Status, Media string
		Description   template.HTML
		Headers       []fieldData
		Body          []fieldData
		Examples      []exampleData
		Messages      []string // of a failure
	}
	exampleData struct {
		Name, Text string
	}
)

const formMedia = "application/x-www-form-urlencoded"

// methods of a path, in the order in which the page shows them.
var methods = []string{"get", "post", "put", "patch", "delete"}

func pageOf(whole *yaml.Node) pageData {
	info := member(whole, "info")
	p := pageData{Title: text(member(info, "title")), Version: text(member(info, "version")), Summary: text(member(info, "summary")),
		Description: markup(member(info, "description"))}
	for _, n := range member(whole, "tags").Content {
		name := text(member(n, "name"))
		p.Tags = append(p.Tags, &tagData{Name: name, Anchor: "tag-" + strings.ReplaceAll(strings.ToLower(name), " ", "-"), Description: markup(member(n, "description"))})
	}
	for path, item := range members(member(whole, "paths")) {
		for _, method := range methods {
			n := member(item, method)
			if n == nil {
				continue
			}
			name := text(member(n, "tags").Content[0])
			i := slices.IndexFunc(p.Tags, func(t *tagData) bool { return t.Name == name })
			if i < 0 {
				panic(fmt.Sprintf("BUG: %s %s has the unknown tag %q", method, path, name))
			}
			p.Tags[i].Operations = append(p.Tags[i].Operations, operationOf(whole, path, method, n))
		}
	}
	return p
}

func operationOf(whole *yaml.Node, path, method string, n *yaml.Node) operationData {
	o := operationData{ID: text(member(n, "operationId")), Method: strings.ToUpper(method), Path: path, Summary: text(member(n, "summary")),
		Description: markup(member(n, "description")), Deprecated: text(member(n, "deprecated")) == "true", Access: accessOf(n),
		Bucket: text(member(n, "x-rate-limit", "bucket")), Limit: text(member(n, "x-rate-limit", "limit"))}
	if list := member(n, "parameters"); list != nil {
		for _, e := range list.Content {
			e, _ = resolve(whole, e)
			row := fieldOf(whole, text(member(e, "name")), member(e, "schema"), text(member(e, "required")) == "true", 0)
			row.In = text(member(e, "in"))
			row.example = append(listOf(member(e, "example")), text(member(e, "example")))[0] // one of a list is enough
			if d := member(e, "description"); d != nil {
				row.Description = markup(d)
			}
			o.Parameters = append(o.Parameters, row)
		}
	}
	body, _ := resolve(whole, member(n, "requestBody"))
	target := targetOf(path, o.Parameters)
	for media, content := range members(member(body, "content")) {
		o.Media = media
		o.Body = bodyOf(whole, member(content, "schema"))
		for _, e := range examplesOf(media, content) {
			e.Text = curl(&o, target, e.Text)
			o.Requests = append(o.Requests, e)
		}
		break // other media types have the same
	}
	if o.Requests == nil {
		o.Requests = []exampleData{{Text: curl(&o, target, "")}}
	}
	for status, r := range members(member(n, "responses")) {
		r, _ = resolve(whole, r)
		response := responseOf(whole, status, r)
		if status < "4" {
			o.Successes = append(o.Successes, response)
		} else {
			o.Failures = append(o.Failures, response)
		}
	}
	return o
}

// accessOf says what an operation asks of its caller.
func accessOf(n *yaml.Node) string {
	for _, requirement := range sequence(member(n, "security")) {
		if member(requirement, "scimToken") != nil {
			return scimAccess
		}
	}
	return text(member(n, "x-permission"))
}

const scimAccess = "the SCIM token"

func sequence(n *yaml.Node) []*yaml.Node {
	if n == nil {
		return nil
	}
	return n.Content
}

func responseOf(whole *yaml.Node, status string, n *yaml.Node) responseData {
	r := responseData{Status: status, Description: markup(member(n, "description"))}
	for name, h := range members(member(n, "headers")) {
		h, _ = resolve(whole, h)
		row := fieldOf(whole, name, member(h, "schema"), text(member(h, "required")) == "true", 0)
		row.Description = markup(member(h, "description"))
		r.Headers = append(r.Headers, row)
	}
	for media, content := range members(member(n, "content")) {
		r.Media = media
		r.Body = bodyOf(whole, member(content, "schema"))
		r.Examples = append(r.Examples, examplesOf(media, content)...)
		for _, e := range members(member(content, "examples")) {
			for _, name := range []string{"message", "detail"} {
				if m := text(member(e, "value", name)); m != "" && !slices.Contains(r.Messages, m) {
					r.Messages = append(r.Messages, m)
				}
			}
		}
	}
	return r
}

func examplesOf(media string, content *yaml.Node) (list []exampleData) {
	for _, e := range members(member(content, "examples")) {
		value := member(e, "value")
		shown := exampleData{Name: text(member(e, "summary")), Text: value.Value}
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

// targetOf is a path with the examples of its parameters.
func targetOf(path string, parameters []fieldData) string {
	query := url.Values{}
	for _, p := range parameters {
		switch {
		case p.example == "":
		case p.In == "path":
			path = strings.Replace(path, "{"+p.Name+"}", url.PathEscape(p.example), 1)
		case p.In == "query":
			query.Set(p.Name, p.example)
		}
	}
	if len(query) > 0 {
		path += "?" + query.Encode()
	}
	return path
}

// curl is a request as a command for a shell, with the server in $MILLRACE and the key in $KEY.
func curl(o *operationData, target, body string) string {
	var b strings.Builder
	b.WriteString("curl -s ")
	if o.Method != "GET" && (o.Method != "POST" || body == "") {
		b.WriteString("-X " + o.Method + " ")
	}
	b.WriteString(`"$MILLRACE` + target + `"`)
	if o.Access != "" {
		b.WriteString(` -H "Authorization: Bearer $KEY"`)
	}
	if o.Access == scimAccess {
		b.WriteString(` -H "X-Request-Origin: $ORIGIN"`)
	}
	if body != "" {
		b.WriteString(` -H "Content-Type: ` + o.Media + "\" -d '" + strings.ReplaceAll(body, "'", `'\''`) + "'")
	}
	return b.String()
}

// bodyOf lists the members of a schema, those of objects within it below them.
func bodyOf(whole, schema *yaml.Node) (rows []fieldData) {
	if schema == nil {
		return nil
	}
	resolved, _ := resolve(whole, schema)
	top := fieldOf(whole, "", schema, false, 0)
	if top.Description != "" || len(top.Rules) > 0 || member(resolved, "properties") == nil {
		rows = append(rows, top)
	}
	return appendMembers(rows, whole, schema, 0)
}

func appendMembers(rows []fieldData, whole, schema *yaml.Node, depth int) []fieldData {
	if depth > 8 {
		panic("BUG: a schema contains itself")
	}
	n, _ := resolve(whole, schema)
	required := listOf(member(n, "required"))
	for name, m := range members(member(n, "properties")) {
		rows = append(rows, fieldOf(whole, name, m, slices.Contains(required, name), depth))
		rows = appendMembers(rows, whole, m, depth+1)
	}
	if items := member(n, "items"); items != nil {
		rows = appendMembers(rows, whole, items, depth)
	}
	if values := member(n, "additionalProperties"); values != nil && values.Kind == yaml.MappingNode {
		rows = append(rows, fieldOf(whole, "‹any name›", values, false, depth))
		rows = appendMembers(rows, whole, values, depth+1)
	}
	for _, kind := range []string{"oneOf", "anyOf", "allOf"} {
		for _, e := range sequence(member(n, kind)) {
			rows = appendMembers(rows, whole, e, depth)
		}
	}
	return rows
}

func fieldOf(whole *yaml.Node, name string, schema *yaml.Node, required bool, depth int) fieldData {
	n, _ := resolve(whole, schema)
	f := fieldData{Name: name, Type: typeOf(whole, n), Depth: depth, Required: required, Description: markup(member(n, "description"))}
	rules := n
	if items := member(n, "items"); items != nil { // the rules of an array's elements stand with the array
		rules, _ = resolve(whole, items)
		if f.Description == "" {
			f.Description = markup(member(rules, "description"))
		}
		f.Rules = rulesOf(rules)
	}
	f.Rules = append(f.Rules, rulesOf(n)...)
	slices.Sort(f.Rules)
	f.Rules = slices.Compact(f.Rules)
	return f
}

func typeOf(whole, n *yaml.Node) string {
	t := member(n, "type")
	switch {
	case t == nil:
		var alternatives []string
		for _, kind := range []string{"oneOf", "anyOf"} {
			for _, e := range sequence(member(n, kind)) {
				e, _ = resolve(whole, e)
				alternatives = append(alternatives, typeOf(whole, e))
			}
		}
		alternatives = slices.DeleteFunc(alternatives, func(s string) bool { return s == "any value" })
		if alternatives = slices.Compact(alternatives); len(alternatives) > 0 {
			return strings.Join(alternatives, " or ")
		}
		return "any value"
	case t.Kind == yaml.SequenceNode:
		types := listOf(t)
		for i := range types {
			types[i] = oneType(whole, n, types[i])
		}
		return strings.Join(types, " or ")
	}
	return oneType(whole, n, t.Value)
}

func oneType(whole, n *yaml.Node, t string) string {
	if items := member(n, "items"); t == "array" && items != nil {
		items, _ = resolve(whole, items)
		return "array of " + typeOf(whole, items)
	}
	return t
}

// rulesOf says in words what a schema allows besides its type.
func rulesOf(n *yaml.Node) (rules []string) {
	for _, rule := range []struct{ keyword, words string }{
		{"const", "always "}, {"format", "format "}, {"pattern", "matches "}, {"default", "default "}, {"minimum", "at least "}, {"maximum", "at most "},
		{"maxLength", "characters: at most "}, {"maxItems", "elements: at most "},
	} {
		if v := member(n, rule.keyword); v != nil {
			rules = append(rules, rule.words+v.Value)
		}
	}
	if v := listOf(member(n, "enum")); len(v) > 0 {
		rules = append(rules, "one of "+strings.Join(v, ", "))
	}
	for _, kind := range []string{"anyOf", "oneOf"} {
		var sets []string
		for _, e := range sequence(member(n, kind)) {
			if r := listOf(member(e, "required")); len(r) > 0 && member(e, "properties") == nil {
				sets = append(sets, strings.Join(r, " and "))
			}
		}
		if len(sets) > 0 {
			rules = append(rules, map[string]string{"anyOf": "at least one of ", "oneOf": "exactly one of "}[kind]+strings.Join(sets, ", "))
		}
	}
	return rules
}

func listOf(n *yaml.Node) (list []string) {
	for _, e := range sequence(n) {
		list = append(list, text(e))
	}
	return list
}

// markup renders the little of CommonMark that descriptions use: paragraphs, lists of lines that begin with "- ", and `code`.
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
