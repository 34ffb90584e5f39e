package history

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strings"
)

// Kind is the kind of a request.
type Kind uint8

const (
	Track     Kind = iota // an event of its own number to whom A names; who is nobody yet is made
	Export                // whom A names
	MakeAlias             // a user of alias B alone
	GiveAlias             // alias B to whom external id A names
	Identify              // whom alias A names gets external id B, or is merged into who has it
	Merge                 // whom A names into whom B names, some time after the answer
	Set                   // value Value through identifier A
	Get                   // through identifier A
)

// Ref is an identifier: the family's external id or alias of that number.
type Ref struct {
	Alias  bool
	Number uint8
}

// MaxEvents bounds the events of a family.
const MaxEvents = 64

func (r Ref) String() string {
	if r.Alias {
		return fmt.Sprintf("a%d", r.Number)
	}
	return fmt.Sprintf("x%d", r.Number)
}

// Op is a request.
type Op struct {
	Kind  Kind
	A, B  Ref
	Event uint8  // Track
	Value string // Set
}

func (o Op) reads() bool { return o.Kind == Export || o.Kind == Get }

func (o Op) String() string {
	switch o.Kind {
	case Track:
		return fmt.Sprintf("track e%d to %v", o.Event, o.A)
	case Export:
		return fmt.Sprintf("export %v", o.A)
	case MakeAlias:
		return fmt.Sprintf("make %v", o.B)
	case GiveAlias:
		return fmt.Sprintf("give %v to %v", o.B, o.A)
	case Identify:
		return fmt.Sprintf("identify %v as %v", o.A, o.B)
	case Merge:
		return fmt.Sprintf("merge %v into %v", o.A, o.B)
	case Set:
		return fmt.Sprintf("set %q through %v", o.Value, o.A)
	case Get:
		return fmt.Sprintf("get through %v", o.A)
	}
	return "?"
}

// Refusal is why an element was refused.
type Refusal uint8

const (
	Taken Refusal = iota // it was not
	InUse                // another user has the alias
	Label                // the user has an alias under this label already
)

// Answer is the answer to a request, as far as the models look at it.
type Answer struct {
	Refusal  Refusal
	Found    bool   // Export: there is such a user, with what follows
	External int8   // number of the external id, -1: none
	Aliases  uint16 // a bit for each
	Events   uint64 // a bit for each
	Value    string // Get
}

func (a Answer) String() string {
	switch {
	case a.Refusal == InUse:
		return "refused: in use"
	case a.Refusal == Label:
		return "refused: has another"
	case a.Found:
		parts := []string{}
		if a.External >= 0 {
			parts = append(parts, fmt.Sprintf("x%d", a.External))
		}
		for left := uint64(a.Aliases); left != 0; left &= left - 1 {
			parts = append(parts, fmt.Sprintf("a%d", bits.TrailingZeros64(left)))
		}
		for left := a.Events; left != 0; left &= left - 1 {
			parts = append(parts, fmt.Sprintf("e%d", bits.TrailingZeros64(left)))
		}
		return "{" + strings.Join(parts, " ") + "}"
	case a.Value != "":
		return fmt.Sprintf("%q", a.Value)
	}
	return "done, or nobody"
}

// RandomOp makes a random request of Names with so many external ids and aliases. The caller numbers the events.
func RandomOp(r *rand.Rand, externals, aliases int) Op {
	external, alias := Ref{Number: uint8(r.IntN(externals))}, Ref{Alias: true, Number: uint8(r.IntN(aliases))}
	anybody := func() Ref {
		if r.IntN(2) == 0 {
			return Ref{Number: uint8(r.IntN(externals))}
		}
		return Ref{Alias: true, Number: uint8(r.IntN(aliases))}
	}
	switch n := r.IntN(100); {
	case n < 35:
		return Op{Kind: Track, A: anybody()}
	case n < 70:
		return Op{Kind: Export, A: anybody()}
	case n < 77:
		return Op{Kind: MakeAlias, B: alias}
	case n < 85:
		return Op{Kind: GiveAlias, A: external, B: alias}
	case n < 93:
		return Op{Kind: Identify, A: alias, B: external}
	}
	return Op{Kind: Merge, A: anybody(), B: anybody()}
}
