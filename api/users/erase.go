package users

import (
	"context"

	"millrace/api/refused"
	"millrace/api/store"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// EraseRefused erases what is kept of objects that name users who are about to be deleted. That includes users who
// don't exist because all their objects were refused. If the deletion then fails, nothing is lost that anybody was
// promised.
func EraseRefused(
	ctx context.Context, kept refused.Feed, engine store.Store, reads store.Finder, ws uint32, named []namedUser,
	numbers ...uint64,
) error {
	if kept == nil {
		return nil
	}
	var ids []uint64
	add := func(kind op.IDKind, key []byte) {
		if len(key) > 0 {
			ids = append(ids, refused.Identifier(ws, kind, key))
		}
	}
	for i := range named {
		add(named[i].kind, named[i].key)
		if named[i].kind == op.Phone { // even if it is not a valid number
			add(op.Phone, []byte(named[i].sent))
		}
	}
	for _, number := range numbers {
		users, err := reads.FindNumber(ws, number)
		if err != nil {
			return err
		}
		addNumber := func(number, _ uint64) { add(op.SvcID, engine.AppendSvcID(nil, ws, number)) }
		for _, u := range users {
			eachIdentifier(u.Blob, add)
			profile.Merged(u.Blob, addNumber)
		}
		addNumber(number, 0)
	}
	_, err := kept.Erase(ctx, ids)
	return err
}

// eachIdentifier calls f for all identifiers of a profile except its svc_id.
func eachIdentifier(blob []byte, f func(kind op.IDKind, key []byte)) {
	f(op.ExternalID, profile.ExternalID(blob))
	profile.DeprecatedIDs(blob, func(id []byte) { f(op.ExternalID, id) })
	profile.Aliases(blob, func(label, name []byte) { f(op.Alias, op.AppendAliasKey(nil, label, name)) })
	email, phone := profile.Addresses(blob)
	if email != nil {
		f(op.Email, op.AppendEmailKey(nil, email.Bytes()))
	}
	if phone != nil {
		f(op.Phone, phone.Bytes())
	}
}
