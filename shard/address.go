package shard

import (
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
