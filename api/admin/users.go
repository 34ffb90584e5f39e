package admin

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/goccy/go-json"
	"github.com/google/uuid"

	"millrace/api/admin/answers"
	"millrace/api/consent"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/store"
	"millrace/api/users"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// What an operator may ask about users on the admin listener, and do with one of them; and the list of dashboard users.

func (s *Server) userRoutes() []route {
	const all, one = "/admin/workspaces/{workspace}/users", "/admin/workspaces/{workspace}/users/{user}"
	return []route{
		{"GET " + all, s.within(s.findUsers)},
		{"GET " + one, s.ofUser(s.showUser)},
		{"GET " + one + "/export", s.ofUser(s.exportUser)},
		{"DELETE " + one, s.within(s.deleteUser)},
		{"PATCH " + one + "/states", s.ofUser(s.changeStates)},
		{"GET /admin/dashboard_users", s.listDashboardUsers},
		{"DELETE /admin/dashboard_users/{user}/sessions", s.endSessions},
	}
}

// identifierOf reads the identifier by which a query names a user: exactly one of external_id, svc_id (or braze_id),
// alias_label with alias_name, email, phone.
func (s *Server) identifierOf(query url.Values) (id op.IDKind, key []byte, err error) {
	var sent []string
	for _, name := range userParameters {
		if query.Get(name) != "" {
			sent = append(sent, name)
		}
	}
	switch strings.Join(sent, " ") {
	case "external_id":
		id, key = op.ExternalID, []byte(query.Get("external_id"))
	case "svc_id", "braze_id":
		id, key = op.SvcID, []byte(query.Get(sent[0]))
	case "alias_label alias_name":
		id, key = op.Alias, op.AppendAliasKey(nil, []byte(query.Get("alias_label")), []byte(query.Get("alias_name")))
	case "email":
		id, key = op.Email, op.AppendEmailKey(nil, consent.PlusForSpace([]byte(query.Get("email"))))
	case "phone":
		var ok bool
		phone := consent.PlusForSpace([]byte(query.Get("phone")))
		if key, ok = consent.AppendE164(nil, phone, s.common.AppendPhoneKey); !ok {
			return 0, nil, fmt.Errorf("%w: phone must be in E.164 format", document.ErrInvalid)
		}
		id = op.Phone
	default:
		return 0, nil, fmt.Errorf("%w: want one of external_id, svc_id, alias_label with alias_name, email, phone",
			document.ErrInvalid)
	}
	if len(key) > op.MaxKeyBytes {
		return 0, nil, fmt.Errorf("%w: %s is too long", document.ErrInvalid, sent[0])
	}
	return id, key, nil
}

// userParameters are the query parameters that name a user.
var userParameters = []string{"external_id", "svc_id", "braze_id", "alias_label", "alias_name", "email", "phone"}

// numbersOf returns the numbers of the users that an identifier names, the best candidate first.
func (s *Server) numbersOf(w *control.Workspace, id op.IDKind, key []byte) (numbers []uint64, err error) {
	if id == op.SvcID {
		number, ok := s.common.Store.ParseSvcID(w.Number, key)
		if !ok {
			return nil, nil
		}
		users, err := s.common.Store.FindNumber(w.Number, number)
		if len(users) == 0 {
			return nil, err
		}
		return []uint64{number}, err
	}
	err = s.common.Store.View(w.Number, id, key, func(number uint64, _ []byte) { numbers = append(numbers, number) })
	return numbers, err
}

// Paging of users: thousands may share an address.
const (
	defaultUserLimit = 20
	maxUserLimit     = 100
)

// findUsers answers with the users that an identifier names, in the form of an export, and with their number.
func (s *Server) findUsers(_ control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	query := r.URL.Query()
	limit, err := queryNumber(query, "limit", defaultUserLimit, maxUserLimit)
	if err != nil {
		return nil, err
	}
	id, key, err := s.identifierOf(query)
	if err != nil {
		return nil, err
	}
	numbers, err := s.numbersOf(w, id, key)
	if err != nil {
		return nil, err
	}
	answer := answers.FoundUsers{Users: []json.RawMessage{}, Count: len(numbers)}
	for _, number := range numbers[:min(uint64(len(numbers)), limit)] {
		users, err := s.common.Store.FindMerged(w.Number, number)
		if err != nil {
			return nil, err
		}
		for _, u := range users {
			answer.Users = append(answer.Users, s.describeUser(w, u))
		}
	}
	return answer, nil
}

