package openapi

import (
	"context"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"
	"gopkg.in/yaml.v3"
)

func load(t *testing.T) *openapi3.T {
	spec, err := openapi3.NewLoader().LoadFromData(JSON())
	require.NoError(t, err)
	return spec
}

// The document is OpenAPI 3.1, by a library that knows it: references, parameters of paths, unique operationIds, and
// examples and defaults that match their schemas.
func TestDocumentIsValid(t *testing.T) {
	spec := load(t)
	require.True(t, spec.IsOpenAPI31OrLater())
	require.NoError(t, spec.Validate(context.Background(), openapi3.EnableMultiError(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaDefaultsValidation()))
	ids, tags := map[string]string{}, map[string]bool{}
	for _, tag := range spec.Tags {
		tags[tag.Name] = true
	}
	for path, item := range spec.Paths.Map() {
		for method, o := range item.Operations() {
			where := method + " " + path
			require.NotEmpty(t, o.Summary, where)
			require.False(t, strings.HasSuffix(o.Summary, "."), where)
			require.Empty(t, ids[o.OperationID], where)
			require.Regexp(t, `^[a-z][A-Za-z0-9]+$`, o.OperationID, where)
			ids[o.OperationID] = where
			require.Len(t, o.Tags, 1, where)
			require.True(t, tags[o.Tags[0]], where)
			open := o.Security != nil && len(*o.Security) == 0
			require.NotNil(t, o.Responses.Status(500), where)
			for _, status := range []int{401, 403, 429, 503} {
				if status == 403 && o.Security != nil {
					continue // SCIM answers 401, reference.md 8
				}
				require.True(t, o.Responses.Status(status) != nil || open, "%s: %d", where, status)
			}
			if o.RequestBody != nil {
				require.NotNil(t, o.Responses.Status(413), where)
				require.NotNil(t, o.Responses.Status(415), where)
			}
		}
	}
}

// Generators of clients take every $ref that is a string for a reference, in examples too, and look for its file.
func TestReferencesAreLocal(t *testing.T) {
	for _, m := range regexp.MustCompile(`"\$ref":\s*"([^"]*)"`).FindAllSubmatch(JSON(), -1) {
		require.True(t, strings.HasPrefix(string(m[1]), "#/"), "%s", m[1])
	}
}

// Generators of Go code (oapi-codegen, ogen) refuse these, or make code of them that doesn't compile or that drops what
// users send.
func TestGeneratorsCanReadIt(t *testing.T) {
	var walk func(n *yaml.Node, where string)
	walk = func(n *yaml.Node, where string) {
		var types []string
		if list := member(n, "type"); list != nil && list.Kind == yaml.SequenceNode {
			types = texts(n, "type")
		}
		require.True(t, types == nil || len(types) == 2 && types[1] == "null", "%s: types %v", where, types)
		require.False(t, text(n, "type") == "number" && text(n, "format") != "double", "%s: a number that becomes a float32", where)
		objects := 0
		for _, e := range elements(n, "oneOf") {
			if ref, ok := strings.CutPrefix(text(e, "$ref"), "#/"); ok {
				e = member(made().node, strings.Split(ref, "/")...)
			}
			if text(e, "type") == "object" {
				objects++
			}
		}
		require.LessOrEqual(t, objects, 1, "%s: alternatives of two objects", where)
		require.False(t, member(n, "oneOf") != nil && member(n, "default") != nil, "%s: a default of alternatives", where)
		for name, value := range members(n) {
			if name == "example" || name == "examples" {
				continue
			}
			require.NotContains(t, []string{"anyOf", "allOf", "not", "if"}, name, where)
			walk(value, where+"/"+name)
		}
		if n.Kind == yaml.SequenceNode {
			for _, e := range n.Content {
				walk(target(e), where)
			}
		}
	}
	walk(made().node, "")

	kinds := map[string]string{}
	for kind, all := range members(member(made().node, "components")) {
		for name := range members(all) {
			if other := kinds[name]; name != "Success" { // both do well with this one
				require.Empty(t, other, "%s in %s", name, kind)
			}
			kinds[name] = kind
		}
	}
	letters := regexp.MustCompile(`[^A-Za-z]`)
	for path, item := range load(t).Paths.Map() {
		for method, o := range item.Operations() {
			seen := map[string]bool{}
			for _, p := range o.Parameters {
				name := strings.ToLower(letters.ReplaceAllString(p.Value.Name, ""))
				require.False(t, seen[name], "%s %s: %s", method, path, p.Value.Name)
				seen[name] = true
			}
			for status, r := range o.Responses.Map() { // a field of an answer is named as its header's component
				refs := map[string]bool{}
				for name, h := range r.Value.Headers {
					require.False(t, h.Ref != "" && refs[h.Ref], "%s %s %s: %s", method, path, status, name)
					refs[h.Ref] = true
				}
			}
		}
	}
	for _, name := range []string{"Attributes", "Properties"} {
		require.Equal(t, "true", text(made().node, "components", "schemas", name, "additionalProperties"), name)
	}
}

// Every example matches its schema, whether the library looks there or not; and every JSON body has an example.
func TestExamplesMatchTheirSchemas(t *testing.T) {
	spec := load(t)
	count := 0
	check := func(where string, content openapi3.Content, options ...openapi3.SchemaValidationOption) {
		for media, c := range content {
			require.NotNil(t, c.Schema, "%s %s", where, media)
			require.True(t, len(c.Examples) > 0 || strings.HasSuffix(where, "/openapi.json 200"), "%s %s has no example", where, media)
			for name, example := range c.Examples {
				require.NoError(t, c.Schema.Value.VisitJSON(example.Value.Value, options...), "%s %s %s", where, media, name)
				count++
			}
		}
	}
	for path, item := range spec.Paths.Map() {
		for method, o := range item.Operations() {
			where := method + " " + path
			if o.RequestBody != nil {
				check(where, o.RequestBody.Value.Content, openapi3.VisitAsRequest())
			}
			for status, r := range o.Responses.Map() {
				check(where+" "+status, r.Value.Content, openapi3.VisitAsResponse())
			}
			for _, p := range o.Parameters {
				require.NotNil(t, p.Value.Schema, "%s %s", where, p.Value.Name)
				if p.Value.Example != nil {
					require.NoError(t, p.Value.Schema.Value.VisitJSON(p.Value.Example), "%s %s", where, p.Value.Name)
				}
			}
		}
	}
	require.Greater(t, count, 50)
}

// The page has every operation, in a link and in an article, and loads nothing.
func TestPage(t *testing.T) {
	text := string(Page())
	for path, item := range load(t).Paths.Map() {
		for _, o := range item.Operations() {
			require.True(t, strings.Contains(text, `<article id="`+o.OperationID+`">`), `<article id="`+o.OperationID+`">`)
			require.True(t, strings.Contains(text, `<a href="#`+o.OperationID+`">`), `<a href="#`+o.OperationID+`">`)
			require.True(t, strings.Contains(text, path), path)
			if permission, ok := o.Extensions["x-permission"].(string); ok {
				require.True(t, strings.Contains(text, "<code>"+permission+"</code>"), "<code>"+permission+"</code>")
			}
		}
	}
	require.Empty(t, regexp.MustCompile(`(?i)<script|<link|<img|<iframe|@import|url\(|<[^>]*\son[a-z]+=`).FindString(text))
	for _, attribute := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(text, -1) {
		require.True(t, strings.HasPrefix(attribute[1], "#"), attribute[0])
		require.True(t, strings.Contains(text, `id="`+attribute[1][1:]+`"`), `id="`+attribute[1][1:]+`"`)
	}
	require.False(t, strings.Contains(text, "<no value>") || strings.Contains(text, "ZgotmplZ"))
}

func TestMarkup(t *testing.T) {
	node := parse(root)
	n := *member(node, "info", "title")
	for in, want := range map[string]string{
		"":                          "",
		"a <b> & `c<d>`":            "<p>a &lt;b&gt; &amp; <code>c&lt;d&gt;</code></p>",
		"one\n\n- two\n- `three`\n": "<p>one</p><ul><li>two</li><li><code>three</code></li></ul>",
		"an open ` tick":            "<p>an open  tick</p>",
	} {
		n.Value = in
		require.Equal(t, want, string(markup(&n)), in)
	}
}

// What is written but never referred to is left over.
func TestNothingIsUnused(t *testing.T) {
	text := string(JSON())
	for kind, all := range map[string][]string{"schemas": nil, "responses": nil, "headers": nil, "parameters": nil, "requestBodies": nil} {
		for name := range members(member(made().node, "components", kind)) {
			all = append(all, name)
		}
		for _, name := range all {
			require.True(t, strings.Contains(text, `"#/components/`+kind+"/"+name+`"`), `"#/components/`+kind+"/"+name+`"`)
		}
	}
}
