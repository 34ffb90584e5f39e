package scim

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"millrace/api/control/document"
)

// The schemas (RFC 7643 7): which attributes there are. Clients read them, and PATCH, filters and projections use them.

type schemaJSON struct {
	Schemas     []string    `json:"schemas"`
	ID          string      `json:"id"`
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Attributes  []attribute `json:"attributes"`
	Meta        metaJSON    `json:"meta"`
}

// attribute is RFC 7643 7. complete fills in what all attributes of a user have in common.
type attribute struct {
	Name            string      `json:"name"`
	Type            string      `json:"type"`
	MultiValued     bool        `json:"multiValued"`
	Description     string      `json:"description"`
	Required        bool        `json:"required"`
	CanonicalValues []string    `json:"canonicalValues,omitempty"`
	ReferenceTypes  []string    `json:"referenceTypes,omitempty"`
	CaseExact       bool        `json:"caseExact"`
	Mutability      string      `json:"mutability"`
	Returned        string      `json:"returned"`
	Uniqueness      string      `json:"uniqueness"`
	SubAttributes   []attribute `json:"subAttributes,omitempty"`
}

// common are the attributes of every resource, which no schema lists (RFC 7643 3.1).
var common = complete([]attribute{
	{Name: "schemas", MultiValued: true, Mutability: "readOnly"},
	{Name: "id", CaseExact: true, Mutability: "readOnly"},
	{Name: "externalId", CaseExact: true},
	{Name: "meta", Type: "complex", Mutability: "readOnly", SubAttributes: []attribute{
		{Name: "resourceType"}, {Name: "created"}, {Name: "lastModified"}, {Name: "location"}, {Name: "version"},
	}},
})

// texts returns attributes that are only texts, which the identity provider sets and on which nothing here depends.
func texts(described ...string) (list []attribute) {
	for i := 0; i < len(described); i += 2 {
		list = append(list, attribute{Name: described[i], Description: described[i+1], CaseExact: true})
	}
	return list
}

var (
	userTexts = texts("displayName", "The name to show.", "nickName", "The casual name.", "title", "The user's title.",
		"userType", "The relation to the organization.",
		"preferredLanguage", "The preferred language.",
		"locale", "The location, for forms of dates and numbers.", "timezone",
		"The time zone.")
	enterpriseTexts = texts("employeeNumber", "The number in the organization.", "costCenter", "The cost center.",
		"organization", "The organization.",
		"division", "The division.", "department", "The department, in the organization's words.")
)

var userSchema = schemaJSON{
	Schemas: []string{schemaSchema}, ID: UserSchema, Name: "User", Description: "A dashboard user of the company.",
	Meta: metaJSON{ResourceType: "Schema", Location: base + "/Schemas/" + UserSchema},
	Attributes: complete(append([]attribute{
		{Name: "userName", Description: "Email address. It can't be changed.", Required: true,
			Mutability: "immutable", Uniqueness: "server"},
		{Name: "name", Type: "complex", Description: "The user's name.", Required: true, SubAttributes: []attribute{
			{Name: "givenName", Description: "First name.", Required: true, CaseExact: true},
			{Name: "familyName", Description: "Last name.", Required: true, CaseExact: true},
			{Name: "formatted", Description: "The name as it is written.", CaseExact: true},
		}},
		{Name: "active", Type: "boolean", Description: "Whether the user may do anything. Who is not active is kept."},
		{Name: "emails", Type: "complex", MultiValued: true,
			Description: "Email addresses; the userName, when none was sent.", SubAttributes: []attribute{
				{Name: "value", Description: "The address."},
				{Name: "type", Description: "What it is for.", CanonicalValues: []string{"work", "home", "other"}},
				{Name: "primary", Type: "boolean", Description: "Whether it is the preferred one."},
			}},
		{Name: "groups", Type: "complex", MultiValued: true, Description: "The groups that the user is a member of.",
			Mutability: "readOnly", SubAttributes: []attribute{
				{Name: "value", Description: "Id of the group.", CaseExact: true, Mutability: "readOnly"},
				{Name: "display", Description: "Name of the group.", Mutability: "readOnly"},
				{Name: "$ref", Type: "reference", ReferenceTypes: []string{"Group"}, Description: "Path of the group.",
					CaseExact: true, Mutability: "readOnly"},
			}},
		{Name: "department", Description: "The department that the user belongs to.",
			CanonicalValues: document.Departments, CaseExact: true},
		{Name: "lastSignInAt", Description: "Date of the last sign-in, UTC; the epoch when there was none.",
			Mutability: "readOnly"},
		{Name: "createdAt", Description: "Date of creation, UTC.", Mutability: "readOnly"},
		permissionsAttribute("What the user may do, besides what groups give."),
	}, userTexts...)),
}

var enterpriseSchema = schemaJSON{
	Schemas: []string{schemaSchema}, ID: EnterpriseSchema, Name: "Enterprise User",
	Description: "What organizations know of their people.",
	Meta:        metaJSON{ResourceType: "Schema", Location: base + "/Schemas/" + EnterpriseSchema},
	Attributes: complete(append([]attribute{
		{Name: "manager", Type: "complex", Description: "The user's manager.",
			SubAttributes: []attribute{{Name: "value", Description: "Id of the manager.", CaseExact: true}}},
	}, enterpriseTexts...)),
}

