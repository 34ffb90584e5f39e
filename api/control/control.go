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
	"cmp"
	"encoding/hex"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/puzpuzpuz/xsync/v3"

	"millrace/api/control/document"
	"millrace/api/keys"
	"millrace/api/ratelimit"
)

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
	apiKeys           *Collection[document.Key]           // including revoked ones; changed by the verbs of key.go
	sessions          *Collection[document.Session]       // of the company
	collections       map[string]collection

	documents
}

// New makes an empty Control. Pass its Apply to the engine as OnDocument, then call Start with the engine.
func New(options Options) *Control {
	options.Logger = cmp.Or(options.Logger, slog.Default())
	options.MaxBytes = cmp.Or(options.MaxBytes, 256<<20)
	if options.Prepare == nil {
		options.Prepare = func(*Workspace) any { return nil }
	}
	c := &Control{documents: documents{options: options, docs: map[string]map[string][]byte{},
		sizes: map[string]int64{}, counts: map[string]int{}, usage: map[uint32]*keys.Usage{},
		flushed: map[uint32]int64{}, windows: map[uint32]*ratelimit.Windows{}}}
	all := &c.documents
	all.snapshot.Store(&Snapshot{})
	c.Apps = newCollection[document.App](all, kindApp, "app")
	c.Groups = newCollection[document.Group](all, kindGroup, "subscription group")
	c.PreferenceCenters = newCollection[document.PreferenceCenter](all, kindPreferenceCenter, "preference center")
	c.PreferenceCenters.max = document.MaxPreferenceCenters
	c.PreferenceCenters.nameOf = func(p *document.PreferenceCenter) string { return p.Name }
	c.PreferenceCenters.sameName = func(a, b string) bool { return a == b }
	c.Campaigns = newCollection[document.Campaign](all, kindCampaign, "campaign")
	c.Canvases = newCollection[document.Canvas](all, kindCanvas, "canvas")
	c.Streams = newCollection[document.Stream](all, kindStream, "stream")
	c.Streams.max, c.Streams.parts = document.MaxStreams, kindStreamCursor
	c.SCIMUsers = &Collection[document.SCIMUser]{kind: kindSCIMUser, noun: "dashboard user", c: all,
		docs:    xsync.NewMapOf[string, *document.SCIMUser](),
		otherID: func(u *document.SCIMUser) string { return u.ID },
		byOther: xsync.NewMapOf[string, *document.SCIMUser]()}
	c.PermissionSets = newPermissionSets(all)
	c.apiKeys = &Collection[document.Key]{kind: kindKey, noun: "API key", c: all,
		docs: xsync.NewMapOf[string, *document.Key]()}
	c.sessions = &Collection[document.Session]{kind: kindSession, noun: "session", c: all,
		docs: xsync.NewMapOf[string, *document.Session]()}
	c.collections = map[string]collection{kindApp: c.Apps, kindGroup: c.Groups,
		kindPreferenceCenter: c.PreferenceCenters, kindCampaign: c.Campaigns, kindCanvas: c.Canvases,
		kindStream: c.Streams, kindSCIMUser: c.SCIMUsers,
		kindPermissionSet: c.PermissionSets, kindKey: c.apiKeys, kindSession: c.sessions}
	return c
}

func newPermissionSets(c *documents) *Collection[document.PermissionSet] {
	l := newCollection[document.PermissionSet](c, kindPermissionSet, "permission set")
	l.otherID = func(p *document.PermissionSet) string { return reference(p.Number) }
	l.byOther = xsync.NewMapOf[string, *document.PermissionSet]()
	l.complete = func(p *document.PermissionSet) {
		p.EnsureDefaults()
		c.Snapshot().resolve(&p.Permissions)
	}
	l.check = func(_, p *document.PermissionSet) error {
		return cmp.Or(p.Validate(), c.Snapshot().resolved(&p.Permissions, "permissions"))
	}
	l.max, l.setNumber = document.MaxPermissionSets, func(p *document.PermissionSet, n uint32) { p.Number = n }
	l.nameOf, l.sameName = func(p *document.PermissionSet) string { return p.Name }, strings.EqualFold
	return l
}

// Start makes the first Snapshot, of all documents that recovery has brought. From then on changes are possible.
func (c *Control) Start(store Store) {
	c.change.Lock()
	c.store = store
	c.change.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = true
	next := new(Snapshot)
	for slug := range c.docs {
		c.rebuild(next, slug)
	}
	c.snapshot.Store(next)
}

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
	doc = c.take(kind, slug, id, doc)
	if l := c.collections[kind]; l != nil {
		l.apply(slug, id, doc)
	}
	switch kind {
	case kindUsed:
		c.applyUsed(id, doc)
	case kindWorkspace, kindApp, kindKey, kindGroup, kindStream, kindSCIM, kindSCIMToken:
		if c.started {
			next := *c.snapshot.Load()
			if kind == kindApp || kind == kindGroup || kind == kindKey {
				c.replacePart(&next, kind, slug, id)
			} else {
				c.rebuild(&next, slug)
			}
			c.snapshot.Store(&next)
		}
	}
}

