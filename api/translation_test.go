package api

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/loadtest/testsize"
)

func translationFailure(code, text string) string {
	return fmt.Sprintf(`{"message":%q,"errors":[{"code":%q,"message":%q}]}`, text, code, text)
}

var uuidForm = regexp.MustCompile(`"[0-9a-f]{8}-[0-9a-f]{4}-5[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"`)

// Everything that can be wrong with a request for translations, in both spellings of the path, with and without a
// slash.
func TestTranslationRefusals(t *testing.T) {
	d := openEngine(t, t.TempDir())
	set := func(workspace string, on bool) {
		_, err := d.control.UpdateSettings(control.Actor{}, workspace, func(s *document.Settings) error { s.MultiLanguage = on; return nil })
		require.NoError(t, err)
	}
	_, err := d.control.Campaigns.Create(control.Actor{}, "other", document.Campaign{ID: "theirs", Messages: []document.Message{{ID: "their-message", Channel: "email", MultiLanguage: true}}})
	require.NoError(t, err)
	const noUUID, unknownUUID = "7", "a8a6e14a-7a5f-5ad1-b1d3-2b8ab1a1f1c0"
	const monolingual = "This message does not support multi-language."
	for _, test := range []struct {
		kind, query string
		status      int
		code, text  string
	}{
		{"campaign", "", 400, "INVALID_CAMPAIGN_ID", "'campaign_id' is required"},
		{"campaign", "campaign_id=", 400, "INVALID_CAMPAIGN_ID", "'campaign_id' is required"},
		{"campaign", "campaign_id=nobody", 400, "INVALID_CAMPAIGN_ID", "The provided campaign ID is not valid."},
		{"campaign", "campaign_id=theirs&message_variation_id=their-message", 400, "INVALID_CAMPAIGN_ID", "The provided campaign ID is not valid."},
		{"campaign", "campaign_id=w1&message_variation_id=n1", 400, "INVALID_CAMPAIGN_ID", "The provided campaign ID is not valid."},
		{"campaign", "campaign_id=C1&message_variation_id=m1", 400, "INVALID_CAMPAIGN_ID", "The provided campaign ID is not valid."},
		{"campaign", "campaign_id=c1&message_variation_id=nobody", 400, "INVALID_MESSAGE_VARIATION_ID", "The provided message variation ID is not valid."},
		{"campaign", "campaign_id=c1&message_variation_id=their-message", 400, "INVALID_MESSAGE_VARIATION_ID", "The provided message variation ID is not valid."},
		{"campaign", "campaign_id=c1&message_variation_id=m5", 400, "MESSAGE_NOT_FOUND", "The message was not found in this campaign or Canvas step."},
		{"campaign", "campaign_id=c1&message_variation_id=n1", 400, "MESSAGE_NOT_FOUND", "The message was not found in this campaign or Canvas step."},
		{"campaign", "campaign_id=c1&message_variation_id=m4", 400, "UNSUPPORTED_CHANNEL", "Only email messages can be translated."},
		{"campaign", "campaign_id=c2&message_variation_id=m5", 400, "UNSUPPORTED_CHANNEL", "Only email messages can be translated."},
		{"campaign", "campaign_id=c1&message_variation_id=m3", 400, "MULTI_LANGUAGE_NOT_ENABLED_ON_MESSAGE", monolingual},
		{"campaign", "campaign_id=c2", 400, "MULTI_LANGUAGE_NOT_ENABLED_ON_MESSAGE", monolingual},
		{"campaign", "campaign_id=c3", 400, "UNSUPPORTED_CHANNEL", "Only email messages can be translated."},
		{"campaign", "campaign_id=c1&message_variation_id=m1&locale_id=" + noUUID, 400, "INVALID_LOCALE_ID", "The provided locale ID is not valid."},
		{"campaign", "campaign_id=c1&message_variation_id=m1&locale_id=" + unknownUUID, 400, "LOCALE_NOT_FOUND", "The provided locale code does not exist."},
		{"campaign", "campaign_id=c1&message_variation_id=m3&locale_id=" + noUUID, 400, "MULTI_LANGUAGE_NOT_ENABLED_ON_MESSAGE", monolingual},

		{"canvas", "step_id=s1&message_variation_id=n1", 400, "INVALID_WORKFLOW_ID", "'workflow_id' is required"},
		{"canvas", "workflow_id=w1&message_variation_id=n1", 400, "INVALID_STEP_ID", "'step_id' is required"},
		{"canvas", "workflow_id=w1&step_id=s1", 400, "INVALID_MESSAGE_VARIATION_ID", "'message_variation_id' is required"},
		{"canvas", "workflow_id=nobody&step_id=s1&message_variation_id=n1", 404, "CANVAS_NOT_FOUND", "The Canvas was not found."},
		{"canvas", "workflow_id=c1&step_id=s1&message_variation_id=n1", 404, "CANVAS_NOT_FOUND", "The Canvas was not found."},
		{"canvas", "workflow_id=w1&step_id=nobody&message_variation_id=n1", 404, "STEP_NOT_FOUND", "The Canvas step was not found."},
		{"canvas", "workflow_id=w1&step_id=s1&message_variation_id=nobody", 400, "INVALID_MESSAGE_VARIATION_ID", "The provided message variation ID is not valid."},
		{"canvas", "workflow_id=w1&step_id=s1&message_variation_id=n2", 400, "MESSAGE_NOT_FOUND", "The message was not found in this campaign or Canvas step."},
		{"canvas", "workflow_id=w1&step_id=s1&message_variation_id=m1", 400, "MESSAGE_NOT_FOUND", "The message was not found in this campaign or Canvas step."},
		{"canvas", "workflow_id=w1&step_id=s1&message_variation_id=n4", 400, "UNSUPPORTED_CHANNEL", "Only email messages can be translated."},
		{"canvas", "workflow_id=w1&step_id=s1&message_variation_id=n3", 400, "MULTI_LANGUAGE_NOT_ENABLED_ON_MESSAGE", monolingual},
		{"canvas", "workflow_id=w1&step_id=s1&message_variation_id=n1&locale_id=" + noUUID, 400, "INVALID_LOCALE_ID", "The provided locale ID is not valid."},
		{"canvas", "workflow_id=w1&step_id=s1&message_variation_id=n1&locale_id=" + unknownUUID, 400, "LOCALE_NOT_FOUND", "The provided locale code does not exist."},
	} {
		spellings := []string{"/campaigns/translations", "/campaign/translations", "/campaigns/translations/", "/campaign/translations/"}
		if test.kind == "canvas" {
			spellings = []string{"/canvases/translations", "/canvas/translations", "/canvases/translations/", "/canvas/translations/"}
		}
		query, err := url.ParseQuery(test.query)
		require.NoError(t, err)
		for _, path := range spellings {
			a := d.call("GET", path+"?"+test.query, demoKey, "")
			require.Equal(t, test.status, a.status, "%s?%s: %s", path, test.query, a.body)
			require.Equal(t, translationFailure(test.code, test.text), a.body, "%s?%s", path, test.query)
			require.Equal(t, "250000", a.header.Get("X-RateLimit-Limit"))

			// The source is judged alike, apart from the locale; a PUT too, with the ids in its body.
			if !query.Has("locale_id") && query.Has("message_variation_id") {
				source := d.call("GET", strings.TrimSuffix(path, "/")+"/source?"+test.query, demoKey, "")
				require.Equal(t, a.body, source.body, "%s?%s", path, test.query)
				require.Equal(t, a.status, source.status)
			}
			if test.kind == "campaign" && !query.Has("message_variation_id") && query.Get("campaign_id") != "" {
				continue
			}
			body := `{"locale_name":"de","translation_map":{}`
			for name := range query {
				body += fmt.Sprintf(`,%q:%q`, name, query.Get(name))
			}
			put := d.call("PUT", path, demoKey, body+"}")
			require.Equal(t, a.body, put.body, "%s %s", path, body)
			require.Equal(t, a.status, put.status)
		}
	}
	for _, path := range []string{"/campaigns/translations", "/canvas/translations"} {
		set("demo", false)
		const off = "Multi-language is not enabled in this workspace."
		query := "?campaign_id=nobody&workflow_id=nobody&step_id=x&message_variation_id=x"
		require.Equal(t, translationFailure("MULTI_LANGUAGE_NOT_ENABLED", off), d.call("GET", path+query, demoKey, "").body)
		require.Equal(t, translationFailure("MULTI_LANGUAGE_NOT_ENABLED", off), d.call("GET", path+"/source"+query, demoKey, "").body)
		a := d.call("PUT", path, demoKey, `{"campaign_id":"c1","workflow_id":"w1","step_id":"s1","message_variation_id":"m1","locale_name":"de","translation_map":{}}`)
		require.Equal(t, 400, a.status)
		require.Equal(t, translationFailure("MULTI_LANGUAGE_NOT_ENABLED", off), a.body)
		set("demo", true)
	}
	require.Equal(t, translationFailure("INVALID_MESSAGE_VARIATION_ID", "'message_variation_id' is required"), d.call("GET", "/campaigns/translations/source?campaign_id=c1", demoKey, "").body)

	// What is wrong with a PUT alone.
	before := d.call("GET", "/campaigns/translations?campaign_id=c1", demoKey, "").body
	const ids = `"campaign_id":"c1","message_variation_id":"m1",`
	for body, want := range map[string]string{
		`{}`:                          translationFailure("INVALID_CAMPAIGN_ID", "'campaign_id' is required"),
		`{"campaign_id":"c1"}`:        translationFailure("INVALID_MESSAGE_VARIATION_ID", "'message_variation_id' is required"),
		`{"campaign_id":7}`:           translationFailure("INVALID_CAMPAIGN_ID", "'campaign_id' must be a string"),
		`{"message_variation_id":[]}`: translationFailure("INVALID_MESSAGE_VARIATION_ID", "'message_variation_id' must be a string"),
		`{` + ids + `"translation_map":{"id_0":"","id_1":""}}`:                       translationFailure("INVALID_LOCALE_ID", "'locale_id' or 'locale_name' is required"),
		`{` + ids + `"locale_id":7}`:                                                 translationFailure("INVALID_LOCALE_ID", "'locale_id' must be a string"),
		`{` + ids + `"locale_name":{}}`:                                              translationFailure("INVALID_LOCALE_ID", "'locale_name' must be a string"),
		`{` + ids + `"locale_name":"it","translation_map":{}}`:                       translationFailure("LOCALE_NOT_FOUND", "The provided locale code does not exist."),
		`{` + ids + `"locale_name":"no locale","translation_map":{}}`:                translationFailure("LOCALE_NOT_FOUND", "The provided locale code does not exist."),
		`{` + ids + `"locale_id":"de","translation_map":{}}`:                         translationFailure("INVALID_LOCALE_ID", "The provided locale ID is not valid."),
		`{` + ids + `"locale_name":"de"}`:                                            translationFailure("INVALID_TRANSLATION_MAP", "'translation_map' is required"),
		`{` + ids + `"locale_name":"de","translation_map":[]}`:                       translationFailure("INVALID_TRANSLATION_MAP", "'translation_map' must be an object of strings"),
		`{` + ids + `"locale_name":"de","translation_map":{"id_0":"a","id_1":null}}`: translationFailure("INVALID_TRANSLATION_MAP", "'translation_map' must be an object of strings"),
		`{` + ids + `"locale_name":"de","translation_map":{"ID_0":"a"}}`:             translationFailure("MISSING_TRANSLATIONS", "The provided translations are missing 'id_0', 'id_1'"),
		`{` + ids + `"locale_name":"de","translation_map":{"id_0":"a"}}`:             translationFailure("MISSING_TRANSLATIONS", "The provided translations are missing 'id_1'"),
		`{` + ids + `"locale_name":"de","translation_map":{"id_0":"a","id_0":"b"}}`:  translationFailure("BAD_REQUEST", "Invalid JSON: member 'id_0' is there more than once"),
		`{` + ids + `"locale_name":"de","translation_map":{"id_0":"\ud800"}}`:        translationFailure("BAD_REQUEST", "Invalid JSON: a lone surrogate in a string"),
		`[`:                    translationFailure("BAD_REQUEST", "Invalid JSON at byte 1: a value is expected"),
		`{"workflow_id":"w1",`: translationFailure("BAD_REQUEST", "Invalid JSON at byte 20: a member name is expected"),
	} {
		a := d.call("PUT", "/campaigns/translations", demoKey, body)
		require.Equal(t, 400, a.status, body)
		require.Equal(t, want, a.body, body)
	}
	require.Equal(t, before, d.call("GET", "/campaigns/translations?campaign_id=c1", demoKey, "").body)
	a := d.call("PUT", "/canvas/translations", demoKey, `{"workflow_id":7,"step_id":"s1"}`)
	require.Equal(t, translationFailure("INVALID_WORKFLOW_ID", "'workflow_id' must be a string"), a.body)
	a = d.call("PUT", "/canvas/translations", demoKey, `{"workflow_id":"w1","step_id":false}`)
	require.Equal(t, translationFailure("INVALID_STEP_ID", "'step_id' must be a string"), a.body)
}

