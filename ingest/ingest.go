// Package ingest turns the JSON of POST /users/track and its siblings into ops and an answer, in one pass: it parses,
// judges each object, and writes it in the form in which it is logged, replicated and applied (package op). It knows
// JSON and the contract's rules for the objects, but neither HTTP nor profiles.
//
// Invariants
//   - What is refused has no effect: an object's op is finished only when the whole object has been read and found
//     good. When the answer's status is not 201, the caller throws the ops away.
//   - Ops are in the order of effect (attributes, events, purchases, each in array order; decisions.md D3), whatever
//     order the body has.
//   - The body is only read, and not kept. Nothing is read beyond its end.
//   - In the steady state a request allocates nothing: a Decoder keeps its memory, within bounds.
//   - No input makes it panic, or take more than time and memory in proportion to the body.
//
// A Decoder belongs to one goroutine at a time. The Workspace belongs to the caller and is only read.
package ingest

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"sync"

	"millrace/ingest/field"
	"millrace/shard/op"
)

// Workspace is what the decoder has to know of a workspace: a snapshot made by the caller, which nobody changes any
// more.
type Workspace struct {
	ID uint32
	// MaxCombined bounds the objects in a whole request; 0 means no bound but that of each array. Plan `mau` has 50.
	MaxCombined int
	// Groups are the channels (decisions.md D7) of the existing subscription groups, by id: op.ChannelEmail, ….
	Groups map[[16]byte]byte
	// Apps are the ids of the existing apps; push tokens of other apps are refused.
	Apps map[string]struct{}
	// Blocked are the external ids that are refused.
	Blocked map[string]struct{}
	// ErrorObjects makes the errors of a refused request objects instead of strings (`request_error_shape: objects`).
	ErrorObjects bool
	// StreamsAttributes marks attributes ops for a stream that carries them out (op.Streamed).
	StreamsAttributes bool
	// Braze makes texts say braze_id for svc_id (`profile_id_name: braze_id`).
	Braze bool
}

// profileID is the name of a svc_id in texts.
func (ws *Workspace) profileID() string {
	if ws.Braze {
		return "braze_id"
	}
	return "svc_id"
}

// Limits bound the objects of one request. The zero value has those of /users/track, which depend on the plan.
type Limits struct {
	// Combined bounds the objects in a whole request. 0: each array has at most maxObjects, and Workspace.MaxCombined
	// holds.
	Combined int
	// PerUser bounds the objects that name one user by the same identifier; 0: no bound.
	PerUser int
}

// Router gives ops their place; *shard.Batch is one and describes End, EndNumber and SvcID. The decoder relies on this:
// End and EndNumber finish the op that begins at start in the Builder and ends where its Buf does, or remove it and
// return false.
type Router interface {
	End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) (accepted bool)
	EndNumber(start int, kind op.Kind, flags op.Flags, number uint64) (accepted bool)
	SvcID(text []byte) (number uint64, ok bool)
	// Operator makes a reference for an operator on the attribute name of the attributes object at index, since only
	// apply knows the operator's outcome. A negative result means that there are too many.
	Operator(index int, name []byte) (ref int)
}

// Options of decoders. The zero value of a field means its default.
type Options struct {
	// MaxDepth bounds the nesting of arrays and objects inside an object (default 32, at most 38).
	MaxDepth int
	// MaxProperties is how many properties of an event or a purchase are kept: the first ones (default 256).
	MaxProperties int
	// MaxPropertiesBytes bounds the JSON text of properties that have arrays or objects (default 50 KB = 51,200).
	MaxPropertiesBytes int

	// Phones reads phone numbers; decoders may share one (default: a new one).
	Phones *field.Phones
}

// EnsureDefaults fills in what is not set.
func (o *Options) EnsureDefaults() {
	o.MaxDepth = cmp.Or(o.MaxDepth, 32)
	o.MaxProperties = cmp.Or(o.MaxProperties, 256)
	o.MaxPropertiesBytes = cmp.Or(o.MaxPropertiesBytes, 50<<10)
	if o.Phones == nil {
		o.Phones = field.NewPhones(0)
	}
}

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	if o.MaxDepth < 2 || o.MaxDepth > shapeLevels-2 {
		return fmt.Errorf("MaxDepth %d: must be 2 to %d", o.MaxDepth, shapeLevels-2)
	}
	if o.MaxProperties < 1 || o.MaxPropertiesBytes < 1 {
		return fmt.Errorf("MaxProperties %d, MaxPropertiesBytes %d: must be positive",
			o.MaxProperties, o.MaxPropertiesBytes)
	}
	return nil
}

