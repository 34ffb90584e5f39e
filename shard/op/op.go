// Package op defines the form in which a change is logged, replicated and applied. JSON is turned into ops once, by
// ingest; the same bytes are the log record, the raft entry and the input of apply ("The corridor" in ARCHITECTURE.md).
//
// A record holds all ops of one request, in the request's order, so that after a crash it is there as a whole or not at
// all:
//
//	headroom            bytes that belong to the log (its own header)
//	header  32 bytes    version, source, array limit, workspace, stamp, actor, sizes
//	ops                 one after another, each addressed to one partition by its number
//	names               the dictionary: event, attribute, property, product and app names, each once, referred to by
//	                    index: size uvarint and text. In a part (Split), size 0 and n uvarint stand for n+1 names that
//	                    its ops don't use, and the last name is the part's gaps
//
// An op:
//
//	size u32 | kind u8 | flags u8 | key length u16 | number u64 | body … | key …
//
// The key (the identifier as the client sent it, in canonical form) comes last because clients may send it last. All
// integers are little endian. Reading never copies and never panics on a well-formed record; ParseRecord checks what
// the log's checksum can't.
package op

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
)

// Version is the version of the record format; a reader refuses any other, and so does a node that meets one of another
// version.
const Version = 6

// HeaderBytes is the size of a record's header, OpHeaderBytes that of an op's, MaxKeyBytes the largest size of a key.
const (
	HeaderBytes   = 32
	OpHeaderBytes = 16
	MaxKeyBytes   = 1<<16 - 1
)

// Kind says what an op does.
type Kind uint8

// Kinds. The first three are the objects of /users/track; their bodies are described below, before Record and at
// EventBody and PurchaseBody.
const (
	Attributes Kind = 1
	Event      Kind = 2
	Purchase   Kind = 3
	Delete     Kind = 4 // removes the profile; body bodies.Erased, key reference u16 of the outcome
	KeptAnswer Kind = 5 // keeps the answer to a keyed request; body: hash of the request's body, status u16, answer
	// delivers an effect of another partition; body: sender u8, sequence u64, owner u64, a record of one op
	Message   Kind = 6
	Deferred  Kind = 7  // ops of a request that wait for the ops before them; body: a record
	Resume    Kind = 8  // releases a deferred record with its ops addressed anew; body: sequence u64, a record
	Document  Kind = 9  // changes control documents and adds to the audit log; body: bodies.AppendDocuments
	Import    Kind = 10 // replaces a profile with an imported one; body: a profile
	Sweep     Kind = 11 // forgets what has expired at the record's stamp in the op's partition
	Claim     Kind = 12 // a profile wants this alias or external id; body: bodies.Claim
	Merge     Kind = 13 // merges the profile with this number into another one; body: bodies.Merge
	Unname    Kind = 14 // takes an old external id away from a profile; body: reference u16 of the outcome
	Relay     Kind = 15 // keeps an answer, unless one is kept already, and sends ops on; body: bodies.AppendRelay
	Delivered Kind = 16 // forgets messages that have arrived; body: partitions first u8 to last u8, sequence u64; …
	// The kinds below travel inside messages only, except RowState.
	RowAdd Kind = 20 // a profile has got this address; body: profile number u64
	// a profile has lost this address; body: profile number u64, and when it left i64, if it is to be told its states
	RowRemove Kind = 21
	// states of this address were set, by a profile or by a request for the address itself; body: profile number u64,
	// states
	RowState Kind = 22
	// 23 was used in the past.
	Grant   Kind = 24 // an alias or external id is the profile's now; body bodies.Claim
	Pin     Kind = 25 // a profile is about to take in another one; body bodies.Merge
	Seal    Kind = 26 // a profile leaves for the one that is pinned for it; body bodies.Merge
	Absorb  Kind = 27 // a profile takes in another one; body bodies.Merge
	Unpin   Kind = 28 // the other one does not come; body bodies.Merge
	RowMove Kind = 29 // an alias leads to another profile now; body: old number u64, new number u64
	// erases the trail of a profile that was merged into one that is deleted; no body
	Forget Kind = 30
	Left   Kind = 31 // the states of an address that the profile left; body: when it left i64, states
)

