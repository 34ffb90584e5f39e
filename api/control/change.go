package control

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-json"
)

// Actor says who makes an administrative change, for the audit log.
type Actor struct {
	Name      string // "admin token", "bootstrap file", "API key 7 (server)", "SCIM token 3"
	Number    uint32 // of the API key or SCIM token; AdminActor, or 0, when there is none
	Address   string // of the caller, when there is one
	RequestID string // of the request, when there is one
}

// Change is a document as it shall be.
type Change struct {
	Key string
	Doc []byte // empty: removed
	// Check makes the change conditional: the document must still be Was (nil: there must be none).
	Check bool
	Was   []byte
}

// Store is what Control needs of the engine.
type Store interface {
	// PutDocuments stores documents and, unless it is empty, an entry of the audit log: all or nothing, durable, and
	// applied (Apply has been called) when it returns nil. The error wraps ErrConflict when a document is not what a
	// change takes it for; nothing was done then. It wraps ErrUnknown when the change may have been made, and what has
	// been made until then is applied.
	PutDocuments(actor uint32, changes []Change, audit []byte) error
}

// Limits of changes.
const (
	// MaxDocuments is how many documents of a kind a workspace may have: every node holds them in memory.
	MaxDocuments = 10_000
	maxAttempts  = 10 // at a change that others overtake
)

// A draft is one administrative change while it is judged. It becomes one record: the documents, each on the condition
// that it still is what the change was judged by, and the entry of the audit log.
type draft struct {
	c     *Control
	by    Actor
	seen  map[string][]byte
	put   []Change
	last  []Change // counters: whoever sees one sees what was numbered by it
	entry Entry
}

// do makes a change. judge reads documents by get, and says by set and replace what they shall be. When somebody else,
// on another node, has changed one of them in between, the change is judged anew; ErrConflict after maxAttempts. So is
// one that was refused while anything changed: it may have been judged half by what was before and half by what is. A
// change that changes nothing stores nothing.
func (c *Control) do(by Actor, judge func(d *draft) error) error {
	c.change.Lock()
	defer c.change.Unlock()
	for attempt := 1; ; attempt++ {
		d, before := &draft{c: c, by: by, seen: map[string][]byte{}}, c.Snapshot()
		if err := judge(d); err != nil {
			if c.Snapshot() != before && attempt < maxAttempts {
				continue
			}
			return err
		}
		if err := d.commit(); !errors.Is(err, ErrConflict) || attempt == maxAttempts {
			return err
		}
	}
}

// get returns a document as it is, nil when there is none, and makes what is set under its key conditional on that. The
// bytes must not be changed.
func (d *draft) get(key string) []byte {
	doc, seen := d.seen[key]
	if !seen {
		kind, slug, id, _ := splitKey(key)
		doc = d.c.document(kind, slug, id)
		d.seen[key] = doc
	}
	return doc
}

// set says what a document shall be; empty: removed. It returns what the document was.
func (d *draft) set(key string, doc []byte) (was []byte) {
	if was = d.get(key); !bytes.Equal(was, doc) {
		d.put = append(d.put, Change{Key: key, Doc: doc, Check: true, Was: was})
	}
	return was
}

// replace sets the document that the change is about; nil removes it. details are pairs of names and values for the
// audit log.
func (d *draft) replace(what, kind, workspace, id string, v any, details ...any) error {
	var doc []byte
	if v != nil {
		var err error
		if doc, err = encode(v); err != nil {
			return fmt.Errorf("encode %s: %w", joinKey(kind, workspace, id), err)
		}
	}
	was := d.set(joinKey(kind, workspace, id), doc)
	if bytes.Equal(was, doc) {
		return nil
	}
	if was == nil && kind != kindWorkspace {
		if n := d.c.count(kind, workspace); n >= MaxDocuments {
			return fmt.Errorf("%w: there are %d documents of kind %s, the most that there may be", ErrConflict, n,
				publicKind(kind))
		}
	}
	d.entry = Entry{What: what, Kind: publicKind(kind), Workspace: workspace, ID: id, Before: sumOf(was),
		After: sumOf(doc), Changed: changed(was, doc), Details: pairs(details)}
	if kind == kindWorkspace {
		d.entry.ID = workspace
	}
	return nil
}

