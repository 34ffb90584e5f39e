package control

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/goccy/go-json"

	"millrace/api/control/document"
)

// Limits of changes.
const (
	// MaxDocuments is how many documents of a kind a workspace may have, since every node holds them in memory.
	MaxDocuments = 10_000

	// maxAttempts is how often a change is judged that others overtake. Each node has one change of a document under
	// way, and one of them wins: of seven nodes that want one document all the time, one in five million loses this
	// often.
	maxAttempts = 100
)

// A draft is one administrative change while it is judged. It becomes one record: the documents, each on the condition
// that it still is what the change was judged by, and the entry of the audit log.
type draft struct {
	c    *documents
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
func (c *documents) do(by Actor, judge func(d *draft) error) error {
	c.change.Lock()
	defer c.change.Unlock()
	return c.doLocked(by, judge)
}

// doLocked is do for a caller that holds c.change.
func (c *documents) doLocked(by Actor, judge func(d *draft) error) error {
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
// the same number exclude each other. used is the highest number that is known to be in use.
func (d *draft) number(sequence string, used uint32) uint32 {
	key := joinKey(kindNumber, "", sequence)
	was := d.get(key)
	n, _ := strconv.ParseUint(string(was), 10, 32) // 0 for the first one
	next := max(uint32(n), used) + 1
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
func (c *documents) put(by Actor, changes []Change, audit []byte) error {
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
func (c *documents) record(by Actor, changes []Change, e Entry) error {
	e.By, e.Address, e.RequestID = by.Name, by.Address, by.RequestID
	if err := c.put(by, changes, e.Encode()); err != nil {
		return err
	}
	c.Log(e)
	return nil
}

// Audit writes an entry of the audit log about something that is not a document: events were exported, profiles
// imported. The entry is durable when Audit returns nil. See Entry for the arguments.
func (c *documents) Audit(by Actor, what, workspace string, details ...any) error {
	return c.record(by, nil, c.Entry(by, what, workspace, details...))
}
