package history

import "github.com/anishathalye/porcupine"

// Register is a model of a value that is Set and read with Get.
//
// When it is kept under several identifiers (the subscription state of an address and of the users who share it), a
// change reaches one after the other until it is answered. What is promised is that each of them shows, through
// whatever it is read, what was acknowledged; so the reads through one identifier are judged with all changes. Through
// names it.
type Register struct {
	Initial string
	Through *Ref // nil: one value, whatever it is read through
}

func (m Register) steps(number int, e *Entry) []step {
	if e.Op.Kind == Get && m.Through != nil && e.Op.A != *m.Through {
		return nil
	}
	return []step{{e, number, 0, e.Return}}
}

func (m Register) porcupine() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return m.Initial },
		Step: func(state, input, output any) (bool, any) {
			s := input.(step)
			if s.entry.Op.Kind == Get {
				return state.(string) == output.(Answer).Value, state
			}
			return true, s.entry.Op.Value
		},
	}
}