// replacePart takes an app, a group or a key, of which a workspace may have thousands, into next as it is in its
// collection. The other parts aren't decoded anew, since what each document of a bootstrap file takes for all others
// adds up to a square of their number. Only the maps are copied: 10,000 groups take half a second for that.
func (c *Control) replacePart(next *Snapshot, kind, slug, id string) {
	old := next.Lookup(slug)
	if old == nil {
		return
	}
	w := *old
	switch kind {
	case kindApp:
		w.Apps = with(old.Apps, id, c.Apps.Get(slug, id))
	case kindGroup:
		g := c.Groups.Get(slug, id)
		if g != nil && g.Archived {
			g = nil
		}
		w.Groups = with(old.Groups, id, g)
	case kindKey:
		c.replaceKey(next, &w, id)
	}
	if kind != kindKey {
		c.prepare(&w)
	}
	next.set(slug, &w)
}

// prepare sets Prepared of a new workspace. It takes all apps and groups, so it waits until a request asks: most of the
// workspaces that are made when documents come one after the other are replaced before.
func (c *Control) prepare(w *Workspace) {
	w.Prepared = sync.OnceValue(func() any { return c.options.Prepare(w) })
}

// with returns a copy of m in which v stands under id; nil: nothing does.
func with[T any](m map[string]*T, id string, v *T) map[string]*T {
	m = maps.Clone(m)
	if m[id] = v; v == nil {
		delete(m, id)
	}
	return m
}

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
	for name := range c.docs[slug] {
		c.addPart(w, name)
	}
	slices.SortFunc(w.Keys, byNumber)
	c.prepare(w)
	if next.Lookup(slug) == nil {
		for _, d := range w.Keys {
			c.addKey(next, w, d)
		}
	}
	next.set(slug, w)
}

func byNumber(a, b *document.Key) int { return cmp.Compare(a.Number, b.Number) }

// addPart adds what a document of the workspace says of it. All of them are in their collections already.
func (c *Control) addPart(w *Workspace, name string) {
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
		if d := c.apiKeys.Get(w.ID, id); d != nil {
			w.Keys = append(w.Keys, d)
		}
	}
}

// replaceKey takes a key into w and next as it is in its collection.
func (c *Control) replaceKey(next *Snapshot, w *Workspace, id string) {
	w.Keys = slices.Clone(w.Keys)
	if i := slices.IndexFunc(w.Keys, func(d *document.Key) bool { return d.ID == id }); i >= 0 {
		if digest, err := digestOfKey(w.Keys[i]); err == nil {
			next.Keys = next.Keys.Without(digest, w.Keys[i].Number)
		}
		w.Keys = slices.Delete(w.Keys, i, i+1)
	}
	if d := c.apiKeys.Get(w.ID, id); d != nil {
		i, _ := slices.BinarySearchFunc(w.Keys, d, byNumber)
		w.Keys = slices.Insert(w.Keys, i, d)
		c.addKey(next, w, d)
	}
}

// addKey makes a key of w known to requests. One that is revoked, or can't be read, only keeps its token and number.
func (c *Control) addKey(next *Snapshot, w *Workspace, d *document.Key) {
	next.lastKey = max(next.lastKey, d.Number)
	k := &keys.Key{ID: d.ID, Name: d.Name, Number: d.Number, Workspace: w.Number, Usage: c.usageOf(d.Number)}
	var err error
	if k.Digest, err = digestOfKey(d); err != nil {
		c.unreadable(w, d, err)
		return
	}
	if err = k.SetRights(d.Permissions, d.IPAllowList); err != nil {
		c.unreadable(w, d, err)
	}
	k.Invalid = err != nil || d.RevokedAt != 0
	if other := next.Keys.Holder(k.Digest); other != nil && !other.Invalid && !k.Invalid { // refused at creation
		c.options.Logger.Error("two API keys have the same token; the older one is valid", "key", k.ID,
			"other", other.ID)
	}
	next.Keys = next.Keys.With(k)
}

func (c *Control) unreadable(w *Workspace, d *document.Key, err error) {
	c.options.Logger.Error("API key can't be read and is not valid", "workspace", w.ID, "key", d.ID, "err", err)
}

func digestOfKey(d *document.Key) (digest keys.Digest, err error) {
	n, err := hex.Decode(digest[:], []byte(d.Digest[:min(len(d.Digest), 2*len(digest))]))
	if err == nil && n != len(digest) {
		err = fmt.Errorf("digest of %d bytes", n)
	}
	return digest, err
}

// rebuildSCIM decodes the company's SCIM access into next. The caller holds c.mu.
func (c *Control) rebuildSCIM(next *Snapshot) {
	s, isSetUp := new(document.SCIM), false
	for name, text := range c.docs[""] {
		switch kind, _, _ := strings.Cut(name, "/"); kind {
		case kindSCIM:
			isSetUp = c.decode(joinKey(kind, "", ""), text, &s.SCIMSettings) || isSetUp
		case kindSCIMToken:
			if t := new(document.SCIMToken); c.decode(name, text, t) {
				t.Usage = c.usageOf(t.Number)
				s.Tokens, isSetUp = append(s.Tokens, t), true
				next.lastKey = max(next.lastKey, t.Number)
			}
		}
	}
	next.SCIM = nil
	if !isSetUp {
		return
	}
	slices.SortFunc(s.Tokens, func(a, b *document.SCIMToken) int { return int(int64(a.Number) - int64(b.Number)) })
	next.SCIM = s
}
