package shard

import "millrace/shard/op"

// State is a subscription state to be set. Zero fields but those of its Kind are ignored.
type State struct {
	Kind StateKind
	// EmailState: opted_in, subscribed, unsubscribed; empty: removed.
	Value string
	// GroupState.
	Group   [16]byte
	Channel byte // op.ChannelEmail, …
	// GroupState: subscribed; Bounce, Spam: marked.
	On bool
}

// StateKind is what a State is of.
type StateKind uint8

const (
	EmailState StateKind = 1 + iota // email_subscribe
	GroupState                      // membership of a subscription group
	Bounce                          // hard bounce: the address is on the block list (service.md 4.8)
	Spam                            // marked_email_as_spam_at
)

// SetUserStates sets states of an existing user, and by that of all who share the user's address (decisions.md D5, D9). An unknown user: no effect. For
// op.SvcID number names the user, else the key.
func (b *Batch) SetUserStates(id op.IDKind, key []byte, number uint64, states ...State) {
	panic("not built")
}

// SetAddressStates sets states of an address, op.Email or op.Phone, whether or not a user has it: all who have it now, and who gets it later, have
// them too (decisions.md D5).
func (b *Batch) SetAddressStates(id op.IDKind, key []byte, states ...State) { panic("not built") }

// SetSource says through which endpoint the request came.
func (b *Batch) SetSource(s op.Source) { b.Source = s }

// View calls f for each user that an identifier names, in the order of Find, without a copy: blob is lent for the call, in which f must not call the
// engine. Package profile reads it.
func (e *Engine) View(workspace uint32, id op.IDKind, key []byte, f func(number uint64, blob []byte)) error {
	panic("not built")
}

// ViewAddress calls f with the states of an address, when it has any or has a user; as View. profile.GroupState, ContactState, HardBounce read them.
func (e *Engine) ViewAddress(workspace uint32, id op.IDKind, key []byte, f func(blob []byte)) error {
	panic("not built")
}

// BlockedAddress is an entry of the block list: an email that is marked as a hard bounce.
type BlockedAddress struct {
	Email  string // as the directory has it: lower-cased
	Since  int64  // Unix µs
	Actor  uint32 // number of the API key
	Source op.Source
}

// BlockedAddresses lists a workspace's block list in the engine's own order: at most limit entries behind cursor ("" for the first), and the cursor for
// those that follow, "" at the end.
func (e *Engine) BlockedAddresses(workspace uint32, cursor string, limit int) (list []BlockedAddress, next string, err error) {
	panic("not built")
}