func TestTranslations(t *testing.T) {
	d := openEngine(t, t.TempDir())
	get := func(target string) answer {
		a := d.call("GET", target, demoKey, "")
		require.Equal(t, 200, a.status, "%s: %s", target, a.body)
		return a
	}
	// Letter by letter. m3 and m4 can't be translated and aren't there.
	const es, fr, frBare = `{"locale":{"uuid":UUID,"name":"es-MX","country":"MX","language":"es","locale_key":"es-mx"},"translation_map":{"id_0":"Hola","id_1":"Adiós"}`,
		`{"locale":{"uuid":UUID,"name":"fr","country":"","language":"French","locale_key":"fr"},"translation_map":{"id_0":"Bonjour","id_1":"Adieu"}`,
		`{"locale":{"uuid":UUID,"name":"fr","country":"","language":"French","locale_key":"fr"},"translation_map":{"x":"Un"}`
	const one = `{"translations":[` + es + `},` + fr + `}],"message":"success"}`
	const all = `{"translations":[` + es + `,"message_variation_id":"m1"},` + fr + `,"message_variation_id":"m1"},` + frBare + `,"message_variation_id":"m2"}],"message":"success"}`
	for _, path := range []string{"/campaigns/translations", "/campaign/translations", "/campaign/translations/"} {
		require.Equal(t, all, uuidForm.ReplaceAllString(get(path+"?campaign_id=c1").body, "UUID"))
		require.Equal(t, one, uuidForm.ReplaceAllString(get(path+"?campaign_id=c1&message_variation_id=m1&post_launch_draft_version=true").body, "UUID"))
	}
	for _, path := range []string{"/canvases/translations", "/canvas/translations", "/canvases/translations/"} {
		require.Equal(t, one, uuidForm.ReplaceAllString(get(path+"?workflow_id=w1&step_id=s2&message_variation_id=n2").body, "UUID"))
	}
	require.Equal(t, `{"translations":[],"message":"success"}`, get("/campaigns/translations?campaign_id=c4").body)
	const source = `{"translations":{"translation_map":{"id_0":"Hello","id_1":"Good \"bye\""}},"message":"success"}`
	require.Equal(t, source, get("/campaigns/translations/source?campaign_id=c1&message_variation_id=m1").body)
	require.Equal(t, source, get("/canvas/translations/source/?workflow_id=w1&step_id=s1&message_variation_id=n1").body)
	require.Equal(t, `{"translations":{"translation_map":{}},"message":"success"}`, get("/campaign/translations/source?campaign_id=c1&message_variation_id=m2").body)
	require.Equal(t, 200, d.call("HEAD", "/campaigns/translations?campaign_id=c1", demoKey, "").status)

	// One locale: its id is the same for all messages, and another in another workspace.
	locale := func(a answer, i int) map[string]any {
		return a.json(t)["translations"].([]any)[i].(map[string]any)["locale"].(map[string]any)
	}
	french := locale(get("/campaigns/translations?campaign_id=c1"), 1)["uuid"].(string)
	require.Equal(t, french, locale(get("/campaigns/translations?campaign_id=c1"), 2)["uuid"])
	require.Equal(t, french, locale(get("/canvas/translations?workflow_id=w1&step_id=s1&message_variation_id=n1"), 1)["uuid"])
	a := get("/campaigns/translations?campaign_id=c1&message_variation_id=m1&locale_id=" + strings.ToUpper(french))
	require.Equal(t, `{"translations":[`+fr+`}],"message":"success"}`, uuidForm.ReplaceAllString(a.body, "UUID"))
	other := d.call("GET", "/campaigns/translations?campaign_id=c1", otherKey, "")
	require.NotEqual(t, french, locale(other, 1)["uuid"])
	a = d.call("GET", "/campaigns/translations?campaign_id=c1&locale_id="+locale(other, 1)["uuid"].(string), demoKey, "")
	require.Equal(t, translationFailure("LOCALE_NOT_FOUND", "The provided locale code does not exist."), a.body)
	spanish := locale(get("/campaigns/translations?campaign_id=c1"), 0)["uuid"].(string)
	require.Equal(t, `{"translations":[],"message":"success"}`, get("/campaigns/translations?campaign_id=c1&message_variation_id=m2&locale_id="+spanish).body, "a locale that exists, without a translation")
}

