// Package control keeps the control documents: workspaces, apps, API keys, subscription groups and what later resources
// add (decisions.md D7). Package document says what is in them.
//
// They are JSON documents in the engine, so they are durable and replicated like everything else. Control never
// reads the engine. The engine hands it each document, at recovery and whenever one is applied (Apply). Control makes
// one immutable Snapshot of them, swapped in one step, which requests read without locks. Changes go the other way:
// they are judged here and put into the engine, and they show once the engine has applied them. The bootstrap file, the
// admin API and the command line use the same verbs.
//
// A change is one record: its documents, each on the condition that it is still what the change was judged by, and an
// entry of the audit log. So two simultaneous changes of a document, on one node or on two, can't overwrite each other,
// and no change is without its entry.
//
// Keys of documents: "<kind>/<workspace>/<id>". Workspaces, keys and tokens are never removed, so their numbers are
// never used again; a counter document keeps the last number of each sequence. Subscription groups are archived, not
// removed: users have states in them, which belong to their channel.
package control

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/goccy/go-json"
	"github.com/puzpuzpuz/xsync/v3"

	"millrace/api/control/document"
	"millrace/api/keys"
	"millrace/api/ratelimit"
)

// AdminActor is the actor of changes that were not made with an API key.
const AdminActor uint32 = math.MaxUint32

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

