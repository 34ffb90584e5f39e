package document

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestBootstrapErrors(t *testing.T) {
	long := strings.Repeat("n", 256)
	for text, want := range map[string]string{
		"workspace: []":                                                                                                   "field workspace not found",
		"workspaces: [{id: demo, plann: base}]":                                                                           "field plann not found",
		"workspaces: [{id: demo, plan: pro}]":                                                                             `workspaces[0] (demo): invalid: plan "pro"`,
		"workspaces: [{id: Demo}]":                                                                                        `workspace id "Demo"`,
		"workspaces: [{name: x}]":                                                                                         `workspace id ""`,
		"workspaces: [{id: a}, {id: a}]":                                                                                  `workspaces[1] (a): invalid: workspace "a" appears twice`,
		"workspaces: [{id: a, currency: usd}]":                                                                            `currency "usd"`,
		"workspaces: [{id: a, currency: USB}]":                                                                            `currency "USB": want a code of ISO 4217`,
		"workspaces: [{id: a, exchange_rates: {Eur: 1}}]":                                                                 `exchange_rates: currency "Eur"`,
		"workspaces: [{id: a, exchange_rates: {EUR: x}}]":                                                                 `exchange_rates: EUR: "x"`,
		"workspaces: [{id: a, exchange_rates: {EUR: 0}}]":                                                                 `exchange_rates: EUR: "0"`,
		"workspaces: [{id: a, rate_limits: {users.trak: 1/1s}}]":                                                          "rate_limits: rate limit \"users.trak\" is unknown",
		"workspaces: [{id: a, rate_limits: {users.track: 1}}]":                                                            `rate limit "1"`,
		"workspaces: [{id: a, max_custom_array_length: 501}]":                                                             "max_custom_array_length 501",
		"workspaces: [{id: a, profile_id_name: appboy_id}]":                                                               "profile_id_name",
		"workspaces: [{id: a, request_error_shape: x}]":                                                                   "request_error_shape",
		"workspaces: [{id: a, apps: [{name: x}]}]":                                                                        "apps[0]: invalid: id is required",
		"workspaces: [{id: a, apps: [{id: x}, {id: x}]}]":                                                                 "apps[1]: invalid: app \"x\" appears twice",
		"workspaces: [{id: a, api_keys: [{key: x}]}]":                                                                     "api_keys[0]: invalid: name",
		"workspaces: [{id: a, api_keys: [{name: x, key: 'a b'}]}]":                                                        "api_keys[0]",
		"workspaces: [{id: a, api_keys: [{name: x, permissions: [users.*]}]}]":                                            `permissions: "users.*"`,
		"workspaces: [{id: a, api_keys: [{name: x, ip_allowlist: [here]}]}]":                                              `"here"`,
		"workspaces: [{id: a, api_keys: [{name: x, key: k1}]}, {id: b, api_keys: [{name: x, key: k1}]}]":                  `workspaces[1] (b): api_keys[0]: invalid: the token of "x" appears twice`,
		"workspaces: [{id: a, api_keys: [{name: x, key: millrace_live_abc}]}]":                                            "checksum",
		"workspaces: [{id: a, subscription_groups: [{id: x, name: n, channel: email}]}]":                                  "want a UUID",
		"workspaces: [{id: a, subscription_groups: [{id: 5a3cc8ff-9a0e-4e2a-8a3c-0a8a7a1f0e55, name: n, channel: fax}]}]": `channel "fax"`,
		"workspaces: [{id: a, preference_centers: [{id: m, state: on}]}]":                                                 "preference_centers[0]: invalid: 'state' must be 'active' or 'draft'",
		"workspaces: [{id: a, campaigns: [{id: c, messages: [{channel: email}]}]}]":                                       "campaigns[0]: messages[0]: invalid: id",
		"workspaces: [{id: a, canvases: [{id: c, steps: [{messages: []}]}]}]":                                             "canvases[0]: steps[0]: invalid: id",
		"company: {scim: {token: a b}}":                                                                                   "company: invalid: scim.token",
		"workspaces: 7":                                                                                                   "workspaces: line 1: want a list, not `7`",
		"workspaces: [{id: a, multi_language: a}]":                                                                        "invalid: workspaces[0].multi_language: line 1: want true or false, not `a`",
		"workspaces:\n- id: a\n- id: b\n  api_keys:\n  - {name: x, permissions: {a: b}}\n":                                "workspaces[1].api_keys[0].permissions: line 5: want a list, not a mapping",
		"company: {scim: [x]}\nworkspaces: [{id: a, max_custom_array_length: many}, {apps: {}}]":                          "company.scim: line 1: want a mapping, not a list; workspaces[0].max_custom_array_length: line 2: want a whole number, not `many`; workspaces[1].apps: line 2: want a list, not a mapping",
		"company: [x]": "company: line 1: want a mapping, not a list",
		"- workspaces": "invalid: line 1: want a mapping, not a list",
		"workspaces: [{id: a, api_keys: [{name: x, permissions: \"a\\nb\"}]}]":    "permissions: line 1: want a list, not `a\\nb`",
		"workspaces: [{id: a, rate_limits: 1, apps: [{id: [x]}], api_keys: [7]}]": "rate_limits: line 1: want a mapping, not `1`; workspaces[0].apps[0].id: line 1: want a text, not a list; workspaces[0].api_keys[0]: line 1: want a mapping, not `7`",
		"a: b\n---\nc: d":         "field a not found",
		"workspaces: [null]":      "invalid: workspaces[0]: an element of a list can't be null",
		"workspaces:\n- id: a\n-": "invalid: workspaces[1]: an element",
		"workspaces: [{id: a, api_keys: [{name: x, permissions: [users.track, ~]}]}]":                          "workspaces[0].api_keys[0].permissions[1]: an element",
		"workspaces: [{id: a, blocked_external_ids: [null]}]":                                                  "workspaces[0].blocked_external_ids[0]: an element",
		"workspaces: [{id: a, name: &n null, apps: [*n]}]":                                                     "workspaces[0].apps[0]: an element",
		"company: {permission_sets: [null]}":                                                                   "company.permission_sets[0]: an element",
		"workspaces: [{id: a, name: " + long + "}]":                                                            `invalid: name "` + long[:40] + `…": want 1 to 255 bytes`,
		"workspaces: [{id: a, campaigns: [{id: c, name: " + long + "}]}]":                                      `campaigns[0]: invalid: name "` + long[:40] + `…": want 1`,
		"workspaces: [{id: a, campaigns: [{id: c, messages: [{id: m, channel: email, name: " + long + "}]}]}]": `messages[0]: invalid: name "`,
		"workspaces: [{id: a, campaigns: [{id: c, messages: [{id: m, channel: " + long + "}]}]}]":              `messages[0]: invalid: channel "`,
		"workspaces: [{id: a, canvases: [{id: c, name: " + long + "}]}]":                                       `canvases[0]: invalid: name "`,
		"workspaces: [{id: a, canvases: [{id: c, steps: [{id: s, name: " + long + "}]}]}]":                     `steps[0]: invalid: name "`,
		"workspaces: [{id: a, campaigns: [{id: " + long + "}]}]":                                               `campaigns[0]: invalid: id "` + long[:40] + `…"`,
	} {
		_, err := ParseBootstrap([]byte(text))
		require.ErrorIs(t, err, ErrInvalid, text)
		require.ErrorContains(t, err, want, text)
		require.NotContains(t, err.Error(), "document.", text)
		require.NotContains(t, err.Error(), "unmarshal", text)
	}
	_, err := ParseBootstrap(nil)
	require.NoError(t, err)
}

