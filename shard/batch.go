package shard

import (
	"encoding/binary"

	"millrace/shard/bodies"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/lookup"
	"millrace/shard/op"
	"millrace/shard/profile"
	"millrace/shard/replica"
	"millrace/wal"
)

// Batch collects the ops of one request and commits them as one record. It belongs to one goroutine, from NewBatch to
// Release.
//
// The partition of an op that is addressed by external id or svc_id is known at once. An op that is addressed by alias,
// email or phone is looked up in the directory when the batch is committed, and goes straight to the profile. So does
// every other op of a user whom the batch names in more than one way, since the contract fixes the order of effect
// within one request (decisions.md D3). Package lookup says what becomes of look-ups that are out of date, or that
// depend on an earlier op.
type Batch struct {
	op.Builder
	coordinator *Coordinator
	ops         lookup.Ops // in the Builder
	workspace   uint32
	actor       uint32
	keep        []byte
	merges      int
	// ops that only delete, and entries of the audit log: a batch of nothing else is taken even when the disk is full
	deletes   int
	renames   bool // an op gives a new external id to a user who has one
	asked     bool // for what was acknowledged before; see isDummy
	current   bool // this node has heard of it
	answer    kept
	operators operators

	// On the way (commit.go).
	data     []byte // the record, behind room for the log's header
	urgent   bool
	outcomes []effect.Outcome // by reference; see Batch.Outcome
	lost     bool             // the log may still use its bytes
	// On a node that is alone: the only part, and what waits for it; reused for each batch.
	parts   [1]Part
	pending replica.Pending
}

// kept is the answer that a batch keeps.
type kept struct {
	home      uint64
	key, text []byte
	ref       int // of the outcome: Taken when an answer is already kept
	isSet     bool
	isRelayed bool
}

// NewBatch begins a batch for a workspace. actor is the number of the API key that the request came with.
func (c *Coordinator) NewBatch(workspace, actor uint32) *Batch {
	b := c.batches.Get().(*Batch)
	b.workspace, b.actor, b.deletes, b.merges, b.renames = workspace, actor, 0, 0, false
	b.asked, b.current = false, false
	b.outcomes = b.outcomes[:0]
	b.ops.Begin(workspace, actor)
	b.operators.reset()
	b.Reset(wal.HeaderBytes)
	return b
}

func newBatch(c *Coordinator) *Batch {
	b := &Batch{coordinator: c}
	b.ops = lookup.NewOps(&b.Builder, c.Reader)
	return b
}

// Release gives the batch back to the coordinator.
func (b *Batch) Release() {
	b.data, b.answer = nil, kept{}
	if !b.lost && cap(b.Buf) <= maxPooledBytes {
		b.coordinator.batches.Put(b)
	}
}

const maxPooledBytes = 1 << 20

// End completes an object's op; see op.Builder. When the user is a known dummy user, it takes the op back and returns
// false.
func (b *Batch) End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) (accepted bool) {
	home := b.coordinator.hasher.Number(b.workspace, id, b.Buf[len(b.Buf)-keyLen:])
	if b.isDummy(home) {
		b.Abort(start)
		return false
	}
	b.Builder.End(start, kind, op.MakeFlags(flags, id), keyLen, home)
	b.ops.Note(start, flags, id)
	return true
}

// EndNumber completes the op of an object that is addressed by svc_id.
func (b *Batch) EndNumber(start int, kind op.Kind, flags op.Flags, number uint64) (accepted bool) {
	if b.isDummy(number) {
		b.Abort(start)
		return false
	}
	b.Builder.End(start, kind, op.MakeFlags(flags, op.SvcID), 0, number)
	b.ops.Note(start, flags, op.SvcID)
	return true
}

// isDummy says whether the profile at number is known to be a dummy user. This node may be behind, and not know yet
// that the user is gone. When that can't be found out, the object is taken, and Commit says what is wrong. A batch asks
// once, because waiting for a group without a leader takes seconds.
func (b *Batch) isDummy(number uint64) bool {
	if !b.coordinator.isBlocked(number) {
		return false
	}
	if !b.asked {
		b.asked, b.current = true, b.coordinator.Barrier() == nil
	}
	return b.current && b.coordinator.isBlocked(number)
}

// SvcID is the number behind a svc_id; ok is false for a svc_id that this server has not made for this workspace.
func (b *Batch) SvcID(text []byte) (number uint64, ok bool) {
	return b.coordinator.hasher.ParseSvcID(b.workspace, text)
}

// expect makes a reference under which an outcome will be reported. Until then the outcome is Nobody.
func (b *Batch) expect() (ref int) {
	b.outcomes = append(b.outcomes, effect.Nobody)
	return len(b.outcomes) - 1
}

// Count is the number of ops so far.
func (b *Batch) Count() int {
	if b.answer.isSet {
		return b.Builder.Count() + 1
	}
	return b.Builder.Count()
}

// What a batch can change, besides the objects that come through Begin and End.