// What is written is read back, by the other spelling, in one workspace, after a restart too.
func TestPutTranslations(t *testing.T) {
	dir := t.TempDir()
	d := openEngine(t, dir)
	put := func(path, body string) {
		t.Helper()
		a := d.call("PUT", path, demoKey, body)
		require.Equal(t, 200, a.status, "%s: %s", body, a.body)
		require.Equal(t, `{"message":"success"}`, a.body)
	}
	translations := func(key, target string) map[string]any {
		a := d.call("GET", target, key, "")
		require.Equal(t, 200, a.status, a.body)
		found := map[string]any{}
		for _, v := range a.json(t)["translations"].([]any) {
			v := v.(map[string]any)
			name := v["locale"].(map[string]any)["name"].(string)
			require.NotContains(t, found, name, "a locale stands once")
			found[name] = v["translation_map"]
		}
		return found
	}
	const campaign, canvas = "?campaign_id=c1&message_variation_id=m1", "?workflow_id=w1&step_id=s1&message_variation_id=n1"
	const campaignIDs, canvasIDs = `"campaign_id":"c1","message_variation_id":"m1"`, `"workflow_id":"w1","step_id":"s1","message_variation_id":"n1"`
	before := translations(otherKey, "/campaigns/translations"+campaign)

	// A locale of the settings, which has no translation yet; spelled as people do; unknown members and ids are no
	// harm.
	put("/campaign/translations/", `{`+campaignIDs+`,"locale_name":"DE","post_launch_draft_version":true,"translation_map":{"id_1":"Tschüs \u0000 \"x\"","id_0":"Hallo","more":""}}`)
	put("/canvases/translations", `{`+canvasIDs+`,"locale_name":"es_mx","translation_map":{"id_0":"¡Hola!","id_1":"Adiós"}}`)
	german := map[string]any{"id_0": "Hallo", "id_1": "Tschüs \x00 \"x\"", "more": ""}
	check := func() {
		require.Equal(t, map[string]any{"de": german, "es-MX": map[string]any{"id_0": "Hola", "id_1": "Adiós"}, "fr": map[string]any{"id_0": "Bonjour", "id_1": "Adieu"}},
			translations(demoKey, "/campaigns/translations"+campaign))
		require.Equal(t, map[string]any{"es-MX": map[string]any{"id_0": "¡Hola!", "id_1": "Adiós"}, "fr": map[string]any{"id_0": "Bonjour", "id_1": "Adieu"}},
			translations(demoKey, "/canvas/translations"+canvas))
		require.Equal(t, before, translations(otherKey, "/campaigns/translations"+campaign), "another workspace keeps its own")
	}
	check()
	d.end()
	d = openEngine(t, dir) // the bootstrap file is applied again and does not undo it
	check()

	// By id; the whole map is replaced.
	a := d.call("GET", "/campaigns/translations"+campaign, demoKey, "")
	ids := map[string]string{}
	for _, v := range a.json(t)["translations"].([]any) {
		l := v.(map[string]any)["locale"].(map[string]any)
		ids[l["name"].(string)] = l["uuid"].(string)
	}
	put("/campaigns/translations", `{`+campaignIDs+`,"locale_id":"`+ids["de"]+`","locale_name":"fr","translation_map":{"id_1":"b","id_0":"a"}}`)
	require.Equal(t, map[string]any{"id_0": "a", "id_1": "b"}, translations(demoKey, "/campaigns/translations"+campaign)["de"])
	require.Equal(t, map[string]any{"id_0": "Bonjour", "id_1": "Adieu"}, translations(demoKey, "/campaigns/translations"+campaign)["fr"])

	// A locale that only another message has is one of the workspace; a message without a source takes any ids.
	put("/campaigns/translations", `{"campaign_id":"c1","message_variation_id":"m2","locale_name":"es-MX","translation_map":{}}`)
	require.Equal(t, map[string]any{"fr": map[string]any{"x": "Un"}, "es-MX": map[string]any{}}, translations(demoKey, "/campaigns/translations?campaign_id=c1&message_variation_id=m2"))

	// What another translation says of the locale is said of it everywhere.
	put("/campaigns/translations", `{"campaign_id":"c1","message_variation_id":"m2","locale_name":"FR","translation_map":{"x":"Deux"}}`)
	a = d.call("GET", "/campaigns/translations?campaign_id=c1&message_variation_id=m2", demoKey, "")
	require.Contains(t, uuidForm.ReplaceAllString(a.body, "UUID"), `{"locale":{"uuid":UUID,"name":"fr","country":"","language":"French","locale_key":"fr"},"translation_map":{"x":"Deux"}}`)

	// Who may read may not write.
	_, token, err := d.control.CreateKey(control.Actor{}, "demo", document.KeySpec{Name: "reader", Permissions: []string{"campaigns.translations.get"}})
	require.NoError(t, err)
	a = d.call("PUT", "/campaigns/translations", token, `{}`)
	require.Equal(t, 403, a.status)
	require.Equal(t, translationFailure("FORBIDDEN", "This API key lacks the permission campaigns.translations.update"), a.body)
	require.Contains(t, d.logged(), "audit: translation put")
}