// describeUser returns a profile in the form of an export.
func (s *Server) describeUser(w *control.Workspace, u store.User) json.RawMessage {
	show := users.ExportOf(w)
	show.Number, show.SvcID = u.Number, s.common.Store.AppendSvcID(nil, w.Number, u.Number)
	return profile.AppendJSON(nil, u.Blob, 0, show)
}

var errNoUser = fmt.Errorf("user %w", control.ErrNotFound)

// userAt returns the user that the request's path names by svc_id.
func (s *Server) userAt(w *control.Workspace, r *http.Request) (u store.User, err error) {
	var users []store.User
	if number, ok := s.common.Store.ParseSvcID(w.Number, []byte(r.PathValue("user"))); ok {
		users, err = s.common.Store.FindNumber(w.Number, number)
	}
	if err == nil && len(users) == 0 {
		err = errNoUser
	}
	if err != nil {
		return u, err
	}
	return users[0], nil
}

// ofUser makes a route about the user that the path names.
func (s *Server) ofUser(f func(control.Actor, *http.Request, *control.Workspace, store.User) (any, error)) handler {
	return s.within(func(by control.Actor, r *http.Request, w *control.Workspace) (any, error) {
		u, err := s.userAt(w, r)
		if err != nil {
			return nil, err
		}
		return f(by, r, w, u)
	})
}

func (s *Server) showUser(_ control.Actor, _ *http.Request, w *control.Workspace, u store.User) (any, error) {
	shown := answers.User{User: s.describeUser(w, u)}
	profile.Merged(u.Blob, func(number, _ uint64) {
		shown.MergedFrom = append(shown.MergedFrom, string(s.common.Store.AppendSvcID(nil, w.Number, number)))
	})
	return shown, nil
}

// exportUser is showUser for callers who take the answer away, with an entry of the audit log.
func (s *Server) exportUser(by control.Actor, r *http.Request, w *control.Workspace, u store.User) (any, error) {
	return answers.User{User: s.describeUser(w, u)},
		s.common.Control.Audit(by, "user exported", w.ID, "svc_id", r.PathValue("user"))
}

// deleteUser removes a user for good. The answer that there is no such user waits, like the other one, until the user's
// events are gone: another deletion may be under way.
func (s *Server) deleteUser(by control.Actor, r *http.Request, w *control.Workspace) (any, error) {
	u, err := s.userAt(w, r)
	isFound := err == nil
	if isFound {
		err = s.deleteFound(by, r, w, u)
	}
	if !errors.Is(err, errNoUser) {
		return success{}, err
	}
	return nil, cmp.Or(store.FlushDeletions(s.common.Store, isFound), err)
}

// deleteFound removes a user. The entry of the audit log is in the same record, and names the svc_id, which belongs to
// nobody from now on.
func (s *Server) deleteFound(by control.Actor, r *http.Request, w *control.Workspace, u store.User) error {
	if err := s.public.EraseRefused(r.Context(), w.Number, u.Number); err != nil {
		return err
	}
	batch := s.common.Store.NewBatch(w.Number, control.AdminActor)
	defer batch.Release()
	ref := batch.Delete(u.Number)
	err := s.commitAudited(batch, s.common.Control.Entry(by, "users deleted", w.ID, "count", 1, "svc_id",
		r.PathValue("user")))
	if err == nil && batch.Outcome(ref) != shard.Done { // deleted or merged meanwhile
		err = errNoUser
	}
	return err
}

// commitAudited commits a batch with an entry of the audit log, and logs the entry.
func (s *Server) commitAudited(batch store.Batch, entry control.Entry) error {
	batch.Audit(entry.Encode())
	if err := batch.Commit(); err != nil {
		return err
	}
	s.common.Control.Log(entry)
	return nil
}

