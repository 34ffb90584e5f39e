package control

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLocaleKey(t *testing.T) {
	for code, want := range map[string]string{"es-MX": "es-MX", "es_mx": "es-MX", "ES-mx": "es-MX", "de": "de", "zh-Hant-TW": "zh-Hant-TW", "zh_hans": "zh-Hans", "es-419": "es-419", "sr-latn": "sr-Latn"} {
		key, ok := LocaleKey(code)
		require.True(t, ok, code)
		require.Equal(t, want, key, code)
	}
	for _, code := range []string{"", "und", "x", "english", "es-MEX-x", "es MX", "xx-YY", "q1", "es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX-es-MX", "\xff"} {
		_, ok := LocaleKey(code)
		require.False(t, ok, code)
	}
}

func TestDescribedLocale(t *testing.T) {
	for l, want := range map[Locale]Locale{
		{Name: "es-MX"}:                {"es-MX", "MX", "es"},
		{Name: "es_mx"}:                {"es_mx", "MX", "es"},
		{Name: "de"}:                   {"de", "", "de"}, // a language is spoken in more than one country
		{"es-MX", "Mexico", "Spanish"}: {"es-MX", "Mexico", "Spanish"},
		{Name: "zh-Hant-TW", Country: "中華民國"}: {"zh-Hant-TW", "中華民國", "zh"},
		{Name: "no locale"}:                   {Name: "no locale"},
	} {
		require.Equal(t, want, l.Described())
	}
}

// Locales are judged wherever an operator writes them.
func TestLocalesOfTheFile(t *testing.T) {
	for text, want := range map[string]string{
		`workspaces: [{id: a, locales: [{name: de}, {name: klingon!}]}]`:                                                                                `locales[1]: locale name "klingon!"`,
		`workspaces: [{id: a, locales: [{name: es-MX}, {name: es_mx}]}]`:                                                                                `locales[1]: the locale es-MX appears twice`,
		`workspaces: [{id: a, locales: [{name: de, country: "a\nb"}]}]`:                                                                                 `locales[0]: country and language`,
		`workspaces: [{id: a, campaigns: [{id: c, messages: [{id: m, channel: email, translations: [{locale: {name: xx-YY}}]}]}]}]`:                     `campaigns[0]: messages[0]: invalid: translations[0]: locale name "xx-YY"`,
		`workspaces: [{id: a, canvases: [{id: c, steps: [{id: s, messages: [{id: m, channel: email, translations: [{}]}]}]}]}]`:                         `canvases[0]: steps[0]: messages[0]: invalid: translations[0]: locale name ""`,
		`workspaces: [{id: a, campaigns: [{id: c, messages: [{id: m, channel: email, translations: [{locale: {name: de}}, {locale: {name: DE}}]}]}]}]`:  `translations[1]: the locale de appears twice`,
		`workspaces: [{id: a, campaigns: [{id: c, messages: [{id: m, channel: email}, {id: m, channel: sms}]}]}]`:                                       `message id "m" appears twice`,
		`workspaces: [{id: a, canvases: [{id: c, steps: [{id: s, messages: [{id: m, channel: email}]}, {id: t, messages: [{id: m, channel: sms}]}]}]}]`: `steps[1]: messages[0]: invalid: message id "m" appears twice`,
		`workspaces: [{id: a, canvases: [{id: c, steps: [{id: s}, {id: s}]}]}]`:                                                                         `step id "s" appears twice`,
		`company: {scim: {token: t, rate_limit: often}}`:                                                                                                `scim.rate_limit`,
	} {
		_, err := ParseBootstrap([]byte(text))
		require.ErrorIs(t, err, ErrInvalid, text)
		require.ErrorContains(t, err, want, text)
	}
	_, err := ParseBootstrap([]byte(`workspaces: [{id: a, locales: [{name: de}, {name: de-AT}], campaigns: [{id: c, messages: [{id: m, channel: email, source: {a: b}, translations: [{locale: {name: de}}]}]}]}]`))
	require.NoError(t, err)
}

// The second way to a document follows its changes and its end, and a document under another key does not take it over.
func TestCollectionByOtherID(t *testing.T) {
	c, _, _ := start(t, map[string]string{})
	users := c.SCIMUsers
	c.Apply("scim_user//a@example.com", []byte(`{"id":"1","userName":"A"}`))
	c.Apply("scim_user//b@example.com", []byte(`{"id":"2","userName":"B"}`))
	require.Equal(t, "A", users.Find("", "1").UserName)
	require.Equal(t, "B", users.Find("", "2").UserName)
	require.Equal(t, 2, users.Len())
	c.Apply("scim_user//a@example.com", []byte(`{"id":"1","userName":"AA"}`))
	require.Equal(t, "AA", users.Find("", "1").UserName)
	require.Same(t, users.Get("", "a@example.com"), users.Find("", "1"))
	c.Apply("scim_user//a@example.com", []byte(`{"id":"3","userName":"A"}`))
	require.Nil(t, users.Find("", "1"))
	require.Equal(t, "A", users.Find("", "3").UserName)
	c.Apply("scim_user//b@example.com", []byte(`{"id":`))
	require.Nil(t, users.Find("", "2"), "what can't be read is not there")
	c.Apply("scim_user//a@example.com", nil)
	require.Nil(t, users.Find("", "3"))
	require.Zero(t, users.Len())
	require.Nil(t, users.Find("x", "3"))
}

func TestSCIMOriginAndAddresses(t *testing.T) {
	s := &SCIM{SCIMSettings: SCIMSettings{RequestOrigin: "https://idp.example.com"}}
	for origin, want := range map[string]bool{"https://idp.example.com": true, "": false, "https://idp.example.com/": false, "https://IDP.example.com": false, "https://idp.example.co": false} {
		require.Equal(t, want, s.AllowsOrigin([][]byte{[]byte(origin)}), origin)
	}
	require.False(t, s.AllowsOrigin(nil))
	require.False(t, s.AllowsOrigin([][]byte{[]byte(s.RequestOrigin), []byte(s.RequestOrigin)}))
	s.RequestOrigin = ""
	require.True(t, s.AllowsOrigin([][]byte{[]byte("x")}))
	require.True(t, s.AllowsOrigin(nil))
}
