package answers

import "encoding/json"

// RefusedPage is a page of what was refused, newest entry first. Missing are nodes of a cluster that did not answer, in
// this answer and the following ones: what they have is left out.
type RefusedPage struct {
	Refused []RefusedEntry `json:"refused"`
	Next    string         `json:"next,omitempty"` // the before of the following page, if there is one
	Missing []uint32       `json:"missing_nodes,omitempty"`
}

// RefusedEntry is an object that was refused, or of which values were left out.
type RefusedEntry struct {
	ID        string          `json:"id"`
	At        string          `json:"at"`
	Key       string          `json:"key_id,omitempty"`
	KeyName   string          `json:"key_name,omitempty"`
	RequestID string          `json:"request_id"`
	Array     string          `json:"input_array,omitempty"` // empty: the request was refused as a whole
	Index     int             `json:"index"`
	IsRefused bool            `json:"refused"` // otherwise values were left out, and the object was accepted
	Reasons   []RefusedReason `json:"reasons"`
	Size      int             `json:"size,omitempty"`   // of the object, in bytes
	Object    string          `json:"object,omitempty"` // as it was sent; empty: it is not kept
}

// RefusedReason is a rule that was broken, and how.
type RefusedReason struct {
	Rule string `json:"rule"`
	Text string `json:"text"`
}

// RefusedCounts are the counts of the hours, newest first.
type RefusedCounts struct {
	Counts  []RefusedCount `json:"counts"`
	Missing []uint32       `json:"missing_nodes,omitempty"`
}

// RefusedCount is how often a rule was broken in one hour, with one key.
type RefusedCount struct {
	Hour    string `json:"hour"`
	Key     string `json:"key_id,omitempty"`
	KeyName string `json:"key_name,omitempty"`
	Rule    string `json:"rule"`
	Refused int    `json:"refused"`
	LeftOut int    `json:"left_out"`
}

// SentAgain is the result of sending an entry again.
type SentAgain struct {
	Status   int             `json:"status"`
	Accepted bool            `json:"accepted"`
	Answer   json.RawMessage `json:"answer"` // of /users/track
}

// AllSentAgain is the result of sending a page of entries again.
type AllSentAgain struct {
	Accepted int      `json:"accepted"`
	Refused  int      `json:"refused"`  // again
	Skipped  int      `json:"not_kept"` // there is no object to send
	Next     string   `json:"next,omitempty"`
	Missing  []uint32 `json:"missing_nodes,omitempty"`
}
