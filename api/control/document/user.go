package document

// SCIMUser is a dashboard user (service.md 2.13) in its stored form, under its userName in lower case. Package scim
// makes the ids in it.
type SCIMUser struct {
	ID         string `json:"id"` // Collection.Find finds it
	UserName   string `json:"userName"`
	GivenName  string `json:"givenName"`
	FamilyName string `json:"familyName"`
	Department string `json:"department,omitempty"` // one of Departments; empty: none
	// Permissions are the user's own; Control.PermissionsOf adds those of permission sets.
	Permissions SCIMPermissions `json:"permissions"`
	// Inactive users are kept, and may do nothing.
	Inactive bool `json:"inactive,omitempty"`
	// DeactivatedAt is when the user last became inactive, Unix ms; 0: never. Each time it is another number, and a
	// session that began under another one is over for good.
	DeactivatedAt int64 `json:"deactivated_at,omitempty"`
	// SignedInAt is when the user last signed in, Unix ms; 0: never.
	SignedInAt int64 `json:"signed_in_at,omitempty"`

	ExternalID string `json:"externalId,omitempty"` // the identity provider's id
	// Emails are the addresses that were sent. nil: none ever was, so the userName is the address; empty: they were
	// removed.
	Emails []SCIMEmail `json:"emails"`
	// Attributes are the attributes that are texts, by their path in the protocol.
	Attributes map[string]string `json:"attributes,omitempty"`
	// numbers of the sets that the user is a member of, in rising order; some may no longer exist
	PermissionSets []uint32 `json:"permission_sets,omitempty"`
	CreatedAt      int64    `json:"created_at"` // Unix ms
	UpdatedAt      int64    `json:"updated_at"` // Unix ms
}

// SCIMEmail is an address of a dashboard user. Nobody signs in with it; the userName is for that.
type SCIMEmail struct {
	Value   string `json:"value"`
	Type    string `json:"type,omitempty"`
	Primary bool   `json:"primary,omitempty"`
}

// Departments are all departments.
var Departments = []string{"agency", "bi", "c_suite", "engineering", "finance", "marketing", "pm"}

// Session is a session of the console: a person who has signed in, in one browser. It is a control document, so it is
// the same on every node and survives a restart. Of its token it has only a digest, which is its id.
type Session struct {
	ID       string `json:"id"`                // SHA-256 of the token, hexadecimal
	UserID   string `json:"user_id,omitempty"` // of the dashboard user; empty: signed in by the admin token
	UserName string `json:"user_name"`
	UserKey  string `json:"-"` // of the dashboard user's document, when a session begins
	// DeactivatedAt is the dashboard user's, when the session began. Whether a session is older than that can't be told
	// by its own time: the clock may have been put back in between.
	DeactivatedAt int64 `json:"deactivated_at,omitempty"`
	// Secret is a digest of the admin token if that opened the session: with another admin token the session is over.
	Secret  string `json:"secret,omitempty"`
	Address string `json:"address,omitempty"`
	BeganAt int64  `json:"began_at"` // Unix ms
	SeenAt  int64  `json:"seen_at"`  // Unix ms; at most SessionLimits.Step before the last request
}

// SessionLimits bound sessions.
type SessionLimits struct {
	Idle, Life int64 // ms without a request, and in total
	Max        int   // sessions at a time
	MaxOfUser  int   // of one person; a new session replaces the one that was unused for longest
}

// Step is how far SeenAt may lag: not each request is worth a record.
func (l SessionLimits) Step() int64 { return l.Idle / 8 }

// IsOver reports whether a session has ended. So has one of a time to come, from before the clock was put back: nobody
// knows how old it is, and it would end that much too late.
func (l SessionLimits) IsOver(s *Session, now int64) bool {
	seen, began := now-s.SeenAt, now-s.BeganAt
	return max(seen, -seen) >= l.Idle || max(began, -began) >= l.Life
}
