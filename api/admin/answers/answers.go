// Package answers has the answers of the admin API that others read, too, such as the console: what their members are
// called in JSON and what they mean. Times are texts in ISO 8601, UTC. It also has how the paths of requests are made.
//
// A member that an answer has and its reader doesn't know is left out by the reader, so members may be added.
package answers

import (
	"encoding/json"

	"millrace/api/control"
	"millrace/api/control/document"
)

// Workspace is a workspace with the limits that result from its settings.
type Workspace struct {
	document.Settings
	Limits map[string]string `json:"effective_rate_limits"` // by bucket
}

// CampaignSummary is a campaign in a list.
type CampaignSummary struct {
	ID       string `json:"id"`
	Name     string `json:"name,omitempty"`
	Messages int    `json:"messages"`
}

// CanvasSummary is a canvas in a list.
type CanvasSummary struct {
	ID       string `json:"id"`
	Name     string `json:"name,omitempty"`
	Steps    int    `json:"steps"`
	Messages int    `json:"messages"` // of all steps
}

// APIKey is an API key as it is shown.
type APIKey struct {
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Hint        string   `json:"hint"`
	Permissions []string `json:"permissions"`
	IPAllowList []string `json:"ip_allowlist"`
	CreatedAt   string   `json:"created_at"`
	LastUsedAt  string   `json:"last_used_at,omitempty"` // to the minute
	RevokedAt   string   `json:"revoked_at,omitempty"`
}

// MadeKey is a key with its token, which is shown only this once.
type MadeKey struct {
	APIKey
	Token string `json:"key"`
}

// SCIMAccess is how identity providers reach the SCIM API.
type SCIMAccess struct {
	document.SCIMSettings
	Tokens []SCIMToken `json:"tokens"`
}

// SCIMToken is a token of the SCIM access as it is shown.
type SCIMToken struct {
	ID         string `json:"id"`
	Hint       string `json:"hint"`
	CreatedAt  string `json:"created_at"`
	LastUsedAt string `json:"last_used_at,omitempty"` // to the minute
	RevokedAt  string `json:"revoked_at,omitempty"`
}

// MadeToken is a token with its text, which is shown only this once.
type MadeToken struct {
	SCIMToken
	Token string `json:"token"`
}

// DashboardUsers is a page of dashboard users, in order of their userNames.
type DashboardUsers struct {
	Users []DashboardUser `json:"dashboard_users"`
	Next  string          `json:"next,omitempty"` // the cursor of the following page, if there is one
}

// DashboardUser is a dashboard user as operators see them. While active, the user may do what the user's own
// permissions say, and those of the permission sets.
type DashboardUser struct {
	ID             string                   `json:"id"`
	UserName       string                   `json:"user_name"`
	Name           string                   `json:"name"`
	Department     string                   `json:"department,omitempty"`
	IsActive       bool                     `json:"active"`
	PermissionSets []PermissionSetName      `json:"permission_sets"`
	Permissions    document.SCIMPermissions `json:"permissions"` // the user's own
}

// PermissionSetName is a permission set in a list.
type PermissionSetName struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// AuditEntry is an entry of the audit log in the form in which it is shown.
type AuditEntry struct {
	Seq   uint64 `json:"seq"`
	Time  string `json:"time"`            // to the microsecond
	Actor uint32 `json:"actor,omitempty"` // number of the API key or SCIM token
	control.Entry
	Hash string `json:"hash"` // hash of the chain up to here
}

// AuditPage is a page of the audit log, oldest entry first.
type AuditPage struct {
	Entries []AuditEntry `json:"entries"`
	Next    uint64       `json:"next,omitempty"` // where to read on; absent at the end
}

// AuditCheck is whether the chain of hashes holds.
type AuditCheck struct {
	IsIntact bool   `json:"intact"`
	Problem  string `json:"problem,omitempty"`
	Seq      uint64 `json:"seq"`            // this many entries are as they were written
	Hash     string `json:"hash,omitempty"` // of the last one: note it elsewhere
}

// ClusterChange is what the audit log says was done to a cluster; empty when everything was so already.
type ClusterChange struct {
	What string `json:"what,omitempty"`
}

// User is a user, and the svc_ids of the users who were merged into it.
type User struct {
	User       json.RawMessage `json:"user"` // in the form of an export
	MergedFrom []string        `json:"merged_from,omitempty"`
}

// FoundUsers are users whom an identifier names.
type FoundUsers struct {
	Users []json.RawMessage `json:"users"` // the first of them, in the form of an export
	Count int               `json:"count"` // of all
}

// TriedAnswer is the public door's answer to a request that was tried.
type TriedAnswer struct {
	Status  int           `json:"status"`
	Headers []TriedHeader `json:"headers"`
	Body    string        `json:"body"`
	IsCut   bool          `json:"cut,omitempty"` // the text is longer
}

// TriedHeader is a header of a TriedAnswer.
type TriedHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}
