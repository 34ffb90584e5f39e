package answers

// EventCounts is how many events and purchases there were: the hours that have some, and the most frequent names.
type EventCounts struct {
	Since   string      `json:"since"`
	Hours   []EventHour `json:"hours"`
	Names   []EventName `json:"names"`
	Missing int         `json:"missing_groups,omitempty"` // groups of which this node has no replica
}

// EventHour is how many events or purchases there were in one hour.
type EventHour struct {
	Workspace string `json:"workspace"`
	Type      string `json:"type"`
	Hour      string `json:"hour"`
	Count     int    `json:"count"`
}

// EventName is how many events of a name there were, or purchases of a product.
type EventName struct {
	Workspace string `json:"workspace"`
	Type      string `json:"type"`
	Name      string `json:"name"` // empty: all that are rare
	Count     int    `json:"count"`
}