// Pool hands out decoders.
type Pool struct {
	options Options
	idle    sync.Pool
}

// NewPool returns a pool of decoders with the options, which must be valid. The decoders share Options.Phones.
func NewPool(o Options) *Pool {
	o.EnsureDefaults()
	return &Pool{options: o}
}

// Get returns a decoder for the caller alone.
func (p *Pool) Get() *Decoder {
	if d, ok := p.idle.Get().(*Decoder); ok {
		return d
	}
	return NewDecoder(p.options)
}

// Put takes a decoder back. One that has panicked must not be given back.
func (p *Pool) Put(d *Decoder) { p.idle.Put(d) }

// maxBodyBytes is well within what 32 bits can count. Callers have far lower limits (decisions.md D1).
const maxBodyBytes = 1 << 30

// keepBytes is the largest buffer that a Decoder keeps for the next request.
const keepBytes = 1 << 20

// Decoder reads one request after another.
type Decoder struct {
	names nameTable // first, so that its nodes are aligned

	Options // as given to NewDecoder; not to be changed

	// State of the request.
	ws     *Workspace
	b      *op.Builder
	r      Router
	now    int64  // Unix ms
	gen    uint32 // number of the request
	body   []byte // as sent
	in     []byte // a copy with padding; strings with escapes are decoded in place
	stops  []byte // a bit for each byte of in: whether a string stops there
	size   int    // of the body
	badAt  int
	badWhy reason // 0: not JSON
	// badRule is the rule that the request as a whole breaks; empty: malformed.
	badRule string
	limits  Limits
	inArray int      // how many objects an array may have
	total   int      // objects in all arrays
	users   []uint64 // whom the good objects name, if limits.PerUser bounds them
	placed  uint8    // a bit for each array whose ops went into the record at once
	counts  [arrays]int
	errors  []entry
	texts   []byte
	// warnings are about what is left out of accepted objects.
	warnings []entry
	pending  []pendingOp // ops in deferred, which have to wait for the arrays before theirs
	// deferred has the bytes of the waiting ops.
	deferred []byte
	// The app that was last named, and its field in an op's body; 0: none yet.
	lastApp      slot
	lastAppField uint32

	// Where ops are written: the Builder's Buf or deferred, as far as its capacity allows, and how much of it is used.
	out       []byte
	o         int
	deferring bool

	// State of the object.
	array        array
	index        int
	from, to     int // in the body
	inObject     bool
	inProperties bool
	refusal      refusal
	key          memberKey // the member that was last read
	owner        memberKey // the attribute or property that is being read
	id           identity
	aside        [asides]slot
	nested       nestedState
	composites   int        // of an attributes object: values that apply combines with what is stored
	operators    []operator // those of them that may turn out to be impossible

	// Kept from request to request.
	others   nameSet
	recent   [recentTexts]recentText
	fields   [recentFields]recentField
	times    field.Times
	objects  uint32 // number of the last object
	nesting  []byte
	scratch  []byte
	maxDepth int
	learning int // learnBudget; 0 in tests
}

// NewDecoder returns a decoder with the options, which must be valid.
func NewDecoder(o Options) *Decoder {
	o.EnsureDefaults()
	d := &Decoder{Options: o, maxDepth: o.MaxDepth, learning: learnBudget}
	d.names.reset()
	d.others.init()
	return d
}

// array is one of the three arrays, in the order of effect.
type array uint8

const (
	arrayAttributes array = iota
	arrayEvents
	arrayPurchases
	arrays
)

var arrayNames = [arrays]string{"attributes", "events", "purchases"}

func arrayNamed(name []byte) array {
	switch string(name) {
	case "attributes":
		return arrayAttributes
	case "events":
		return arrayEvents
	case "purchases":
		return arrayPurchases
	}
	return arrays
}

