package answers

// Trail is the trail of a user or an address, oldest change first.
type Trail struct {
	Changes []ConsentChange `json:"changes"`
}

// ConsentChange is an entry of a trail: what was set, when, by whom, through what.
type ConsentChange struct {
	ChangedAt string `json:"changed_at"` // when the state was set, to the microsecond
	// when it reached this user or address: a user who leaves an address keeps states that were set earlier
	AppliedAt string `json:"applied_at"`
	ConsentState
	ChangedBy
}

// ConsentState is a state that was set, with its value.
type ConsentState struct {
	State     string `json:"state"` // email_subscribe | subscription_group | hard_bounce | email_spam
	Value     string `json:"value"` // opted_in, subscribed, unsubscribed | marked | removed
	GroupID   string `json:"subscription_group_id,omitempty"`
	GroupName string `json:"subscription_group_name,omitempty"`
	Channel   string `json:"channel,omitempty"`
}

// ChangedBy says who set something, and through which endpoint.
type ChangedBy struct {
	Source string `json:"source"`           // path of the endpoint, preference center, …
	Actor  string `json:"actor"`            // api key | admin | server
	KeyID  string `json:"key_id,omitempty"` // of an API key
	Key    string `json:"key_name,omitempty"`
}

// BlockList is a page of the block list.
type BlockList struct {
	Emails []BlockedEmail `json:"blocklist"`
	Next   string         `json:"next,omitempty"` // the cursor of the following page, if there is one
}

// BlockedEmail is an entry of the block list.
type BlockedEmail struct {
	Email string `json:"email"`
	Since string `json:"since"` // to the microsecond
	ChangedBy
}

// Census is what is known of how many users have which state: the counts of the last time, the count under way, and why
// the last one has failed.
type Census struct {
	Counts  *ConsentCounts `json:"counts,omitempty"`
	Running *CensusRunning `json:"running,omitempty"`
	Failed  *CensusFailed  `json:"failed,omitempty"`
}

// ConsentCounts are the counts of a workspace.
type ConsentCounts struct {
	CountedAt string        `json:"counted_at"`
	Took      float64       `json:"took_seconds"`
	Users     int64         `json:"users"`
	Email     EmailCounts   `json:"email_subscribe"`
	Groups    []GroupCounts `json:"subscription_groups"` // all, including archived ones, by name
}

// StateCounts are how many users have which value of a state.
type StateCounts struct {
	Subscribed   int64 `json:"subscribed"`
	Unsubscribed int64 `json:"unsubscribed"`
	Unknown      int64 `json:"unknown"` // users who have never stated anything
}

// EmailCounts are those of the email state.
type EmailCounts struct {
	OptedIn int64 `json:"opted_in"`
	StateCounts
}

// GroupCounts are those of a subscription group.
type GroupCounts struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Channel    string `json:"channel"`
	IsArchived bool   `json:"archived,omitempty"`
	StateCounts
}

// CensusRunning is a count under way.
type CensusRunning struct {
	Began string  `json:"began_at"`
	Done  float64 `json:"done"` // of 1
	Users int64   `json:"users"`
}

// CensusFailed is a count that has failed.
type CensusFailed struct {
	At  string `json:"at"`
	Why string `json:"why"`
}