// Delete removes the profile with this number. Outcome Nobody: the profile is gone already, deleted, which event logs
// know after Coordinator.FlushDeletions, or merged into another one. The op's body tells the event log where the log
// has the profile's events (Erased).
func (b *Batch) Delete(number uint64) (ref int) {
	ref, body := b.expect(), b.ops.Erased(number)
	b.Append(op.Delete, op.MakeFlags(0, op.SvcID), number, body, binary.LittleEndian.AppendUint16(nil, uint16(ref)))
	b.deletes++
	return ref
}

// Import replaces, or creates, the profile that is named by the home identifier of blob (package profile).
func (b *Batch) Import(blob []byte) {
	id, key := profile.HomeID(blob)
	b.Append(op.Import, op.MakeFlags(0, id), b.coordinator.hasher.Number(b.workspace, id, key), blob, key)
}

// ImportOver replaces the profile with this number, which has the address that is blob's home identifier, and no name.
// When it has gone meanwhile, or has got a name, ImportBeside is done instead.
func (b *Batch) ImportOver(number uint64, blob []byte) {
	id, key := profile.HomeID(blob)
	b.Append(op.Import, op.MakeFlags(op.Resolved, id), number, blob, key)
}

// ImportBeside creates a profile whose home identifier is an address, beside those that have the address already. A
// record that is sent again creates it once.
func (b *Batch) ImportBeside(blob []byte) {
	id, key := profile.HomeID(blob)
	// The op doesn't go to the address's row, which would send it on to a profile of the row, but to the number that
	// the profile is to have: by the blob's stamp, one that no other has.
	number := b.coordinator.hasher.Beside(b.workspace, id, key, profile.Updated(blob))
	b.Append(op.Import, op.MakeFlags(0, id), number, blob, key)
}

// Merge queues a merge of the profile gone into the profile keep (service.md 4.2). The merge is durable when Commit
// returns, and applied later: once, or not at all when one of the two profiles no longer exists by then. Commit returns
// ErrBusy when too many merges wait (Options.MaxMergesWaiting).
func (b *Batch) Merge(gone, keep uint64) {
	m := bodies.Merge{Other: keep, Mode: profile.MergeUsers}
	b.Append(op.Merge, op.MakeFlags(0, op.SvcID), gone, m.Append(nil), nil)
	b.merges++
}

// Outcome is the outcome of the element with this reference (AddAlias, RenameAlias, Identify, RenameExternalID,
// RemoveExternalID), after a Commit that returned nil.
func (b *Batch) Outcome(ref int) effect.Outcome { return b.outcomes[ref] }

// AddAlias gives an alias to the profile with this number (service.md 4.9). Number 0 makes an alias-only user; when
// another user has the alias already, the outcome is Taken.
func (b *Batch) AddAlias(number uint64, label, name []byte) (ref int) {
	return b.claim(op.Alias, op.AppendAliasKey(nil, label, name),
		bodies.Claim{Profile: number, Kind: bodies.ClaimAlias})
}

// RenameAlias gives the alias (label, old) of the profile with this number another name (/users/alias/update,
// decisions.md D4).
func (b *Batch) RenameAlias(number uint64, label, old, name []byte) (ref int) {
	c := bodies.Claim{Profile: number, Kind: bodies.ClaimAliasRename, Old: op.AppendAliasKey(nil, label, old)}
	// The user may have been merged into this profile a moment ago, and the aliases may still be on their way. A claim
	// that is sent straight to this profile must not overtake them.
	c.Profile = b.ops.NamedBy(op.Alias, c.Old, number)
	return b.claim(op.Alias, op.AppendAliasKey(nil, label, name), c)
}

// Identify gives an external id to the profile with this number, which has none. When another profile has that external
// id, the first is merged into it (service.md 4.10). mode is profile.MergeIdentify or profile.MergeNone.
func (b *Batch) Identify(number uint64, externalID []byte, mode profile.MergeMode) (ref int) {
	return b.claim(op.ExternalID, externalID, bodies.Claim{Profile: number, Kind: bodies.ClaimIdentify, Mode: mode})
}

// RenameExternalID gives another external id to the profile with this number, whose external id is current. The old id
// still leads to the profile, as a deprecated id, until RemoveExternalID takes it away (reference.md 4.4).
func (b *Batch) RenameExternalID(number uint64, current, id []byte) (ref int) {
	b.renames = true
	return b.claim(op.ExternalID, id, bodies.Claim{Profile: number, Kind: bodies.ClaimExternalID, Old: current})
}

// RemoveExternalID takes a deprecated external id away from the profile with this number. Outcome Nobody: the profile
// does not have this deprecated id.
func (b *Batch) RemoveExternalID(number uint64, id []byte) (ref int) {
	ref = b.expect()
	b.Append(op.Unname, op.MakeFlags(0, op.SvcID), number, binary.LittleEndian.AppendUint16(nil, uint16(ref)), id)
	return ref
}

func (b *Batch) claim(id op.IDKind, key []byte, c bodies.Claim) (ref int) {
	ref = b.expect()
	c.Ref = uint16(ref)
	b.Append(op.Claim, op.MakeFlags(0, id), b.coordinator.hasher.Number(b.workspace, id, key), c.Append(nil), key)
	return ref
}

