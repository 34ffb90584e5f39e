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

	"millrace/api/control/document"
)

// ErrExists is wrapped when something is created that already exists, and ErrNotFound when something is changed that
// does not. ErrConflict is wrapped when a change can't be made as things are: others change the same document all the
// time, a key is revoked, a limit is reached.
var (
	ErrExists   = errors.New("already exists")
	ErrNotFound = errors.New("not found")
	ErrConflict = errors.New("conflict")
)

// ErrNoRoom is an ErrConflict: the document has no room beside the others (Options.MaxBytes).
var ErrNoRoom = fmt.Errorf("%w: there is no room for more documents (--max-documents)", ErrConflict)

// ErrFull is an ErrConflict: there are as many documents of the kind as there may be.
var ErrFull = fmt.Errorf("%w", ErrConflict)

// ErrUnknown is wrapped when a change may have been made: a node of the cluster was lost meanwhile.
var ErrUnknown = errors.New("whether the change was made is unknown")

// Actor is who makes an administrative change, for the audit log.
type Actor struct {
	Name      string // "admin token", "bootstrap file", "API key 7 (server)", "SCIM token 3"
	Number    uint32 // of the API key or SCIM token; AdminActor, or 0, when there is none
	Address   string // of the caller; empty if there is none
	RequestID string // empty if there is none
}

// Change is the new content of a document.
type Change struct {
	Key string
	Doc []byte // empty: removed
	// Check makes the change conditional: the document must still be Was (nil: there must be none).
	Check bool
	Was   []byte
}

// Store is what Control needs of the engine.
type Store interface {
	// PutDocuments stores documents and, unless it is empty, an entry of the audit log: all or nothing. When it returns
	// nil, everything is durable and applied (Apply has been called). The error wraps ErrConflict when a document is
	// not what a change takes it for; nothing was done then. It wraps ErrUnknown when the change may have been made;
	// whatever has been made by then is applied.
	PutDocuments(actor uint32, changes []Change, audit []byte) error
}

// Limits of changes.
const (
	// MaxDocuments is how many documents of a kind a workspace may have, since every node holds them in memory.
	MaxDocuments = 10_000

	// maxAttempts is how often a change is judged that others overtake. Each node has one change under way, and one of
	// them wins: of seven nodes that want one document all the time, one in five million loses this often.
	maxAttempts = 100
)

// A draft is one administrative change while it is judged. It becomes one record: the documents, each on the condition
// that it still is what the change was judged by, and the entry of the audit log.
type draft struct {
	c    *Control
	by   Actor
	seen map[string][]byte
	put  []Change
	// the workspace of a document that counts for Options.MaxBytes, if bounded
	workspace string
	bounded   bool
	last      []Change // counters come last: whoever sees one also sees what was numbered by it
	entry     Entry
}

// do makes a change. judge reads documents by get, and defines their new content by set and replace. If a change on
// another node has changed one of the documents in between, the change is judged anew; after maxAttempts do returns
// ErrConflict. A change that was refused while anything changed is also judged anew, since it may have been judged
// partially by the old and partially by the new state. A change that changes nothing stores nothing.
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
		if err := d.commit(); !errors.Is(err, ErrConflict) || errors.Is(err, ErrNoRoom) || attempt == maxAttempts {
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

// read reads a document of JSON; nil when there is none. what names it in an error.
func read[T any](d *draft, key, what string) (*T, error) {
	text := d.get(key)
	if len(text) == 0 {
		return nil, nil
	}
	v := new(T)
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("%s can't be read: %w", what, err)
	}
	return v, nil
}

// write is set of a document of JSON. It returns how many bytes the document has.
func (d *draft) write(key string, v any) (size int, err error) {
	doc, err := document.Encode(v)
	if err != nil {
		return 0, fmt.Errorf("encode %s: %w", key, err)
	}
	d.set(key, doc)
	return len(doc), nil
}

// set sets the new content of a document; empty removes it. It returns what the document was.
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
		if doc, err = document.Encode(v); err != nil {
			return fmt.Errorf("encode %s: %w", joinKey(kind, workspace, id), err)
		}
	}
	was := d.set(joinKey(kind, workspace, id), doc)
	if bytes.Equal(was, doc) {
		return nil
	}
	if was == nil && kind != kindWorkspace {
		if n := d.c.count(kind, workspace); n >= MaxDocuments {
			return fmt.Errorf("%w: there are %d documents of kind %s, which is the limit", ErrConflict, n,
				publicKind(kind))
		}
	}
	d.workspace, d.bounded = workspace, isBounded(kind, len(doc)-len(was))
	d.entry = Entry{What: what, Kind: publicKind(kind), Workspace: workspace, ID: id, Before: sumOf(was),
		After: sumOf(doc), Changed: changed(was, doc), Details: pairs(details)}
	if kind == kindWorkspace {
		d.entry.ID = workspace
	}
	return nil
}

// isBounded says whether a change by which a document grows needs room: not one without which nobody could put things
// right, such as a sign-in, the end of a key, the archiving of a group, a user who becomes inactive.
func isBounded(kind string, grown int) bool {
	switch kind {
	case kindPreferenceCenter, kindCampaign, kindCanvas:
		return grown > 0
	case kindApp, kindGroup, kindStream, kindSCIMUser, kindPermissionSet:
		return grown > smallGrowth
	}
	return false
}

// smallGrowth is by how much a document may grow that only gets another state.
const smallGrowth = 128

// number returns the next number of a sequence. Numbers are never given out again, on any node: two changes that take
// the same number exclude each other. used returns the highest number that is known to be in use.
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
	if d.bounded {
		if err := d.c.checkRoom(d.workspace, changes); err != nil {
			return err
		}
	}
	if d.entry.What == "" {
		return d.c.put(d.by, changes, nil)
	}
	return d.c.record(d.by, changes, d.entry)
}

// put stores changes. If it is unknown whether that has happened, the documents tell.
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

// Audit writes an entry of the audit log about something that is not a document: events were exported, profiles
// imported. The entry is durable when Audit returns nil. See Entry for the arguments.
func (c *Control) Audit(by Actor, what, workspace string, details ...any) error {
	return c.record(by, nil, c.Entry(by, what, workspace, details...))
}

// Entry makes an entry for a caller that writes it in a record of its own and then logs it with Log. workspace is empty
// for the company; details are pairs of names and values, without secrets and personal data.
func (c *Control) Entry(by Actor, what, workspace string, details ...any) Entry {
	return Entry{What: what, Workspace: workspace, Details: pairs(details), By: by.Name, Address: by.Address,
		RequestID: by.RequestID}
}

// DocumentEntry makes an entry about a document that the caller stores together with the entry, in the same record. The
// caller then logs it with Log. before and after are the document; empty when there is none.
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
		if s, ok := v.(string); ok && len(s) > maxDetailBytes {
			v = strings.ToValidUTF8(s[:maxDetailBytes], "") + "…"
		}
		m[name] = v
	}
	return m
}