// Track reads the body of POST /users/track, writes the ops of its good objects to b, makes r place them, and appends
// the whole JSON answer to dst. status is 201 or 400; with 400 the ops in b must not be committed. With 201, b.Count()
// may be 0: everything was accepted, and nothing has an effect. r is asked in the order of effect. nowMillis (Unix ms)
// replaces times in the future. body is only read and not kept.
func (d *Decoder) Track(
	dst, body []byte, ws *Workspace, b *op.Builder, r Router, nowMillis int64,
) (reply []byte, status int) {
	return d.TrackWithin(Limits{}, dst, body, ws, b, r, nowMillis, nil)
}

// TrackWithin is Track with the limits of another endpoint, and calls note, if not nil, for each Fault that the answer
// reports, in the answer's order.
func (d *Decoder) TrackWithin(
	limits Limits, dst, body []byte, ws *Workspace, b *op.Builder, r Router, nowMillis int64, note func(Fault),
) (reply []byte, status int) {
	long := len(body) > maxBodyBytes
	if long {
		body = nil
	}
	d.limits, d.inArray, d.users = limits, math.MaxInt, d.users[:0]
	if limits.Combined == 0 {
		d.limits.Combined, d.inArray = ws.MaxCombined, maxObjects
	}
	d.begin(body, ws, b, r, nowMillis)
	defer d.end()
	if long {
		d.failWith(tooLong, "The request is too long")
	} else if d.request() >= 0 {
		d.flush()
		reply, status = d.reply(dst)
		d.noteObjects(note)
		return reply, status
	}
	d.noteRequest(note)
	return d.replyBad(dst), 400
}

func (d *Decoder) begin(body []byte, ws *Workspace, b *op.Builder, r Router, nowMillis int64) {
	d.ws, d.b, d.r, d.now, d.body, d.size = ws, b, r, nowMillis, body, len(body)
	d.load(body)
	d.badRule = ""
	d.badWhy, d.total, d.placed, d.counts, d.deferring = 0, 0, 0, [arrays]int{}, false
	d.errors, d.warnings, d.texts = d.errors[:0], d.warnings[:0], d.texts[:0]
	d.pending, d.deferred = d.pending[:0], d.deferred[:0]
	d.out, d.o = b.Buf[:cap(b.Buf)], len(b.Buf)
	d.inObject, d.inProperties, d.lastAppField = false, false, 0

	d.names.budget = d.learning
	// Also before the numbers wrap around: old ones would look like new ones.
	if d.names.full() || d.gen == math.MaxUint32 || d.objects > math.MaxUint32/2 {
		d.names.reset()
		d.others.forget()
		d.gen, d.objects, d.recent = 0, 0, [recentTexts]recentText{}
	}
	d.gen++
}

// end forgets what belongs to the caller, and frees memory that an unusual request took.
func (d *Decoder) end() {
	if d.deferring {
		d.deferred = d.out[:0]
	} else {
		d.b.Buf = d.out[:d.o]
	}
	d.ws, d.b, d.r, d.body, d.out = nil, nil, nil, nil, nil
	for _, buf := range []*[]byte{&d.in, &d.stops, &d.texts, &d.deferred, &d.nesting, &d.scratch} {
		if cap(*buf) > keepBytes {
			*buf = nil
		}
	}
	for _, list := range []*[]entry{&d.errors, &d.warnings} {
		if cap(*list) > keepBytes/64 {
			*list = nil
		}
	}
	d.others.rest()
}

// request reads the body; -1: the request is refused.
func (d *Decoder) request() int {
	i := d.space(0)
	if d.in[i] != '{' {
		return d.notObject(i)
	}
	i, more := d.openObject(i)
	p := d.newPath(shapeUnknown)
	noArray := arrays
	for more {
		if i = d.member(&p, i); i < 0 {
			return -1
		}
		a := arrayNamed(d.nameOf(d.key))
		switch {
		case a == arrays:
			i = d.skip(i, 0)
		case d.in[i] == '[':
			i = d.objectsOf(a, i)
		case d.in[i] == 'n': // clients send null for an array that they don't have
			i = d.literal(i, "null")
		default: // what follows is read first: the body may not be JSON, for example when it was cut short
			i = d.skip(i, 0)
			noArray = min(noArray, a)
		}
		if i < 0 {
			return -1
		}
		i, more = d.nextMember(i)
	}
	if i < 0 {
		return -1
	}
	if i = d.space(i); i != d.size {
		return d.fail(i)
	}
	if noArray != arrays {
		return d.failArray(noArray)
	}
	if d.repeats(d.limits.PerUser) {
		return d.failPerUser()
	}
	return i
}

