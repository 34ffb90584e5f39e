package shard

import (
	"millrace/shard/op"
	"millrace/shard/profile"
)

// State is a subscription state to be set. Zero fields but those of its Kind are ignored.
type State = profile.State

// StateKind is what a State is of.
type StateKind = profile.StateKind

const (
	EmailState = profile.StateEmail  // email_subscribe
	GroupState = profile.StateGroup  // membership of a subscription group
	Bounce     = profile.StateBounce // hard bounce: the address is on the block list (service.md 4.8)
	Spam       = profile.StateSpam   // marked_email_as_spam_at
)

// SetUserStates sets states of an existing user, and of the addresses that the user has, and by that of all who share them (decisions.md D5, D9). An unknown
// user: no effect. For op.SvcID number names the user, else the key. Bounce and Spam are marks of an email: of a user without one they have no effect. A
// dummy user's states can be set too: whoever unsubscribes shall be.
func (b *Batch) SetUserStates(id op.IDKind, key []byte, number uint64, states ...State) {
	if len(states) == 0 {
		return
	}
	start := b.Begin()
	groups := b.keep[:0]
	for _, s := range states {
		switch s.Kind {
		case EmailState:
			b.Buf = append(b.Buf, op.AttrEmailSubscribe)
			if s.Value == "" {
				b.Buf = append(b.Buf, byte(op.Null))
			} else {
				b.Buf = op.AppendString(b.Buf, []byte(s.Value))
			}
		case Bounce:
			b.Buf = op.AppendBool(append(b.Buf, op.AttrHardBounce), s.On)
		case Spam:
			b.Buf = op.AppendBool(append(b.Buf, op.AttrSpam), s.On)
		case GroupState:
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
		b.Buf = appendKey(b.Buf, id, key)
		keyLen = len(b.Buf) - at
		number = b.engine.hasher.Number(b.workspace, id, b.Buf[at:])
	}
	b.Builder.End(start, op.Attributes, op.MakeFlags(op.UpdateOnly|op.Contact, id), keyLen, number)
	b.count(start, op.Contact, id)
}

// SetAddressStates sets states of an address, op.Email or op.Phone (key: see op.IDKind), whether or not a user has it: they hold for all who have it now,
// and for who gets it later as decisions.md D5 says. States that addresses of this kind don't have are left out.
func (b *Batch) SetAddressStates(id op.IDKind, key []byte, states ...State) {
	start := b.Begin()
	b.Buf = append(b.Buf, 0, 0, 0, 0, 0, 0, 0, 0) // from no profile
	var changes []stateChange
	for _, s := range states {
		if s.ForAddress(id) {
			changes = setLast(changes, stateChange{State: s})
		}
	}
	if len(changes) == 0 {
		b.Abort(start)
		return
	}
	b.Buf = appendStates(b.Buf, changes)
	at := len(b.Buf)
	b.Buf = appendKey(b.Buf, id, key)
	home := b.engine.hasher.Number(b.workspace, id, b.Buf[at:])
	b.Builder.End(start, op.RowState, op.MakeFlags(0, id), len(b.Buf)-at, home)
	b.addressed = true
}

// appendKey appends the key of an identifier in its canonical form.
func appendKey(dst []byte, id op.IDKind, key []byte) []byte {
	if id == op.Email {
		return op.AppendEmailKey(dst, key)
	}
	return append(dst, key...)
}

// SetSource says through which endpoint the request came.
func (b *Batch) SetSource(s op.Source) { b.Source = s }

// View calls f for each user that an identifier names, in the order of Find, without a copy: blob is lent for the call, in which f must not call the
// engine. Package profile reads it; of states it has what the user has said himself alone (HeldState has what holds). For op.SvcID key is the svc_id as text.
func (e *Engine) View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error {
	if id == op.SvcID {
		number, ok := e.hasher.ParseSvcID(workspace, key)
		if !ok {
			return nil
		}
		return e.viewUser(workspace, number, f)
	}
	var canonical [maxStackKey]byte
	if id == op.Email {
		key = op.AppendEmailKey(canonical[:0], key)
	}
	home := e.hasher.Number(workspace, id, key)
	if id == op.ExternalID { // in nearly all cases the profile itself
		number, l, err := e.lendHome(home, workspace, id, key)
		if err != nil || l.blob == nil {
			return err
		}
		if profile.Kind(l.blob) == profile.KindUser {
			l.show(number, f)
			return nil
		}
		l.back()
	}
	var found [8]candidate
	all, err := e.candidates(found[:0], home, workspace, id, key)
	for i := 0; i < len(all) && err == nil; i++ {
		err = e.viewNamed(workspace, id, key, all[i].number, len(all) == 1, f)
	}
	return err
}

// maxStackKey is how long a key may be that needs no memory of its own.
const maxStackKey = 320

func (e *Engine) viewUser(workspace uint32, number uint64, f func(number uint64, blob []byte)) error {
	l, err := e.lend(number)
	if err != nil || l.blob == nil {
		return err
	}
	if profile.Kind(l.blob) != profile.KindUser || profile.Workspace(l.blob) != workspace {
		l.back()
		return nil
	}
	l.show(number, f)
	return nil
}

// ViewAddress calls f with the states of an address, when it has any or has a user; as View. Readers of states in package profile work on it
// (GroupState, ContactState, HardBounce, SpamMark).
func (e *Engine) ViewAddress(workspace uint32, id op.IDKind, key []byte, f func(blob []byte)) error {
	var canonical [maxStackKey]byte
	if id == op.Email {
		key = op.AppendEmailKey(canonical[:0], key)
	}
	_, l, err := e.lendHome(e.hasher.Number(workspace, id, key), workspace, id, key)
	if err != nil || l.blob == nil {
		return err
	}
	defer l.back()
	if profile.Kind(l.blob) == kindRow {
		f(l.blob)
	}
	return nil
}
