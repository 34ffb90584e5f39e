package shard

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/replica"
)

// This part of the model has requests that name one user in many ways, and requests with an Idempotency-Key that are
// sent again after a fault.

// manyNamed are the identifiers of a user of the model.
type manyNamed []modelOp

// anyone is everything that names some user, nil when there is no user.
func (m *model) anyone(t *testing.T, r *rand.Rand, e *Engine) (all manyNamed) {
	if len(m.users) == 0 || r.IntN(3) == 0 {
		return nil
	}
	u := m.users[r.IntN(len(m.users))]
	add := func(id op.IDKind, keys ...string) {
		for _, key := range keys {
			if key != "" {
				all = append(all, modelOp{id: id, key: key})
			}
		}
	}
	add(op.ExternalID, u.external)
	add(op.ExternalID, u.deprecated...)
	add(op.Alias, u.aliases...)
	for _, x := range all { // an identifier that names this user alone
		if number := numberOf(t, e, x.id, canonicalKey(x.id, x.key)); number != 0 {
			m.numbers[number] = u
			break
		}
	}
	add(op.Email, u.email)
	add(op.Phone, u.phone)
	for _, number := range slices.Sorted(maps.Keys(m.numbers)) {
		if m.numbers[number] == u {
			all = append(all, modelOp{id: op.SvcID, number: number})
		}
	}
	return all
}

// address has one of the identifiers name an op's user. Now and then the op gives the user a phone.
func (all manyNamed) address(r *rand.Rand, o *modelOp) {
	x := all[r.IntN(len(all))]
	o.id, o.key, o.number = x.id, x.key, x.number
	if o.id == op.SvcID {
		o.update = false
	}
	if o.kind == op.Attributes && r.IntN(4) == 0 {
		o.phone = fmt.Sprint("+4930", r.IntN(12))
	}
}

// send sends a request. Some requests have an Idempotency-Key; these are sent again after a fault, until they are done.
func (m *model) send(t *testing.T, r *rand.Rand, w world, e *Engine, ops []modelOp) {
	commit := func(e *Engine, key []byte) error {
		b := e.NewBatch(1, 0)
		defer b.Release()
		for _, o := range ops {
			o.write(b)
		}
		if key != nil {
			b.KeepAnswer(key, [32]byte{}, 201, []byte("{}"))
		}
		return b.Commit()
	}
	if r.IntN(6) > 0 {
		require.NoError(t, commit(e, nil))
		return
	}
	key := fmt.Append(nil, "key", m.clock)
	w.interrupt(func(e *Engine) error { return commit(e, key) })
	for sent := false; !sent; { // the interruption may not be over
		e := w.engine()
		_, kept, err := e.Answer(1, key)
		if err == nil && !kept {
			err = commit(e, key)
			sent = err == nil
		}
		sent = sent || kept && err == nil
		if !errors.Is(err, replica.ErrUnknown) && !errors.Is(err, replica.ErrUnavailable) && !errors.Is(err, ErrKept) {
			require.NoError(t, err)
		}
	}
}