// Writers of one campaign at once lose nothing of one another.
func TestConcurrentTranslations(t *testing.T) {
	d := openEngine(t, t.TempDir())
	var messages []document.Message
	for i := range 8 {
		messages = append(messages, document.Message{ID: fmt.Sprint("many", i), Channel: "email", MultiLanguage: true})
	}
	_, err := d.control.Campaigns.Create(control.Actor{}, "demo", document.Campaign{ID: "many", Messages: messages})
	require.NoError(t, err)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for _, locale := range []string{"de", "es-MX", "fr"} {
				a := d.call("PUT", "/campaigns/translations", demoKey, fmt.Sprintf(`{"campaign_id":"many","message_variation_id":"many%d","locale_name":%q,"translation_map":{"x":"%d"}}`, i, locale, i))
				if a.status != 200 {
					t.Error(a.status, a.body)
				}
			}
		})
	}
	group.Wait()
	require.Len(t, d.call("GET", "/campaigns/translations?campaign_id=many", demoKey, "").json(t)["translations"], 24)
}

// More than the bodies of the default can hold.
func TestTranslationsTooLarge(t *testing.T) {
	testsize.SkipSerial(t)
	d := open(t, func(o *Options) { o.MaxBodyBytes = 32 << 20 })
	put := func(n int) answer {
		return d.call("PUT", "/campaigns/translations", demoKey, `{"campaign_id":"c1","message_variation_id":"m2","locale_name":"fr","translation_map":{"a":"`+strings.Repeat("x", n)+`","b":""}}`)
	}
	const maxBytes = 20 << 20
	a := put(maxBytes - 1)
	require.Equal(t, 400, a.status)
	require.Equal(t, translationFailure("TRANSLATIONS_TOO_LARGE", "The provided translations have exceeded the maximum of 20MB."), a.body)
	require.Equal(t, 200, put(maxBytes-2).status)
}