// notObject refuses a body that is not an object; if its JSON is bad, for that.
func (d *Decoder) notObject(i int) int {
	if i = d.skip(i, 0); i < 0 {
		return -1
	}
	if i = d.space(i); i != d.size {
		return d.fail(i)
	}
	return d.failWith(malformed, "the body must be an object")
}

// objectsOf reads one of the three arrays, which begins at i.
func (d *Decoder) objectsOf(a array, i int) int {
	d.divert(a)
	if i = d.space(i + 1); d.in[i] == ']' {
		return i + 1
	}
	for n := 0; ; n++ {
		if n >= d.inArray {
			return d.failCount(a)
		}
		if d.limits.Combined > 0 && d.total >= d.limits.Combined {
			return d.failCombined()
		}
		d.total++
		d.array, d.index = a, n
		if i = d.object(i); i < 0 {
			return -1
		}
		if d.in[i] == ',' && d.in[i+1] == '{' {
			i++
			continue
		}
		more := false
		if i, more = d.nextElement(i); !more {
			return i
		}
	}
}

// maxObjects is how many objects an array of /users/track may have.
const maxObjects = 75

// noteUser notes whom an object names: the number behind a svc_id, or the kind and the canonical text of another
// identifier. Nobody knows yet which of them lead to one profile.
func (d *Decoder) noteUser(key []byte) {
	user := d.id.number
	if d.id.resolved != op.SvcID {
		user = maphash.Bytes(userSeed, key) + uint64(d.id.resolved)
	}
	d.users = append(d.users, user)
}

var userSeed = maphash.MakeSeed()

// repeats reports whether more than limit objects name one user; 0: no limit. It reorders users.
func (d *Decoder) repeats(limit int) bool {
	if limit == 0 || len(d.users) <= limit || !d.mayRepeat(limit) {
		return false
	}
	slices.Sort(d.users)
	for i := limit; i < len(d.users); i++ {
		if d.users[i] == d.users[i-limit] {
			return true
		}
	}
	return false
}

// mayRepeat returns false when it takes no sorting to know that repeats would be false: all users whose numbers end
// alike are counted as one.
func (d *Decoder) mayRepeat(limit int) bool {
	var alike [256]int32
	most := int32(0)
	for _, u := range d.users {
		alike[uint8(u)]++
		most = max(most, alike[uint8(u)])
	}
	return int(most) > limit
}

// divert decides where the ops of an array go: into the record, if those of all arrays that take effect before it are
// already there, or aside. (That an array is missing is known only at the end. Reading the text twice would cost more
// than copying the ops.)
func (d *Decoder) divert(a array) {
	before := uint8(1)<<a - 1
	aside := d.placed&before != before
	if !aside {
		d.placed |= 1 << a
	}
	if aside != d.deferring {
		d.switchOut()
	}
}

// switchOut directs ops to the other buffer.
func (d *Decoder) switchOut() {
	if d.deferring {
		d.deferred = d.out[:d.o]
		d.out, d.o = d.b.Buf[:cap(d.b.Buf)], len(d.b.Buf)
	} else {
		d.b.Buf = d.out[:d.o]
		d.out, d.o = d.deferred[:cap(d.deferred)], len(d.deferred)
	}
	d.deferring = !d.deferring
}

// pendingOp is an op in deferred.
type pendingOp struct {
	start, end, keyLen int
	number             uint64
	array              array
	index              int
	from, to           int // of the object in the body
	kind               op.Kind
	flags              op.Flags
	id                 op.IDKind
}

// flush puts the waiting ops into the record.
func (d *Decoder) flush() {
	if d.deferring {
		d.switchOut()
	}
	for a := arrayEvents; a < arrays; a++ {
		for _, w := range d.pending {
			if w.array != a {
				continue
			}
			start := d.o
			d.need(w.end - w.start)
			d.o += copy(d.out[d.o:], d.deferred[w.start:w.end])
			d.array, d.index, d.from, d.to = a, w.index, w.from, w.to
			d.place(start, w.kind, w.flags, w.id, w.keyLen, w.number)
		}
	}
}
