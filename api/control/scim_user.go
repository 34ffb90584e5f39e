package control

// SCIMUser is a dashboard user (service.md 2.13) as it is stored, under its userName in lower case. The ids in it are
// made by package scim.
type SCIMUser struct {
	ID         string `json:"id"` // Collection.Find finds it
	UserName   string `json:"userName"`
	GivenName  string `json:"givenName"`
	FamilyName string `json:"familyName"`
	Department string `json:"department,omitempty"` // one of Departments; empty: none
	// the user's own; Control.PermissionsOf has those of permission sets besides
	Permissions SCIMPermissions `json:"permissions"`
	// Inactive users are kept, and may do nothing.
	Inactive bool `json:"inactive,omitempty"`
	// DeactivatedAt is when the user became inactive last, Unix ms; 0: never. What was begun before is over for good.
	DeactivatedAt int64 `json:"deactivated_at,omitempty"`
	// SignedInAt is when the user has signed in last, Unix ms; 0: never.
	SignedInAt int64 `json:"signed_in_at,omitempty"`

	ExternalID string `json:"externalId,omitempty"` // the identity provider's id
	// Emails are the addresses that were sent. nil: none ever was, so the userName is the one; empty: they were
	// removed.
	Emails []SCIMEmail `json:"emails"`
	// Attributes are those that are texts, by their path in the protocol.
	Attributes map[string]string `json:"attributes,omitempty"`
	// numbers of the sets that the user is a member of, rising; some may be gone
	PermissionSets []uint32 `json:"permission_sets,omitempty"`
	CreatedAt      int64    `json:"created_at"` // Unix ms
	UpdatedAt      int64    `json:"updated_at"` // Unix ms
}

// SCIMEmail is an address of a dashboard user. Nobody signs in by it: that is the userName.
type SCIMEmail struct {
	Value   string `json:"value"`
	Type    string `json:"type,omitempty"`
	Primary bool   `json:"primary,omitempty"`
}

// Departments are all that there are.
var Departments = []string{"agency", "bi", "c_suite", "engineering", "finance", "marketing", "pm"}
