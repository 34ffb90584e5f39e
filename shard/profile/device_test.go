package profile

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

const fullDevice = `{"model":"iPhone14,2","os":"iOS 17","carrier":null,"device_id":"d1","idfv":"v","idfa":"a","google_ad_id":"g","roku_ad_id":"r","windows_ad_id":"w","ad_tracking_enabled":true}`

// devicesOf is what an export has of devices and push tokens.
func devicesOf(t *testing.T, b []byte, x Export) string {
	t.Helper()
	return string(AppendJSON(nil, b, exported(t, "devices", "push_tokens"), x))
}

// importedWith also returns what was left out.
func importedWith(t *testing.T, opt ImportOptions, line string) (b []byte, left []string) {
	t.Helper()
	opt.Left = func(what string) { left = append(left, what) }
	b, err := new(Importer).Import(nil, 3, []byte(line), testStamp, opt)
	require.NoError(t, err)
	require.NoError(t, Check(b))
	return b, left
}

func TestImportDevices(t *testing.T) {
	f := func(devices, want string, warnings ...string) {
		t.Helper()
		b, left := importedWith(t, ImportOptions{}, `{"external_id":"x","devices":`+devices+`}`)
		require.Equal(t, want, devicesOf(t, b, Export{}))
		require.Equal(t, warnings, left)
		again, _ := importedWith(t, ImportOptions{}, export(t, b, Export{}))
		require.Equal(t, want, devicesOf(t, again, Export{}))
	}
	f(`[`+fullDevice+`]`, `{"devices":[`+fullDevice+`]}`)
	f(`[{"device_id":"a"},{"model":"m","idfv":null,"carrier":"c"}]`, `{"devices":[{"device_id":"a"},{"model":"m","carrier":"c"}]}`)
	f(`[{"device_id":"a","os":"1"},{"device_id":"b"},{"device_id":"a","os":"2"},{"os":"3"},{"os":"3"}]`,
		`{"devices":[{"device_id":"b"},{"os":"2","device_id":"a"},{"os":"3"},{"os":"3"}]}`)
	f(`[]`, `{}`)
	f(`null`, `{}`)
	f(`[{"device_id":"a","resolution":"1x1"}]`, `{"devices":[{"device_id":"a"}]}`, `'devices.resolution' is not imported`)
	id := strings.Repeat("x", 255)
	f(`[{"device_id":"`+id+`"}]`, `{"devices":[{"device_id":"`+id+`"}]}`)

	var sent, kept []string
	for i := range maxDevices + 5 {
		sent = append(sent, fmt.Sprintf(`{"device_id":"%d"}`, i))
	}
	kept = sent[5:]
	f(`[`+strings.Join(slices.Concat(sent, sent[:1], kept), ",")+`]`, `{"devices":[`+strings.Join(kept, ",")+`]}`,
		`'devices' has more than 100: only the last ones are imported`)
}

func TestImportRefusesDevices(t *testing.T) {
	f := func(members, why string) {
		t.Helper()
		_, err := new(Importer).Import(nil, 3, []byte(`{"external_id":"x",`+members+`}`), testStamp, ImportOptions{})
		require.ErrorIs(t, err, errImport)
		require.ErrorContains(t, err, why)
	}
	f(`"devices":{}`, "devices is not an array")
	f(`"devices":["d"]`, "devices: not an object")
	f(`"devices":[{"device_id":5}]`, "devices device_id is not a string")
	f(`"devices":[{"device_id":""}]`, "devices device_id has 0 bytes")
	f(`"devices":[{"device_id":"`+strings.Repeat("x", 256)+`"}]`, "devices device_id has 256 bytes: want 1 to 255")
	f(`"devices":[{"idfa":"`+strings.Repeat("ä", 128)+`"}]`, "devices idfa has 256 bytes")
	f(`"devices":[{"model":"`+strings.Repeat("ä", 256)+`"}]`, "devices model has more than 255 characters")
	f(`"devices":[{"carrier":["c"]}]`, "devices carrier is not a string")
	f(`"devices":[{"ad_tracking_enabled":"yes"}]`, "devices ad_tracking_enabled: not a boolean")
	f(`"devices":[{"os":"a","os":"b"}]`, "twice")
	f(`"push_tokens":["t"]`, "push_tokens: not an object")
	f(`"push_tokens":[{"app_id":"a"}]`, "push_tokens token is missing")
	f(`"push_tokens":[{"app_id":"a","token":5}]`, "push_tokens token is not a string")
	f(`"push_tokens":[{"app_id":"a","token":""}]`, "push_tokens token has 0 bytes")
	f(`"push_tokens":[{"token":"t"}]`, "push_tokens app is missing")
	f(`"push_tokens":[{"app":"iOS","token":"t","platform":1}]`, "push_tokens platform is not a string")
	f(`"push_tokens":[{"app":"iOS","token":"t","device_id":"`+strings.Repeat("x", 256)+`"}]`, "push_tokens device_id has 256 bytes")
	f(`"push_tokens":[{"app":"iOS","token":"t","notifications_enabled":1}]`, "push_tokens notifications_enabled: not a boolean")
}

