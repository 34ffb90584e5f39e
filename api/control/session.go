package control

import (
	"cmp"
	"fmt"
	"slices"

	"millrace/api/control/document"
)

// Session returns the session with this id, nil when there is none.
func (c *Control) Session(id string) *document.Session { return c.sessions.Get("", id) }

// Sessions returns the sessions of a person, the latest first.
func (c *Control) Sessions(userName string) []*document.Session {
	list := slices.DeleteFunc(c.sessions.List(""), func(s *document.Session) bool { return s.UserName != userName })
	slices.SortFunc(list, func(a, b *document.Session) int {
		return cmp.Or(cmp.Compare(b.SeenAt, a.SeenAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// BeginSession stores a new session; those that are over make room. The one with the id before, empty for none, is not
// counted: the caller ends it next.
func (c *Control) BeginSession(by Actor, s document.Session, before string, l document.SessionLimits) error {
	return c.do(by, func(d *draft) error {
		live := 0
		var own []*document.Session
		for _, old := range c.sessions.List("") {
			switch {
			case old.ID == before:
			case !l.IsOver(old, s.BeganAt):
				live++
				if old.UserName == s.UserName {
					own = append(own, old)
				}
			case len(d.put) < maxSwept:
				d.set(joinKey(kindSession, "", old.ID), nil)
			}
		}
		if len(own) >= l.MaxOfUser {
			oldest := slices.MinFunc(own, func(a, b *document.Session) int { return cmp.Compare(a.SeenAt, b.SeenAt) })
			d.set(joinKey(kindSession, "", oldest.ID), nil)
			live--
		}
		if live >= l.Max {
			return fmt.Errorf("%w: %d sessions are open, which is the limit", ErrConflict, live)
		}
		if err := d.noteSignIn(s); err != nil {
			return err
		}
		return d.replace("signed in", kindSession, "", s.ID, s)
	})
}

// noteSignIn records the time in the dashboard user's document.
func (d *draft) noteSignIn(s document.Session) error {
	key := joinKey(kindSCIMUser, "", s.UserKey)
	u, err := read[document.SCIMUser](d, key, "dashboard user")
	if u == nil {
		return err
	}
	u.SignedInAt = max(u.SignedInAt, s.BeganAt)
	_, err = d.write(key, u)
	return err
}

// maxSwept is how many ended sessions one change removes.
const maxSwept = 100

// TouchSession records that a session is in use. It makes no entry in the audit log.
func (c *Control) TouchSession(id string, now int64) error {
	return c.do(Actor{}, func(d *draft) error {
		key := joinKey(kindSession, "", id)
		s, err := read[document.Session](d, key, "session")
		if s == nil || err != nil {
			return nil // it has ended
		}
		s.SeenAt = max(s.SeenAt, now)
		_, err = d.write(key, s)
		return err
	})
}

// EndSession ends a session. A missing session is no error.
func (c *Control) EndSession(by Actor, id string) error {
	return c.do(by, func(d *draft) error { return d.replace("signed out", kindSession, "", id, nil) })
}

// EndSessions ends all sessions of a person and returns how many there were.
func (c *Control) EndSessions(by Actor, userName string) (n int, err error) {
	err = c.do(by, func(d *draft) error {
		own := c.Sessions(userName)
		n = len(own)
		for _, s := range own {
			if err := d.replace("signed out everywhere", kindSession, "", s.ID, nil, "sessions", n, "user",
				userName); err != nil {
				return err
			}
		}
		return nil
	})
	return n, err
}