var groupSchema = schemaJSON{
	Schemas: []string{schemaSchema}, ID: GroupSchema,
	Name: "Group", Description: "A set of permissions, which its members have.",
	Meta: metaJSON{ResourceType: "Schema", Location: base + "/Schemas/" + GroupSchema},
	Attributes: complete([]attribute{
		{Name: "displayName", Description: "The group's name.", Required: true, Uniqueness: "server"},
		{Name: "members", Type: "complex", MultiValued: true, Description: "The members, who are users.",
			SubAttributes: []attribute{
				{Name: "value", Description: "Id of the user.", CaseExact: true, Mutability: "immutable"},
				{Name: "display", Description: "The user's userName.", Mutability: "readOnly"},
				{Name: "type", Description: "User.", CanonicalValues: []string{"User"}, Mutability: "immutable"},
				{Name: "$ref", Type: "reference", ReferenceTypes: []string{"User"}, Description: "Path of the user.",
					CaseExact: true, Mutability: "immutable"},
			}},
		permissionsAttribute("What members may do."),
	}),
}

func permissionsAttribute(description string) attribute {
	return attribute{Name: "permissions", Type: "complex", Description: description, SubAttributes: []attribute{
		{Name: "companyPermissions", MultiValued: true, Description: "Permissions in the company.",
			CanonicalValues: companyPermissions, CaseExact: true},
		{Name: "roles", Type: "complex", MultiValued: true, Description: "Roles, by name or id.",
			SubAttributes: []attribute{
				{Name: "roleName", Description: "Name of the role.", CaseExact: true},
				{Name: "roleId", Description: "Id of the role.", CaseExact: true},
			}},
		{Name: "appGroup", Type: "complex", MultiValued: true, Description: "Permissions in workspaces.",
			SubAttributes: appGroupAttributes},
	}}
}

var appGroupAttributes = []attribute{
	{Name: "appGroupId", Description: "Id of the workspace.", CaseExact: true},
	{Name: "appGroupName", Description: "Name of the workspace; it or the id is required.", CaseExact: true},
	{Name: "appGroupPermissions", MultiValued: true, Description: "Permissions in the workspace.",
		CanonicalValues: appGroupPermissions, CaseExact: true},
	{Name: "appGroupPermissionSets", Type: "complex", MultiValued: true,
		Description: "Sets of permissions, instead of appGroupPermissions.", SubAttributes: []attribute{
			{Name: "appGroupPermissionSetName", Description: "Name of the set.", CaseExact: true},
			{Name: "appGroupPermissionSetId", Description: "Id of the set.", CaseExact: true},
		}},
	{Name: "team", Type: "complex", MultiValued: true, Description: "Permissions in teams of the workspace.",
		SubAttributes: []attribute{
			{Name: "teamId", Description: "Id of the team.", CaseExact: true},
			{Name: "teamName", Description: "Name of the team; it or the id is required.", CaseExact: true},
			{Name: "teamPermissions", MultiValued: true, Description: "Permissions in the team.",
				CanonicalValues: teamPermissions, CaseExact: true},
		}},
}

func complete(attributes []attribute) []attribute {
	for i := range attributes {
		a := &attributes[i]
		a.Type = cmp.Or(a.Type, "string")
		a.Mutability = cmp.Or(a.Mutability, "readWrite")
		a.Uniqueness = cmp.Or(a.Uniqueness, "none")
		a.Returned = "default"
		complete(a.SubAttributes)
	}
	return attributes
}

// find returns the attribute of a name, in any case; nil when there is none.
func find(attributes []attribute, name string) *attribute {
	for i := range attributes {
		if strings.EqualFold(attributes[i].Name, name) {
			return &attributes[i]
		}
	}
	return nil
}

// rename gives the members of a value, an object or a list of objects, the names that the attributes have, and those of
// objects in it likewise: a request may have names in any case (RFC 7643 2.1). Of several members that are one
// attribute, the one with its very name counts, or else the first by its bytes. Unknown members stay as they are.
func rename(v any, attributes []attribute) {
	if list, ok := v.([]any); ok {
		for _, e := range list {
			rename(e, attributes)
		}
	}
	members, _ := v.(map[string]any)
	for _, name := range slices.Sorted(maps.Keys(members)) {
		a := find(attributes, name)
		if a == nil || name != a.Name && members[a.Name] != nil {
			continue
		}
		of := members[name]
		delete(members, name)
		members[a.Name] = of
		rename(of, a.SubAttributes)
	}
}

var userSchemas = []schemaJSON{userSchema, enterpriseSchema}
var groupSchemas = []schemaJSON{groupSchema}

type metaJSON struct {
	ResourceType string `json:"resourceType"`
	Created      string `json:"created,omitempty"`
	LastModified string `json:"lastModified,omitempty"`
	Location     string `json:"location"`
	Version      string `json:"version,omitempty"`
}

func metaOf(kind string, created, updated int64, location, version string) metaJSON {
	form := func(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) }
	return metaJSON{kind, form(created), form(updated), location, version}
}
