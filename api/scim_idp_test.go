package api

import (
	"encoding/json"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/api/scim"
)

// What identity providers and testers send, as they send it: without an origin, in their dialects of PATCH, with
// members that nobody asked for. Each table is a conversation, in its order. "{name}" in a target or body is the id
// that the answer to the step of that name had.

const (
	urnUser       = "urn:ietf:params:scim:schemas:core:2.0:User"
	urnGroup      = "urn:ietf:params:scim:schemas:core:2.0:Group"
	urnEnterprise = "urn:ietf:params:scim:schemas:extension:enterprise:2.0:User"
	urnPatch      = "urn:ietf:params:scim:api:messages:2.0:PatchOp"
	urnList       = "urn:ietf:params:scim:api:messages:2.0:ListResponse"
	urnError      = "urn:ietf:params:scim:api:messages:2.0:Error"
)

// step is one request and what its answer must have.
type step struct {
	about        string
	method, path string // of the path what follows /scim/v2; what follows filter= is escaped here
	body         string
	status       int
	want         map[string]any // by path, "emails.0.value"; nil: not there
	save         string
}

// idp is a door whose company has no origin, as identity providers need it.
func idp(t *testing.T) *door {
	d := openEngine(t, t.TempDir())
	d.letProvidersIn(t)
	return d
}

func (d *door) letProvidersIn(t testing.TB) {
	require.NoError(t, d.control.UpdateSCIM(control.Actor{Name: "test"}, func(s *document.SCIMSettings) error {
		s.RequestOrigin, s.RateLimit = "", "100000/1d"
		return nil
	}))
}

// converse goes through the steps, with these headers in each request.
func (d *door) converse(t *testing.T, steps []step, headers ...string) map[string]string {
	ids := map[string]string{}
	fill := func(text string) string {
		return regexp.MustCompile(`\{[a-z0-9]+\}`).ReplaceAllStringFunc(text, func(name string) string {
			if id, ok := ids[strings.Trim(name, "{}")]; ok {
				return id
			}
			return name
		})
	}
	for _, s := range steps {
		target := fill(s.path)
		if before, filter, ok := strings.Cut(target, "filter="); ok {
			filter, rest, more := strings.Cut(filter, "&")
			if target = before + "filter=" + url.QueryEscape(filter); more {
				target += "&" + rest
			}
		}
		a := d.call(s.method, "/scim/v2"+target, scimToken, fill(s.body), headers...)
		require.Equal(t, s.status, a.status, "%s: %s %s %s: %s", s.about, s.method, target, s.body, a.body)
		if s.status == 204 {
			require.Empty(t, a.body, s.about)
			continue
		}
		require.Equal(t, "application/scim+json", a.header.Get("Content-Type"), s.about)
		v := a.json(t)
		if s.status >= 400 {
			require.Equal(t, []any{urnError}, v["schemas"], s.about)
			require.NotEmpty(t, v["detail"], s.about)
			require.Equal(t, fmt.Sprint(s.status), fmt.Sprint(v["status"]), s.about)
		}
		for path, want := range s.want {
			if text, ok := want.(string); ok {
				want = fill(text)
			}
			require.Equal(t, want, member(v, path), "%s: %s of %s", s.about, path, a.body)
		}
		if s.status == 201 {
			require.Equal(t, a.header.Get("Location"), member(v, "meta.location"), s.about)
			require.NotContains(t, a.body, "password", s.about)
		}
		if version := member(v, "meta.version"); version != nil {
			require.Equal(t, a.header.Get("ETag"), version, s.about)
		}
		if s.save != "" {
			ids[s.save] = v["id"].(string)
		}
	}
	return ids
}

// member is what a JSON value has at a path, nil for nothing. "#" is the number of elements; a URN stands in <>.
func member(v any, path string) any {
	for path != "" {
		var name string
		if urn, rest, ok := strings.Cut(strings.TrimPrefix(path, "<"), ">"); ok && path[0] == '<' {
			name, path = urn, strings.TrimPrefix(rest, ".")
		} else {
			name, path, _ = strings.Cut(path, ".")
		}
		switch of := v.(type) {
		case map[string]any:
			v = of[name]
		case []any:
			i, err := strconv.Atoi(name)
			switch {
			case name == "#":
				v = float64(len(of))
			case err != nil || i >= len(of):
				return nil
			default:
				v = of[i]
			}
		default:
			return nil
		}
	}
	return v
}

func oktaUser(name, given, family string, active bool) string {
	return fmt.Sprintf(`{"schemas":[%q],"userName":%q,"name":{"givenName":%q,"familyName":%q},"emails":[{"primary":true,"value":%q,"type":"work"}],"displayName":"%s %s",`+
		`"locale":"en-US","externalId":"00u%s","groups":[],"password":"1mz050nq","active":%v}`, urnUser, name, given, family, name, given, family, strings.Split(name, "@")[0], active)
}

func operations(list string) string {
	return fmt.Sprintf(`{"schemas":[%q],"Operations":[%s]}`, urnPatch, list)
}

