package shard

import "millrace/shard/op"

// StateChange is one entry of the trail of consent (decisions.md D5): what became of a state, when, by whom, through what.
type StateChange struct {
	State
	Changed int64     // Unix µs
	Actor   uint32    // number of the API key, 0 for the server
	Source  op.Source // the endpoint
}

// History is the trail of a user's states, oldest first, those of profiles that were merged into it included.
func (e *Engine) History(workspace uint32, number uint64) ([]StateChange, error) {
	panic("not built")
}

// AddressHistory is the trail of an address's states, oldest first.
func (e *Engine) AddressHistory(workspace uint32, id op.IDKind, key []byte) ([]StateChange, error) {
	panic("not built")
}
