package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control"
	"millrace/api/users"
	"millrace/ingest"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// What export writes, /users/track and the import of profiles take back unchanged: each whole user that any test of
// this package exports is fed to both, as the first of a workspace, and exported again.

// checkTakenBack is called with every answer.
func (d *door) checkTakenBack(request *http.Request, body string, a answer) {
	d.t.Helper()
	ws := map[string]string{"Bearer " + demoKey: "demo", "Bearer " + otherKey: "other"}[request.Header.Get("Authorization")]
	isExport := strings.Trim(request.URL.Path, "/") == "users/export/ids" && a.status == 201
	if !isExport || strings.Contains(body, "fields_to_export") || ws == "" {
		return
	}
	var list struct {
		Users []json.RawMessage `json:"users"`
	}
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		d.t.Errorf("%v: %s", err, a.body)
		return
	}
	for _, user := range list.Users {
		if err := d.takenBack(d.control.Snapshot().Lookup(ws), user); err != nil {
			d.t.Errorf("export is not taken back: %v\n%s", err, user)
		}
	}
}

func (d *door) takenBack(ws *control.Workspace, user []byte) error {
	exported := parsed(user)
	for _, name := range []string{"svc_id", "braze_id", "appboy_id", "random_bucket"} { // the store's
		delete(exported, name)
	}
	named := exported["external_id"] != nil || exported["email"] != nil || exported["phone"] != nil
	if aliases, _ := exported["user_aliases"].([]any); !named && len(aliases) == 0 {
		return nil // nothing to address it by
	}
	var importer profile.Importer
	options := profile.ImportOptions{Digits: users.ExportOf(ws).Digits, Currency: [3]byte([]byte(ws.Currency))}
	const afterAll = 1 << 52 // Unix µs: times to come would be taken as now
	imported, err := importer.Import(nil, ws.Number, user, afterAll, options)
	if err != nil {
		return err
	}
	if again := parsed(profile.AppendJSON(nil, imported, 0, users.ExportOf(ws))); !equal(again, exported) {
		return fmt.Errorf("imported, it is %v", again)
	}
	if d.store != nil {
		return nil // users of the store in memory came by no rule of /users/track
	}
	tracked, err := trackedUser(ws, exported)
	if err != nil {
		return err
	}
	again := parsed(profile.AppendJSON(nil, tracked, 0, users.ExportOf(ws)))
	for name := range exported {
		if isTracked(name) && !equal(again[name], exported[name]) {
			return fmt.Errorf("tracked, %s is %v", name, again[name])
		}
	}
	return nil
}

// isTracked says whether a member of an export is an attribute, or all custom ones.
func isTracked(name string) bool {
	return op.AttrCode([]byte(name)) != 0 || name == "custom_attributes"
}

// trackedUser is the profile that an attributes object makes which has the attributes of an exported user.
func trackedUser(ws *control.Workspace, exported map[string]any) ([]byte, error) {
	object := map[string]any{"external_id": exported["external_id"]}
	if aliases := exported["user_aliases"].([]any); exported["external_id"] == nil && len(aliases) > 0 {
		object["user_alias"] = aliases[0]
	}
	for name, v := range exported {
		if op.AttrCode([]byte(name)) != 0 {
			object[name] = v
		}
	}
	if custom, ok := exported["custom_attributes"].(map[string]any); ok {
		for name, v := range custom {
			object[name] = v
		}
	}
	if groups, ok := exported["subscription_groups"].([]any); ok { // the one attribute that has another form there
		var list []any
		for _, g := range groups {
			g := g.(map[string]any)
			state := strings.ToLower(g["status"].(string))
			list = append(list, map[string]any{"subscription_group_id": g["id"], "subscription_state": state})
		}
		object["subscription_groups"] = list
	}
	body, err := json.Marshal(map[string]any{"attributes": []any{object}})
	if err != nil {
		return nil, err
	}
	return apply(ws, body)
}

// apply is what one attributes object makes of a user who isn't there.
func apply(ws *control.Workspace, body []byte) ([]byte, error) {
	r := &onlyRouter{}
	r.Reset(0)
	d := ingest.NewDecoder(ingest.Options{})
	answer, _ := d.Track(nil, body, prepare(ws).(*ingest.Workspace), &r.Builder, r, systemClock())
	if string(answer) != `{"attributes_processed":1,"message":"success"}` {
		return nil, fmt.Errorf("/users/track answers %s to %s", answer, body)
	}
	rec, err := op.ParseRecord(r.Finish(ws.Number, 0, 1), nil)
	if err != nil {
		return nil, err
	}
	o, _ := op.Next(rec.Ops)
	limits := profile.DefaultLimits()
	limits.MaxArray = ws.MaxArrayLength
	out, _ := new(profile.Editor).Apply(profile.New(nil, ws.Number, o.Flags().ID(), o.Key(), 1), o, &rec, limits)
	return out, nil
}

// onlyRouter places the op of a single object.
type onlyRouter struct{ op.Builder }

func (r *onlyRouter) End(start int, kind op.Kind, flags op.Flags, id op.IDKind, keyLen int) bool {
	r.Builder.End(start, kind, op.MakeFlags(flags, id), keyLen, 1)
	return true
}