// The door's refusals have the shape too; 429 has the text that clients know.
func TestTranslationShape(t *testing.T) {
	d := open(t, nil)
	defer testClock.Store(testClock.Load())
	for _, path := range []string{"/campaigns/translations", "/campaign/translations/", "/canvases/translations", "/canvas/translations/source"} {
		require.Equal(t, translationFailure("UNAUTHORIZED", "Invalid API key: …"), d.call("GET", path, "", "").body)
		a := d.call("DELETE", path, demoKey, "")
		require.Equal(t, 405, a.status)
		require.Equal(t, translationFailure("METHOD_NOT_ALLOWED", "Method Not Allowed"), a.body)
		allow := "GET, HEAD, PUT"
		if strings.HasSuffix(path, "source") {
			allow = "GET, HEAD"
		}
		require.Equal(t, allow, a.header.Get("Allow"))
	}
	require.Equal(t, translationFailure("NOT_FOUND", "Not Found"), d.call("GET", "/canvas/translations/draft", demoKey, "").body)
	require.Equal(t, translationFailure("UNSUPPORTED_MEDIA_TYPE", "The Content-Type must be application/json"), d.call("PUT", "/canvas/translations", demoKey, "{}", "Content-Type", "text/csv").body)

	_, err := d.control.UpdateSettings(control.Actor{}, "demo", func(s *document.Settings) error {
		s.RateLimits = map[string]string{"canvas.translations.get": "2/1h", "campaigns.translations.update": "1/1h"}
		return nil
	})
	require.NoError(t, err)
	testClock.Add(3_600_000)
	for _, path := range []string{"/canvas/translations", "/canvases/translations/source"} { // one bucket for all spellings
		require.Equal(t, 200, d.call("GET", path+"?workflow_id=w1&step_id=s1&message_variation_id=n1", demoKey, "").status)
	}
	a := d.call("GET", "/canvases/translations?workflow_id=w1&step_id=s1&message_variation_id=n1", demoKey, "")
	require.Equal(t, 429, a.status)
	require.Equal(t, `{"message":"The rate limit of canvas.translations.get, 2/1h requests, is exceeded. Please try again later.",`+
		`"errors":[{"code":"TOO_MANY_REQUESTS","message":"You have exceeded the maximum number of requests. Please try again later."}]}`, a.body)
	require.Equal(t, "2", a.header.Get("X-RateLimit-Limit"))
	require.NotEmpty(t, a.header.Get("Retry-After"))
	require.Equal(t, 200, d.call("GET", "/campaigns/translations?campaign_id=c1", demoKey, "").status, "campaigns have their own")
	require.Equal(t, 400, d.call("PUT", "/campaigns/translations", demoKey, "{}").status)
	require.Equal(t, 429, d.call("PUT", "/campaign/translations", demoKey, "{}").status)
	require.Equal(t, 400, d.call("PUT", "/canvas/translations", demoKey, "{}").status)
}