// SetUserStates sets states of an existing user and of the user's addresses, and thereby of all who share these
// addresses (decisions.md D5, D9). It has no effect on an unknown user. For op.SvcID, number names the user, else key
// does. Bounce and Spam mark an email: they have no effect on a user without one. The states of a dummy user can be set
// too, so that whoever unsubscribes is unsubscribed.
func (b *Batch) SetUserStates(id op.IDKind, key []byte, number uint64, states ...profile.State) {
	if len(states) == 0 {
		return
	}
	start := b.Begin()
	groups := b.keep[:0]
	for _, s := range states {
		switch s.Kind {
		case profile.StateEmail:
			b.Buf = append(b.Buf, op.AttrEmailSubscribe)
			if s.Value == "" {
				b.Buf = append(b.Buf, byte(op.Null))
			} else {
				b.Buf = op.AppendString(b.Buf, []byte(s.Value))
			}
		case profile.StateBounce:
			b.Buf = op.AppendBool(append(b.Buf, op.AttrHardBounce), s.On)
		case profile.StateSpam:
			b.Buf = op.AppendBool(append(b.Buf, op.AttrSpam), s.On)
		case profile.StateGroup:
			var raw [17]byte
			copy(raw[:], s.Group[:])
			raw[16] = s.Channel
			groups = op.AppendBool(op.AppendString(groups, raw[:]), s.On)
		}
	}
	if b.keep = groups; len(groups) > 0 {
		b.Buf = op.AppendBlock(append(b.Buf, op.AttrSubscriptionGroups), op.Array, groups)
	}
	keyLen := 0
	if id != op.SvcID {
		at := len(b.Buf)
		b.Buf = entries.AppendKey(b.Buf, id, key)
		keyLen = len(b.Buf) - at
		number = b.coordinator.hasher.Number(b.workspace, id, b.Buf[at:])
	}
	b.Builder.End(start, op.Attributes, op.MakeFlags(op.UpdateOnly|op.Contact, id), keyLen, number)
	b.ops.Note(start, op.Contact, id)
}

// SetAddressStates sets states of an address, op.Email or op.Phone (key: see op.IDKind), whether or not a user has the
// address. They hold for all who have it now, and for users who get it later as decisions.md D5 says. States that an
// address of this kind can't have are left out.
func (b *Batch) SetAddressStates(id op.IDKind, key []byte, states ...profile.State) {
	start := b.Begin()
	b.Buf = append(b.Buf, 0, 0, 0, 0, 0, 0, 0, 0) // from no profile
	set := profile.IndexStates(nil)
	for _, s := range states {
		if s.ForAddress(id) {
			set.Set(profile.StateChange{State: s})
		}
	}
	changes := set.List()
	if len(changes) == 0 {
		b.Abort(start)
		return
	}
	b.Buf = bodies.AppendStates(b.Buf, changes)
	at := len(b.Buf)
	b.Buf = entries.AppendKey(b.Buf, id, key)
	home := b.coordinator.hasher.Number(b.workspace, id, b.Buf[at:])
	b.Builder.End(start, op.RowState, op.MakeFlags(0, id), len(b.Buf)-at, home)
	b.ops.NoteAddress()
}

// SetSource sets the endpoint through which the request came.
func (b *Batch) SetSource(s op.Source) { b.Source = s }

// Audit writes an entry of the audit log in the batch's record: the entry is durable if and only if the rest is.
func (b *Batch) Audit(entry []byte) {
	start := b.Begin()
	b.Buf = bodies.AppendDocuments(b.Buf, nil, entry)
	b.Builder.End(start, op.Document, 0, 0, 0)
	b.deletes++ // a batch that only deletes stays one with its entry
}

// operators are those operators of a batch's attributes objects whose fate only apply knows, with what the answer says
// of one that was not possible.
type operators struct {
	list  []operator
	names []byte
}

type operator struct {
	ref, index         int
	nameStart, nameEnd int // in names
}

// maxOperators bounds how many operators of a request are reported on: each takes a reference of 16 bits.
const maxOperators = 4096

func (o *operators) reset() { o.list, o.names = o.list[:0], o.names[:0] }

// Operator makes a reference for an operator on the attribute name of the attributes object at index; -1: the request
// has too many operators.
func (b *Batch) Operator(index int, name []byte) (ref int) {
	o := &b.operators
	if len(o.list) == maxOperators {
		return -1
	}
	ref, start := b.expect(), len(o.names)
	o.names = append(o.names, name...)
	o.list = append(o.list, operator{ref, index, start, len(o.names)})
	return ref
}

// UnmetOperator is an operator that could not be applied.
type UnmetOperator struct {
	Index int    // of the attributes object
	Name  string // of the attribute
	Why   effect.Outcome
}

// Unmet lists the operators that could not be applied, after a Commit that returned nil: OutOfRange, TooLarge,
// NotArray, NotNumber or NoMatch.
func (b *Batch) Unmet() (list []UnmetOperator) {
	for _, o := range b.operators.list {
		if why := b.Outcome(o.ref); why >= effect.OutOfRange {
			list = append(list, UnmetOperator{o.index, string(b.operators.names[o.nameStart:o.nameEnd]), why})
		}
	}
	return list
}