// A whole number is written as one, in YAML and in JSON; a text may look like any number.
func TestNumbersOfTheFile(t *testing.T) {
	for number, not := range map[string]string{
		"1.5": "`1.5`", "1e3": "`1e3`", "5.0": "`5.0`", "-0.5": "`-0.5`", "99999999999999999999": "`9999999...`", "-99999999999999999999": "`-999999...`",
		"010": "`010`: leave out the leading zero", "-0_8": "`-0_8`: leave out the leading zero", `"5"`: "`5`", "true": "`true`", "[5]": "a list",
	} {
		for text, place := range map[string]string{
			`{"workspaces":[{"id":"a","max_custom_array_length":` + number + `}]}`:          "workspaces[0].max_custom_array_length: line 1: ",
			"workspaces:\n- id: a\n  streams: [{}, {destination: {batch: " + number + "}}]": "workspaces[0].streams[1].destination.batch: line 3: ",
		} {
			_, err := ParseBootstrap([]byte(text))
			require.ErrorIs(t, err, ErrInvalid, text)
			require.ErrorContains(t, err, place+"want a whole number, not "+not, text)
		}
	}
	_, err := ParseBootstrap([]byte("workspaces: [{id: a, max_custom_array_length: -1}]"))
	require.ErrorContains(t, err, "max_custom_array_length -1: want 1 to 500")
	f, err := ParseBootstrap([]byte("workspaces: [{id: a, name: 010, exchange_rates: {EUR: 1.10}, max_custom_array_length: 0o36}]"))
	require.NoError(t, err)
	require.Equal(t, "010", f.Workspaces[0].Name)
	require.EqualValues(t, "1.10", f.Workspaces[0].ExchangeRates["EUR"])
	require.Equal(t, 30, f.Workspaces[0].MaxArrayLength)
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