// Source says through which endpoint a request came: the trail of consent keeps it (decisions.md D5).
type Source uint8

const (
	SourceServer           Source = 0 // the server itself
	SourceTrack            Source = 1 // POST /users/track
	SourceStatusSet        Source = 2 // POST /subscription/status/set
	SourceStatusSetV2      Source = 3 // POST /v2/subscription/status/set
	SourceEmailStatus      Source = 4 // POST /email/status
	SourceEmailBlocklist   Source = 5 // POST /email/blocklist and /email/blacklist
	SourceBounceRemove     Source = 6 // POST /email/bounce/remove
	SourceSpamRemove       Source = 7 // POST /email/spam/remove
	SourcePreferenceCenter Source = 8 // the form of a hosted preference center
	SourceOneClick         Source = 9 // one-click unsubscribe (RFC 8058)
	SourceAdmin            Source = 10
	SourceImport           Source = 11 // millrace import profiles
	SourceIdentify         Source = 12 // POST /users/identify
	SourceMerge            Source = 13 // POST /users/merge
)

var sourceNames = [...]string{"server", "/users/track", "/subscription/status/set", "/v2/subscription/status/set",
	"/email/status", "/email/blocklist",
	"/email/bounce/remove", "/email/spam/remove", "preference center", "one-click unsubscribe", "admin", "import",
	"/users/identify", "/users/merge"}

func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return "unknown"
}

// Flags of an op. The three highest bits hold the IDKind.
type Flags uint8

const (
	// UpdateOnly: the op has no effect when the profile doesn't exist (service.md 2.6).
	UpdateOnly Flags = 1 << iota
	// Resolved: number is that of a profile that the key named when the op was made. Otherwise number is the hash of
	// the key.
	Resolved
	// MergeObjects: nested objects are merged instead of replaced (`_merge_objects`).
	MergeObjects
	// Contact: an attributes op that sets email, phone or a subscription state, which reaches other partitions, or the
	// spam mark, which is compared with the present one.
	Contact
	// Conditional: an event or purchase that may have no effect, or have it elsewhere. The flag is for readers of the
	// log; the engine itself says which ones had no effect (replica.Replica.Dropped).
	Conditional
)

// Offer marks a RowState that an import brings: an address that others have, or that has the state already, ignores it.
const Offer = UpdateOnly

// Settling marks an Idempotency op that has an effect only when there is an answer that is open (entries.AnswerIsOpen).
const Settling = UpdateOnly

// Streamed marks an Attributes op that a stream of its workspace carries out as it was sent. It is for readers of the
// log.
const Streamed = Conditional

// Echo marks a RowState by a profile whose own registers had other values for each of its states before: what it says
// has been noted for the profile. It is for readers of the log.
const Echo = Conditional

// IDKind is the kind of identifier in an op's key (service.md 2.1).
type IDKind uint8

const (
	NoID       IDKind = 0
	ExternalID IDKind = 1
	Alias      IDKind = 2 // key: AppendAliasKey
	SvcID      IDKind = 3 // key empty; the number is the profile's
	Email      IDKind = 4 // key: see AppendEmailKey
	Phone      IDKind = 5 // key: E.164
)

func (k IDKind) String() string {
	switch k {
	case ExternalID:
		return "external_id"
	case Alias:
		return "user_alias"
	case SvcID:
		return "svc_id"
	case Email:
		return "email"
	case Phone:
		return "phone"
	}
	return "none"
}

// MakeFlags joins flags and the kind of identifier.
func MakeFlags(f Flags, id IDKind) Flags { return f&0x1f | Flags(id)<<5 }

// ID is the kind of identifier that the flags carry.
func (f Flags) ID() IDKind { return IDKind(f >> 5) }

// Has says whether all of want are set.
func (f Flags) Has(want Flags) bool { return f&want == want }

// Op is one op: a view of a record's bytes. Its methods are plain loads, since ParseRecord has checked the record.
type Op []byte

