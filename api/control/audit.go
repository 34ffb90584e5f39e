package control

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"

	"github.com/goccy/go-json"

	"millrace/api/control/document"
	"millrace/ingest/field"
)

// Entry is the content of an entry of the audit log, apart from its place and time, which the engine adds: what was
// done to what, by whom, from where. It has no secrets and no contents.
type Entry struct {
	What      string `json:"what"`
	Kind      string `json:"kind,omitempty"` // workspace, app, api_key, subscription_group, …
	Workspace string `json:"workspace,omitempty"`
	ID        string `json:"id,omitempty"`
	By        string `json:"by"`
	Address   string `json:"address,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	// Before and After are the SHA-256 of the document, hexadecimal: empty when there was none, or no longer is one.
	Before  string         `json:"before,omitempty"`
	After   string         `json:"after,omitempty"`
	Changed []string       `json:"changed,omitempty"` // names of the members that have changed
	Details map[string]any `json:"details,omitempty"`
}

// Encode returns the entry in its stored form: JSON.
func (e Entry) Encode() []byte {
	text, err := document.Encode(e)
	if err != nil {
		panic("BUG: " + err.Error()) // details are strings, numbers and booleans
	}
	return text
}

// Entry makes an entry for a caller that writes it in a record of its own and then logs it with Log. workspace is empty
// for the company; details are pairs of names and values, without secrets and personal data.
func (c *documents) Entry(by Actor, what, workspace string, details ...any) Entry {
	return Entry{What: what, Workspace: workspace, Details: pairs(details), By: by.Name, Address: by.Address,
		RequestID: by.RequestID}
}

// DocumentEntry makes an entry about a document that the caller stores together with the entry, in the same record. The
// caller then logs it with Log. before and after are the document; empty when there is none.
func (c *documents) DocumentEntry(by Actor, what, kind, id string, before, after []byte, details ...any) Entry {
	e := c.Entry(by, what, "", details...)
	e.Kind, e.ID, e.Before, e.After, e.Changed = kind, id, sumOf(before), sumOf(after), changed(before, after)
	return e
}

// Log logs an entry that is in the audit log.
func (c *documents) Log(e Entry) {
	var args []any
	for _, name := range slices.Sorted(maps.Keys(e.Details)) {
		args = append(args, name, e.Details[name])
	}
	for _, a := range []struct{ name, value string }{{"workspace", e.Workspace}, {"kind", e.Kind}, {"id", e.ID},
		{"by", e.By}, {"address", e.Address}, {"request_id", e.RequestID}} {
		if a.value != "" {
			args = append(args, a.name, a.value)
		}
	}
	c.options.Logger.Info("audit: "+e.What, args...)
}

func publicKind(kind string) string {
	switch kind {
	case kindKey:
		return "api_key"
	case kindGroup:
		return "subscription_group"
	}
	return kind
}

func sumOf(doc []byte) string {
	if len(doc) == 0 {
		return ""
	}
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:])
}

// changed returns the names of the members that differ, if both documents exist.
func changed(was, doc []byte) (names []string) {
	var a, b map[string]json.RawMessage
	if len(was) == 0 || len(doc) == 0 || json.Unmarshal(was, &a) != nil || json.Unmarshal(doc, &b) != nil {
		return nil
	}
	for name := range a {
		if !bytes.Equal(a[name], b[name]) {
			names = append(names, name)
		}
	}
	for name := range b {
		if _, both := a[name]; !both {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// maxDetailBytes bounds a value in an entry of the audit log.
const maxDetailBytes = 1000

func pairs(list []any) map[string]any {
	if len(list) < 2 {
		return nil
	}
	m := map[string]any{}
	for i := 0; i+1 < len(list); i += 2 {
		name, ok := list[i].(string)
		if !ok {
			panic(fmt.Sprintf("BUG: %v is no name of a detail", list[i]))
		}
		v := list[i+1]
		if s, ok := v.(string); ok {
			v = field.Short(maxDetailBytes, s)
		}
		m[name] = v
	}
	return m
}
