package history

import (
	"hash/maphash"
	"slices"

	"github.com/anishathalye/porcupine"
)

// Names is a model of users with external ids and aliases (all of one label) who are tracked, exported, identified and
// merged.
//
// Not every request is one atomic change, and the model is as fine as the contract:
//
//   - The users whom a request names are looked up first; a change that arrives after such a user was merged away
//     reaches the one who was kept. So each change is two steps.
//   - A merge first takes the one user away and then gives the other what the one had. In between, the external id of
//     the merged user is free; the aliases are not, and lead to nobody, or to the other user without what is still on
//     its way. An identify that merges is answered after all that; of a merge only the look-up comes before its answer.
//   - A user who is to get an alias first gets it promised, and then takes it or turns out to have another one. In
//     between the alias is in use, though it leads to nobody.
type Names struct{}

// The parts of an entry, in their order; of a Merge either look-up may be first.
const (
	partFind   = iota // whom A names
	partChange        // the change, with what it answers; of a merge: the one is gone
	partAbsorb        // the other has what the one had; of GiveAlias: the user has taken it, or not
	partFindB         // Merge: whom B names
)

func (Names) steps(number int, e *Entry) []step {
	effect := max(e.Return, e.Effect)
	switch e.Op.Kind {
	case Export, MakeAlias:
		return []step{{e, number, partChange, e.Return}}
	case Identify, GiveAlias:
		return []step{{e, number, partFind, e.Return}, {e, number, partChange, e.Return},
			{e, number, partAbsorb, e.Return}}
	case Merge:
		return []step{{e, number, partFind, e.Return}, {e, number, partFindB, e.Return},
			{e, number, partChange, effect}, {e, number, partAbsorb, effect}}
	}
	return []step{{e, number, partFind, e.Return}, {e, number, partChange, e.Return}}
}

// profile is a user, or what is left of one that was merged away. Its id is the number of the entry that made it,
// whatever order the checker tries, so that equal states compare as equal.
type profile struct {
	id       int32
	into     int32 // merged into that one; 0: is there
	absorbed bool  // the other has got everything
	external int8  // -1: none
	aliases  uint16
	events   uint64
}

// progress is an entry of which some steps have been made and others not.
type progress struct {
	number   int32
	made     uint8 // parts, a bit each
	a, b     int32 // whom it is about; 0: nobody
	sealed   int32 // who was taken away by it; 0: nobody
	promised uint8 // number of the alias that is, plus 1
}

// world is the state of a family. It is never changed, only replaced. Both lists are in order.
type world struct {
	profiles []profile
	progress []progress
}

func (Names) porcupine() porcupine.Model {
	seed := maphash.MakeSeed()
	return porcupine.Model{
		Init: func() any { return &world{} },
		Step: func(state, input, output any) (bool, any) {
			next, ok := state.(*world).step(input.(step), output.(Answer))
			return ok, next
		},
		Equal: func(a, b any) bool {
			x, y := a.(*world), b.(*world)
			return slices.Equal(x.profiles, y.profiles) && slices.Equal(x.progress, y.progress)
		},
		Hash: func(state any) uint64 {
			var h maphash.Hash
			h.SetSeed(seed)
			for _, p := range state.(*world).profiles {
				maphash.WriteComparable(&h, p)
			}
			for _, p := range state.(*world).progress {
				maphash.WriteComparable(&h, p)
			}
			return h.Sum64()
		},
	}
}

// step makes one step, and says whether that is possible in this state.
func (w *world) step(s step, answer Answer) (*world, bool) {
	op, known := s.entry.Op, s.entry.Known()
	switch op.Kind {
	case Export:
		return w, w.find(op.A).answer() == answer || answer.Found && w.early(op.A).answer() == answer
	case MakeAlias:
		if w.isTaken(op.B.Number) {
			return w, !known || answer.Refusal == InUse
		}
		next := w.clone()
		next.make(s.number, op.B)
		return next, !known || answer.Refusal == Taken
	}
	next := w.clone()
	p := next.entry(s.number)
	if p.made&(1<<s.part) != 0 {
		panic("BUG: a step is made twice")
	}
	p.made |= 1 << s.part
	switch s.part {
	case partFind:
		p.a = w.find(op.A).identity()
		return next, true
	case partFindB:
		p.b = w.find(op.B).identity()
		return next, true
	}
	const both = 1<<partFind | 1<<partFindB
	if s.part == partChange && (p.made&(1<<partFind) == 0 || op.Kind == Merge && p.made&both != both) ||
		s.part == partAbsorb && p.made&(1<<partChange) == 0 {
		return nil, false
	}
	now := *p
	if s.part == partAbsorb || op.Kind == Track {
		next.forget(s.number)
	}
	var ok bool
	switch {
	case s.part == partAbsorb && op.Kind == GiveAlias:
		return next, next.take(now, answer, known)
	case s.part == partAbsorb:
		return next, next.absorb(now.sealed)
	}
	switch op.Kind {
	case Track:
		ok = next.track(now, op)
	case GiveAlias:
		ok = next.give(now, op, answer, known)
	case Identify:
		ok = next.identify(now, op)
	case Merge:
		ok = next.merge(now)
	}
	return next, ok
}

// track adds the event to the user whom A named at the look-up, or else the one whom it names now, or else a new user.
func (w *world) track(p progress, op Op) bool {
	var target *profile
	switch {
	case p.a != 0:
		if target = w.now(p.a); target == nil {
			return false // behind what is on its way
		}
	case op.A.Alias && w.isTaken(op.A.Number):
		if target = w.find(op.A); target == nil {
			return false
		}
	default:
		if target = w.find(op.A); target == nil {
			target = w.make(int(p.number), op.A)
		}
	}
	target.events |= 1 << op.Event
	return true
}