// statesChange is what an operator sets of a user's states; missing members change nothing.
type statesChange struct {
	Email  string            `json:"email_subscribe"`     // opted_in, subscribed, unsubscribed
	Groups map[string]string `json:"subscription_groups"` // id → subscribed, unsubscribed
}

// changeStates sets states of a user.
func (s *Server) changeStates(by control.Actor, r *http.Request, w *control.Workspace, u store.User) (any, error) {
	change, err := read[statesChange](s, r)
	if err != nil {
		return nil, err
	}
	states, err := change.states(w)
	if err != nil {
		return nil, err
	}
	batch := s.common.Store.NewBatch(w.Number, control.AdminActor)
	defer batch.Release()
	batch.SetSource(op.SourceAdmin)
	batch.SetUserStates(op.SvcID, nil, u.Number, states...)
	return success{}, s.commitAudited(batch, s.common.Control.Entry(by, "states of a user changed", w.ID, "svc_id",
		r.PathValue("user"), "states", len(states)))
}

func (c *statesChange) states(w *control.Workspace) (states []shard.State, err error) {
	switch c.Email {
	case "":
	case "opted_in", "subscribed", "unsubscribed":
		states = append(states, shard.State{Kind: shard.EmailState, Value: c.Email})
	default:
		return nil, fmt.Errorf("%w: email_subscribe %q: want opted_in, subscribed or unsubscribed", document.ErrInvalid,
			c.Email)
	}
	for id, state := range c.Groups {
		g := w.Groups[strings.ToLower(id)]
		if g == nil {
			return nil, fmt.Errorf("%w: subscription_groups: there is no group %q", document.ErrInvalid, id)
		}
		if state != "subscribed" && state != "unsubscribed" {
			return nil, fmt.Errorf("%w: subscription_groups: %s: %q: want subscribed or unsubscribed",
				document.ErrInvalid, id, state)
		}
		states = append(states, shard.State{Kind: shard.GroupState, Group: uuid.MustParse(g.ID),
			Channel: consent.ChannelOf(g), On: state == "subscribed"})
	}
	if len(states) == 0 {
		return nil, fmt.Errorf("%w: want email_subscribe or subscription_groups", document.ErrInvalid)
	}
	slices.SortFunc(states, func(a, b shard.State) int {
		return strings.Compare(string(a.Group[:]), string(b.Group[:]))
	})
	return states, nil
}

// listDashboardUsers answers with a page of the users that SCIM has provisioned, in order of their userNames: all, or
// those whose userName or name contains search. What permission sets give is not said here: a user may be in a thousand
// sets, each about thousands of workspaces.
func (s *Server) listDashboardUsers(_ control.Actor, r *http.Request) (any, error) {
	c := s.common.Control
	search := strings.ToLower(r.URL.Query().Get("search"))
	isOther := func(u *document.SCIMUser) bool {
		return !strings.Contains(strings.ToLower(u.UserName), search) &&
			!strings.Contains(strings.ToLower(fullName(u)), search)
	}
	key := func(u *document.SCIMUser) string { return string(op.AppendEmailKey(nil, []byte(u.UserName))) }
	show := func(u *document.SCIMUser) any {
		own := u.Permissions
		own.Company, own.AppGroups = orEmpty(own.Company), orEmpty(own.AppGroups)
		return answers.DashboardUser{ID: u.ID, UserName: u.UserName, Name: fullName(u), Department: u.Department,
			IsActive: !u.Inactive, PermissionSets: mapSlice(c.SetsOf(u), nameOfSet), Permissions: own}
	}
	return pageOf(r, "dashboard_users", slices.DeleteFunc(c.SCIMUsers.List(""), isOther), key, show)
}

func fullName(u *document.SCIMUser) string {
	return strings.TrimSpace(u.GivenName + " " + u.FamilyName)
}

// endSessions signs a user out of the console, everywhere.
func (s *Server) endSessions(by control.Actor, r *http.Request) (any, error) {
	n, err := s.common.Control.EndSessions(by, r.PathValue("user"))
	return map[string]any{"ended": n}, err
}