// Options of a Control.
type Options struct {
	// Prepare makes what the track function needs out of a workspace's settings, once per change; the result is kept in
	// Workspace.Prepared.
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

// Workspace is a decoded workspace. It is immutable, apart from the counts that Windows points to.
type Workspace struct {
	document.Settings
	Number  uint32
	Apps    map[string]*document.App
	Groups  map[string]*document.Group // by id, lower case; without archived ones
	Keys    []*document.Key            // in order of their numbers, including revoked ones
	Blocked map[string]struct{}
	Limits  ratelimit.Limits
	Windows *ratelimit.Windows
	// StreamsAttributes says that a stream carries attributes out.
	StreamsAttributes bool
	// Prepared is the result of Options.Prepare.
	Prepared any

	valid []*keys.Key
}

// Snapshot is all control data at one time. It is immutable.
type Snapshot struct {
	Keys       *keys.Set
	SCIM       *document.SCIM // nil: not set up
	workspaces map[uint32]*Workspace
	slugs      map[string]*Workspace
}

// Workspace returns a workspace by its number, nil when there is none.
func (s *Snapshot) Workspace(number uint32) *Workspace { return s.workspaces[number] }

// Lookup returns a workspace by its id, nil when there is none.
func (s *Snapshot) Lookup(id string) *Workspace { return s.slugs[id] }

// Workspaces returns all workspaces, in order of their ids.
func (s *Snapshot) Workspaces() []*Workspace {
	return slices.SortedFunc(maps.Values(s.workspaces), func(a, b *Workspace) int {
		return strings.Compare(a.ID, b.ID)
	})
}

// Control owns the control data of this process. It is safe for concurrent use.
type Control struct {
	Apps              *Collection[document.App]
	Groups            *Collection[document.Group] // including archived ones
	PreferenceCenters *Collection[document.PreferenceCenter]
	Campaigns         *Collection[document.Campaign]
	Canvases          *Collection[document.Canvas]
	Streams           *Collection[document.Stream]
	SCIMUsers         *Collection[document.SCIMUser]      // of the company; changed by Edit only
	PermissionSets    *Collection[document.PermissionSet] // of the company
	sessions          *Collection[document.Session]       // of the company
	collections       map[string]collection

	options  Options
	snapshot atomic.Pointer[Snapshot]
	// held by a change, from being judged to being applied, so that changes of one node don't overtake each other
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

// New makes an empty Control. Pass its Apply to the engine as OnDocument, then call Start with the engine.
func New(options Options) *Control {
	options.Logger = cmp.Or(options.Logger, slog.Default())
	options.MaxBytes = cmp.Or(options.MaxBytes, 256<<20)
	if options.Prepare == nil {
		options.Prepare = func(*Workspace) any { return nil }
	}
	c := &Control{options: options, docs: map[string]map[string][]byte{}, sizes: map[string]int64{},
		counts: map[string]int{}, usage: map[uint32]*keys.Usage{}, flushed: map[uint32]int64{},
		windows: map[uint32]*ratelimit.Windows{}}
	c.snapshot.Store(&Snapshot{})
	c.Apps = newCollection[document.App](c, kindApp, "app")
	c.Groups = newCollection[document.Group](c, kindGroup, "subscription group")
	c.PreferenceCenters = newCollection[document.PreferenceCenter](c, kindPreferenceCenter, "preference center")
	c.PreferenceCenters.max = document.MaxPreferenceCenters
	c.PreferenceCenters.nameOf = func(p *document.PreferenceCenter) string { return p.Name }
	c.PreferenceCenters.sameName = func(a, b string) bool { return a == b }
	c.Campaigns = newCollection[document.Campaign](c, kindCampaign, "campaign")
	c.Canvases = newCollection[document.Canvas](c, kindCanvas, "canvas")
	c.Streams = newCollection[document.Stream](c, kindStream, "stream")
	c.Streams.max = document.MaxStreams
	c.SCIMUsers = &Collection[document.SCIMUser]{kind: kindSCIMUser, noun: "dashboard user", c: c,
		docs:    xsync.NewMapOf[string, *document.SCIMUser](),
		otherID: func(u *document.SCIMUser) string { return u.ID },
		byOther: xsync.NewMapOf[string, *document.SCIMUser]()}
	c.PermissionSets = newPermissionSets(c)
	c.sessions = &Collection[document.Session]{kind: kindSession, noun: "session", c: c,
		docs: xsync.NewMapOf[string, *document.Session]()}
	c.collections = map[string]collection{kindApp: c.Apps, kindGroup: c.Groups,
		kindPreferenceCenter: c.PreferenceCenters, kindCampaign: c.Campaigns, kindCanvas: c.Canvases,
		kindStream: c.Streams, kindSCIMUser: c.SCIMUsers,
		kindPermissionSet: c.PermissionSets, kindSession: c.sessions}
	return c
}

// Start makes the first Snapshot, of all documents that recovery has brought. From then on changes are possible.
func (c *Control) Start(store Store) {
	c.change.Lock()
	c.store = store
	c.change.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = true
	next := &Snapshot{workspaces: map[uint32]*Workspace{}, slugs: map[string]*Workspace{}}
	for slug := range c.docs {
		c.rebuild(next, slug)
	}
	c.publish(next)
}

// Snapshot returns the current state.
func (c *Control) Snapshot() *Snapshot { return c.snapshot.Load() }

// clusterPrefix is the prefix of keys of documents that don't belong to control: a cluster keeps its nodes and the
// placement of its groups in the same place.
const clusterPrefix = "cluster/"

// Apply takes a document that the engine has applied; an empty one is removed. It is called from one goroutine. The
// bytes are only read.
func (c *Control) Apply(key string, doc []byte) {
	if strings.HasPrefix(key, clusterPrefix) {
		return
	}
	kind, slug, id, ok := splitKey(key)
	if !ok {
		c.options.Logger.Error("control document with an unknown kind of key", "key", key)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
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
		of[kind+"/"+id] = bytes.Clone(doc)
		c.counts[kind+"/"+slug]++
	}
	if l := c.collections[kind]; l != nil {
		l.apply(slug, id, of[kind+"/"+id])
	}
	switch kind {
	case kindUsed:
		c.applyUsed(id, doc)
	case kindWorkspace, kindApp, kindKey, kindGroup, kindStream, kindSCIM, kindSCIMToken:
		if c.started {
			old := c.snapshot.Load()
			next := &Snapshot{Keys: old.Keys, SCIM: old.SCIM, workspaces: maps.Clone(old.workspaces),
				slugs: maps.Clone(old.slugs)}
			if kind == kindApp || kind == kindGroup {
				c.replacePart(next, kind, slug, id)
				c.snapshot.Store(next)
				return
			}
			c.rebuild(next, slug)
			c.publish(next)
		}
	}
}

// replacePart takes an app or a group, of which a workspace may have thousands, into next as it is in its collection.
// The other parts of the workspace aren't decoded anew, so that the documents of a bootstrap file take no square of
// their number.
func (c *Control) replacePart(next *Snapshot, kind, slug, id string) {
	old := next.slugs[slug]
	if old == nil {
		return
	}
	w := *old
	if kind == kindApp {
		w.Apps = with(old.Apps, id, c.Apps.Get(slug, id))
	} else {
		g := c.Groups.Get(slug, id)
		if g != nil && g.Archived {
			g = nil
		}
		w.Groups = with(old.Groups, id, g)
	}
	w.Prepared = c.options.Prepare(&w)
	next.workspaces[w.Number], next.slugs[slug] = &w, &w
}

// with returns a copy of m in which v stands under id; nil: nothing does.
func with[T any](m map[string]*T, id string, v *T) map[string]*T {
	m = maps.Clone(m)
	if m[id] = v; v == nil {
		delete(m, id)
	}
	return m
}

func splitKey(key string) (kind, slug, id string, ok bool) {
	kind, rest, ok := strings.Cut(key, "/")
	if !ok {
		return "", "", "", false
	}
	slug, id, ok = strings.Cut(rest, "/")
	return kind, slug, id, ok
}

func joinKey(kind, slug, id string) string { return kind + "/" + slug + "/" + id }

// rebuild decodes the workspace with this slug anew into next. A document that can't be read is logged and left out;
// the others are not affected.
func (c *Control) rebuild(next *Snapshot, slug string) {
	if slug == "" {
		c.rebuildSCIM(next)
		return
	}
	var doc workspaceDocument
	text := c.docs[slug][kindWorkspace+"/"]
	if text == nil || !c.decode(joinKey(kindWorkspace, slug, ""), text, &doc) {
		return
	}
	w := &Workspace{Settings: doc.Settings, Number: doc.Number, Apps: map[string]*document.App{},
		Groups: map[string]*document.Group{}, Blocked: map[string]struct{}{}}
	w.EnsureDefaults()
	for _, id := range w.BlockedExternalIDs {
		w.Blocked[id] = struct{}{}
	}
	var err error
	if w.Limits, err = ratelimit.ParseLimits(w.Plan == "mau", w.RateLimits); err != nil {
		c.options.Logger.Error("rate limits of a workspace can't be read", "workspace", slug, "err", err)
	}
	if w.Windows = c.windows[w.Number]; w.Windows == nil {
		w.Windows = new(ratelimit.Windows)
		c.windows[w.Number] = w.Windows
	}
	for name, text := range c.docs[slug] {
		c.addPart(w, name, text)
	}
	slices.SortFunc(w.Keys, func(a, b *document.Key) int { return int(int64(a.Number) - int64(b.Number)) })
	w.Prepared = c.options.Prepare(w)
	next.workspaces[w.Number], next.slugs[slug] = w, w
}

// addPart adds what a document of the workspace says of it. Apps, groups and streams are in their collections already.
func (c *Control) addPart(w *Workspace, name string, text []byte) {
	switch kind, id, _ := strings.Cut(name, "/"); kind {
	case kindApp:
		if a := c.Apps.Get(w.ID, id); a != nil {
			w.Apps[id] = a
		}
	case kindGroup:
		if g := c.Groups.Get(w.ID, id); g != nil && !g.Archived {
			w.Groups[id] = g
		}
	case kindStream:
		if s := c.Streams.Get(w.ID, id); s != nil {
			w.StreamsAttributes = w.StreamsAttributes || slices.Contains(s.Kinds, document.StreamAttributes)
		}
	case kindKey:
		d := new(document.Key)
		if !c.decode(name, text, d) {
			return
		}
		w.Keys = append(w.Keys, d)
		if k := c.newKey(w, d); k != nil && d.RevokedAt == 0 {
			w.valid = append(w.valid, k)
		}
	}
}

func (c *Control) newKey(w *Workspace, d *document.Key) *keys.Key {
	k := &keys.Key{ID: d.ID, Name: d.Name, Number: d.Number, Workspace: w.Number, Usage: c.usageOf(d.Number)}
	n, err := hex.Decode(k.Digest[:], []byte(d.Digest[:min(len(d.Digest), 2*len(k.Digest))]))
	if err == nil && n != len(k.Digest) {
		err = fmt.Errorf("digest of %d bytes", n)
	}
	if err == nil {
		err = k.SetRights(d.Permissions, d.IPAllowList)
	}
	if err != nil {
		c.options.Logger.Error("API key can't be read and is not valid", "workspace", w.ID, "key", d.ID, "err", err)
		return nil
	}
	return k
}

func (c *Control) usageOf(number uint32) *keys.Usage {
	u := c.usage[number]
	if u == nil {
		u = new(keys.Usage)
		c.usage[number] = u
	}
	return u
}

func (c *Control) decode(key string, text []byte, into any) bool {
	if err := json.Unmarshal(text, into); err != nil {
		c.options.Logger.Error("control document can't be read", "key", key, "err", err)
		return false
	}
	return true
}

// publish completes next and swaps it in.
func (c *Control) publish(next *Snapshot) {
	set, err := keys.NewSet(validKeys(maps.Values(next.workspaces)))
	if err != nil { // such a key is refused at creation; which one is valid must not depend on the order of a map
		set, err = keys.NewSet(validKeys(slices.Values(next.Workspaces())))
		c.options.Logger.Error("API keys", "err", err)
	}
	next.Keys = set
	c.snapshot.Store(next)
}

func validKeys(workspaces iter.Seq[*Workspace]) (valid []*keys.Key) {
	for w := range workspaces {
		valid = append(valid, w.valid...)
	}
	return valid
}

func (c *Control) document(kind, slug, id string) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.docs[slug][kind+"/"+id]
}

// Bytes returns the size of all documents.
func (c *Control) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

// checkRoom refuses changes by which the documents of a workspace outgrow Options.MaxBytes.
func (c *Control) checkRoom(slug string, changes []Change) error {
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
func (c *Control) count(kind, slug string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[kind+"/"+slug]
}

// FlushUsage stores the minutes of last use that have changed, so that they survive a restart. Call it now and then,
// and at the end.
func (c *Control) FlushUsage() error {
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

func (c *Control) applyUsed(id string, doc []byte) {
	number, err := strconv.ParseUint(id, 10, 32)
	minute, err2 := strconv.ParseInt(string(doc), 10, 64)
	if err == nil && err2 == nil {
		c.usageOf(uint32(number)).Touch(minute * 60_000)
		c.flushed[uint32(number)] = minute
	}
}

// LastUsed returns the Unix minute of a key's last use, 0 for never.
func (c *Control) LastUsed(number uint32) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.usageOf(number).Minute()
}
