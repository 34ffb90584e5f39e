package profile

import (
	"cmp"
	"encoding/binary"

	"millrace/shard/op"
)

// The state that holds for a user (decisions.md D5) is joined from two registers: what the user has said (in the
// profile), and what the user's present address has (in the directory row, which is also written by any change for a
// user of the address). So a profile knows since when it has had its email and its phone. While the states of an
// address that it has left are on their way, it also knows that it has left the address.

// Joined is when the profile got its email or phone (Unix µs); 0 without one.
func Joined(blob []byte, id op.IDKind) int64 {
	s := findPrefix(blob, tagJoined, []byte{byte(id)})
	if s.none() {
		return 0
	}
	return int64(binary.LittleEndian.Uint64(blob[s.start+1:]))
}

// SetJoined sets when the profile got its email or phone; 0: it has no such address now.
func (e *Editor) SetJoined(blob []byte, id op.IDKind, at int64) []byte {
	s := findPrefix(blob, tagJoined, []byte{byte(id)})
	if at == 0 {
		return e.remove(blob, s)
	}
	b, p := e.resize(blob, s, tagJoined, joinedBytes)
	b[p] = byte(id)
	binary.LittleEndian.PutUint64(b[p+1:], uint64(at))
	return b
}

// Joint is the state that holds for a user who has said own, or nothing, and who since joined has had an address with a
// state of its own: one of the two. A change that the address has heard since then counts when it is later than own.
// What the address had before was not meant for the user, nor own for the address: then the state that allows less
// counts.
func Joint(own StateChange, said bool, address StateChange, joined int64) StateChange {
	less := func(c StateChange) int { // how little the state allows
		switch {
		case c.Kind == StateGroup && !c.On, c.Value == "unsubscribed":
			return 3
		case c.Kind == StateGroup, c.Value == "subscribed":
			return 2
		case c.Value != "":
			return 1
		}
		return 0
	}
	switch {
	case !said:
		return address
	case address.Changed > joined && !own.Later(address):
		return address
	case address.Changed <= joined && cmp.Compare(less(address), less(own)) > 0:
		return address
	}
	return own
}

// Join gives a copy of a profile the states that hold for it by those of its email or phone, so that everything that
// reads a profile shows them: groups, email_subscribe, and of an email's marks the hard bounce and
// marked_email_as_spam_at.
func (e *Editor) Join(blob []byte, id op.IDKind, address []StateChange) []byte {
	joined, own := Joined(blob, id), IndexStates(AppendStates(nil, blob))
	var held []StateChange
	for _, c := range address {
		switch c.Kind {
		case StateBounce:
			if c.On {
				blob = e.SetState(blob, c)
			}
		case StateSpam:
			if c.On {
				e.tmp = op.AppendTime(e.tmp[:0], floorDiv(c.Changed, 1000))
				blob = e.SetAttr(blob, op.AttrMarkedEmailAsSpamAt, e.tmp)
			} else if _, own := SpamMark(blob); own && c.Changed > max(joined, spamSet(blob)) {
				blob = e.removeAttr(blob, op.AttrMarkedEmailAsSpamAt)
			}
		default:
			said := own.Find(c.State)
			if said == nil {
				held = append(held, c)
			} else if c = Joint(*said, true, c, joined); c != *said {
				held = append(held, c)
			}
		}
	}
	return e.SetStates(blob, held)
}

// A leave is a field from the moment at which a profile leaves an address until it knows what held for it there:
//
//	id u8 | since i64 | until i64 | answered u8 | states of groups that the address had
//
// Answers may come in another order than the leaves. What held at an address depends on what was kept of the one
// before, so they are settled in the order of the leaves.

// AddLeave notes that the profile has left its email or phone, at until.
func (e *Editor) AddLeave(blob []byte, id op.IDKind, until int64) []byte {
	since := Joined(blob, id)
	b, p := e.resize(blob, span{}, tagLeave, leaveBytes)
	b[p], b[p+17] = byte(id), 0
	binary.LittleEndian.PutUint64(b[p+1:], uint64(since))
	binary.LittleEndian.PutUint64(b[p+9:], uint64(until))
	return b
}

// Settle takes in the states of an address that the profile has left. It makes what held for the profile there the
// profile's own, unless the profile has said something when it left or since, and once no answer for an earlier leave
// is on its way. An unknown leave changes nothing: the profile was imported anew meanwhile.
func (e *Editor) Settle(blob []byte, id op.IDKind, until int64, address []StateChange) []byte {
	for i := fieldsStart(blob); i < len(blob); {
		tag, start, end := fieldAt(blob, i)
		if p := blob[start:end]; tag == tagLeave && p[0] == byte(id) && leftAt(p) == until && p[17] == 0 {
			since := int64(binary.LittleEndian.Uint64(p[1:]))
			blob = e.answer(blob, span{i, start, end}, address)
			blob = e.forgetSpam(blob, since, until, address)
			break
		}
		i = end
	}
	for {
		s := find(blob, tagLeave)
		if s.none() || blob[s.start+17] == 0 {
			return blob
		}
		leave := append([]byte(nil), blob[s.start:s.end]...)
		blob = e.takeAlong(e.remove(blob, s), leave)
	}
}

// forgetSpam removes the profile's own spam mark when the address's was taken back while the profile was there, so that
// a mark that has no longer been shown since does not show again at another address.
func (e *Editor) forgetSpam(blob []byte, since, until int64, address []StateChange) []byte {
	for _, c := range address {
		if c.Kind != StateSpam || c.On || c.Changed >= until {
			continue
		}
		if _, own := SpamMark(blob); own && c.Changed > max(since, spamSet(blob)) {
			return e.removeAttr(blob, op.AttrMarkedEmailAsSpamAt)
		}
	}
	return blob
}

func leftAt(leave []byte) int64 { return int64(binary.LittleEndian.Uint64(leave[9:])) }

// answer stores the states of groups that an address had in the leave at s.
func (e *Editor) answer(blob []byte, s span, address []StateChange) []byte {
	groups := 0
	for _, c := range address {
		if c.Kind == StateGroup {
			groups++
		}
	}
	b, p := e.resize(blob, s, tagLeave, leaveBytes+groups*groupBytes)
	b[p+17] = 1
	p += leaveBytes
	for _, c := range address {
		if c.Kind == StateGroup {
			putGroup(b[p:], c)
			p += groupBytes
		}
	}
	return b
}

// takeAlong makes what held for a profile at an address its own. What the address heard after the profile had left it
// may allow less, but not more than what was said later elsewhere.
func (e *Editor) takeAlong(blob, leave []byte) []byte {
	since, until := int64(binary.LittleEndian.Uint64(leave[1:])), leftAt(leave)
	own := IndexStates(AppendStates(nil, blob))
	var kept []StateChange
	for p := leave[leaveBytes:]; len(p) > 0; p = p[groupBytes:] {
		c := splitGroup(p[:groupBytes])
		if said := own.Find(c.State); said != nil && (said.Changed >= until || Joint(*said, true, c, since) != c) {
			continue
		}
		if c.On {
			c.Changed = min(c.Changed, until)
		}
		kept = append(kept, c)
	}
	return e.SetStates(blob, kept)
}