func (o Op) Kind() Kind     { return Kind(o[4]) }
func (o Op) Flags() Flags   { return Flags(o[5]) }
func (o Op) Number() uint64 { return binary.LittleEndian.Uint64(o[8:]) }

// Partition is the virtual partition that the op is addressed to: the highest byte of its number.
func (o Op) Partition() uint8 { return o[15] }

// Key is the identifier, Body what is between header and key.
func (o Op) Key() []byte  { return o[len(o)-int(binary.LittleEndian.Uint16(o[6:])):] }
func (o Op) Body() []byte { return o[OpHeaderBytes : len(o)-int(binary.LittleEndian.Uint16(o[6:]))] }

// AppendAliasKey appends the key of an alias: label and name, kept apart by the label's length.
func AppendAliasKey(dst, label, name []byte) []byte {
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(label)))
	dst = append(dst, label...)
	return append(dst, name...)
}

// SplitAliasKey is the reverse of AppendAliasKey.
func SplitAliasKey(key []byte) (label, name []byte, ok bool) {
	if len(key) < 2 {
		return nil, nil, false
	}
	n := int(binary.LittleEndian.Uint16(key))
	if len(key)-2 < n {
		return nil, nil, false
	}
	return key[2 : 2+n], key[2+n:], true
}

// Sizes of the fixed parts of bodies. What follows a fixed part, up to the key, is a list of fields.
const (
	eventFixed    = 13
	purchaseFixed = 36
)

// EventBody is the body of an Event: time i56 (Unix ms; the year 9999 takes 49 bits), name u24, app u24, then
// properties. name is an index into Names; app is an index plus one, 0 for none. A property is a uvarint index and a
// value (value.go).
type EventBody []byte

// IsWhole says that the fixed part is there. Without it the op has no effect, and the other methods mustn't be called.
func (b EventBody) IsWhole() bool { return len(b) >= eventFixed }

func (b EventBody) Time() int64        { return int56(b) }
func (b EventBody) Name() uint32       { return uint24(b[7:]) }
func (b EventBody) App() uint32        { return uint24(b[10:]) }
func (b EventBody) Properties() []byte { return b[eventFixed:] }

// int56 and uint24 are what the first 7 and 3 bytes of b say; int56 reads one more.
func int56(b []byte) int64   { return int64(binary.LittleEndian.Uint64(b)<<8) >> 8 }
func uint24(b []byte) uint32 { return uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 }

// AppendEventBody appends the fixed part with zeros; PutEvent fills it in when the object has been read.
func AppendEventBody(dst []byte) []byte { return append(dst, make([]byte, eventFixed)...) }

// PutEvent fills the fixed part at the start of body.
func PutEvent(body []byte, timeMillis int64, name, app uint32) {
	binary.LittleEndian.PutUint64(body, uint64(timeMillis)) // its highest byte gives way to the name
	putUint24(body[7:], name)
	putUint24(body[10:], app)
}

func putUint24(b []byte, v uint32) { b[0], b[1], b[2] = byte(v), byte(v>>8), byte(v>>16) }

// PurchaseBody is the body of a Purchase: time i56 (Unix ms), product u24 (index), app u24 (index plus one), total i64
// (price × quantity in minor units of the currency), price f64 (as sent, per unit), quantity u32, currency 3 bytes,
// then properties.
type PurchaseBody []byte

// IsWhole is EventBody.IsWhole.
func (b PurchaseBody) IsWhole() bool { return len(b) >= purchaseFixed }

func (b PurchaseBody) Time() int64           { return int56(b) }
func (b PurchaseBody) Product() uint32       { return uint24(b[7:]) }
func (b PurchaseBody) App() uint32           { return uint24(b[10:]) }
func (b PurchaseBody) Total() int64          { return int64(binary.LittleEndian.Uint64(b[13:])) }
func (b PurchaseBody) PriceBits() uint64     { return binary.LittleEndian.Uint64(b[21:]) }
func (b PurchaseBody) Quantity() uint32      { return binary.LittleEndian.Uint32(b[29:]) }
func (b PurchaseBody) Currency() (c [3]byte) { return [3]byte(b[33:36]) }
func (b PurchaseBody) Properties() []byte    { return b[purchaseFixed:] }