// Okta's SPEC suite, the steps of provisioning by an app of the catalog and by one of the wizard, and what the CRUD
// suite reads.
func TestOkta(t *testing.T) {
	d := idp(t)
	ids := d.converse(t, []step{
		{about: "a user must be there before the suite", method: "POST", path: "/Users", body: oktaUser("first@example.com", "First", "User", true), status: 201, save: "first"},
		{about: "SPEC 1", method: "GET", path: "/Users?count=1&startIndex=1", status: 200, want: map[string]any{"schemas.0": urnList, "itemsPerPage": 1.0, "startIndex": 1.0, "totalResults": 1.0,
			"Resources.0.id": "{first}", "Resources.0.active": true, "Resources.0.name.familyName": "User", "Resources.0.name.givenName": "First",
			"Resources.0.userName": "first@example.com", "Resources.0.emails.0.value": "first@example.com"}},
		{about: "SPEC 2", method: "GET", path: "/Users/{first}", status: 200, want: map[string]any{"id": "{first}", "active": true, "name.familyName": "User", "userName": "first@example.com",
			"emails.0.value": "first@example.com", "emails.0.primary": true, "emails.0.type": "work", "displayName": "First User", "locale": "en-US", "externalId": "00ufirst"}},
		{about: "SPEC 3", method: "GET", path: `/Users?filter=userName eq "abcdefgh@example.com"`, status: 200, want: map[string]any{"schemas.0": urnList, "totalResults": 0.0, "Resources.#": 0.0}},
		{about: "SPEC 4", method: "GET", path: "/Users/00919288221112222", status: 404},
		{about: "SPEC 5", method: "POST", path: "/Users", body: `{"schemas":["` + urnUser + `"],"userName":"Runscope300@example.com","name":{"givenName":"Runscope","familyName":"Hello"},` +
			`"emails":[{"primary":true,"value":"Runscope300@example.com","type":"work"}],"displayName":"Runscope Hello","active":true}`, status: 201, save: "new",
			want: map[string]any{"active": true, "name.familyName": "Hello", "name.givenName": "Runscope", "userName": "Runscope300@example.com"}},
		{about: "SPEC 6", method: "GET", path: "/Users/{new}", status: 200, want: map[string]any{"userName": "Runscope300@example.com", "name.familyName": "Hello", "name.givenName": "Runscope"}},
		{about: "SPEC 7", method: "POST", path: "/Users", body: oktaUser("Runscope300@example.com", "Runscope", "Hello", true), status: 409, want: map[string]any{"scimType": "uniqueness"}},
		{about: "SPEC 8", method: "GET", path: `/Users?filter=userName eq "RUNSCOPE300@EXAMPLE.COM"`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{new}"}},
		{about: "SPEC 9", method: "GET", path: "/Groups", status: 200, want: map[string]any{"totalResults": 0.0, "Resources.#": 0.0}},

		{about: "match", method: "GET", path: `/Users?filter=userName eq "a@b.example.com"&startIndex=1&count=100`, status: 200, want: map[string]any{"totalResults": 0.0}},
		{about: "assign", method: "POST", path: "/Users", body: oktaUser("ada@example.com", "Ada", "Lovelace", true), status: 201, save: "ada",
			want: map[string]any{"password": nil, "department": nil, "permissions.companyPermissions.#": 0.0, "permissions.appGroup.#": 0.0}},
		{about: "CRUD: assigned", method: "GET", path: `/Users?filter=userName eq "ada@example.com"&startIndex=1&count=100`, status: 200,
			want: map[string]any{"Resources.0.userName": "ada@example.com", "Resources.0.emails.0.value": "ada@example.com", "Resources.0.name.givenName": "Ada"}},
		{about: "profile update", method: "PUT", path: "/Users/{ada}", status: 200, want: map[string]any{"name.givenName": "Augusta", "id": "{ada}", "locale": nil, "externalId": "00uada"},
			body: `{"schemas":["` + urnUser + `"],"id":"{ada}","userName":"ada@example.com","name":{"givenName":"Augusta","familyName":"King"},"emails":[{"primary":true,"value":"ada@example.com","type":"work"}],` +
				`"displayName":"Augusta King","externalId":"00uada","active":true,"groups":[{"value":"x"}],"meta":{"resourceType":"User"}}`},
		{about: "deactivate, catalog", method: "PATCH", path: "/Users/{ada}", body: operations(`{"op":"replace","value":{"active":false}}`), status: 200, want: map[string]any{"active": false}},
		{about: "CRUD: deactivated", method: "GET", path: "/Users/{ada}", status: 200, want: map[string]any{"active": false, "name.givenName": "Augusta"}},
		{about: "import shows who is inactive", method: "GET", path: "/Users?startIndex=1&count=100", status: 200, want: map[string]any{"totalResults": 3.0, "Resources.0.active": false}},
		{about: "password and activation", method: "PATCH", path: "/Users/{ada}", body: operations(`{"op":"replace","value":{"password":"t1meMa$heen"}},{"op":"replace","value":{"active":true}}`), status: 200,
			want: map[string]any{"active": true, "password": nil}},
		{about: "deactivate, wizard", method: "PUT", path: "/Users/{ada}", body: strings.Replace(oktaUser("ada@example.com", "Ada", "King", false), `"groups"`, `"id":"{ada}","groups"`, 1), status: 200,
			want: map[string]any{"active": false}},
		{about: "reactivate, wizard", method: "PUT", path: "/Users/{ada}", body: oktaUser("ada@example.com", "Ada", "King", true), status: 200, want: map[string]any{"active": true}},

		{about: "push a group", method: "POST", path: "/Groups", body: `{"schemas":["` + urnGroup + `"],"displayName":"Editors","members":[]}`, status: 201, save: "editors",
			want: map[string]any{"displayName": "Editors", "members.#": 0.0}},
		{about: "link", method: "GET", path: `/Groups?filter=displayName eq "Editors"&startIndex=1&count=100`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{editors}"}},
		{about: "import groups", method: "GET", path: "/Groups?startIndex=1&count=100", status: 200, want: map[string]any{"totalResults": 1.0}},
		{about: "rename", method: "PATCH", path: "/Groups/{editors}", body: operations(`{"op":"replace","value":{"id":"{editors}","displayName":"Writers"}}`), status: 200, want: map[string]any{"displayName": "Writers"}},
		{about: "members, one in", method: "PATCH", path: "/Groups/{editors}", status: 200, want: map[string]any{"members.0.value": "{ada}", "members.0.display": "ada@example.com", "members.#": 1.0},
			body: operations(`{"op":"remove","path":"members[value eq \"{first}\"]"},{"op":"add","path":"members","value":[{"value":"{ada}","display":"ada@example.com"}]}`)},
		{about: "the user has the group", method: "GET", path: "/Users/{ada}", status: 200, want: map[string]any{"groups.0.value": "{editors}", "groups.0.display": "Writers", "groups.#": 1.0}},
		{about: "full set by path", method: "PATCH", path: "/Groups/{editors}", status: 200, want: map[string]any{"members.#": 2.0},
			body: operations(`{"op":"replace","path":"members","value":[{"value":"{first}"},{"value":"{new}"}]}`)},
		{about: "full set without a path", method: "PATCH", path: "/Groups/{editors}", status: 200, want: map[string]any{"members.#": 1.0, "members.0.value": "{ada}"},
			body: operations(`{"op":"replace","value":{"members":[{"value":"{ada}"}]}}`)},
		{about: "all by PUT", method: "PUT", path: "/Groups/{editors}", status: 200, want: map[string]any{"members.#": 2.0, "displayName": "Editors"},
			body: `{"schemas":["` + urnGroup + `"],"id":"{editors}","displayName":"Editors","members":[{"value":"{ada}","display":"ada@example.com"},{"value":"{new}"}]}`},
		{about: "remove the group", method: "DELETE", path: "/Groups/{editors}", status: 204},
		{about: "it is gone", method: "GET", path: "/Groups/{editors}", status: 404},
		{about: "from its members too", method: "GET", path: "/Users/{ada}", status: 200, want: map[string]any{"groups": nil}},
	}, "User-Agent", "Okta SCIM Client 1.0.0", "Accept", "application/scim+json", "Accept-Charset", "utf-8", "Content-Type", "application/scim+json; charset=utf-8")
	require.NotEmpty(t, ids)

	bad := d.call("GET", "/scim/v2/Users?filter=userName%20eq%20%22a%40b.c%22", "wrong", "")
	require.Equal(t, 401, bad.status, "SPEC 10")
	require.Equal(t, "401", fmt.Sprint(bad.json(t)["status"]))
	require.NotEmpty(t, bad.json(t)["detail"])
}

func entraUser(name, more string) string {
	return fmt.Sprintf(`{"schemas":[%q,%q],"externalId":"ext-%s","userName":%q,"active":true,"emails":[{"primary":true,"type":"work","value":"mail.%s"}],`+
		`"meta":{"resourceType":"User"},"name":{"formatted":"given family","familyName":"family","givenName":"given"},"roles":[]%s}`, urnUser, urnEnterprise, strings.Split(name, "@")[0], name, name, more)
}

// The requests of Entra ID's provisioning service, without and with the flag aadOptscim062020, and those of its
// validators.
func TestEntra(t *testing.T) {
	d := idp(t)
	const adscim = "http://schemas.microsoft.com/2006/11/ResourceManagement/ADSCIM/2.0/Group"
	steps := []step{
		{about: "Test Connection", method: "GET", path: `/Users?filter=userName eq "6d0a4d56-2c3a-4cb1-9aa3-a9e2d1f0b0aa"`, status: 200, want: map[string]any{"schemas.0": urnList, "totalResults": 0.0}},
		{about: "match by externalId", method: "GET", path: `/Users?filter=externalId eq "ext-ada"`, status: 200, want: map[string]any{"totalResults": 0.0}},
		{about: "create", method: "POST", path: "/Users", body: entraUser("ada@corp.example.com", ""), status: 201, save: "ada", want: map[string]any{"externalId": "ext-ada", "active": true,
			"name.formatted": "given family", "emails.0.value": "mail.ada@corp.example.com"}},
		{about: "create a manager, with nulls", method: "POST", path: "/Users", body: entraUser("boss@corp.example.com", `,"title":null,"displayName":null,"<E>":null,"department":null,"permissions":null`), status: 201,
			save: "boss", want: map[string]any{"title": nil}},
		{about: "create again", method: "POST", path: "/Users", body: entraUser("ADA@corp.example.com", ""), status: 409, want: map[string]any{"scimType": "uniqueness"}},
		{about: "match by userName", method: "GET", path: `/Users?filter=userName eq "ADA@CORP.EXAMPLE.COM"`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{ada}"}},
		{about: "match by externalId", method: "GET", path: `/Users?filter=externalId eq "ext-ada"`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{ada}"}},
		{about: "match by email", method: "GET", path: `/Users?filter=emails[type eq "work"].value eq "Mail.ada@corp.example.com"`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{ada}"}},
		{about: "re-read", method: "GET", path: "/Users/{ada}", status: 200, want: map[string]any{"id": "{ada}"}},
		{about: "update by paths", method: "PATCH", path: "/Users/{ada}", status: 200, want: map[string]any{"emails.0.value": "new@corp.example.com", "emails.#": 1.0, "name.familyName": "X", "<" + urnEnterprise + ">.department": "Rechnen",
			"department": nil, "schemas.1": urnEnterprise},
			body: operations(`{"op":"Add","path":"emails[type eq \"work\"].value","value":"new@corp.example.com"},{"op":"Replace","path":"name.familyName","value":"X"},` +
				`{"op":"Add","path":"` + urnEnterprise + `:department","value":"Rechnen"}`)},
		{about: "an email of a type that isn't there is made", method: "PATCH", path: "/Users/{ada}", status: 200, want: map[string]any{"emails.#": 2.0, "emails.1.type": "home", "emails.1.value": "a@home.example"},
			body: operations(`{"op":"Replace","path":"emails[type eq \"home\"].value","value":"a@home.example"}`)},
		{about: "another is the primary one, by a text", method: "PATCH", path: "/Users/{ada}", status: 200, want: map[string]any{"emails.1.primary": true, "emails.0.primary": nil},
			body: operations(`{"op":"Replace","path":"emails[type eq \"home\"].primary","value":"True"}`)},
		{about: "attributes that nobody here knows", method: "PATCH", path: "/Users/{ada}", status: 200, want: map[string]any{"addresses": nil, "roles": nil, "phoneNumbers": nil},
			body: operations(`{"op":"Add","path":"addresses[type eq \"work\"].locality","value":"London"},{"op":"Add","path":"phoneNumbers[type eq \"mobile\"].value","value":"+44"},` +
				`{"op":"Add","path":"roles[primary eq \"True\"].value","value":"r"},{"op":"Add","path":"urn:ietf:params:scim:schemas:extension:custom:2.0:User:tag","value":"x"}`)},
		{about: "disable", method: "PATCH", path: "/Users/{ada}", body: operations(`{"op":"Replace","path":"active","value":"False"}`), status: 200, want: map[string]any{"active": false}},
		{about: "the disabled is read", method: "GET", path: "/Users/{ada}", status: 200, want: map[string]any{"active": false}},
		{about: "and found", method: "GET", path: `/Users?filter=userName eq "ada@corp.example.com"`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.active": false}},
		{about: "and listed", method: "GET", path: `/Users?filter=active eq false`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{ada}"}},
		{about: "restore", method: "PATCH", path: "/Users/{ada}", body: operations(`{"op":"Replace","path":"active","value":true}`), status: 200, want: map[string]any{"active": true}},
		{about: "manager, asked for", method: "GET", path: `/Users?filter=id eq "{ada}" and manager eq "{boss}"&attributes=id`, status: 200, want: map[string]any{"totalResults": 0.0}},
		{about: "manager, as a list", method: "PATCH", path: "/Users/{ada}", body: operations(`{"op":"Add","path":"manager","value":[{"$ref":"http://x/Users/{boss}","value":"{boss}"}]}`), status: 200,
			want: map[string]any{"<" + urnEnterprise + ">.manager.value": "{boss}"}},
		{about: "manager, asked for", method: "GET", path: `/Users?filter=id eq "{ada}" and manager eq "{boss}"&attributes=id`, status: 200,
			want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{ada}", "Resources.0.userName": nil, "Resources.0.schemas.0": urnUser}},
		{about: "manager, as an id", method: "PATCH", path: "/Users/{ada}", body: operations(`{"op":"Replace","path":"` + urnEnterprise + `:manager","value":"{ada}"}`), status: 200,
			want: map[string]any{"<" + urnEnterprise + ">.manager.value": "{ada}"}},
		{about: "manager, away", method: "PATCH", path: "/Users/{ada}", body: operations(`{"op":"Remove","path":"manager"}`), status: 200, want: map[string]any{"<" + urnEnterprise + ">.manager": nil}},

		{about: "flag: dotted keys", method: "PATCH", path: "/Users/{ada}?aadOptscim062020", status: 200, want: map[string]any{"name.givenName": "A", "name.familyName": "X", "<" + urnEnterprise + ">.employeeNumber": "1", "active": false},
			body: operations(`{"op":"replace","value":{"name.givenName":"A","` + urnEnterprise + `:employeeNumber":"1","active":false}}`)},
		{about: "flag: add with dotted keys and paths", method: "PATCH", path: "/Users/{ada}", status: 200, want: map[string]any{"name.formatted": "A X", "title": "Countess", "emails.0.value": "w@corp.example.com", "active": true},
			body: operations(`{"op":"add","value":{"name.formatted":"A X","title":"Countess","emails[type eq \"work\"].value":"w@corp.example.com","active":true}}`)},
		{about: "an extension as an object", method: "PATCH", path: "/Users/{ada}", status: 200, want: map[string]any{"<" + urnEnterprise + ">.costCenter": "7", "<" + urnEnterprise + ">.employeeNumber": "1"},
			body: operations(`{"op":"add","value":{"` + urnEnterprise + `":{"costCenter":"7"}}}`)},
		{about: "validator: an attribute to null", method: "PATCH", path: "/Users/{ada}", status: 200, want: map[string]any{"title": nil, "name.formatted": nil},
			body: operations(`{"op":"Replace","path":"title","value":null},{"op":"Replace","path":"name.formatted","value":null}`)},

		{about: "group create", method: "POST", path: "/Groups", body: `{"schemas":["` + urnGroup + `","` + adscim + `"],"externalId":"g-ext","displayName":"Analysts","meta":{"resourceType":"Group"}}`, status: 201, save: "group",
			want: map[string]any{"members.#": 0.0, "externalId": "g-ext", "schemas.#": 1.0}},
		{about: "group create again", method: "POST", path: "/Groups", body: `{"schemas":["` + urnGroup + `"],"displayName":"ANALYSTS"}`, status: 409, want: map[string]any{"scimType": "uniqueness"}},
		{about: "group match", method: "GET", path: `/Groups?excludedAttributes=members&filter=displayName eq "analysts"`, status: 200,
			want: map[string]any{"totalResults": 1.0, "Resources.0.id": "{group}", "Resources.0.members": nil, "Resources.0.displayName": "Analysts"}},
		{about: "group match, names in any case", method: "GET", path: `/Groups?filter=DisplayName eq "Analysts"`, status: 200, want: map[string]any{"totalResults": 1.0}},
		{about: "group read", method: "GET", path: "/Groups/{group}?excludedAttributes=members", status: 200, want: map[string]any{"members": nil, "displayName": "Analysts"}},
		{about: "add members", method: "PATCH", path: "/Groups/{group}", status: 200, want: map[string]any{"members.#": 2.0},
			body: operations(`{"op":"Add","path":"members","value":[{"$ref":null,"value":"{ada}"},{"$ref":null,"value":"{boss}"}]}`)},
		{about: "add one again", method: "PATCH", path: "/Groups/{group}", status: 200, want: map[string]any{"members.#": 2.0}, body: operations(`{"op":"Add","path":"members","value":[{"$ref":null,"value":"{ada}"}]}`)},
		{about: "without members in the answer", method: "PATCH", path: "/Groups/{group}?excludedAttributes=members", status: 200, want: map[string]any{"members": nil},
			body: operations(`{"op":"Replace","path":"displayName","value":"Analysts and more"}`)},
		{about: "is it a member", method: "GET", path: `/Groups?filter=id eq "{group}" and members eq "{ada}"&attributes=id`, status: 200, want: map[string]any{"totalResults": 1.0, "Resources.0.members": nil}},
		{about: "remove by a list of values", method: "PATCH", path: "/Groups/{group}", status: 200, want: map[string]any{"members.#": 1.0, "members.0.value": "{boss}"},
			body: operations(`{"op":"Remove","path":"members","value":[{"$ref":null,"value":"{ada}"}]}`)},
		{about: "remove by a filter", method: "PATCH", path: "/Groups/{group}", status: 200, want: map[string]any{"members.#": 0.0}, body: operations(`{"op":"remove","path":"members[value eq \"{boss}\"]"}`)},
		{about: "a member who is deleted", method: "PATCH", path: "/Groups/{group}", status: 200, want: map[string]any{"members.#": 1.0}, body: operations(`{"op":"Add","path":"members","value":[{"value":"{boss}"}]}`)},
		{about: "hard delete", method: "DELETE", path: "/Users/{boss}", status: 204},
		{about: "gone", method: "GET", path: "/Users/{boss}", status: 404},
		{about: "from the group too", method: "GET", path: "/Groups/{group}", status: 200, want: map[string]any{"members.#": 0.0}},
		{about: "group delete", method: "DELETE", path: "/Groups/{group}", status: 204},
		{about: "group gone", method: "GET", path: "/Groups/{group}", status: 404},
	}
	for i := range steps {
		steps[i].body = strings.ReplaceAll(steps[i].body, "<E>", urnEnterprise)
	}
	d.converse(t, steps, "Content-Type", "application/scim+json")

	// Paging of the gallery's validator: more than 11 users, five a page.
	for i := range 11 {
		require.Equal(t, 201, d.call("POST", "/scim/v2/Users", scimToken, entraUser(fmt.Sprintf("page%02d@corp.example.com", i), "")).status)
	}
	var names []string
	for start := 1; start <= 12; start += 5 {
		v := d.call("GET", fmt.Sprintf("/scim/v2/Users?startIndex=%d&count=5", start), scimToken, "").json(t)
		require.Equal(t, []any{12.0, float64(start)}, []any{v["totalResults"], v["startIndex"]})
		require.Equal(t, v["itemsPerPage"], member(v, "Resources.#"))
		for _, r := range v["Resources"].([]any) {
			names = append(names, member(r, "userName").(string))
		}
	}
	require.Len(t, names, 12)
	require.IsIncreasing(t, names)
}

// What the testers of section 4 and the other providers of section 3 send besides.
func TestSCIMTesters(t *testing.T) {
	d := idp(t)
	steps := []step{
		{about: "authentik reads first", method: "GET", path: "/ServiceProviderConfig", status: 200, want: map[string]any{"patch.supported": true, "filter.supported": true, "filter.maxResults": float64(scim.MaxCount),
			"bulk.supported": false, "bulk.maxOperations": 0.0, "etag.supported": true}},
		{about: "types", method: "GET", path: "/ResourceTypes", status: 200, want: map[string]any{"totalResults": 2.0, "Resources.0.id": "User", "Resources.0.endpoint": "/Users", "Resources.1.id": "Group",
			"Resources.1.endpoint": "/Groups", "Resources.0.schemaExtensions.0.schema": urnEnterprise}},
		{about: "one type", method: "GET", path: "/ResourceTypes/Group", status: 200, want: map[string]any{"schema": urnGroup, "name": "Group", "description": "A set of permissions, which its members have."}},
		{about: "schemas", method: "GET", path: "/Schemas", status: 200, want: map[string]any{"schemas.0": urnList, "totalResults": 3.0}},
		{about: "one schema", method: "GET", path: "/Schemas/" + urnEnterprise, status: 200, want: map[string]any{"id": urnEnterprise}},
		{about: "no such schema", method: "GET", path: "/Schemas/urn:x", status: 404},
		{about: "no such type", method: "GET", path: "/ResourceTypes/Robot", status: 404},
		{about: "no such path", method: "GET", path: "/2a4e7ab0", status: 404},

		{about: "OneLogin's check", method: "GET", path: `/Users?filter=userName eq "nobody"`, status: 200, want: map[string]any{"totalResults": 0.0}},
		{about: "OneLogin's template with the URN of SCIM 1", method: "POST", path: "/Users", status: 201, save: "one", want: map[string]any{"schemas.0": urnUser, "schemas.#": 1.0},
			body: `{"schemas":["urn:scim:schemas:core:1.0"],"userName":"one@example.com","externalId":"12345","name":{"givenName":"One","familyName":"Login"},"emails":[{"value":"one@example.com","primary":true}]}`},
		{about: "OneLogin deletes", method: "DELETE", path: "/Users/{one}", status: 204},
		{about: "JumpCloud's test user", method: "POST", path: "/Users", body: oktaUser("jctest@example.com", "Test", "User", true), status: 201, save: "jcuser"},
		{about: "JumpCloud's test group", method: "POST", path: "/Groups", body: groupBody("JumpCloud test"), status: 201, save: "jcgroup"},
		{about: "JumpCloud's member", method: "PATCH", path: "/Groups/{jcgroup}", body: operations(`{"op":"add","path":"members","value":[{"value":"{jcuser}"}]}`), status: 200, want: map[string]any{"members.#": 1.0}},
		{about: "authentik: the group is there", method: "POST", path: "/Groups", body: groupBody("JumpCloud test"), status: 409, want: map[string]any{"scimType": "uniqueness"}},
		{about: "authentik: so it takes that one", method: "GET", path: `/Groups?filter=displayName eq "JumpCloud test"`, status: 200, want: map[string]any{"Resources.0.id": "{jcgroup}"}},
		{about: "JumpCloud deletes the user", method: "DELETE", path: "/Users/{jcuser}", status: 204},
		{about: "JumpCloud deletes the group", method: "DELETE", path: "/Groups/{jcgroup}", status: 204},

		{about: "scim-sanity: no userName", method: "POST", path: "/Users", body: `{"schemas":["` + urnUser + `"]}`, status: 400},
		{about: "scim-sanity: junk", method: "POST", path: "/Users", body: `not json`, status: 400},
		{about: "scim-sanity: create", method: "POST", path: "/Users", body: oktaUser("sanity@example.com", "Sanity", "Check", true), status: 201, save: "user",
			want: map[string]any{"meta.resourceType": "User", "schemas.0": urnUser}},
		{about: "scim-sanity: replace", method: "PUT", path: "/Users/{user}", body: oktaUser("sanity@example.com", "Sanity", "Kept", true), status: 200},
		{about: "scim-sanity: kept", method: "GET", path: "/Users/{user}", status: 200, want: map[string]any{"name.familyName": "Kept"}},
		{about: "scim-sanity: a page of one", method: "GET", path: "/Users?startIndex=1&count=1", status: 200, want: map[string]any{"itemsPerPage": 1.0}},
		{about: "scim-sanity: a page of none", method: "GET", path: "/Users?count=0", status: 200, want: map[string]any{"totalResults": 1.0, "Resources.#": 0.0}},
		{about: "scim-sanity: a group", method: "POST", path: "/Groups", body: groupBody("Sanity"), status: 201, save: "group", want: map[string]any{"meta.resourceType": "Group"}},
		{about: "scim-sanity: a member who isn't there", method: "PATCH", path: "/Groups/{group}", body: operations(`{"op":"add","path":"members","value":[{"value":"fake-member-id"}]}`), status: 200,
			want: map[string]any{"members.#": 0.0}},
		{about: "scim-sanity: removing him", method: "PATCH", path: "/Groups/{group}", body: operations(`{"op":"remove","path":"members[value eq \"fake-member-id\"]"}`), status: 200},

		{about: "scimverify: nested under the URN", method: "POST", path: "/Users", status: 201, save: "nested", want: map[string]any{"userName": "nested@example.com", urnUser: nil},
			body: `{"schemas":["` + urnUser + `"],"` + urnUser + `":{"userName":"nested@example.com","name":{"givenName":"a","familyName":"b"},"emails":[{"value":"same@example.com"}]}}`},
		{about: "scimverify: the same email", method: "POST", path: "/Users", status: 201, want: map[string]any{"emails.0.value": "same@example.com"},
			body: `{"schemas":["` + urnUser + `"],"userName":"twin@example.com","name":{"givenName":"a","familyName":"b"},"emails":[{"value":"same@example.com"}]}`},
		{about: "scimverify: some attributes", method: "GET", path: "/Users?attributes=userName&startIndex=2", status: 200,
			want: map[string]any{"startIndex": 2.0, "Resources.0.userName": "sanity@example.com", "Resources.0.name": nil, "Resources.0.meta": nil, "Resources.0.id": "{user}"}},
		{about: "scimverify: order", method: "GET", path: "/Users?sortBy=userName", status: 200, want: map[string]any{"Resources.0.userName": "nested@example.com", "Resources.2.userName": "twin@example.com"}},
		{about: "scimverify: the userName as it is", method: "PATCH", path: "/Users/{user}", body: operations(`{"op":"replace","path":"userName","value":"Sanity@example.com"}`), status: 200,
			want: map[string]any{"userName": "sanity@example.com"}},
		{about: "scimverify: another userName, which the contract doesn't have", method: "PATCH", path: "/Users/{user}", body: operations(`{"op":"replace","path":"userName","value":"else@example.com"}`), status: 400,
			want: map[string]any{"scimType": "mutability"}},
		{about: "scimverify: a group without a name", method: "POST", path: "/Groups", body: `{"schemas":["` + urnGroup + `"]}`, status: 400, want: map[string]any{"scimType": "invalidSyntax", "status": 400.0}},
		{about: "scimverify: add a member", method: "PATCH", path: "/Groups/{group}", body: operations(`{"op":"add","path":"members","value":[{"value":"{user}"}]}`), status: 200, want: map[string]any{"members.0.value": "{user}"}},

		{about: "postman: an operator", method: "GET", path: `/Users?filter=userName sw "sani"`, status: 200, want: map[string]any{"totalResults": 1.0}},
		{about: "postman: an operator", method: "GET", path: `/Users?filter=UserName co "example"`, status: 200, want: map[string]any{"totalResults": 3.0}},
		{about: "postman: an operator", method: "GET", path: `/Users?filter=meta.lastModified gt "2011-05-13T04:42:34Z"`, status: 200, want: map[string]any{"totalResults": 3.0}},
		{about: "postman: or", method: "GET", path: `/Users?filter=userName eq "twin@example.com" or userName eq "nested@example.com"`, status: 200, want: map[string]any{"totalResults": 2.0}},
		{about: "postman: a member that is a text", method: "PATCH", path: "/Groups/{group}", body: operations(`{"op":"add","path":"members","value":"{nested}"}`), status: 200, want: map[string]any{"members.#": 2.0}},
		{about: "postman: all members away", method: "PATCH", path: "/Groups/{group}", body: operations(`{"op":"remove","path":"members"}`), status: 200, want: map[string]any{"members.#": 0.0}},
		{about: "authentik: the group without a path", method: "PATCH", path: "/Groups/{group}", body: operations(`{"op":"replace","value":{"displayName":"Renamed","externalId":"u-1"}}`), status: 200,
			want: map[string]any{"displayName": "Renamed", "externalId": "u-1"}},
		{about: "authentik: remove by value", method: "PATCH", path: "/Groups/{group}", status: 200, want: map[string]any{"members.#": 1.0},
			body: operations(`{"op":"add","path":"members","value":[{"value":"{user}"},{"value":"{nested}"}]},{"op":"remove","path":"members","value":[{"value":"{user}"}]}`)},
	}
	d.converse(t, steps)
	for _, path := range []string{"/ServiceProviderConfig", "/ResourceTypes", "/Schemas"} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			require.Equal(t, 405, d.call(method, "/scim/v2"+path, scimToken, "{}").status, "%s %s", method, path)
		}
	}
	require.Equal(t, 401, d.call("GET", "/scim/v2/Users", "", "").status)
	list := d.call("GET", "/scim/v2/Groups", scimToken, "").json(t)
	delete(list, "message")
	require.Len(t, list, 5, "totalResults, itemsPerPage, startIndex, schemas, Resources and nothing else")
	d.patchEveryAttribute(t)
}

// patchEveryAttribute is scim2-tester's main check: each attribute that the schemas say can be written is added,
// replaced and removed, by its path, and read back.
func (d *door) patchEveryAttribute(t *testing.T) {
	id := d.call("POST", "/scim/v2/Users", scimToken, oktaUser("every@example.com", "Every", "Attribute", true)).json(t)["id"].(string)
	tried := 0
	for _, schema := range []string{urnUser, urnEnterprise} {
		for _, a := range d.call("GET", "/scim/v2/Schemas/"+schema, scimToken, "").json(t)["attributes"].([]any) {
			name := member(a, "name").(string)
			if member(a, "required") == true || member(a, "mutability") != "readWrite" || name == "permissions" {
				continue
			}
			path, at, values := name, name, []string{`"first"`, `"second"`}
			if schema == urnEnterprise {
				path, at = urnEnterprise+":"+name, "<"+urnEnterprise+">."+name
			}
			switch name {
			case "active":
				values = []string{`true`, `false`}
			case "emails":
				values = []string{`[{"value":"1@uuid.com","type":"work"}]`, `[{"value":"2@uuid.com","type":"home","primary":true}]`}
			case "manager":
				values = []string{`{"value":"1"}`, `{"value":"2"}`}
			case "department":
				if schema == urnUser {
					values = []string{`"bi"`, `"pm"`}
				}
			}
			change := func(operation string) map[string]any {
				a := d.call("PATCH", "/scim/v2/Users/"+id, scimToken, operations(operation))
				require.Equal(t, 200, a.status, "%s: %s", operation, a.body)
				require.Equal(t, a.body, d.call("GET", "/scim/v2/Users/"+id, scimToken, "").body)
				return a.json(t)
			}
			for i, op := range []string{"replace", "replace"} {
				v := change(fmt.Sprintf(`{"op":%q,"path":%q,"value":%s}`, op, path, values[i]))
				var want any
				require.NoError(t, json.Unmarshal([]byte(values[i]), &want))
				require.Equal(t, want, member(v, at), path)
			}
			if v := change(fmt.Sprintf(`{"op":"remove","path":%q}`, path)); name != "active" { // it is never unknown
				require.Nil(t, member(v, at), path)
			}
			tried++
		}
	}
	require.Equal(t, 16, tried)
}

// Who is inactive is kept and may do nothing; what the console will ask says so at once, and the audit log says who did
// it.
func TestDeactivation(t *testing.T) {
	d := idp(t)
	id := d.createUserBy(t, userBody("ada@example.com", "bi", `{"companyPermissions":["admin"]}`))
	active := func() bool {
		user, may := d.scim.Named("ADA@example.com")
		require.Equal(t, !user.Inactive, len(may.Company) == 1)
		return !user.Inactive
	}
	whole := func(active string) string {
		return strings.Replace(userBody("ada@example.com", "bi", `{"companyPermissions":["admin"]}`), `"department"`, active+`"department"`, 1)
	}
	require.True(t, active())
	for _, c := range []struct {
		method, body string
		active       bool
	}{
		{"PUT", whole(`"active":false,`), false},
		{"PUT", whole(``), false}, // who says nothing of it changes nothing of it
		{"PUT", whole(`"active":null,`), false},
		{"PUT", whole(`"active":"True",`), true},
		{"PUT", whole(`"Active":"FALSE",`), false}, // names have no case
		{"PUT", whole(`"active":true,`), true},
		{"PUT", whole(`"active":true,"` + urnUser + `:Active":false,`), false}, // of two the safe one
		{"PATCH", operations(`{"op":"Add","path":"` + urnUser + `:active","value":"true"}`), true},
		{"PATCH", operations(`{"op":"replace","value":{"ACTIVE":false}}`), false},
		{"PATCH", operations(`{"op":"replace","path":"active","value":true},{"op":"replace","path":"active","value":false}`), false}, // the last one
		{"PATCH", operations(`{"op":"remove","path":"active"}`), false},
		{"PATCH", operations(`{"op":"replace","value":{"` + urnUser + `":{"active":true}}}`), true},
	} {
		a := d.call(c.method, "/scim/v2/Users/"+id, scimToken, c.body)
		require.Equal(t, 200, a.status, "%s: %s", c.body, a.body)
		require.Equal(t, c.active, a.json(t)["active"], c.body)
		require.Equal(t, c.active, active(), c.body)
	}
	for _, body := range []string{`{"op":"replace","path":"active","value":"no"}`, `{"op":"replace","path":"active","value":0}`, `{"op":"replace","path":"active","value":{"value":false}}`,
		`{"op":"replace","path":"active","value":["false"]}`, `{"op":"replace","path":"active","value":false},{"op":"replace","path":"name.givenName","value":7}`} {
		require.Equal(t, 400, d.call("PATCH", "/scim/v2/Users/"+id, scimToken, operations(body)).status, body)
		require.True(t, active(), body)
	}
	require.Equal(t, 201, d.call("POST", "/scim/v2/Users", scimToken, strings.Replace(whole(`"active":false,`), "ada@", "late@", 1)).status)
	user, _ := d.scim.Named("late@example.com")
	require.True(t, user.Inactive, "made inactive")
	for _, what := range []string{"SCIM user deactivated", "SCIM user activated"} {
		require.Regexp(t, regexp.QuoteMeta(what)+`.*`+id+`.*by="SCIM token `, d.logged())
	}
	entries := d.administer(t, "GET", "/audit?limit=1000&kind=scim_user&id=ada@example.com", "").v["entries"].([]any)
	require.Equal(t, []any{"SCIM user activated", "inactive"}, []any{member(entries, fmt.Sprint(len(entries)-1)+".what"), member(entries, fmt.Sprint(len(entries)-1)+".changed.0")})

	// A user stays as unlimited as before where a workspace has got another name since: that a person has left can
	// always be said.
	demo := d.createUserBy(t, userBody("demo@example.com", "bi", `{"appGroup":[{"appGroupName":"Demo"}]}`))
	for workspace, name := range map[string]string{"demo": "Other", "other": "Demo"} {
		_, err := d.control.UpdateSettings(control.Actor{}, workspace, func(s *document.Settings) error { s.Name = name; return nil })
		require.NoError(t, err)
	}
	a := d.call("PATCH", "/scim/v2/Users/"+demo, scimToken, operations(`{"op":"replace","path":"active","value":false}`))
	require.Equal(t, 200, a.status, a.body)
	require.Equal(t, "demo", member(a.json(t), "permissions.appGroup.0.appGroupId"))
}

func (d *door) createUserBy(t *testing.T, body string) string {
	a := d.call("POST", "/scim/v2/Users", scimToken, body)
	require.Equal(t, 201, a.status, a.body)
	return a.json(t)["id"].(string)
}

// What users get whom an identity provider makes is the operator's to say.
func TestDefaultsOfNewUsers(t *testing.T) {
	d := idp(t)
	a := d.administer(t, "PATCH", "/scim", `{"default_department":"engineering","default_permissions":{"companyPermissions":[],"appGroup":[{"appGroupName":"Demo","appGroupPermissions":["basic_access"]}]}}`)
	require.Equal(t, 200, a.status, a.body)
	id := d.createUserBy(t, oktaUser("ada@example.com", "Ada", "L", true))
	v := d.call("GET", "/scim/v2/Users/"+id, scimToken, "").json(t)
	require.Equal(t, []any{"engineering", "demo", "basic_access"}, []any{v["department"], member(v, "permissions.appGroup.0.appGroupId"), member(v, "permissions.appGroup.0.appGroupPermissions.0")})
	require.Equal(t, 200, d.call("PUT", "/scim/v2/Users/"+id, scimToken, userBody("ada@example.com", "pm", `{"companyPermissions":["admin"]}`)).status)
	v = d.call("PUT", "/scim/v2/Users/"+id, scimToken, oktaUser("ada@example.com", "Ada", "L", true)).json(t)
	require.Equal(t, []any{"pm", "admin"}, []any{v["department"], member(v, "permissions.companyPermissions.0")}, "what isn't sent stays")
	for _, settings := range []string{`{"default_department":"kitchen"}`, `{"default_permissions":{"appGroup":[{"appGroupId":"nowhere"}]}}`, `{"default_permissions":{"appGroup":[{"appGroupName":"Nowhere"}]}}`,
		`{"default_permissions":{"companyPermissions":[""]}}`, `{"default_permissions":[]}`} {
		require.Equal(t, 400, d.administer(t, "PATCH", "/scim", settings).status, settings)
	}
}

// A group is a permission set: the operator says what it gives, the identity provider who is in it.
func TestGroupsGivePermissions(t *testing.T) {
	d := idp(t)
	a := d.administer(t, "POST", "/permission_sets", `{"id":"editors","name":"Editors","permissions":{"companyPermissions":["manage_company_settings"],"appGroup":[{"appGroupId":"demo","appGroupPermissions":["basic_access"]}]}}`)
	require.Equal(t, 201, a.status, a.body)
	id := d.createUserBy(t, userBody("ada@example.com", "bi", `{"appGroup":[{"appGroupName":"Demo","appGroupPermissions":["view_tags"]}]}`))
	may := func() document.SCIMPermissions {
		_, may := d.scim.Named("ada@example.com")
		return may
	}
	require.Empty(t, may().Company)
	found := d.call("GET", "/scim/v2/Groups?filter="+url.QueryEscape(`displayName eq "editors"`), scimToken, "").json(t)
	require.Equal(t, "editors", member(found, "Resources.0.id"), "the provider finds it by its name")
	require.Equal(t, 409, d.call("POST", "/scim/v2/Groups", scimToken, groupBody("EDITORS")).status)
	member1 := operations(`{"op":"add","path":"members","value":[{"value":"` + id + `"}]}`)
	require.Equal(t, 200, d.call("PATCH", "/scim/v2/Groups/editors", scimToken, member1).status)
	require.Equal(t, []string{"manage_company_settings"}, may().Company)
	require.Equal(t, []string{"view_tags", "basic_access"}, may().AppGroups[0].Permissions)
	require.Equal(t, 200, d.call("PUT", "/scim/v2/Groups/editors", scimToken, `{"schemas":["`+urnGroup+`"],"displayName":"Editors","members":[{"value":"`+id+`"}]}`).status)
	require.Equal(t, []string{"manage_company_settings"}, may().Company, "a provider that knows nothing of permissions takes none away")
	require.Equal(t, 200, d.administer(t, "PATCH", "/permission_sets/editors", `{"permissions":{"companyPermissions":["admin"],"appGroup":[]}}`).status)
	require.Equal(t, []string{"admin"}, may().Company)
	require.Equal(t, 200, d.call("PATCH", "/scim/v2/Users/"+id, scimToken, operations(`{"op":"replace","path":"active","value":false}`)).status)
	require.Empty(t, may().Company, "while inactive")
	require.Equal(t, 200, d.call("PATCH", "/scim/v2/Users/"+id, scimToken, operations(`{"op":"replace","path":"active","value":true}`)).status)
	require.Equal(t, []string{"admin"}, may().Company)

	// One of the same id, made anew, has none of the members.
	require.Equal(t, 204, d.call("DELETE", "/scim/v2/Groups/editors", scimToken, "").status)
	require.Empty(t, may().Company)
	require.Equal(t, 404, d.administer(t, "GET", "/permission_sets/editors", "").status)
	require.Equal(t, 201, d.administer(t, "PUT", "/permission_sets/editors", `{"name":"Editors","permissions":{"companyPermissions":["admin"]}}`).status)
	require.Empty(t, may().Company)
	require.Equal(t, 0.0, member(d.call("GET", "/scim/v2/Groups/editors", scimToken, "").json(t), "members.#"))

	for body, text := range map[string]string{
		`{"id":"Editors"}`:                 "lower-case letters",
		`{"id":"a","name":"editors"}`:      "already exists",
		`{"id":"a","permissions":{"x":1}}`: "permissions.x is not a known member",
		`{"id":"a","permissions":{"appGroup":[{"appGroupId":"nowhere"}]}}`:                                             "nowhere",
		`{"id":"a","permissions":{"appGroup":[{"appGroupPermissions":[]}]}}`:                                           "permissions.appGroup[0]: an id or a name is required",
		`{"id":"a","permissions":{"roles":[{}]}}`:                                                                      "roles[0]: an id or a name is required",
		`{"id":"a","permissions":{"appGroup":[{"appGroupId":"demo","appGroupPermissionSets":[{}]}]}}`:                  "appGroupPermissionSets[0]: an id or a name is required",
		`{"id":"a","permissions":{"appGroup":[{"appGroupId":"demo"},{"appGroupId":"demo"}]}}`:                          "twice",
		`{"id":"a","permissions":{"appGroup":[{"appGroupId":"demo","team":[{}]}]}}`:                                    "team[0]: an id or a name is required",
		`{"id":"a","permissions":{"companyPermissions":["\u0007"]}}`:                                                   "companyPermissions",
		`{"id":"a","permissions":{"appGroup":[{"appGroupId":"demo","team":[{"teamId":"t","teamPermissions":[""]}]}]}}`: "teamPermissions",
	} {
		a := d.administer(t, "POST", "/permission_sets", body)
		require.GreaterOrEqual(t, a.status, 400, body)
		require.Contains(t, a.v["message"], text, body)
	}
	// What the operator has left out is filled in, so that a provider can send a set back as it reads it.
	require.Equal(t, 200, d.administer(t, "PUT", "/permission_sets/editors", `{"name":"Editors","permissions":{"roles":[{"roleName":"r"}],"appGroup":[{"appGroupName":"Demo","team":[{"teamName":"North"}]},
		{"appGroupId":"other","appGroupPermissionSets":[{"appGroupPermissionSetName":"s"}]}]}}`).status)
	read := d.call("GET", "/scim/v2/Groups/editors", scimToken, "")
	require.Regexp(t, "^N[0-9a-f]{24}$", member(read.json(t), "permissions.appGroup.0.team.0.teamId"))
	again := d.call("PUT", "/scim/v2/Groups/editors", scimToken, read.body)
	require.Equal(t, read.body, again.body)

	text := d.logged()
	for _, what := range []string{"permission set created", "permission set changed", "permission set removed", "members_added=1", "added=ada@example.com"} {
		require.Contains(t, text, what)
	}
	entries := d.administer(t, "GET", "/audit?limit=1000&kind=permission_set&id=editors", "").v["entries"].([]any)
	require.Equal(t, []any{"permission set created", "permission set changed"}, []any{member(entries, "0.what"), member(entries, "1.what")})
	require.Contains(t, member(entries, "1.by"), "SCIM token")
	require.Len(t, entries, 6, "a PUT of what is there is no change")
}

// If-Match names the version that a change is made of; If-None-Match the one that the client has.
func TestSCIMVersions(t *testing.T) {
	d := idp(t)
	user := "/scim/v2/Users/" + d.createUserBy(t, userBody("ada@example.com", "bi", `{}`))
	group := d.call("POST", "/scim/v2/Groups", scimToken, groupBody("G")).header.Get("Location")
	for _, path := range []string{user, group} {
		get := func(headers ...string) answer { return d.call("GET", path, scimToken, "", headers...) }
		first := get()
		tag := first.header.Get("ETag")
		require.Regexp(t, `^W/"[0-9a-f]{16}"$`, tag)
		for have, status := range map[string]int{tag: 304, strings.TrimPrefix(tag, "W/"): 304, `"x", ` + tag: 304, "*": 304, `W/"x"`: 200, "": 200} {
			a := get("If-None-Match", have)
			require.Equal(t, status, a.status, have)
			require.Equal(t, tag, a.header.Get("ETag"))
			require.Equal(t, status == 304, a.body == "")
		}
		change := func(n int) string {
			return operations(fmt.Sprintf(`{"op":"replace","path":"externalId","value":"%d"}`, n))
		}
		stale := func(a answer) {
			t.Helper()
			require.Equal(t, 412, a.status, a.body)
			require.Equal(t, scimFailure(412, "The resource has changed since it was read: If-Match names another version"), a.body)
		}
		a := d.call("PATCH", path, scimToken, change(1), "If-Match", tag)
		require.Equal(t, 200, a.status, a.body)
		next := a.header.Get("ETag")
		require.NotEqual(t, tag, next)
		require.Equal(t, next, get().header.Get("ETag"))
		stale(d.call("PATCH", path, scimToken, change(2), "If-Match", tag))
		whole := strings.Replace(first.body, `"name"`, `"name"`, 1)
		stale(d.call("PUT", path, scimToken, whole, "If-Match", tag))
		stale(d.call("DELETE", path, scimToken, "", "If-Match", tag))
		require.Equal(t, next, get().header.Get("ETag"), "nothing happened")
		require.Equal(t, 200, d.call("PATCH", path, scimToken, change(1), "If-Match", "*").status)
		require.Equal(t, next, get().header.Get("ETag"), "the same again is no change")
		if path == user {
			require.Equal(t, 200, d.call("PATCH", group, scimToken, operations(`{"op":"add","path":"members","value":"`+strings.TrimPrefix(user, "/scim/v2/Users/")+`"}`)).status)
			require.NotEqual(t, next, get().header.Get("ETag"), "who has come into a group looks different")
			continue
		}
		require.Equal(t, 200, d.call("PATCH", path, scimToken, operations(`{"op":"remove","path":"members"}`)).status)
		stale(d.call("DELETE", path, scimToken, "", "If-Match", next))
		require.Equal(t, 204, d.call("DELETE", path, scimToken, "", "If-Match", get().header.Get("ETag")).status)
	}
}

// The bounds, each at its edge.
func TestSCIMBounds(t *testing.T) {
	d := idp(t)
	user := "/scim/v2/Users/" + d.createUserBy(t, userBody("ada@example.com", "bi", `{}`))
	group := d.call("POST", "/scim/v2/Groups", scimToken, groupBody("G")).header.Get("Location")
	one := `{"op":"replace","path":"title","value":"x"}`
	require.Equal(t, 200, d.call("PATCH", user, scimToken, operations(strings.TrimSuffix(strings.Repeat(one+",", scim.MaxOperations), ","))).status)
	a := d.call("PATCH", user, scimToken, operations(strings.TrimSuffix(strings.Repeat(one+",", scim.MaxOperations+1), ",")))
	require.Equal(t, scim400("invalidValue", "'Operations' has 1001 operations, at most 1000"), a.body)
	emails := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"value":"%d@example.com"}`, i))
		}
		return operations(`{"op":"replace","path":"emails","value":[` + strings.Join(list, ",") + `]}`)
	}
	require.Equal(t, 200, d.call("PATCH", user, scimToken, emails(10)).status)
	require.Equal(t, scim400("invalidValue", "'emails' has 11 addresses, at most 10"), d.call("PATCH", user, scimToken, emails(11)).body)
	require.Equal(t, 400, d.call("PATCH", user, scimToken, emails(101)).status)
	require.Equal(t, 413, d.call("PATCH", user, scimToken, operations(`{"op":"replace","path":"title","value":"`+strings.Repeat("x", scim.MaxBodyBytes)+`"}`)).status)
	require.Equal(t, 200, d.call("PATCH", group, scimToken, operations(`{"op":"add","path":"members","value":["`+strings.Repeat("x", scim.MaxBodyBytes)+`"]}`)).status, "a group may be larger")
	require.Equal(t, 413, d.call("PATCH", group, scimToken, operations(`{"op":"add","path":"members","value":["`+strings.Repeat("x", scim.MaxGroupBodyBytes)+`"]}`)).status)
	require.Equal(t, 200, d.call("PATCH", user, scimToken, operations(`{"op":"replace","path":"title","value":"`+strings.Repeat("x", 255)+`"}`)).status)
	require.Equal(t, 400, d.call("PATCH", user, scimToken, operations(`{"op":"replace","path":"title","value":"`+strings.Repeat("x", 256)+`"}`)).status)
}

// 8 clients bring their users into one group at once, and take others out; the group is what all of them together say,
// and so is what each user may do.
func TestSCIMConcurrentMembers(t *testing.T) {
	d := idp(t)
	require.Equal(t, 201, d.administer(t, "PUT", "/permission_sets/all", `{"name":"All","permissions":{"companyPermissions":["admin"]}}`).status)
	var ids [16]string
	for i := range ids {
		ids[i] = d.createUserBy(t, oktaUser(fmt.Sprintf("u%02d@example.com", i), "U", "U", true))
	}
	var group sync.WaitGroup
	for client := range 8 {
		group.Go(func() {
			for _, operation := range []string{
				fmt.Sprintf(`{"op":"add","path":"members","value":[{"value":%q},{"value":%q}]}`, ids[2*client], ids[2*client+1]),
				fmt.Sprintf(`{"op":"remove","path":"members[value eq \"%s\"]"}`, ids[2*client+1]),
			} {
				a := d.call("PATCH", "/scim/v2/Groups/all", scimToken, operations(operation))
				for range 100 { // others change it all the time
					if a.status != 409 && a.status != 503 {
						break
					}
					a = d.call("PATCH", "/scim/v2/Groups/all", scimToken, operations(operation))
				}
				if a.status != 200 {
					t.Errorf("%s: %d %s", operation, a.status, a.body)
				}
			}
		})
	}
	group.Wait()
	members := member(d.call("GET", "/scim/v2/Groups/all", scimToken, "").json(t), "members").([]any)
	require.Len(t, members, 8)
	for i := range ids {
		v := d.call("GET", "/scim/v2/Users/"+ids[i], scimToken, "").json(t)
		_, may := d.scim.Named(v["userName"].(string))
		require.Equal(t, i%2 == 0, member(v, "groups.0.value") == "all")
		require.Equal(t, i%2 == 0, len(may.Company) == 1)
	}
}
