// Package effect is what comes of a record beyond the partition that applies it: messages to others, records that wait,
// outcomes of its elements, and the future that counts them.
//
// Apply makes them (package machine), a leadership carries them and tells who waits (package replica).
package effect

import (
	"errors"

	"millrace/shard/identity"
)

// ErrUnknown is returned in a cluster when a node was lost while the request was under way: some of it may have been
// done.
var ErrUnknown = errors.New("a node was lost meanwhile; whether the request was done is unknown")

// Effects are what has come of a record, or of a message, besides what is visible.
type Effects struct {
	// Deferred are references to records that wait (Replica.Release) in the partitions of their highest byte: ops of
	// the request that need to see all of the others' effects.
	Deferred []uint64
	// Outcomes are on their way back to the batch that wants them.
	Outcomes []ReportedOutcome
}

// ReportedOutcome is an Outcome by the reference that the batch knows it by.
type ReportedOutcome struct {
	Ref     uint16
	Outcome Outcome
}

// Outcome says what became of an element of a request whose fate is known only where it is applied.
type Outcome uint8

const (
	// Done: it took effect, or was so already.
	Done Outcome = iota
	// Nobody: the user that it is about is not there, or not any more.
	Nobody
	// Taken: the alias or external id is another profile's, and stays there.
	Taken
	// LabelTaken: the profile has another name under this label.
	LabelTaken
	// Identified: the user has an external id already, another one.
	Identified
	// OutOfRange, TooLarge, NotArray, NotNumber: an operator was not possible (profile.Impossible).
	OutOfRange
	TooLarge
	NotArray
	NotNumber
)

// DeferredRef names a deferred record: one that waits in the partition of its first op.
type DeferredRef struct {
	Partition uint8
	Seq       uint64
}

// Number is the reference in one number, as it travels; RefOf is the reverse.
func (r DeferredRef) Number() uint64 { return uint64(r.Partition)<<56 | r.Seq }

// RefOf is the reference that travels as a number.
func RefOf(number uint64) DeferredRef {
	return DeferredRef{identity.Partition(number), number & (1<<56 - 1)}
}

// RefsOf are RefOf of several.
func RefsOf(numbers []uint64) (refs []DeferredRef) {
	for _, number := range numbers {
		refs = append(refs, RefOf(number))
	}
	return refs
}
