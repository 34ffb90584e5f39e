package control

// SCIMUser is a dashboard user (service.md 2.13) as it is stored, under its userName in lower case. The ids in it are made by package scim.
type SCIMUser struct {
	ID          string          `json:"id"` // Collection.Find finds it
	UserName    string          `json:"userName"`
	GivenName   string          `json:"givenName"`
	FamilyName  string          `json:"familyName"`
	Department  string          `json:"department"`
	Permissions SCIMPermissions `json:"permissions"`
	CreatedAt   int64           `json:"created_at"` // Unix ms
	UpdatedAt   int64           `json:"updated_at"` // Unix ms
}

// SCIMPermissions are what a dashboard user may do, in the company and in its workspaces. The names are those of the protocol.
type SCIMPermissions struct {
	Company   []string       `json:"companyPermissions"`
	Roles     []SCIMRole     `json:"roles,omitzero"`
	AppGroups []SCIMAppGroup `json:"appGroup"`
}

// SCIMRole is a role by its name or its id.
type SCIMRole struct {
	ID   string `json:"roleId,omitempty"`
	Name string `json:"roleName,omitempty"`
}

// SCIMAppGroup is what a dashboard user may do in one workspace: permissions, or sets of them, and those in teams.
type SCIMAppGroup struct {
	ID             string              `json:"appGroupId"`
	Name           string              `json:"appGroupName"`
	Permissions    []string            `json:"appGroupPermissions,omitzero"`
	PermissionSets []SCIMPermissionSet `json:"appGroupPermissionSets,omitzero"`
	Teams          []SCIMTeam          `json:"team"`
}

// SCIMPermissionSet is a set of permissions by its name or its id.
type SCIMPermissionSet struct {
	ID   string `json:"appGroupPermissionSetId,omitempty"`
	Name string `json:"appGroupPermissionSetName,omitempty"`
}

// SCIMTeam is what a dashboard user may do in a team of a workspace.
type SCIMTeam struct {
	ID          string   `json:"teamId"`
	Name        string   `json:"teamName,omitempty"`
	Permissions []string `json:"teamPermissions"`
}