func (r *onlyRouter) EndNumber(int, op.Kind, op.Flags, uint64) bool {
	panic("an export is not addressed by svc_id")
}
func (r *onlyRouter) Operator(int, []byte) int    { return -1 }
func (r *onlyRouter) SvcID([]byte) (uint64, bool) { return 0, false }

func parsed(text []byte) (v map[string]any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber() // digits count
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

// equal compares what parsed has made.
func equal(a, b any) bool {
	one, _ := json.Marshal(a)
	other, _ := json.Marshal(b)
	return bytes.Equal(one, other)
}

// TestExportIsTakenBack has a user with something of everything; the other tests have theirs.
func TestExportIsTakenBack(t *testing.T) {
	d := openEngine(t, t.TempDir())
	body := `{"attributes":[{"external_id":"a","first_name":"Ada","last_name":"","home_city":"Köln","image_url":"https://example.com/a.png","country":"DE","language":"de","gender":"female",` +
		`"dob":"01/31/1990","date_of_first_session":"2026-01-01","date_of_last_session":"2026-01-02T03:04:05.678+01:00","current_location":{"longitude":6.96,"latitude":50},` +
		`"email":"Ada@Example.com","email_subscribe":"opted_in","push_subscribe":"unsubscribed","email_open_tracking_disabled":true,"phone":"+14155552671","time_zone":"Europe/Berlin",` +
		`"push_tokens":[{"app_id":"11ae5b4b-2445-4440-a04f-bf537764c9ad","token":"t"}],"facebook":{"id":"1","likes":["a","a"],"num_friends":3},"twitter":{"id":9007199254740993},` +
		`"subscription_groups":[{"subscription_group_id":"` + newsGroup + `","subscription_state":"subscribed"},{"subscription_group_id":"` + alertsGroup + `","subscription_state":"unsubscribed"}],` +
		`"i":-9223372036854775808,"f":2.0,"tiny":1e-7,"huge":1e300,"text":"a\u0000b\n\\😀","when":"2024-02-29T12:00:00.005Z","far":"3500-01-01T00:00:00.000Z","yes":true,` +
		`"list":["a","a","b",1,1.0,[1,{"x":[ 2 ]}],{"p":[1]},{"p":[1]},null],"none":[],"nested":{"a":{"b":[1,1]},"t":{"$time":"2026-01-01"}},"o":{}}],` +
		`"events":[{"external_id":"a","name":"e","time":"2026-01-02T03:04:05Z"}],"purchases":[{"external_id":"a","product_id":"p","currency":"EUR","price":12.5,"time":"2026-01-02T03:04:05Z"}]}`
	require.Equal(t, `{"attributes_processed":1,"events_processed":1,"purchases_processed":1,"message":"success"}`, d.call("POST", "/users/track", demoKey, body).body)
	u := d.user(t, byID("a"))
	require.Equal(t, "1990-01-31T00:00:00.000Z", u["dob"])
	require.Equal(t, []any{6.96, 50.0}, u["last_coordinates"])
	require.Len(t, u["custom_attributes"], 12)

	// A check that lets everything pass would be worth nothing.
	var list struct {
		Users []json.RawMessage `json:"users"`
	}
	require.NoError(t, json.Unmarshal([]byte(d.call("POST", "/users/export/ids", demoKey, byID("a")).body), &list))
	ws, good := d.control.Snapshot().Lookup("demo"), string(list.Users[0])
	require.NoError(t, d.takenBack(ws, []byte(good)))
	for old, wrong := range map[string][2]string{
		`"1990-01-31T00:00:00.000Z"`: {`"1990"`, "dob is not a time"},
		`"total_revenue":0.00`:       {`"total_revenue":0.0`, "imported, it is"},
		`"list":["a",`:               {`"list":["a","a",`, "imported, it is"},
		`"country":"DE"`:             {`"country":"Germany"`, "tracked, country is"},
		`"gender":"F"`:               {`"gender":"x"`, "'gender' is not valid"},
	} {
		bad := strings.Replace(good, old, wrong[0], 1)
		require.NotEqual(t, good, bad, old)
		require.ErrorContains(t, d.takenBack(ws, []byte(bad)), wrong[1])
	}
}

// The export counts in the minor units that the track function counts in, also of currencies that were replaced.
func TestRevenueOfEveryCurrency(t *testing.T) {
	d := openEngine(t, t.TempDir())
	purchase := func(currency, price string) string {
		return `{"external_id":"ada","product_id":"p","time":"2026-01-01","currency":"` + currency + `","price":` + price + `}`
	}
	d.tracks(t, `{"purchases":[`+purchase("hrk", "12.5")+`,`+purchase("BYR", "1000")+`,`+purchase("BTC", "0.00012345")+`,`+purchase("JPY", "7")+`,`+purchase("KWD", "1.125")+`]}`)
	require.Equal(t, map[string]any{"HRK": 12.5, "BYR": 1000.0, "BTC": 0.00012345, "JPY": 7.0, "KWD": 1.125}, d.export(t, "ada")["revenue_by_currency"])
}
