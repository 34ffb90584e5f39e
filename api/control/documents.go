package control

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/goccy/go-json"

	"millrace/api/keys"
	"millrace/api/ratelimit"
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

// Kinds of documents.
const (
	kindWorkspace        = "workspace"
	kindApp              = "app"
	kindKey              = "key"
	kindGroup            = "group"
	kindUsed             = "key_used"
	kindBootstrap        = "bootstrap" // digest of what the bootstrap file last said about a document
	kindSCIM             = "scim"
	kindSCIMToken        = "scim_token"
	kindNumber           = "number" // counters, of the company
	kindSecret           = "secret" // of the company: see Secret
	kindPreferenceCenter = "preference_center"
	kindCampaign         = "campaign"
	kindCanvas           = "canvas"
	kindStream           = "stream"
	kindStreamCursor     = "stream_cursor" // by stream, a dot and the group: how far the stream has come
	// of the company; by user name in lower case, so that a name can't occur twice
	kindSCIMUser      = "scim_user"
	kindPermissionSet = "permission_set" // of the company
	kindSession       = "session"        // of the company; by the digest of its token
)

func splitKey(key string) (kind, slug, id string, ok bool) {
	kind, rest, ok := strings.Cut(key, "/")
	if !ok {
		return "", "", "", false
	}
	slug, id, ok = strings.Cut(rest, "/")
	return kind, slug, id, ok
}

func joinKey(kind, slug, id string) string { return kind + "/" + slug + "/" + id }

// AdminActor is the actor of changes that were not made with an API key.
const AdminActor uint32 = math.MaxUint32

// Actor is who makes an administrative change, for the audit log.
type Actor struct {
	Name      string // "admin token", "bootstrap file", "API key 7 (server)", "SCIM token 3"
	Number    uint32 // of the API key or SCIM token; AdminActor, or 0, when there is none
	Address   string // of the caller; empty if there is none
	RequestID string // empty if there is none
}

