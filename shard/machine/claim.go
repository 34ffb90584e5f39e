package machine

import (
	"bytes"
	"encoding/binary"

	"millrace/shard/arena"
	"millrace/shard/bodies"
	"millrace/shard/books"
	"millrace/shard/effect"
	"millrace/shard/entries"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Names (aliases and external ids) are unique: each leads to one profile at most. The name's own partition, where its
// directory row lies, or the profile that was made with it, decides who gets it:
//
//	Claim    to the name        when nobody has it, the row leads to the profile from now on; the profile is told,
//	                            also when the row leads to another one
//	Grant    to the profile     it takes the name, or says why not
//	RowRemove, RowMove          to the name: the profile doesn't take it; or it has been merged into another one,
//	                            which does
//
// So between Claim and Grant a row is a promise, and the profile's word counts: whoever comes by the name, op or
// reader, asks the profile (isNamed). A profile tells the row of each name that it loses, once, so a row that leads to
// a profile without the name is about to hear of it.
//
// The outcome of a claim is known where the claim ends, and reported through the future.

// claim decides who gets a name.
func (w *Worker) claim(p *Partition, o op.Op) error {
	c, err := bodies.ParseClaim(o.Body())
	if err != nil {
		return err
	}
	id := o.Flags().ID()
	s, row, err := w.findHome(p, o.Number(), w.applying.rec.Workspace, id, o.Key())
	if err != nil {
		return err
	}
	var holder uint64
	if s != nil {
		if b := w.entryOf(s); profile.Kind(b) == profile.KindUser {
			holder = p.Number(s)
		} else if m := entries.Members(b); len(m) > 0 {
			holder = entries.Member(m, 0)
		}
	}
	switch {
	case c.Profile == 0 && c.Kind != bodies.ClaimAlias:
		w.applying.future.Report(c.Ref, effect.Nobody)
		return nil
	case holder == 0 && c.Profile == 0:
		return w.createNamed(p, row, o, c)
	case holder == 0:
		if err := w.addToRow(p, row, id, o.Key(), c.Profile); err != nil {
			return err
		}
	case holder == c.Profile:
		c.Row = bodies.RowConfirms
	case c.Kind == bodies.ClaimIdentify:
		w.mergeInto(p, o, c, holder)
		return nil
	case c.Profile == 0:
		w.applying.future.Report(c.Ref, effect.Taken)
		return nil
	default:
		c.Row = bodies.RowDenies
	}
	w.send(p, op.Grant, op.MakeFlags(0, id), c.Profile, c.Append(nil), o.Key(), false)
	return nil
}

// createNamed makes an alias-only user.
func (w *Worker) createNamed(p *Partition, row uint64, o op.Op, c bodies.Claim) error {
	number, err := w.createBeside(p, row, o)
	if err != nil {
		return err
	}
	w.applying.future.Report(c.Ref, effect.Done)
	return w.addToRow(p, row, o.Flags().ID(), o.Key(), number)
}

// grant makes the profile take the name that the directory has promised it, or say why not.
func (w *Worker) grant(p *Partition, o op.Op) error {
	c, err := bodies.ParseClaim(o.Body())
	if err != nil {
		return err
	}
	rec, id, key := w.applying.rec, o.Flags().ID(), o.Key()
	s, err := w.lookup(p, o.Number())
	if err != nil {
		return err
	}
	var blob []byte
	if s != nil {
		blob = w.entryOf(s)
		// The profile that this one has been merged into gets the name.
		if to, ok := entries.Forward(blob); ok && profile.Workspace(blob) == rec.Workspace {
			w.send(p, op.Grant, o.Flags(), to, o.Body(), key, false)
			return nil
		}
	}
	isUser := blob != nil && profile.Kind(blob) == profile.KindUser && profile.Workspace(blob) == rec.Workspace
	has := isUser && w.isNamed(s, id, key)
	// The profile has lost the name since, and has told the row, which is free by the time the claim comes to it.
	if isUser && c.Row == bodies.RowConfirms && !has {
		again := bodies.Claim{Profile: p.Number(s), Kind: c.Kind, Mode: c.Mode, Ref: c.Ref, Old: c.Old}
		w.send(p, op.Claim, o.Flags(), w.m.hasher.Number(rec.Workspace, id, key), again.Append(nil), key, false)
		return nil
	}
	outcome := effect.Nobody
	switch {
	case c.Row == bodies.RowDenies && !has: // also when the claimant is gone
		outcome = effect.Taken
	case isUser:
		if outcome, err = w.take(p, s, id, key, c, has); err != nil {
			return err
		}
	}
	w.applying.future.Report(c.Ref, outcome)
	switch {
	case c.Row != bodies.RowPromises:
	case outcome != effect.Done && !has:
		w.tellRow(p, op.RowRemove, 0, id, key, c.Profile, nil)
	case c.Profile != o.Number():
		w.moveRow(p, id, key, c.Profile, o.Number())
	}
	return nil
}

// take changes the profile in s, which may have the name already, as a claim wants, if possible.
func (w *Worker) take(
	p *Partition, s *arena.Slot, id op.IDKind, key []byte, c bodies.Claim, has bool,
) (outcome effect.Outcome, err error) {
	if !has && !p.hasRoom(w.entryOf(s), p.Number(s), len(key)) {
		entries.Overgrown.Inc()
		return effect.Nobody, nil
	}
	blob := w.open(s)
	out, outcome, err := w.named(blob, key, c, has)
	if out == nil {
		w.ed.Close(w.block(s), blob)
		return outcome, err
	}
	// Updated now, not when the claim was made: until now, choices among the users of an address were made without it.
	profile.SetUpdated(out, max(profile.Updated(out), w.rec.Stamp))
	if err := w.close(s, out); err != nil {
		return outcome, err
	}
	switch c.Kind {
	case bodies.ClaimAliasRename:
		w.tellRow(p, op.RowRemove, 0, id, c.Old, p.Number(s), nil)
	case bodies.ClaimIdentify:
		w.noteIdentify(p, p.Number(s), key)
	}
	return outcome, nil
}

// named is what the profile in hand becomes when it takes a name as a claim wants; nil: it stays as it is.
func (w *Worker) named(blob, key []byte, c bodies.Claim, has bool) (out []byte, outcome effect.Outcome, err error) {
	switch c.Kind {
	case bodies.ClaimAlias:
		label, name, ok := op.SplitAliasKey(key)
		if has || !ok {
			return nil, effect.Done, nil
		}
		if out, ok = w.ed.AddAlias(blob, label, name); !ok {
			return nil, effect.LabelTaken, nil
		}
	case bodies.ClaimAliasRename:
		label, old, ok := op.SplitAliasKey(c.Old)
		if !ok || !w.ed.IsNamed(blob, op.Alias, c.Old) {
			return nil, effect.Nobody, nil
		}
		_, name, ok := op.SplitAliasKey(key)
		switch {
		case !ok || bytes.Equal(c.Old, key):
			return nil, effect.Done, nil
		case has: // a merge has left the profile several names under the label
			out = w.ed.RemoveAlias(blob, label, old)
		default:
			out, _ = w.ed.RenameAlias(blob, label, old, name)
		}
	case bodies.ClaimIdentify:
		if has {
			return nil, effect.Done, nil
		}
		if profile.Identified(blob) {
			return nil, effect.Identified, nil
		}
		out = w.ed.SetExternalID(blob, key)
	case bodies.ClaimExternalID:
		if len(c.Old) == 0 || !bytes.Equal(profile.ExternalID(blob), c.Old) {
			return nil, effect.Nobody, nil
		}
		if bytes.Equal(c.Old, key) {
			return nil, effect.Done, nil
		}
		out = w.ed.SetExternalID(blob, key)
	default:
		return nil, effect.Nobody, op.ErrMalformed
	}
	return out, effect.Done, nil
}

// unname takes a deprecated external id away.
func (w *Worker) unname(p *Partition, o op.Op) error {
	if len(o.Body()) < 2 {
		return op.ErrMalformed
	}
	outcome := effect.Nobody
	s, isUser, err := w.entryAt(p, o.Number())
	if isUser {
		outcome, err = w.loseName(p, s, o.Key())
	}
	if err != nil {
		return err
	}
	w.applying.future.Report(binary.LittleEndian.Uint16(o.Body()), outcome)
	return nil
}

// loseName takes a deprecated external id away from the profile in s, if the profile has it.
func (w *Worker) loseName(p *Partition, s *arena.Slot, key []byte) (effect.Outcome, error) {
	blob := w.open(s)
	since, _ := profile.Born(blob)
	out, wasHome, ok := w.ed.RemoveDeprecatedID(blob, key)
	if !ok {
		w.ed.Close(w.block(s), blob)
		return effect.Nobody, nil
	}
	if wasHome { // the next user with this id finds nothing here any more, not even in the event log
		home := w.m.hasher.Number(w.applying.rec.Workspace, op.ExternalID, key)
		w.setApart(p, home, books.ApartElsewhere)
		out = w.ed.AddFormer(out, profile.Former{Home: home, Since: since, Until: w.place()})
	} else {
		w.tellRow(p, op.RowRemove, 0, op.ExternalID, key, p.Number(s), nil)
	}
	profile.SetUpdated(out, max(profile.Updated(out), w.rec.Stamp))
	return effect.Done, w.close(s, out)
}

// moveMember makes a name lead to another profile. A name that doesn't lead to the first profile any more stays as it
// is.
func (w *Worker) moveMember(p *Partition, o op.Op) error {
	if len(o.Body()) < 16 {
		return op.ErrMalformed
	}
	s, _, err := w.findHome(p, o.Number(), w.applying.rec.Workspace, o.Flags().ID(), o.Key())
	if s == nil || err != nil || profile.Kind(w.entryOf(s)) != entries.KindRow {
		return err
	}
	from, to := binary.LittleEndian.Uint64(o.Body()), binary.LittleEndian.Uint64(o.Body()[8:])
	m := append(w.members[:0], entries.Members(w.entryOf(s))...)
	at, has := -1, false
	for i := 0; i < len(m)/8; i++ {
		switch entries.Member(m, i) {
		case from:
			at = i
		case to:
			has = true
		}
	}
	switch {
	case at < 0:
		return nil
	case has:
		m = append(m[:8*at], m[8*at+8:]...)
	default:
		binary.LittleEndian.PutUint64(m[8*at:], to)
	}
	return w.setMembers(s, m)
}

// hasRoom says whether the profile at number may grow by an op of n bytes.
func (p *Partition) hasRoom(blob []byte, number uint64, n int) bool {
	need := len(blob) + 2*n + entries.ProfileSlack
	return need <= arena.MaxEntryBytes && need+p.reserved(number) <= arena.MaxEntryBytes
}
