package scim

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"

	"millrace/api/control/document"
)

// Resource is a user or a group in the form of an answer.
type Resource struct {
	ID       string
	Location string // its path
	Version  string // a weak ETag
	json     any    // what it looks like in JSON
	schemas  []schemaJSON
}

// Append appends the resource, or what the projection leaves of it.
func (r *Resource) Append(dst []byte, p Projection) []byte {
	return appendJSON(dst, p.of(r.json, r.schemas))
}

// version returns the weak ETag of a document, which changes when anything in the document does.
func version(document any) string {
	sum := sha256.Sum256(appendJSON(nil, document))
	return `W/"` + hex.EncodeToString(sum[:8]) + `"`
}

// checkMatch returns errStale unless ifMatch, the header of a request, is empty or names the current version.
func checkMatch(ifMatch, version string) error {
	if ifMatch == "" || Matches(ifMatch, version) {
		return nil
	}
	return errStale
}

// Matches reports whether a list of ETags, in the form of If-Match and If-None-Match, names this one. Whether they are
// weak doesn't matter: all are.
func Matches(list, version string) bool {
	for tag := range strings.SplitSeq(list, ",") {
		if tag = strings.TrimSpace(tag); tag == "*" ||
			strings.TrimPrefix(tag, "W/") == strings.TrimPrefix(version, "W/") {
			return true
		}
	}
	return false
}

// signInForm is the form of lastSignInAt and createdAt, in UTC. The epoch stands for never.
const signInForm = "Monday, January 2, 2006 3:04:05 PM"

func signInText(millis int64) string { return time.UnixMilli(millis).UTC().Format(signInForm) }

type userJSON struct {
	Schemas    []string `json:"schemas"`
	ID         string   `json:"id"`
	ExternalID string   `json:"externalId,omitempty"`
	UserName   string   `json:"userName"`
	Name       nameJSON `json:"name"`
	textsJSON
	Active       bool                     `json:"active"`
	Emails       []document.SCIMEmail     `json:"emails,omitempty"`
	Groups       []groupRefJSON           `json:"groups,omitempty"`
	Department   string                   `json:"department,omitempty"`
	LastSignInAt string                   `json:"lastSignInAt"`
	CreatedAt    string                   `json:"createdAt"`
	Permissions  document.SCIMPermissions `json:"permissions"`
	Enterprise   *enterpriseJSON          `json:"urn:ietf:params:scim:schemas:extension:enterprise:2.0:User,omitempty"`
	Meta         metaJSON                 `json:"meta"`
}

type nameJSON struct {
	GivenName  string `json:"givenName"`
	FamilyName string `json:"familyName"`
	Formatted  string `json:"formatted,omitempty"`
}

type textsJSON struct {
	DisplayName       string `json:"displayName,omitempty"`
	NickName          string `json:"nickName,omitempty"`
	Title             string `json:"title,omitempty"`
	UserType          string `json:"userType,omitempty"`
	PreferredLanguage string `json:"preferredLanguage,omitempty"`
	Locale            string `json:"locale,omitempty"`
	Timezone          string `json:"timezone,omitempty"`
}

type enterpriseJSON struct {
	EmployeeNumber string       `json:"employeeNumber,omitempty"`
	CostCenter     string       `json:"costCenter,omitempty"`
	Organization   string       `json:"organization,omitempty"`
	Division       string       `json:"division,omitempty"`
	Department     string       `json:"department,omitempty"`
	Manager        *managerJSON `json:"manager,omitempty"`
}

type managerJSON struct {
	Value string `json:"value"`
}

type groupRefJSON struct {
	Value   string `json:"value"`
	Display string `json:"display"`
	Ref     string `json:"$ref"`
}

// Paths of attributes in document.SCIMUser.Attributes that are not just a name.
const (
	formattedPath = "name.formatted"
	managerPath   = EnterpriseSchema + ":manager"
)

func enterprisePath(name string) string { return EnterpriseSchema + ":" + name }

