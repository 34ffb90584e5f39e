package shard

// operators are those of a batch's attributes objects whose fate only apply knows, with what the answer needs to tell
// of one.
type operators struct {
	list  []operator
	names []byte
}

type operator struct {
	ref, index         int
	nameStart, nameEnd int // in names
}

// maxOperators bounds how many operators of a request are told of: each costs a reference of 16 bits.
const maxOperators = 4096

func (o *operators) reset() { o.list, o.names = o.list[:0], o.names[:0] }

// Operator makes a reference for an operator on the attribute name of the attributes object at index; -1: there are too
// many.
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

// UnmetOperator is an operator that was not possible.
type UnmetOperator struct {
	Index int    // of the attributes object
	Name  string // of the attribute
	Why   Outcome
}

// Unmet lists the operators that were not possible, after a Commit that returned nil: OutOfRange, TooLarge or NotArray.
func (b *Batch) Unmet() (list []UnmetOperator) {
	for _, o := range b.operators.list {
		if why := b.Outcome(o.ref); why >= OutOfRange {
			list = append(list, UnmetOperator{o.index, string(b.operators.names[o.nameStart:o.nameEnd]), why})
		}
	}
	return list
}
