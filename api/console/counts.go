package console

import (
	"net/http"
	"time"
)

const countPath = workspacePath + "/consent/count"

// consentCounts is what is known of how many users have which state, as the admin API says it.
type consentCounts struct {
	Counts *struct {
		At     string       `json:"counted_at"`
		Took   float64      `json:"took_seconds"`
		Users  int64        `json:"users"`
		Email  stateCount   `json:"email_subscribe"`
		Groups []stateCount `json:"subscription_groups"`
	} `json:"counts"`
	Running *struct {
		Began string  `json:"began_at"`
		Done  float64 `json:"done"`
		Users int64   `json:"users"`
	} `json:"running"`
	Failed *struct {
		At  string `json:"at"`
		Why string `json:"why"`
	} `json:"failed"`
}

// stateCount is how many users have which value of one state.
type stateCount struct {
	Name         string `json:"name"`
	Channel      string `json:"channel"`
	IsArchived   bool   `json:"archived"`
	OptedIn      int64  `json:"opted_in"`
	Subscribed   int64  `json:"subscribed"`
	Unsubscribed int64  `json:"unsubscribed"`
	Unknown      int64  `json:"unknown"`
}

// share is a piece of a bar that shows parts of a whole: from X on, of a width of a hundred.
type share struct {
	Class, Name string
	N           int64
	X, Width    float64
	Percent     float64
}

// Shares are the pieces of the state's bar, with those alone who have said something: the rest is its ground.
func (s stateCount) Shares() (list []share) {
	all := s.OptedIn + s.Subscribed + s.Unsubscribed + s.Unknown
	x := 0.0
	for _, one := range []share{{Class: "optedin", Name: "opted in", N: s.OptedIn},
		{Class: "yes", Name: "subscribed", N: s.Subscribed}, {Class: "no", Name: "unsubscribed", N: s.Unsubscribed},
		{Class: "unknown", Name: "no choice", N: s.Unknown}} {
		if one.N == 0 {
			continue
		}
		one.X, one.Width = x, 100*float64(one.N)/float64(all)
		one.Percent = float64(int64(one.Width*10+0.5)) / 10
		x += one.Width
		list = append(list, one)
	}
	return list
}

// States are the rows of the table: the email state, then the groups.
func (c *consentCounts) States() []stateCount {
	email := c.Counts.Email
	email.Name, email.Channel = "Email", "email"
	return append([]stateCount{email}, c.Counts.Groups...)
}

// Took is how long the count took, to the second.
func (c *consentCounts) Took() string {
	d := time.Duration(c.Counts.Took * float64(time.Second))
	if d < time.Second {
		return "less than a second"
	}
	return d.Round(time.Second).String()
}

// Percent is how much of the count that is under way is done.
func (c *consentCounts) Percent() int { return int(c.Running.Done * 100) }

// consentCounts asks what is known; nil: nobody counts on this server.
func (v *visit) consentCounts() (*consentCounts, error) {
	var counts consentCounts
	err := v.call(http.MethodGet, v.of("consent", "counts"), nil, &counts)
	if isNotFound(err) {
		return nil, nil
	}
	return &counts, err
}