// A locale is called the same wherever it is shown, whoever wrote the translation: as the settings of the workspace call
// it, else as the first translation does that says it.
func TestLocaleIsCalledTheSame(t *testing.T) {
	d := open(t, nil)
	file, err := document.ParseBootstrap([]byte(`
workspaces:
  - id: words
    multi_language: true
    locales: [{name: de, country: Deutschland, language: Deutsch}, {name: it-CH, country: Svizzera}]
    api_keys: [{name: all, key: words-all-key-0123456789, permissions: ["*"]}]
    campaigns:
      - id: c1
        messages:
          - {id: m1, channel: email, multi_language: true, translations: [{locale: {name: de}, translation_map: {}}, {locale: {name: it_ch, country: Italia, language: Italiano}, translation_map: {}},
              {locale: {name: fr}, translation_map: {}}, {locale: {name: es-MX}, translation_map: {}}]}
          - {id: m2, channel: email, multi_language: true, translations: [{locale: {name: it-CH}, translation_map: {}}, {locale: {name: fr, language: Français}, translation_map: {}}]}
          - {id: m3, channel: email, multi_language: true}
    canvases:
      - {id: w1, steps: [{id: s1, messages: [{id: n1, channel: email, multi_language: true, translations: [{locale: {name: DE, country: Germany, language: German}, translation_map: {}},
          {locale: {name: fr, language: French, country: France}, translation_map: {}}]}]}]}
`))
	require.NoError(t, err)
	_, err = d.control.Bootstrap(t.Context(), control.Actor{Name: "test"}, file)
	require.NoError(t, err)
	const key = "words-all-key-0123456789"
	for _, name := range []string{"de", "it-CH", "fr", "es-MX"} {
		require.Equal(t, 200, d.call("PUT", "/campaigns/translations", key, `{"campaign_id":"c1","message_variation_id":"m3","locale_name":"`+name+`","translation_map":{}}`).status)
	}
	want := map[string]string{"de": "Deutschland Deutsch", "it-CH": "Svizzera Italiano", "fr": "France Français", "es-MX": "MX es"}
	shown := 0
	for _, target := range []string{"/campaigns/translations?campaign_id=c1", "/canvases/translations?workflow_id=w1&step_id=s1&message_variation_id=n1"} {
		a := d.call("GET", target, key, "")
		require.Equal(t, 200, a.status, a.body)
		for _, v := range a.json(t)["translations"].([]any) {
			l := v.(map[string]any)["locale"].(map[string]any)
			require.Equal(t, want[l["name"].(string)], l["country"].(string)+" "+l["language"].(string), a.body)
			shown++
		}
	}
	require.Equal(t, 12, shown)
}

