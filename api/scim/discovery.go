package scim

import "cmp"

// The documents that identity providers read to learn what the service can do (RFC 7643 5 to 7, RFC 7644 4). They are the same for everybody and are made once.

// ServiceProviderConfig is the answer to GET /scim/v2/ServiceProviderConfig.
func ServiceProviderConfig() []byte { return configDocument }

// ResourceTypes is the answer to GET /scim/v2/ResourceTypes.
func ResourceTypes() []byte { return typesDocument }

// ResourceType is one of them, by its name; nil for an unknown one.
func ResourceType(id string) []byte {
	if id == userType.ID {
		return typeDocument
	}
	return nil
}

// Schemas is the answer to GET /scim/v2/Schemas.
func Schemas() []byte { return schemasDocument }

// Schema is one of them, by its URN; nil for an unknown one.
func Schema(id string) []byte {
	if id == userSchema.ID {
		return schemaDocument
	}
	return nil
}

var (
	configDocument  = appendJSON(nil, providerConfig)
	typesDocument   = appendJSON(nil, listOf(userType))
	typeDocument    = appendJSON(nil, userType)
	schemasDocument = appendJSON(nil, listOf(userSchema))
	schemaDocument  = appendJSON(nil, userSchema)
)

func listOf[T any](all ...T) listJSON[T] {
	return listJSON[T]{Schemas: []string{listSchema}, TotalResults: len(all), StartIndex: 1, ItemsPerPage: len(all), Resources: all}
}

type supported struct {
	Supported bool `json:"supported"`
}

type authenticationScheme struct {
	Type        string `json:"type"`
	Name        string `json:"name"`
	Description string `json:"description"`
	SpecURI     string `json:"specUri"`
	Primary     bool   `json:"primary"`
}

type bulkSupport struct {
	supported
	MaxOperations  int `json:"maxOperations"`
	MaxPayloadSize int `json:"maxPayloadSize"`
}

type filterSupport struct {
	supported
	MaxResults int `json:"maxResults"`
}

type configJSON struct {
	Schemas        []string               `json:"schemas"`
	Patch          supported              `json:"patch"`
	Bulk           bulkSupport            `json:"bulk"`
	Filter         filterSupport          `json:"filter"`
	ChangePassword supported              `json:"changePassword"`
	Sort           supported              `json:"sort"`
	ETag           supported              `json:"etag"`
	Authentication []authenticationScheme `json:"authenticationSchemes"`
	Meta           metaJSON               `json:"meta"`
}

var providerConfig = configJSON{
	Schemas: []string{configSchema},
	Filter:  filterSupport{supported{true}, 1}, // a userName is one user's
	Authentication: []authenticationScheme{{
		Type: "oauthbearertoken", Name: "SCIM token", SpecURI: "https://www.rfc-editor.org/info/rfc6750", Primary: true,
		Description: "The company's SCIM token as a bearer token, and the request origin that goes with it in the header X-Request-Origin.",
	}},
	Meta: metaJSON{ResourceType: "ServiceProviderConfig", Location: base + "/ServiceProviderConfig"},
}

type typeJSON struct {
	Schemas     []string `json:"schemas"`
	ID          string   `json:"id"`
	Name        string   `json:"name"`
	Endpoint    string   `json:"endpoint"`
	Description string   `json:"description"`
	Schema      string   `json:"schema"`
	Meta        metaJSON `json:"meta"`
}

var userType = typeJSON{
	Schemas: []string{typeSchema}, ID: "User", Name: "User", Endpoint: "/Users", Description: "A dashboard user of the company.", Schema: UserSchema,
	Meta: metaJSON{ResourceType: "ResourceType", Location: base + "/ResourceTypes/User"},
}

type schemaJSON struct {
	Schemas     []string    `json:"schemas"`
	ID          string      `json:"id"`
	Name        string      `json:"name"`
	Description string      `json:"description"`
	Attributes  []attribute `json:"attributes"`
	Meta        metaJSON    `json:"meta"`
}

// attribute is RFC 7643 7. What all attributes of a user have in common is filled in by complete.
type attribute struct {
	Name            string      `json:"name"`
	Type            string      `json:"type"`
	MultiValued     bool        `json:"multiValued"`
	Description     string      `json:"description"`
	Required        bool        `json:"required"`
	CanonicalValues []string    `json:"canonicalValues,omitempty"`
	CaseExact       bool        `json:"caseExact"`
	Mutability      string      `json:"mutability"`
	Returned        string      `json:"returned"`
	Uniqueness      string      `json:"uniqueness"`
	SubAttributes   []attribute `json:"subAttributes,omitempty"`
}

var userSchema = schemaJSON{
	Schemas: []string{schemaSchema}, ID: UserSchema, Name: "User", Description: "A dashboard user of the company.",
	Meta: metaJSON{ResourceType: "Schema", Location: base + "/Schemas/" + UserSchema},
	Attributes: complete([]attribute{
		{Name: "userName", Description: "Email address. It can't be changed.", Required: true, Mutability: "immutable", Uniqueness: "server"},
		{Name: "name", Type: "complex", Description: "The user's name.", Required: true, SubAttributes: []attribute{
			{Name: "givenName", Description: "First name.", Required: true, CaseExact: true},
			{Name: "familyName", Description: "Last name.", Required: true, CaseExact: true},
		}},
		{Name: "department", Description: "The department that the user belongs to.", Required: true, CanonicalValues: departments, CaseExact: true},
		{Name: "lastSignInAt", Description: "Date of the last sign-in, UTC; the epoch when there was none.", Mutability: "readOnly"},
		{Name: "createdAt", Description: "Date of creation, UTC.", Mutability: "readOnly"},
		{Name: "permissions", Type: "complex", Description: "What the user may do.", Required: true, SubAttributes: []attribute{
			{Name: "companyPermissions", MultiValued: true, Description: "Permissions in the company.", CanonicalValues: companyPermissions, CaseExact: true},
			{Name: "roles", Type: "complex", MultiValued: true, Description: "Roles, by name or id.", SubAttributes: []attribute{
				{Name: "roleName", Description: "Name of the role.", CaseExact: true},
				{Name: "roleId", Description: "Id of the role.", CaseExact: true},
			}},
			{Name: "appGroup", Type: "complex", MultiValued: true, Description: "Permissions in workspaces.", SubAttributes: appGroupAttributes},
		}},
	}),
}

var appGroupAttributes = []attribute{
	{Name: "appGroupId", Description: "Id of the workspace.", CaseExact: true},
	{Name: "appGroupName", Description: "Name of the workspace; it or the id is required.", CaseExact: true},
	{Name: "appGroupPermissions", MultiValued: true, Description: "Permissions in the workspace.", CanonicalValues: appGroupPermissions, CaseExact: true},
	{Name: "appGroupPermissionSets", Type: "complex", MultiValued: true, Description: "Sets of permissions, instead of appGroupPermissions.", SubAttributes: []attribute{
		{Name: "appGroupPermissionSetName", Description: "Name of the set.", CaseExact: true},
		{Name: "appGroupPermissionSetId", Description: "Id of the set.", CaseExact: true},
	}},
	{Name: "team", Type: "complex", MultiValued: true, Description: "Permissions in teams of the workspace.", SubAttributes: []attribute{
		{Name: "teamId", Description: "Id of the team.", CaseExact: true},
		{Name: "teamName", Description: "Name of the team; it or the id is required.", CaseExact: true},
		{Name: "teamPermissions", MultiValued: true, Description: "Permissions in the team.", CanonicalValues: teamPermissions, CaseExact: true},
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
