// Package scim implements the protocol of dashboard-user provisioning (service.md 2.13, 4.16 to 4.20): SCIM 2.0, RFC
// 7643 and RFC 7644, as far as the contract has it. It reads and judges users, parses filters, says what the service
// can do, and keeps the users in the control data, one document each. The door decides who may ask, how often, and how
// HTTP carries it; a body comes here after the door has checked its grammar.
//
// A user is kept under its userName in lower case, so a name can't occur twice, and is found by its id through a second
// index.
package scim

import (
	"bytes"
	"encoding/json"

	"millrace/api/control"
	"millrace/shard/op"
)

// URNs of RFC 7643 and RFC 7644.
const (
	UserSchema       = "urn:ietf:params:scim:schemas:core:2.0:User"
	GroupSchema      = "urn:ietf:params:scim:schemas:core:2.0:Group"
	EnterpriseSchema = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"

	listSchema   = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
	errorSchema  = "urn:ietf:params:scim:api:messages:2.0:Error"
	configSchema = "urn:ietf:params:scim:schemas:core:2.0:ServiceProviderConfig"
	typeSchema   = "urn:ietf:params:scim:schemas:core:2.0:ResourceType"
	schemaSchema = "urn:ietf:params:scim:schemas:core:2.0:Schema"
)

// ContentType is the content type of every answer.
const ContentType = "application/scim+json"

// Paths of the resources.
const (
	base       = "/scim/v2"
	usersPath  = base + "/Users"
	groupsPath = base + "/Groups"
)

// Limits of requests and answers. Limits of users and groups themselves are in package control.
const (
	// MaxBodyBytes bounds the body of a request about a user, decompressed: a user with all permissions in a hundred
	// workspaces takes half of it.
	MaxBodyBytes = 256 << 10
	// MaxGroupBodyBytes bounds the body of a request about a group: it may have all users as members.
	MaxGroupBodyBytes = 2 << 20
	// MaxOperations is how many operations a PATCH may have.
	MaxOperations = 1000
	// DefaultCount is how many results a page of a list has by default, and MaxCount how many it may have.
	DefaultCount = 100
	MaxCount     = 200
	// maxPageMembers ends a page of groups early: with that many members in it, plus those of one more group.
	maxPageMembers = 10_000
)

// Sent is what a request brings that makes or changes a user or a group.
type Sent struct {
	By      control.Actor
	Body    []byte // a JSON object; it is only read
	IfMatch string // the header of that name, empty without one
	// WithOrigin says that the request has an X-Request-Origin: clients of the contract send one, identity providers
	// don't.
	WithOrigin bool
}

// Error is an answer that is not a success, in the shape of RFC 7644 3.12.
type Error struct {
	Status int
	Type   string // scimType: which kind of 400 or 409; empty for all other statuses
	Detail string
}

func (e *Error) Error() string { return e.Detail }

// Kinds of 400 and 409 (RFC 7644 table 9).
const (
	invalidFilter = "invalidFilter"
	invalidPath   = "invalidPath"
	noTarget      = "noTarget"
	invalidSyntax = "invalidSyntax"
	invalidValue  = "invalidValue"
	mutability    = "mutability"
	uniqueness    = "uniqueness"
)

// Errors that the contract names (service.md 7; literal texts of reference.md 8).
var (
	errExists   = &Error{Status: 409, Type: uniqueness, Detail: "User already exists in the database."}
	errNotFound = &Error{Status: 404, Detail: "User not found"}
	errStale    = &Error{Status: 412,
		Detail: "The resource has changed since it was read: If-Match names another version"}
	errNoGroup       = &Error{Status: 404, Detail: "Group not found"}
	errTaken         = &Error{Status: 409, Type: uniqueness, Detail: "A group of this displayName exists already."}
	errTooManyGroups = &Error{Status: 403, Detail: "The company has as many groups as it can have."}
	errPath          = &Error{Status: 400, Type: invalidPath, Detail: "The path of an operation can't be read."}
	errFilter        = &Error{Status: 400, Type: invalidFilter,
		Detail: "Request is unparsable, syntactically incorrect, or violates schema."}
	errTooMany = &Error{Status: 403, Detail: "The company has as many dashboard users as it can have."}
	// ErrResourceNotFound is the answer for an unknown schema or resource type.
	ErrResourceNotFound = &Error{Status: 404, Detail: "Resource not found"}
	// ErrDiscoveryFilter is the answer to a filter on schemas and resource types (RFC 7644 4).
	ErrDiscoveryFilter = &Error{Status: 403, Detail: "Schemas and resource types can't be filtered"}
	// ErrTooLarge is the answer to a body above MaxBodyBytes.
	ErrTooLarge = &Error{Status: 413, Detail: "Request Entity Too Large"}
)

// AppendError appends the body of an error. The status is a number, as the contract has it.
func AppendError(dst []byte, e *Error) []byte {
	return appendJSON(dst, struct {
		Schemas []string `json:"schemas"`
		Detail  string   `json:"detail"`
		Status  int      `json:"status"`
		Type    string   `json:"scimType,omitempty"`
	}{[]string{errorSchema}, e.Detail, e.Status, e.Type})
}

// appendJSON appends v, whose type is one of this package's.
func appendJSON(dst []byte, v any) []byte {
	b := bytes.NewBuffer(dst)
	encoder := json.NewEncoder(b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		panic("BUG: " + err.Error())
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// key returns the form in which userNames are compared: as the addresses that they are.
func key(userName string) string { return string(op.AppendEmailKey(nil, []byte(userName))) }

// treeOf returns v, whose type is one of this package's, as maps and lists.
func treeOf(v any) (tree map[string]any) {
	if err := json.Unmarshal(appendJSON(nil, v), &tree); err != nil {
		panic("BUG: " + err.Error())
	}
	return tree
}
