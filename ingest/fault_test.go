package ingest

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

// faultsOf are the faults of a body. Each fault is compared with the answer, and its object with the body.
func faultsOf(t *testing.T, ws *Workspace, body string) (faults []Fault) {
	t.Helper()
	var b op.Builder
	b.Reset(12)
	r := &fakeRouter{Builder: &b, blocked: map[string]bool{"dummy": true}}
	reply, _ := NewDecoder(Options{}).TrackWithin(Limits{}, nil, []byte(body), ws, &b, r, testNow, func(f Fault) {
		f.Object = slices.Clone(f.Object)
		faults = append(faults, f)
	})
	type element struct {
		Type  string
		Array string `json:"input_array"`
		Index int
	}
	var answer struct {
		Message          string
		Errors, Warnings []json.RawMessage
	}
	require.NoError(t, json.Unmarshal(reply, &answer), string(reply))
	var sent map[string][]json.RawMessage
	_ = json.Unmarshal([]byte(body), &sent)
	require.Len(t, faults, len(answer.Errors)+len(answer.Warnings), string(reply))
	for i, f := range faults {
		require.Contains(t, Rules(), f.Rule)
		require.Equal(t, i < len(answer.Errors), f.IsRefused)
		if f.Array == "" {
			require.Equal(t, answer.Message, f.Text)
			require.Nil(t, f.Object)
			continue
		}
		var e element
		require.NoError(t, json.Unmarshal(append(answer.Errors, answer.Warnings...)[i], &e))
		require.Equal(t, e, element{f.Text, f.Array, f.Index})
		require.Equal(t, string(sent[f.Array][f.Index]), string(f.Object))
	}
	return faults
}

func TestFaults(t *testing.T) {
	ws := &Workspace{Groups: map[[16]byte]byte{testGroup: op.ChannelEmail}, MaxCombined: 20}
	f := func(body string, rules ...string) {
		t.Helper()
		var got []string
		for _, fault := range faultsOf(t, ws, body) {
			got = append(got, fault.Rule)
		}
		require.Equal(t, rules, got)
	}
	const at = `"time":"2026-01-02T03:04:05Z"`
	f(`{"attributes":[{"external_id":"a"}]}`)
	f(`{"attributes":[{"external_id":"a"}, {"x":1} , "text",{"external_id":"a","email":"b@c.de","user_alias":1}, [1,{"y":2}] ,null]}`,
		"no-identifier", "not-an-object", "two-identifiers", "not-an-object", "not-an-object")
	f(`{"attributes":[{"external_id":"a","a\"\u0001\\ü":1e999,"x":1}]}`, "number-out-of-range")
	f(`{"events":[{"external_id":"a","name":"e",`+at+`,"properties":{"$x":1,"":2}},{"external_id":"a",`+at+`},{"external_id":"a","name":"e","time":"no"}]}`,
		"property-name-dollar", "required", "not-valid")
	f(`{"attributes":[{"external_id":"a","phone":"1","email_subscribe":"maybe"},{"external_id":"dummy","gender":"X"},{"external_id":"b","gender":"X"}]}`, "email-subscribe", "blocked-user", "not-valid")
	// The arrays are out of order, so ops wait, and with them the objects that the router refuses.
	f(` { "purchases" : [ {"external_id":"dummy","product_id":"p","currency":"EUR","price":1,`+at+`} ], "events":[{"external_id":"dummy","name":"e",`+at+`}, {"external_id":"dummy","name":"e",`+at+`}],
		"attributes":[{"external_id":"dummy"},{"external_id":"fine"}]}`, "blocked-user", "blocked-user", "blocked-user", "blocked-user")
	f(`{}`, "no-objects")
	f(`{"attributes":[`, "malformed")
	f(`[1]`, "malformed")
	f(`{"attributes":{}}`, "malformed")
	f(`{"attributes":[],"attributes\ud800":1}`, "lone-surrogate")
	f(`{"attributes":[`+strings.Repeat(`{"external_id":"a"},`, 20)+`{"external_id":"a"}]}`, "too-many-objects")
	ws = &Workspace{}
	f(`{"purchases":[`+strings.Repeat(`{},`, 75)+`{}]}`, "too-many-objects")
}

// Every reason has a rule with a name of its own.
func TestRules(t *testing.T) {
	require.Len(t, ruleNames, len(reasonTexts))
	rules := Rules()
	require.NotContains(t, rules, "")
	slices.Sort(rules)
	require.Len(t, slices.Compact(rules), len(Rules()))
}