// give promises the alias, or refuses it.
func (w *world) give(p progress, op Op, answer Answer, known bool) bool {
	if p.a == 0 {
		return !known || answer.Refusal == Taken
	}
	user := w.now(p.a)
	if user == nil {
		return false
	}
	if holder := w.holder(op.B.Number); holder != nil && w.now(holder.id) == user {
		return !known || answer.Refusal == Taken
	}
	if w.isTaken(op.B.Number) {
		return !known || answer.Refusal == InUse
	}
	if known && answer.Refusal == InUse {
		return false
	}
	w.entry(int(p.number)).promised = op.B.Number + 1
	return true
}

// take gives the user the alias that was promised.
func (w *world) take(p progress, answer Answer, known bool) bool {
	if p.promised == 0 {
		return true
	}
	user := w.now(p.a)
	if user == nil {
		return false
	}
	if user.aliases != 0 {
		return !known || answer.Refusal == Label
	}
	user.aliases |= 1 << (p.promised - 1)
	return !known || answer.Refusal == Taken
}

// identify gives the user the external id, or begins to merge.
func (w *world) identify(p progress, op Op) bool {
	if p.a == 0 {
		return true
	}
	user := w.now(p.a)
	if user == nil {
		return false
	}
	if user.external >= 0 {
		return true
	}
	keeper := w.find(op.B)
	if keeper == nil {
		user.external = int8(op.B.Number)
		return true
	}
	user.into = keeper.id
	w.entry(int(p.number)).sealed = user.id
	return true
}

// merge begins to merge the user whom A named into the one whom B named, or those users who have taken them in since.
func (w *world) merge(p progress) bool {
	if p.a == 0 || p.b == 0 {
		return true
	}
	goes, stays := w.now(p.a), w.now(p.b)
	if goes == nil || stays == nil {
		return false
	}
	if goes != stays {
		goes.into = stays.id
		w.entry(int(p.number)).sealed = goes.id
	}
	return true
}

// absorb completes what merge and identify have begun. The user who takes in is pinned, and so can't be merged away
// before.
func (w *world) absorb(id int32) bool {
	if id == 0 {
		return true
	}
	gone := w.profile(id)
	target := w.now(gone.into)
	if target == nil {
		return false
	}
	target.aliases |= gone.aliases
	target.events |= gone.events
	gone.aliases, gone.events, gone.external, gone.absorbed = 0, 0, -1, true
	return true
}

// find returns the user whom an identifier names for readers, nil when it names nobody.
func (w *world) find(r Ref) *profile {
	for i := range w.profiles {
		p := &w.profiles[i]
		if p.into == 0 && (!r.Alias && p.external == int8(r.Number) || r.Alias && p.aliases&(1<<r.Number) != 0) {
			return p
		}
	}
	return nil
}

// early returns the user to whom an alias leads, also while the alias is still on its way there.
func (w *world) early(r Ref) *profile {
	if !r.Alias {
		return nil
	}
	p := w.holder(r.Number)
	for p != nil && p.into != 0 {
		p = w.profile(p.into)
	}
	return p
}

// holder returns the user who has the alias, or who takes it along while being merged into another one.
func (w *world) holder(alias uint8) *profile {
	for i := range w.profiles {
		if p := &w.profiles[i]; p.aliases&(1<<alias) != 0 {
			return p
		}
	}
	return nil
}

// isTaken says whether somebody has the alias, or was promised it.
func (w *world) isTaken(alias uint8) bool {
	return w.holder(alias) != nil ||
		slices.ContainsFunc(w.progress, func(p progress) bool { return p.promised == alias+1 })
}

// now returns who a user has become: itself, or who has taken it in; nil while something of it is on its way.
func (w *world) now(id int32) *profile {
	for {
		p := w.profile(id)
		if p.into == 0 {
			return p
		}
		if !p.absorbed {
			return nil
		}
		id = p.into
	}
}

func (w *world) profile(id int32) *profile {
	for i := range w.profiles {
		if w.profiles[i].id == id {
			return &w.profiles[i]
		}
	}
	panic("BUG: no such profile")
}

// make adds a user who has one name. Pointers into profiles are invalid afterwards.
func (w *world) make(number int, name Ref) *profile {
	p := profile{id: int32(number), external: -1}
	if name.Alias {
		p.aliases = 1 << name.Number
	} else {
		p.external = int8(name.Number)
	}
	at, _ := slices.BinarySearchFunc(w.profiles, p.id, func(p profile, id int32) int { return int(p.id - id) })
	w.profiles = slices.Insert(w.profiles, at, p)
	return &w.profiles[at]
}

// entry returns an entry's progress, and makes it when there is none.
func (w *world) entry(number int) *progress {
	at, found := slices.BinarySearchFunc(w.progress, int32(number),
		func(p progress, n int32) int { return int(p.number - n) })
	if !found {
		w.progress = slices.Insert(w.progress, at, progress{number: int32(number)})
	}
	return &w.progress[at]
}

func (w *world) forget(number int) {
	w.progress = slices.DeleteFunc(w.progress, func(p progress) bool { return p.number == int32(number) })
}

func (w *world) clone() *world {
	return &world{slices.Clone(w.profiles), slices.Clone(w.progress)}
}

func (p *profile) identity() int32 {
	if p == nil {
		return 0
	}
	return p.id
}

// answer is what an export of the user shows.
func (p *profile) answer() Answer {
	if p == nil {
		return Answer{}
	}
	return Answer{Found: true, External: p.external, Aliases: p.aliases, Events: p.events}
}
