// Package openapi holds the OpenAPI 3.1 document of the public API, as JSON and as a web page.
//
// The document is written by hand, as YAML, in the folder document: openapi.yaml has what all endpoints share, and each
// other file has the paths and schemas of one resource. Both forms are made once, at the first use, and never change
// afterwards. The document is checked against the router, against every answer of the tests of package api, and against
// its own examples.
//
// Extensions say what OpenAPI has no word for: x-permission is the permission that a key needs (an operation without
// one is open, or needs the SCIM token), and x-rate-limit is the bucket that a request counts in, with its default.
// AnyOf says which members of an object are required together, at least one set of them.
//
// Generators of clients make code of the document, and some of them take less than OpenAPI allows. So a type has no
// alternatives but null, which oneOf has, and no name stands for two things: TestGeneratorsCanReadIt.
package openapi

import (
	"crypto/sha256"
	"encoding/hex"
	"sync"

	"gopkg.in/yaml.v3"
)

// JSON returns the document. The bytes are shared and must not be changed.
func JSON() []byte { return made().json }

// ETag names this version of the document: a strong entity tag, with its quotes.
func ETag() string { return made().etag }

// Page returns the document as an HTML page that needs nothing from elsewhere: no script, no font, no style sheet. The
// bytes are shared.
func Page() []byte { return page() }

type document struct {
	json []byte
	etag string
	node *yaml.Node // the whole document, a mapping
}

var made = sync.OnceValue(func() document {
	d := document{node: read()}
	d.json = appendJSON(nil, d.node)
	sum := sha256.Sum256(d.json)
	d.etag = `"` + hex.EncodeToString(sum[:12]) + `"`
	return d
})