func (a Actor) number() uint32 {
	if a.Number == 0 {
		return AdminActor
	}
	return a.Number
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

// Options of a Control.
type Options struct {
	// Prepare makes what the track function needs out of a workspace, once for all requests that see this workspace. It
	// is safe for concurrent use.
	Prepare func(*Workspace) any
	// Permissions are those that an endpoint asks for. A key with others is kept, and the log has a warning. nil: all
	// permissions count as known.
	Permissions []string
	// Now is the clock, Unix milliseconds. Required.
	Now func() int64
	// MaxBytes bounds the size of the documents, since every node holds them in memory. One workspace may take three
	// quarters of it. Default: 256 MiB.
	MaxBytes int64
	// Logger gets an audit line for each change. Default: slog.Default().
	Logger *slog.Logger
}

// documents are the control documents as they were applied, and the place through which changes of them go.
type documents struct {
	options  Options
	snapshot atomic.Pointer[Snapshot]
	// held by a change, or several of a bootstrap file, from being judged to being applied, so that changes of one node
	// don't overtake each other
	change sync.Mutex
	store  Store // set once, by Start

	mu      sync.Mutex // guards the fields below; never held while the store is called
	started bool
	docs    map[string]map[string][]byte // workspace ("" for the company) → kind/id → document
	sizes   map[string]int64             // of the documents, by workspace
	counts  map[string]int               // of the documents, by kind/workspace
	size    int64                        // of all documents
	usage   map[uint32]*keys.Usage       // by key number
	flushed map[uint32]int64             // the minute that is stored
	windows map[uint32]*ratelimit.Windows
}

// take takes a document as it was applied; an empty one is removed. It returns the copy that is kept. The caller holds
// c.mu.
func (c *documents) take(kind, slug, id string, doc []byte) []byte {
	of := c.docs[slug]
	if of == nil {
		of = map[string][]byte{}
		c.docs[slug] = of
	}
	grown := int64(len(doc) - len(of[kind+"/"+id]))
	c.sizes[slug] += grown
	c.size += grown
	if _, had := of[kind+"/"+id]; had {
		c.counts[kind+"/"+slug]--
	}
	if len(doc) == 0 {
		delete(of, kind+"/"+id)
	} else {
		doc = bytes.Clone(doc)
		of[kind+"/"+id] = doc
		c.counts[kind+"/"+slug]++
	}
	return doc
}

// Snapshot returns the current state.
func (c *documents) Snapshot() *Snapshot { return c.snapshot.Load() }

func (c *documents) workspace(id string) (*Workspace, error) {
	if w := c.Snapshot().Lookup(id); w != nil {
		return w, nil
	}
	return nil, noWorkspace(id)
}

func noWorkspace(id string) error { return fmt.Errorf("workspace %q %w", id, ErrNotFound) }

func (c *documents) document(kind, slug, id string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.docs[slug][kind+"/"+id]
}

// partsOf returns the documents of a kind whose ids begin with this id and a dot, by what follows.
func (c *documents) partsOf(kind, slug, id string) map[string][]byte {
	parts := map[string][]byte{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, doc := range c.docs[slug] {
		if part, ok := strings.CutPrefix(name, kind+"/"+id+"."); ok {
			parts[part] = doc
		}
	}
	return parts
}

// Bytes returns the size of all documents.
func (c *documents) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// checkRoom refuses changes by which the documents of a workspace outgrow Options.MaxBytes.
func (c *documents) checkRoom(slug string, changes []Change) error {
	grown := int64(0)
	for _, change := range changes {
		grown += int64(len(change.Doc) - len(change.Was))
	}
	c.mu.Lock()
	size, all := c.sizes[slug]+grown, c.size+grown
	c.mu.Unlock()
	switch most := c.options.MaxBytes; {
	case grown <= 0:
	case all > most:
		return fmt.Errorf("%w: all documents would have %d bytes, and %d are allowed", ErrNoRoom, all, most)
	case size > most/4*3:
		return fmt.Errorf("%w: those of this workspace would have %d bytes, and %d are allowed", ErrNoRoom, size,
			most/4*3)
	}
	return nil
}

// count returns how many documents of a kind a workspace has.
func (c *documents) count(kind, slug string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[kind+"/"+slug]
}

func (c *documents) decode(key string, text []byte, into any) bool {
	if err := json.Unmarshal(text, into); err != nil {
		c.options.Logger.Error("control document can't be read", "key", key, "err", err)
		return false
	}
	return true
}

func (c *documents) usageOf(number uint32) *keys.Usage {
	u := c.usage[number]
	if u == nil {
		u = new(keys.Usage)
		c.usage[number] = u
	}
	return u
}

// FlushUsage stores the minutes of last use that have changed, so that they survive a restart. Call it now and then,
// and at the end.
func (c *documents) FlushUsage() error {
	var changes []Change
	add := func(slug string, number uint32) {
		if minute := c.usageOf(number).Minute(); minute > c.flushed[number] {
			changes = append(changes,
				Change{Key: joinKey(kindUsed, slug, strconv.FormatUint(uint64(number), 10)),
					Doc: strconv.AppendInt(nil, minute, 10)})
		}
	}
	c.mu.Lock()
	s := c.snapshot.Load()
	for _, w := range s.Workspaces() {
		for _, d := range w.Keys {
			add(w.ID, d.Number)
		}
	}
	if s.SCIM != nil {
		for _, t := range s.SCIM.Tokens {
			add("", t.Number)
		}
	}
	c.mu.Unlock()
	for part := range slices.Chunk(changes, maxChanges) {
		if err := c.store.PutDocuments(AdminActor, part, nil); err != nil {
			return fmt.Errorf("store the last use of keys: %w", err)
		}
	}
	return nil
}

// maxChanges is how many documents go into one record if they need not be stored together.
const maxChanges = 1000

func (c *documents) applyUsed(id string, doc []byte) {
	number, err := strconv.ParseUint(id, 10, 32)
	minute, err2 := strconv.ParseInt(string(doc), 10, 64)
	if err == nil && err2 == nil {
		c.usageOf(uint32(number)).Touch(minute * 60_000)
		c.flushed[uint32(number)] = minute
	}
}

// LastUsed returns the Unix minute of a key's last use, 0 for never.
func (c *documents) LastUsed(number uint32) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usageOf(number).Minute()
}
