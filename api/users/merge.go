package users

import (
	"github.com/valyala/fasthttp"

	"millrace/api/call"
	"millrace/api/store"
	"millrace/api/value"
	"millrace/ingest/field"
	"millrace/shard"
	"millrace/shard/op"
)

// Texts of POST /users/merge, exactly those of service.md 7.
const (
	textMergeArray      = "'merge_updates' must be an array of objects"
	textMergeTooMany    = "a single request may not contain more than 50 merge updates"
	textMergeIdentifier = "identifiers must be objects with an 'external_id' property that is a string, 'user_alias' " +
		"property that is an object, or 'email' property that is a string"
	textMergeMembers = "'merge_updates' must only have 'identifier_to_merge' and 'identifier_to_keep'"
)

// maxMergeUpdates is how many merges a request may ask for (service.md 2.9).
const maxMergeUpdates = 50

// Merge serves POST /users/merge (service.md 4.2): everything is judged, then everything is queued, durably and at
// once. The users are looked up now, so a merge concerns those who had the identifiers when it was accepted, whatever
// happens until it is applied.
func Merge(x *call.Call, body value.Value) {
	updates, text := readMergeUpdates(x, body)
	if text != "" {
		x.Fail(fasthttp.StatusBadRequest, text)
		return
	}
	var asked []namedUser
	for _, u := range updates {
		asked = append(asked, u.gone, u.keep)
	}
	if err := expect(x, shard.OfUsers, asked...); err != nil {
		x.FailEngine(err)
		return
	}
	batch := x.NewBatch()
	defer batch.Release()
	batch.SetSource(op.SourceMerge)
	for i := range updates {
		if err := updates[i].put(x, batch); err != nil {
			x.FailEngine(err)
			return
		}
	}
	if batch.Count() > 0 {
		if err := batch.Commit(); err != nil {
			x.FailEngine(err)
			return
		}
	}
	x.Succeed(fasthttp.StatusAccepted)
}

// mergeUpdate is a merge update object (service.md 2.9).
type mergeUpdate struct{ gone, keep namedUser }

// put queues the merge if it is one of two different users.
func (u *mergeUpdate) put(x *call.Call, b store.Batch) error {
	gone, err := u.gone.findOne(x)
	if err != nil {
		return err
	}
	keep, err := u.keep.findOne(x)
	if err != nil {
		return err
	}
	if len(gone) == 1 && len(keep) == 1 && gone[0].number != keep[0].number {
		b.Merge(gone[0].number, keep[0].number)
	}
	return nil
}

// readMergeUpdates reads the request; text is the first thing that is wrong with it: the array, its length, then one
// update after the other.
func readMergeUpdates(x *call.Call, body value.Value) (updates []mergeUpdate, text string) {
	list := body.Member("merge_updates")
	if !list.IsArray() {
		return nil, textMergeArray
	}
	for _, e := range list.Elements() {
		if !e.IsObject() {
			return nil, textMergeArray
		}
	}
	if list.Count(maxMergeUpdates) > maxMergeUpdates {
		return nil, textMergeTooMany
	}
	for _, e := range list.Elements() {
		u, text := readMergeUpdate(x, e)
		if text != "" {
			return nil, text
		}
		updates = append(updates, u)
	}
	return updates, ""
}

func readMergeUpdate(x *call.Call, v value.Value) (u mergeUpdate, text string) {
	if what := v.Unsafe(); what != "" {
		return u, "Invalid JSON: " + what
	}
	var gone, keep value.Value
	for member, m := range v.Members() {
		switch member {
		case "identifier_to_merge":
			gone = m
		case "identifier_to_keep":
			keep = m
		default:
			return u, textMergeMembers
		}
	}
	if gone == nil || keep == nil {
		return u, textMergeMembers
	}
	if u.gone, text = readMergeIdentifier(x, gone); text != "" {
		return u, text
	}
	u.keep, text = readMergeIdentifier(x, keep)
	return u, text
}

// readMergeIdentifier reads an identifier object: exactly one of external_id, user_alias, phone and email, the last two
// with a prioritization (D9). Other members are ignored.
func readMergeIdentifier(x *call.Call, v value.Value) (u namedUser, text string) {
	if !v.IsObject() {
		return u, textMergeIdentifier
	}
	var id, prioritization value.Value
	by, n := "", 0
	for member, m := range v.Members() {
		switch member {
		case "external_id", "user_alias", "phone", "email":
			if !m.Absent() {
				id, by = m, member
				n++
			}
		case "prioritization":
			prioritization = m
		}
	}
	if n != 1 {
		return u, textMergeIdentifier
	}
	if by == "external_id" {
		text, ok := id.Str()
		if !ok || !field.ExternalID([]byte(text)) {
			return u, textMergeIdentifier
		}
		return externalIDUser(text), ""
	}
	if u, text = readNamed(x, by, id); text != "" {
		return u, textMergeIdentifier
	}
	if by == "user_alias" {
		return u, ""
	}
	if prioritization.Absent() {
		return u, textMergeIdentifier
	}
	u.prioritization, text = readPrioritization(prioritization)
	return u, text
}