// number gives the next number of a sequence. Numbers are never given again, on whatever node: two changes that take
// the same one exclude each other. used is the highest number that is known to be in use.
func (d *draft) number(sequence string, used func() uint32) uint32 {
	key := joinKey(kindNumber, "", sequence)
	was := d.get(key)
	n, _ := strconv.ParseUint(string(was), 10, 32) // 0 for the first one
	next := max(uint32(n), used()) + 1
	d.last = append(d.last, Change{Key: key, Doc: strconv.AppendUint(nil, uint64(next), 10), Check: true, Was: was})
	return next
}

func (d *draft) commit() error {
	changes := append(d.put, d.last...)
	if len(d.put) == 0 {
		return nil
	}
	if d.entry.What == "" {
		return d.c.put(d.by, changes, nil)
	}
	return d.c.record(d.by, changes, d.entry)
}

// put stores changes. When nobody knows whether it has, the documents tell.
func (c *Control) put(by Actor, changes []Change, audit []byte) error {
	err := c.store.PutDocuments(by.number(), changes, audit)
	if !errors.Is(err, ErrUnknown) || len(changes) == 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, change := range changes {
		kind, slug, id, _ := splitKey(change.Key)
		if !bytes.Equal(c.docs[slug][kind+"/"+id], change.Doc) {
			return err
		}
	}
	return nil
}

// record stores changes with their entry of the audit log, and logs the entry.
func (c *Control) record(by Actor, changes []Change, e Entry) error {
	e.By, e.Address, e.RequestID = by.Name, by.Address, by.RequestID
	if err := c.put(by, changes, e.Encode()); err != nil {
		return err
	}
	c.Log(e)
	return nil
}

func (a Actor) number() uint32 {
	if a.Number == 0 {
		return AdminActor
	}
	return a.Number
}

// encode writes a document: members in the order of their fields, those of maps sorted, so that equal values are equal
// documents.
func encode(v any) ([]byte, error) { return json.Marshal(v) }

// Audit writes an entry of the audit log about what is no document: events were exported, profiles imported. The entry
// is durable when it returns nil. See Entry for the arguments.
func (c *Control) Audit(by Actor, what, workspace string, details ...any) error {
	return c.record(by, nil, c.Entry(by, what, workspace, details...))
}

// Entry makes an entry for whoever writes it in a record of his own, and then logs it by Log. workspace is empty for
// the company; details are pairs of names and values; no secrets, no personal data.
func (c *Control) Entry(by Actor, what, workspace string, details ...any) Entry {
	return Entry{What: what, Workspace: workspace, Details: pairs(details), By: by.Name, Address: by.Address,
		RequestID: by.RequestID}
}

// DocumentEntry makes an entry about a document that somebody else stores, with the entry in the same record; then it
// is logged by Log. before and after are the document, empty when there is none.
func (c *Control) DocumentEntry(by Actor, what, kind, id string, before, after []byte, details ...any) Entry {
	e := c.Entry(by, what, "", details...)
	e.Kind, e.ID, e.Before, e.After, e.Changed = kind, id, sumOf(before), sumOf(after), changed(before, after)
	return e
}

// Log logs an entry that is in the audit log.
func (c *Control) Log(e Entry) {
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

// Entry is what an entry of the audit log says, apart from its place and time, which are the engine's: what was done to
// what, by whom, from where. It has no secrets and no contents.
type Entry struct {
	What      string `json:"what"`
	Kind      string `json:"kind,omitempty"` // workspace, app, api_key, subscription_group, …
	Workspace string `json:"workspace,omitempty"`
	ID        string `json:"id,omitempty"`
	By        string `json:"by"`
	Address   string `json:"address,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	// Before and After are the SHA-256 of the document, hexadecimal: empty when there was none, or is none any more.
	Before  string         `json:"before,omitempty"`
	After   string         `json:"after,omitempty"`
	Changed []string       `json:"changed,omitempty"` // names of the members that are not as before
	Details map[string]any `json:"details,omitempty"`
}

// Encode is the entry as it is stored: JSON.
func (e Entry) Encode() []byte {
	text, err := encode(e)
	if err != nil {
		panic("BUG: " + err.Error()) // details are strings, numbers and booleans
	}
	return text
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

// changed names the members that differ, when both documents are there.
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
		if s, ok := v.(string); ok && len(s) > maxDetailBytes {
			v = strings.ToValidUTF8(s[:maxDetailBytes], "") + "…"
		}
		m[name] = v
	}
	return m
}