// AppendPurchaseBody appends the fixed part with zeros; PutPurchase fills it in.
func AppendPurchaseBody(dst []byte) []byte { return append(dst, make([]byte, purchaseFixed)...) }

// PutPurchase fills the fixed part at the start of body.
func PutPurchase(
	body []byte, timeMillis, total int64, priceBits uint64, quantity, product, app uint32, currency [3]byte,
) {
	PutEvent(body, timeMillis, product, app) // these three lie as in an event
	binary.LittleEndian.PutUint64(body[13:], uint64(total))
	binary.LittleEndian.PutUint64(body[21:], priceBits)
	binary.LittleEndian.PutUint32(body[29:], quantity)
	copy(body[33:36], currency[:])
}

// The body of an Attributes op is a list of fields: uvarint code, value. A code below ReservedCodes is a reserved
// attribute (attr.go); any other is ReservedCodes plus the index of a custom attribute's name. A null value removes the
// attribute.

// Record is a parsed record: views of the log's bytes, valid as long as these are.
type Record struct {
	Workspace uint32
	Stamp     int64  // time of acceptance, Unix µs; strictly rising per node
	Actor     uint32 // number of the API key that sent it, 0 for the server itself
	Source    Source // the endpoint that it came through
	// how many elements of a custom array the workspace keeps, 0: the server's default. It is in the record, so that
	// replay cuts arrays at the same length
	MaxArray uint16
	Ops      []byte // walk with Next
	Count    int
	Names    Names
	// Gaps belongs to a part of a record (Split): for each op, as uvarint, how many ops of other parts are between it
	// and the op before it in this part. So op number i has the stamp Stamp + i + the gaps up to it. nil: there are no
	// gaps.
	Gaps []byte
}

// NextGap takes the first gap off gaps; it returns 0 when there is none.
func NextGap(gaps *[]byte) int64 {
	if len(*gaps) == 0 {
		return 0
	}
	v, n := binary.Uvarint(*gaps)
	*gaps = (*gaps)[n:]
	return int64(v)
}

// Span is how many stamps the record spans, from Stamp on: one for each op, the ops of other parts in between included.
func (r *Record) Span() int64 {
	n := int64(r.Count)
	for gaps := r.Gaps; len(gaps) > 0; {
		n += NextGap(&gaps)
	}
	return n
}

// ErrMalformed is wrapped by ParseRecord when bytes that passed the log's checksum are not a record of this version: a
// newer file format or a fault of ours. The server must not start on it.
var ErrMalformed = errors.New("malformed record")

// ParseRecord reads the record in data (without the log's headroom). The dictionary uses the memory of names, which may
// be nil.
func ParseRecord(data []byte, names Names) (Record, error) {
	if len(data) < HeaderBytes {
		return Record{}, fmt.Errorf("%w: %d bytes", ErrMalformed, len(data))
	}
	if data[0] != Version {
		return Record{}, fmt.Errorf("%w: version %d, this program reads %d", ErrMalformed, data[0], Version)
	}
	r := Record{
		Workspace: binary.LittleEndian.Uint32(data[4:]),
		Stamp:     int64(binary.LittleEndian.Uint64(data[8:])),
		Actor:     binary.LittleEndian.Uint32(data[16:]),
		Source:    Source(data[1]),
		MaxArray:  binary.LittleEndian.Uint16(data[2:]),
		Count:     int(binary.LittleEndian.Uint32(data[28:])),
	}
	opsBytes, nameCount := binary.LittleEndian.Uint32(data[20:]), binary.LittleEndian.Uint32(data[24:])
	hasGaps := nameCount&gapsFlag != 0
	nameCount &^= gapsFlag
	if uint64(opsBytes) > uint64(len(data)-HeaderBytes) {
		return Record{}, fmt.Errorf("%w: %d bytes of ops in %d", ErrMalformed, opsBytes, len(data))
	}
	r.Ops = data[HeaderBytes : HeaderBytes+opsBytes]
	if err := r.checkOps(); err != nil {
		return Record{}, err
	}
	var err error
	r.Names, err = parseNames(names[:0], data[HeaderBytes+opsBytes:], int(nameCount), hasGaps)
	if hasGaps && err == nil {
		err = r.takeGaps()
	}
	return r, err
}

