package control

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
	// DeactivatedAt is when the user last became inactive, Unix ms; 0: never. Sessions begun before then are over for
	// good.
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
