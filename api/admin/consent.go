package admin

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net/http"
	"net/url"

	"github.com/google/uuid"

	"millrace/api/admin/answers"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// What an operator may ask about consent, on the admin listener: the trail of a user's or an address's states
// (decisions.md D5), and the block list.

func (s *Server) consentRoutes() []route {
	return []route{
		{"GET /admin/workspaces/{workspace}/trail", s.within(s.showTrail)},
		{"GET /admin/workspaces/{workspace}/blocklist", s.within(s.listBlocked)},
		{"DELETE /admin/workspaces/{workspace}/blocklist/{email}", s.within(s.liftBlock)},
	}
}

// showTrail answers with the trail of one user (external_id, svc_id, or alias_label with alias_name) or one address
// (email, phone), oldest first.
func (s *Server) showTrail(_ control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	changes, err := s.trailOf(w, r.URL.Query())
	if err != nil {
		return nil, err
	}
	return answers.Trail{Changes: mapSlice(changes,
		func(c shard.StateChange) answers.ConsentChange { return s.describeChange(w, c) })}, nil
}

// trailOf returns the trail of the user or address that the query names.
func (s *Server) trailOf(w *control.Workspace, query url.Values) ([]shard.StateChange, error) {
	id, key, err := s.identifierOf(query)
	if err != nil {
		return nil, err
	}
	if id == op.Email || id == op.Phone {
		return s.common.Store.AddressTrail(w.Number, id, key)
	}
	numbers, err := s.numbersOf(w, id, key)
	if err == nil && len(numbers) == 0 {
		err = fmt.Errorf("user %w", control.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return s.common.Store.Trail(w.Number, numbers[0])
}

func (s *Server) describeChange(w *control.Workspace, c shard.StateChange) answers.ConsentChange {
	out := answers.ConsentChange{ChangedAt: microText(c.Changed), AppliedAt: microText(c.Applied),
		ConsentState: answers.ConsentState{State: c.Kind.String()}, ChangedBy: describeActor(w, c.Actor, c.Source)}
	switch c.Kind {
	case shard.EmailState:
		if out.Value = c.Value; c.Value == "" {
			out.Value = "removed"
		}
	case shard.GroupState:
		out.Value, out.GroupID = "unsubscribed", uuid.UUID(c.Group).String()
		if c.On {
			out.Value = "subscribed"
		}
		if g := s.common.Control.Groups.Get(w.ID, out.GroupID); g != nil { // even if it is archived
			out.GroupName, out.Channel = g.Name, g.Channel
		}
	case shard.Bounce, shard.Spam:
		if out.Value = "removed"; c.On {
			out.Value = "marked"
		}
	}
	return out
}

func describeActor(w *control.Workspace, actor uint32, source op.Source) answers.ChangedBy {
	by := answers.ChangedBy{Source: source.String(), Actor: "server"}
	if actor == control.AdminActor {
		by.Actor = "admin"
	}
	if id, name := keyNumbered(w, actor); id != "" {
		by.Actor, by.KeyID, by.Key = "api key", id, name
	}
	return by
}

// Paging of the block list.
const (
	defaultBlockedLimit = 100
	maxBlockedLimit     = 1000
)

// listBlocked answers with a page of the block list, oldest first; next, if there is one, leads to the following page.
// An address that is on the list from the first page to the last is on one of them; when it is blocked again meanwhile,
// also on a later one.
func (s *Server) listBlocked(_ control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	query := r.URL.Query()
	limit, err := queryNumber(query, "limit", defaultBlockedLimit, maxBlockedLimit)
	if err != nil {
		return nil, err
	}
	after, err := parseBlockedCursor(query.Get("cursor"))
	if err != nil {
		return nil, err
	}
	list, err := s.common.Store.Suppressed(w.Number, shard.SuppressionQuery{
		Kind: shard.Bounce, From: math.MinInt64, Until: math.MaxInt64, After: after,
		Most: int(limit) + 1, // one more shows whether there is
	})
	if err != nil {
		return nil, err
	}
	next := ""
	if len(list) > int(limit) {
		list = list[:limit]
		next = blockedCursor(list[limit-1].Place)
	}
	show := mapSlice(list, func(b shard.SuppressedAddress) answers.BlockedEmail {
		return answers.BlockedEmail{Email: b.Email, Since: microText(b.Since),
			ChangedBy: describeActor(w, b.Actor, b.Source)}
	})
	return answers.BlockList{Emails: show, Next: next}, nil
}

// A cursor is the place of the last entry of a page.
func blockedCursor(s shard.Suppression) string {
	return fmt.Sprintf("%016x%016x", uint64(s.Since), s.Number)
}

func parseBlockedCursor(text string) (s shard.Suppression, err error) {
	if text == "" {
		return s, nil
	}
	place, err := hex.DecodeString(text)
	if err != nil || len(place) != 16 {
		return s, fmt.Errorf("%w: cursor: want the next of an earlier page", document.ErrInvalid)
	}
	return shard.Suppression{
		Since: int64(binary.BigEndian.Uint64(place)), Number: binary.BigEndian.Uint64(place[8:]),
	}, nil
}

// liftBlock removes an address from the block list. The address stays unsubscribed: consent doesn't come back by
// itself.
func (s *Server) liftBlock(by control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	key := op.AppendEmailKey(nil, []byte(r.PathValue("email")))
	blocked := false
	err := s.common.Store.ViewAddress(w.Number, op.Email, key, func(blob []byte) {
		_, blocked = profile.HardBounce(blob)
	})
	if err != nil {
		return nil, err
	}
	if !blocked {
		return nil, fmt.Errorf("blocked address %w", control.ErrNotFound)
	}
	batch := s.common.Store.NewBatch(w.Number, control.AdminActor)
	defer batch.Release()
	batch.SetSource(op.SourceAdmin)
	batch.SetAddressStates(op.Email, key, shard.State{Kind: shard.Bounce})
	// The entry doesn't name the address, whose own trail has the change.
	return success{}, s.commitAudited(batch, s.common.Control.Entry(by, "block of an email address lifted", w.ID))
}