// gapsFlag, in the header's count of names, says that the last name is the gaps.
const gapsFlag = 1 << 31

// maxGap is more than the ops that a record has room for.
const maxGap = 1 << 28

func (r *Record) takeGaps() error {
	if len(r.Names) == 0 {
		return fmt.Errorf("%w: without its gaps", ErrMalformed)
	}
	last := len(r.Names) - 1
	r.Gaps, r.Names[last] = r.Names[last], nil // whoever clears Names is to find them all
	r.Names = r.Names[:last]
	rest := r.Gaps
	for i := range r.Count {
		v, n := binary.Uvarint(rest)
		if n <= 0 || v > maxGap {
			return fmt.Errorf("%w: gap before op %d", ErrMalformed, i)
		}
		rest = rest[n:]
	}
	if len(rest) > 0 || r.Count == 0 {
		return fmt.Errorf("%w: %d bytes behind the gaps", ErrMalformed, len(rest))
	}
	return nil
}

// StampOf is the stamp of a record; PutStamp gives it another one.
func StampOf(record []byte) int64 { return int64(binary.LittleEndian.Uint64(record[8:])) }

func PutStamp(record []byte, stamp int64) { binary.LittleEndian.PutUint64(record[8:], uint64(stamp)) }

func (r *Record) checkOps() error {
	n := 0
	for rest := r.Ops; len(rest) > 0; n++ {
		if len(rest) < OpHeaderBytes {
			return fmt.Errorf("%w: op %d is cut short", ErrMalformed, n)
		}
		size := binary.LittleEndian.Uint32(rest)
		key := uint32(binary.LittleEndian.Uint16(rest[6:]))
		if size < OpHeaderBytes+key || uint64(size) > uint64(len(rest)) {
			return fmt.Errorf("%w: op %d of %d bytes in %d", ErrMalformed, n, size, len(rest))
		}
		rest = rest[size:]
	}
	if n != r.Count {
		return fmt.Errorf("%w: %d ops, %d expected", ErrMalformed, n, r.Count)
	}
	return nil
}

// Next splits the first op off ops; ops must not be empty.
func Next(ops []byte) (o Op, rest []byte) {
	size := binary.LittleEndian.Uint32(ops)
	return Op(ops[:size:size]), ops[size:]
}

// Names is the dictionary of a record. An index beyond its end yields nil.
type Names [][]byte

// At is the name with index i.
func (n Names) At(i uint32) []byte {
	if int(i) >= len(n) {
		return nil
	}
	return n[i]
}

// maxNames is more than the names that a record has room for.
const maxNames = 1 << 22

// parseNames reads the dictionary. The dictionary of a part leaves names out.
func parseNames(dst Names, data []byte, count int, part bool) (Names, error) {
	if count > maxNames || !part && count > len(data) {
		return nil, fmt.Errorf("%w: %d names in %d bytes", ErrMalformed, count, len(data))
	}
	dst = slices.Grow(dst, min(count, len(data)))
	for len(dst) < count {
		size, n := binary.Uvarint(data)
		if n <= 0 || size > uint64(len(data)-n) {
			return nil, fmt.Errorf("%w: name %d is cut short", ErrMalformed, len(dst))
		}
		name, rest := data[n:n+int(size):n+int(size)], data[n+int(size):]
		dst, data = append(dst, name), rest
		if size > 0 || !part {
			continue
		}
		more, n := binary.Uvarint(data)
		if n <= 0 || more > uint64(count-len(dst)) {
			return nil, fmt.Errorf("%w: %d names left out behind name %d of %d", ErrMalformed, more, len(dst)-1, count)
		}
		for range more {
			dst = append(dst, nil)
		}
		data = data[n:]
	}
	if len(data) != 0 {
		return nil, fmt.Errorf("%w: %d bytes behind the names", ErrMalformed, len(data))
	}
	return dst, nil
}
