// Package effect describes the effects of a record beyond the partition that applies it: messages to other partitions,
// records that wait, outcomes of its elements, and the future that counts them.
//
// Apply makes them (package machine). A leadership carries them, and tells whoever waits (package replica).
package effect

import (
	"errors"

	"millrace/shard/identity"
)

// ErrUnknown is returned in a cluster when a node was lost while the request was under way: some of it may have been
// done.
var ErrUnknown = errors.New("a node was lost meanwhile; whether the request was done is unknown")

// Effects are what came of a record, or of a message, besides what is visible.
type Effects struct {
	// Deferred are references to records that wait (Replica.Release) in the partitions of their highest byte: ops of
	// the request that need to see all effects of its other ops.
	Deferred []uint64
	// Outcomes are on their way back to the batch that waits for them.
	Outcomes []ReportedOutcome
}

// ReportedOutcome is an Outcome with the reference by which the batch knows it.
type ReportedOutcome struct {
	Ref     uint16
	Outcome Outcome
}

// Outcome says what became of an element of a request whose fate is known only where it is applied.
type Outcome uint8

const (
	// Done: the element took effect, or its effect was there already.
	Done Outcome = iota
	// Nobody: the user that it is about doesn't exist, or no longer exists.
	Nobody
	// Taken: another profile has the alias or external id, and keeps it.
	Taken
	// LabelTaken: the profile has another name under this label.
	LabelTaken
	// Identified: the user already has another external id.
	Identified
	// OutOfRange, TooLarge, NotArray, NotNumber, NoMatch: an operator could not be applied (profile.Impossible).
	OutOfRange
	TooLarge
	NotArray
	NotNumber
	NoMatch
)

// DeferredRef names a deferred record: one that waits in the partition of its first op.
type DeferredRef struct {
	Partition uint8
	Seq       uint64
}

// Number is the reference as one number, the form in which it travels; RefOf is the reverse.
func (r DeferredRef) Number() uint64 { return uint64(r.Partition)<<56 | r.Seq }

// RefOf is the reference that travels as a number.
func RefOf(number uint64) DeferredRef {
	return DeferredRef{identity.Partition(number), number & (1<<56 - 1)}
}

// RefsOf are the references that travel as numbers.
func RefsOf(numbers []uint64) (refs []DeferredRef) {
	for _, number := range numbers {
		refs = append(refs, RefOf(number))
	}
	return refs
}