// Push tokens in other exports name their app. Ours name it, too, beside its id.
func TestImportPushTokens(t *testing.T) {
	names := ImportOptions{AppID: func(name []byte) []byte {
		if string(name) == "iOS" {
			return []byte("id-1")
		}
		return nil
	}}
	x := Export{AppName: func(id []byte) string { return map[string]string{"id-1": "iOS"}[string(id)] }}
	f := func(tokens, want string, warnings ...string) {
		t.Helper()
		b, left := importedWith(t, names, `{"external_id":"x","push_tokens":`+tokens+`}`)
		require.Equal(t, `{"push_tokens":`+want+`}`, devicesOf(t, b, x))
		require.Equal(t, warnings, left)
		again, _ := importedWith(t, names, export(t, b, x))
		require.Equal(t, `{"push_tokens":`+want+`}`, devicesOf(t, again, x))
	}
	f(`[{"app":"iOS","platform":"ios","token":"t","device_id":"d","notifications_enabled":false,"x":1,"y":null}]`,
		`[{"app_id":"id-1","platform":"ios","token":"t","device_id":"d","notifications_enabled":false,"app":"iOS"}]`, `'push_tokens.x' is not imported`)
	f(`[{"app_id":"id-1","token":"t"}]`, `[{"app_id":"id-1","token":"t","app":"iOS"}]`)
	f(`[{"app_id":"id-2","app":"iOS","token":"t"}]`, `[{"app_id":"id-2","token":"t"}]`)
	f(`[{"app":"tv","token":"t"},{"app":"web","token":"t"},{"app":"tv","token":"t"}]`, `[{"app":"web","token":"t"},{"app":"tv","token":"t"}]`,
		`push_tokens: there is no app "tv"`, `push_tokens: there is no app "web"`, `push_tokens: there is no app "tv"`)
	b, _ := importedWith(t, names, `{"external_id":"x","push_tokens":[]}`)
	require.Equal(t, `{}`, devicesOf(t, b, x))
}

// A kept user without device information gets that of the merged user (service.md 4.2).
func TestMergeDevices(t *testing.T) {
	with := func(id, device string) []byte {
		return imported(t, `{"external_id":"`+id+`","devices":[{"device_id":"`+device+`"}]}`)
	}
	one, other := `{"devices":[{"device_id":"1"}]}`, `{"devices":[{"device_id":"2"}]}`
	f := func(want string, keep, gone []byte, mode MergeMode) {
		t.Helper()
		require.Equal(t, want, devicesOf(t, merge(t, keep, gone, mode), Export{}))
	}
	for _, mode := range []MergeMode{MergeUsers, MergeIdentify} {
		f(other, user("k"), with("g", "2"), mode)
		f(one, with("k", "1"), with("g", "2"), mode)
		f(one, with("k", "1"), user("g"), mode)
	}
	f(`{}`, user("k"), with("g", "2"), MergeNone)
	f(one, with("k", "1"), with("g", "2"), MergeNone)
}

func TestImportNamesWhatIsLeftOut(t *testing.T) {
	f := func(members string, want ...string) {
		t.Helper()
		_, left := importedWith(t, ImportOptions{AppID: func([]byte) []byte { return []byte("a") }}, `{"external_id":"x",`+members+`}`)
		require.Equal(t, want, left)
	}
	f(`"svc_id":"s","braze_id":"s","appboy_id":"s","random_bucket":5,"first_name":"Ada","total_revenue":0.0,"campaigns_received":[],"cards_clicked":null,"attributed":{}`)
	f(`"campaigns_received":[{"name":"c"}],"attributed_campaign":"x","uninstalled_at":"2024-01-01T00:00:00.000Z"`,
		`'campaigns_received' is not imported`, `'attributed_campaign' is not imported`, `'uninstalled_at' is not imported`)
	f(`"apps":[{"name":"iOS","platform":"iOS","version":"1","sessions":1,"first_used":"2024-01-01","last_used":"2024-01-01"}]`,
		`'apps.platform' is not imported`, `'apps.version' is not imported`)
	f(`"custom_events":[{"name":"e","first":"2024-01-01","last":"2024-01-01","count":1,"x":1}],"purchases":[{"name":"e","first":"2024-01-01","last":"2024-01-01","count":1,"y":1}]`,
		`'custom_events.x' is not imported`, `'purchases.y' is not imported`)
	_, left := importedWith(t, ImportOptions{}, fullUser)
	require.Empty(t, left)
}

// A time after the year 3000 is not a time: a string stays a string, and a $time is left out with its attribute.
func TestImportOfTimesAfterYear3000(t *testing.T) {
	b, left := importedWith(t, ImportOptions{}, `{"external_id":"x","custom_attributes":{"s":"3001-01-01T00:00:00.000Z","last":"3000-12-31T23:59:59.999Z",
		"o":{"t":{"$time":"3001-01-01T00:00:00Z"}},"l":[{"$time":"9999-01-01"}],"t":{"$time":"3500-01-01"},"good":{"t":{"$time":"3000-12-31T23:59:59.999Z"}}},
		"facebook":{"id":{"$time":"3001-01-01"}}}`)
	require.Equal(t, []string{`'facebook' is not valid`, `'custom_attributes.o' is not valid`, `'custom_attributes.l' is not valid`, `'custom_attributes.t' is not valid`}, left)
	require.Equal(t, `{"custom_attributes":{"s":"3001-01-01T00:00:00.000Z","last":"3000-12-31T23:59:59.999Z","good":{"t":"3000-12-31T23:59:59.999Z"}}}`,
		string(AppendJSON(nil, b, exported(t, "custom_attributes", "facebook"), Export{})))
	for name, tag := range map[string]op.Tag{"s": op.String, "last": op.Time} {
		v, _ := customOf(b, []byte(name))
		require.Equal(t, tag, v.Tag(), name)
	}
}
