package scim

// Discovery is the document under a path that identity providers read to learn what the service can do (RFC 7643 5 to
// 7, RFC 7644 4); nil when there is none. Documents are the same for everybody and are made once.
func Discovery(path string) []byte { return discovery[path] }

var discovery = map[string][]byte{
	providerConfig.Meta.Location:   appendJSON(nil, providerConfig),
	base + "/ResourceTypes":        appendJSON(nil, listOf(userType, groupType)),
	userType.Meta.Location:         appendJSON(nil, userType),
	groupType.Meta.Location:        appendJSON(nil, groupType),
	base + "/Schemas":              appendJSON(nil, listOf(userSchema, enterpriseSchema, groupSchema)),
	userSchema.Meta.Location:       appendJSON(nil, userSchema),
	enterpriseSchema.Meta.Location: appendJSON(nil, enterpriseSchema),
	groupSchema.Meta.Location:      appendJSON(nil, groupSchema),
}

func listOf[T any](all ...T) listJSON[T] {
	return listJSON[T]{Schemas: []string{listSchema}, TotalResults: len(all), StartIndex: 1, ItemsPerPage: len(all),
		Resources: all}
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
	Patch:   supported{true},
	Filter:  filterSupport{supported{true}, MaxCount},
	ETag:    supported{true},
	Authentication: []authenticationScheme{{
		Type: "oauthbearertoken", Name: "SCIM token", SpecURI: "https://www.rfc-editor.org/info/rfc6750", Primary: true,
		Description: "The company's SCIM token as a bearer token, and the request origin that goes with it, when one " +
			"is set, in the header X-Request-Origin.",
	}},
	Meta: metaJSON{ResourceType: "ServiceProviderConfig", Location: base + "/ServiceProviderConfig"},
}

type typeJSON struct {
	Schemas     []string        `json:"schemas"`
	ID          string          `json:"id"`
	Name        string          `json:"name"`
	Endpoint    string          `json:"endpoint"`
	Description string          `json:"description"`
	Schema      string          `json:"schema"`
	Extensions  []extensionJSON `json:"schemaExtensions,omitempty"`
	Meta        metaJSON        `json:"meta"`
}

type extensionJSON struct {
	Schema   string `json:"schema"`
	Required bool   `json:"required"`
}

var userType = typeJSON{
	Schemas: []string{typeSchema},
	ID:      "User", Name: "User", Endpoint: "/Users", Description: "A dashboard user of the company.",
	Schema: UserSchema, Extensions: []extensionJSON{{Schema: EnterpriseSchema}},
	Meta: metaJSON{ResourceType: "ResourceType", Location: base + "/ResourceTypes/User"},
}

var groupType = typeJSON{
	Schemas: []string{typeSchema}, ID: "Group", Name: "Group", Endpoint: "/Groups", Schema: GroupSchema,
	Description: "A set of permissions, which its members have.",
	Meta:        metaJSON{ResourceType: "ResourceType", Location: base + "/ResourceTypes/Group"},
}