// describe returns a user in the form of an answer; sets are those that the user is in.
func describe(u *document.SCIMUser, sets []*document.PermissionSet) *Resource {
	r := &Resource{ID: u.ID, Location: usersPath + "/" + u.ID, Version: version(u), schemas: userSchemas}
	at := u.Attributes
	v := userJSON{
		Schemas: []string{UserSchema}, ID: u.ID, ExternalID: u.ExternalID, UserName: u.UserName,
		Name: nameJSON{u.GivenName, u.FamilyName, at[formattedPath]},
		textsJSON: textsJSON{at["displayName"], at["nickName"], at["title"], at["userType"], at["preferredLanguage"],
			at["locale"], at["timezone"]},
		Active: !u.Inactive, Emails: emailsOf(u), Department: u.Department, LastSignInAt: signInText(u.SignedInAt),
		CreatedAt: signInText(u.CreatedAt), Permissions: u.Permissions,
		Meta: metaOf("User", u.CreatedAt, u.UpdatedAt, r.Location, r.Version),
	}
	for _, p := range sets {
		v.Groups = append(v.Groups, groupRefJSON{p.ID, p.Name, groupLocation(p)})
	}
	e := enterpriseJSON{at[enterprisePath("employeeNumber")], at[enterprisePath("costCenter")],
		at[enterprisePath("organization")], at[enterprisePath("division")],
		at[enterprisePath("department")], nil}
	if id := at[managerPath]; id != "" {
		e.Manager = &managerJSON{id}
	}
	if e != (enterpriseJSON{}) {
		v.Enterprise, v.Schemas = &e, append(v.Schemas, EnterpriseSchema)
	}
	r.json = v
	return r
}

// emailsOf returns the addresses that are shown: the userName is one (service.md 2.13), unless others were sent.
func emailsOf(u *document.SCIMUser) []document.SCIMEmail {
	if u.Emails != nil {
		return u.Emails
	}
	return []document.SCIMEmail{{Value: u.UserName, Type: "work", Primary: true}}
}

type groupJSON struct {
	Schemas     []string                 `json:"schemas"`
	ID          string                   `json:"id"`
	ExternalID  string                   `json:"externalId,omitempty"`
	DisplayName string                   `json:"displayName"`
	Members     []memberJSON             `json:"members"`
	Permissions document.SCIMPermissions `json:"permissions"`
	Meta        metaJSON                 `json:"meta"`
}

type memberJSON struct {
	Value   string `json:"value"`
	Display string `json:"display"`
	Type    string `json:"type"`
	Ref     string `json:"$ref"`
}

func groupLocation(p *document.PermissionSet) string { return groupsPath + "/" + p.ID }

func describeGroup(p *document.PermissionSet, members []*document.SCIMUser) *Resource {
	r := &Resource{ID: p.ID, Location: groupLocation(p), Version: version(p), schemas: groupSchemas}
	v := groupJSON{Schemas: []string{GroupSchema}, ID: p.ID, ExternalID: p.ExternalID, DisplayName: p.Name,
		Members: []memberJSON{}, Permissions: p.Permissions,
		Meta: metaOf("Group", int64(p.CreatedAt), int64(p.UpdatedAt), r.Location, r.Version)}
	for _, u := range members {
		v.Members = append(v.Members, memberJSON{u.ID, u.UserName, "User", usersPath + "/" + u.ID})
	}
	r.json = v
	return r
}

type listJSON[T any] struct {
	Schemas      []string `json:"schemas"`
	TotalResults int      `json:"totalResults"`
	StartIndex   int      `json:"startIndex"`
	ItemsPerPage int      `json:"itemsPerPage"`
	Resources    []T      `json:"Resources"`
}

// Page says which part of a list is wanted.
type Page struct {
	Filter     *string // nil: none
	StartIndex int     // from 1; less means 1
	Count      int     // less than 0 means 0; MaxCount at most
}

// filter returns the filter of the page; nil: none was given.
func (p *Page) filter(schemas []schemaJSON) (filter, error) {
	if p.Filter == nil {
		return nil, nil
	}
	return parseFilter(*p.Filter, schemas)
}

// List is the answer to a query.
type List struct {
	total, start int
	resources    []*Resource
}

// pageOf cuts the page out of all results before describing them: describing one costs a few microseconds.
func pageOf[T any](all []T, p Page, describe func(T) *Resource) *List {
	l := &List{total: len(all), start: max(1, p.StartIndex)}
	from := min(l.start-1, len(all))
	for _, v := range all[from:min(len(all), from+min(max(0, p.Count), MaxCount))] {
		l.resources = append(l.resources, describe(v))
	}
	return l
}

// Append appends the list.
func (l *List) Append(dst []byte, p Projection) []byte {
	v := listJSON[any]{Schemas: []string{listSchema}, TotalResults: l.total, StartIndex: l.start,
		ItemsPerPage: len(l.resources), Resources: []any{}}
	for _, r := range l.resources {
		v.Resources = append(v.Resources, p.of(r.json, r.schemas))
	}
	return appendJSON(dst, v)
}
