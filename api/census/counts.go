package census

import (
	"millrace/shard"
	"millrace/shard/profile"
)

// Tally is how many users have which value of one state. A user who is in none of them has never stated anything.
type Tally struct {
	OptedIn      int64 `json:"opted_in,omitempty"` // of the email state
	Subscribed   int64 `json:"subscribed,omitempty"`
	Unsubscribed int64 `json:"unsubscribed,omitempty"`
}

// Unknown is how many of that many users have never stated anything, or have withdrawn it.
func (t Tally) Unknown(users int64) int64 { return users - t.OptedIn - t.Subscribed - t.Unsubscribed }

func (t *Tally) add(o Tally) {
	t.OptedIn += o.OptedIn
	t.Subscribed += o.Subscribed
	t.Unsubscribed += o.Unsubscribed
}

// Group is the tally of a subscription group.
type Group struct {
	ID [16]byte `json:"id"`
	Tally
}

// Counts are the counts of users.
type Counts struct {
	Users  int64   `json:"users"`
	Email  Tally   `json:"email"`
	Groups []Group `json:"groups,omitempty"` // in no particular order, each once
}

// Group is the tally of one group.
func (c *Counts) Group(id [16]byte) Tally {
	for i := range c.Groups {
		if c.Groups[i].ID == id {
			return c.Groups[i].Tally
		}
	}
	return Tally{}
}

func (c *Counts) group(id [16]byte) *Tally {
	for i := range c.Groups {
		if c.Groups[i].ID == id {
			return &c.Groups[i].Tally
		}
	}
	c.Groups = append(c.Groups, Group{ID: id})
	return &c.Groups[len(c.Groups)-1].Tally
}

func (c *Counts) add(o Counts) {
	c.Users += o.Users
	c.Email.add(o.Email)
	for _, g := range o.Groups {
		c.group(g.ID).add(g.Tally)
	}
}

// user counts a user, whose states are joined with those of the user's addresses. states is scratch.
func (c *Counts) user(u shard.User, states []profile.StateChange) []profile.StateChange {
	c.Users++
	states = profile.AppendStates(states[:0], u.Blob)
	for _, s := range states {
		switch {
		case s.Kind == shard.GroupState && s.On:
			c.group(s.Group).Subscribed++
		case s.Kind == shard.GroupState:
			c.group(s.Group).Unsubscribed++
		case s.Kind == shard.EmailState && s.Value == "opted_in":
			c.Email.OptedIn++
		case s.Kind == shard.EmailState && s.Value == "subscribed":
			c.Email.Subscribed++
		case s.Kind == shard.EmailState && s.Value == "unsubscribed":
			c.Email.Unsubscribed++
		}
	}
	return states
}