// An id stands in the query once, as in those of subscriptions: which of two is meant nobody can say.
func TestTranslationsOfTwo(t *testing.T) {
	d := open(t, nil)
	for query, want := range map[string]string{
		"/campaigns/translations?campaign_id=c1&campaign_id=c2":                                                              translationFailure("INVALID_CAMPAIGN_ID", "'campaign_id' may be sent once only"),
		"/campaign/translations?campaign_id=c1&campaign_id=c1":                                                               translationFailure("INVALID_CAMPAIGN_ID", "'campaign_id' may be sent once only"),
		"/campaigns/translations?message_variation_id=m1&message_variation_id=m2":                                            translationFailure("INVALID_MESSAGE_VARIATION_ID", "'message_variation_id' may be sent once only"),
		"/campaigns/translations?campaign_id=c1&locale_id=a&locale_id=b":                                                     translationFailure("INVALID_LOCALE_ID", "'locale_id' may be sent once only"),
		"/campaigns/translations/source?campaign_id=c1&campaign_id=c2&message_variation_id=m1":                               translationFailure("INVALID_CAMPAIGN_ID", "'campaign_id' may be sent once only"),
		"/canvases/translations?workflow_id=w1&workflow_id=w2&step_id=s1&message_variation_id=n1":                            translationFailure("INVALID_WORKFLOW_ID", "'workflow_id' may be sent once only"),
		"/canvas/translations?workflow_id=w1&step_id=s1&step_id=s1&message_variation_id=n1":                                  translationFailure("INVALID_STEP_ID", "'step_id' may be sent once only"),
		"/canvases/translations/source?workflow_id=w1&step_id=s1&message_variation_id=n1&message_variation_id=n2&step_id=s1": translationFailure("INVALID_MESSAGE_VARIATION_ID", "'message_variation_id' may be sent once only"),
	} {
		a := d.call("GET", query, demoKey, "")
		require.Equal(t, 400, a.status, query)
		require.Equal(t, want, a.body, query)
	}
	for _, query := range []string{"/campaigns/translations?campaign_id=&campaign_id=c1&campaign_id=&step_id=a&step_id=b&post_launch_draft_version=1&post_launch_draft_version=2",
		"/canvases/translations?workflow_id=w1&step_id=s1&message_variation_id=n1&campaign_id=a&campaign_id=b"} {
		require.Equal(t, 200, d.call("GET", query, demoKey, "").status, query)
	}
}
