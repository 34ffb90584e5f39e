package profile

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/jsonvalue"
	"millrace/shard/op"
)

// model is a profile in plain Go, with maps and with every occurrence there ever was.
type model struct {
	reserved map[string]any
	custom   map[string]any
	events   map[string][]int64
	products map[string][]int64
	money    map[string]int64
	groups   map[[16]byte]bool
	aliases  []string
}

func newModel() *model {
	return &model{map[string]any{}, map[string]any{}, map[string][]int64{}, map[string][]int64{}, map[string]int64{}, map[[16]byte]bool{}, nil}
}

// plain turns a value of the tests into what a JSON decoder would give, without null members.
func plain(v any) any {
	switch v := v.(type) {
	case int:
		return int64(v)
	case []any:
		list := make([]any, len(v))
		for i, x := range v {
			list[i] = plain(x)
		}
		return list
	case object:
		m := map[string]any{}
		for _, x := range v {
			if x.value != nil {
				m[x.name] = plain(x.value)
			}
		}
		return m
	}
	return v
}

func (m *model) set(name string, v any, merge bool) {
	old, has := m.custom[name]
	list, isList := old.([]any)
	list = slices.Clone(list)
	switch v := v.(type) {
	case nil:
		delete(m.custom, name)
	case inc:
		switch n := old.(type) {
		case int64:
			m.custom[name] = n + int64(v)
		case float64:
			m.custom[name] = n + float64(v)
		case nil:
			m.custom[name] = int64(v)
		}
	case update:
		if !isList && len(v.add) == 0 {
			return
		}
		drop := func(x any) {
			list = slices.DeleteFunc(list, func(y any) bool { return reflect.DeepEqual(plain(x), y) })
		}
		for _, x := range v.add {
			drop(x)
			list = append(list, plain(x))
		}
		for _, x := range v.remove {
			drop(x)
		}
		m.custom[name] = newestOf(list, 25)
	case edits:
		if !isList && !slices.ContainsFunc(v, func(x edit) bool { return x.kind == op.EditAdd }) {
			return
		}
		for _, x := range v {
			matches := func(y any) bool {
				o, ok := y.(map[string]any)
				return ok && o[x.key] != nil && reflect.DeepEqual(o[x.key], plain(x.match))
			}
			switch x.kind {
			case op.EditRemove:
				list = slices.DeleteFunc(list, matches)
			case op.EditUpdate:
				for i, y := range list {
					if matches(y) && merge {
						list[i] = mergeMaps(y.(map[string]any), x.value.(object), false)
					} else if matches(y) {
						list[i] = plain(x.value)
					}
				}
			case op.EditAdd:
				list = append(list, plain(x.value).([]any)...)
			}
		}
		m.custom[name] = newestOf(list, 25)
	case object:
		if o, ok := old.(map[string]any); ok && has && merge {
			m.custom[name] = mergeMaps(o, v, true)
		} else {
			m.custom[name] = plain(v)
		}
	case []any:
		m.custom[name] = newestOf(plain(v).([]any), 25)
	default:
		m.custom[name] = plain(v)
	}
}

func newestOf(list []any, n int) []any { return append([]any{}, list[max(0, len(list)-n):]...) }

func mergeMaps(old map[string]any, add object, nullDeletes bool) map[string]any {
	out := map[string]any{}
	for k, v := range old {
		out[k] = v
	}
	for _, x := range add {
		o, isObject := x.value.(object)
		was, wasObject := out[x.name].(map[string]any)
		switch {
		case x.value == nil && nullDeletes:
			delete(out, x.name)
		case x.value == nil:
		case isObject && wasObject:
			out[x.name] = mergeMaps(was, o, nullDeletes)
		default:
			out[x.name] = plain(x.value)
		}
	}
	return out
}

// json is the export of the model, with lists of named things as maps.
func (m *model) json() map[string]any {
	out := map[string]any{"created_at": string(jsonvalue.AppendTime(nil, (testStamp-1000)/1000)), "external_id": "u", "user_aliases": map[string]any{},
		"email_subscribe": "subscribed", "push_subscribe": "subscribed", "total_revenue": json.Number("0.0"),
		"revenue_by_currency": map[string]any{}}
	for name, v := range m.reserved {
		out[name] = v
	}
	if len(m.custom) > 0 {
		out["custom_attributes"] = numbers(m.custom)
	}
	for key, lists := range map[string]map[string][]int64{"custom_events": m.events, "purchases": m.products} {
		named := map[string]any{}
		for name, at := range lists {
			named[name] = map[string]any{"name": name, "count": json.Number(strconv.Itoa(len(at))),
				"first": string(jsonvalue.AppendTime(nil, slices.Min(at))), "last": string(jsonvalue.AppendTime(nil, slices.Max(at)))}
		}
		if len(named) > 0 {
			out[key] = named
		}
	}
	if len(m.money) > 0 {
		by := map[string]any{}
		for c, minor := range m.money {
			by[c] = json.Number(decimal(minor))
		}
		out["revenue_by_currency"] = by
		out["total_revenue"] = json.Number(decimal(m.money["USD"]))
	}
	if len(m.groups) > 0 {
		groups := map[string]any{}
		for id, subscribed := range m.groups {
			key := fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
			groups[key] = map[string]any{"id": key, "status": map[bool]string{true: "Subscribed", false: "Unsubscribed"}[subscribed]}
		}
		out["subscription_groups"] = groups
	}
	if len(m.aliases) > 0 {
		aliases := map[string]any{}
		for _, label := range m.aliases {
			aliases[label] = map[string]any{"alias_label": label, "alias_name": "n"}
		}
		out["user_aliases"] = aliases
	}
	return out
}

func decimal(minor int64) string {
	sign := ""
	if minor < 0 {
		sign, minor = "-", -minor
	}
	return fmt.Sprintf("%s%d.%02d", sign, minor/100, minor%100)
}

// numbers writes numbers as the export does.
func numbers(v any) any {
	switch v := v.(type) {
	case int64:
		return json.Number(strconv.FormatInt(v, 10))
	case float64:
		return json.Number(strconv.FormatFloat(v, 'f', 1, 64)) // the test has halves only
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = numbers(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = numbers(x)
		}
		return out
	}
	return v
}

func decoded(t testing.TB, text []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	out := map[string]any{}
	require.NoError(t, d.Decode(&out), "%s", text)
	for key, by := range map[string]string{"custom_events": "name", "purchases": "name", "subscription_groups": "id", "user_aliases": "alias_label"} {
		if list, ok := out[key].([]any); ok {
			named := map[string]any{}
			for _, x := range list {
				named[x.(map[string]any)[by].(string)] = x
			}
			out[key] = named
		}
	}
	return out
}

func randomScalar(rng *rand.Rand) any {
	return []any{rng.IntN(5), float64(rng.IntN(9)) / 2, fmt.Sprint("s", rng.IntN(4)), true, false, ""}[rng.IntN(6)]
}

func randomObject(rng *rand.Rand, depth int, nulls bool) object {
	var o object
	for _, name := range []string{"a", "b", "c", "id"} {
		switch n := rng.IntN(6); {
		case n < 2:
		case n == 2 && nulls:
			o = append(o, pair{name, nil})
		case n == 3 && depth > 0:
			o = append(o, pair{name, randomObject(rng, depth-1, nulls)})
		default:
			o = append(o, pair{name, randomScalar(rng)})
		}
	}
	rng.Shuffle(len(o), func(i, j int) { o[i], o[j] = o[j], o[i] })
	return o
}

func randomList(rng *rand.Rand, most int) []any {
	list := []any{}
	for range rng.IntN(most) {
		list = append(list, randomScalar(rng))
	}
	return list
}

func randomObjects(rng *rand.Rand) []any {
	list := []any{}
	for range rng.IntN(5) {
		list = append(list, randomObject(rng, 1, false))
	}
	return list
}

func randomValue(rng *rand.Rand) any {
	switch rng.IntN(10) {
	case 0:
		return nil
	case 1, 2:
		return inc(rng.IntN(7) - 3)
	case 3:
		return randomList(rng, 40)
	case 4:
		return update{randomList(rng, 8), randomList(rng, 4)}
	case 5:
		return randomObject(rng, 2, true)
	case 6:
		return randomObjects(rng)
	case 7:
		e := edits{}
		for range rng.IntN(3) {
			e = append(e, edit{op.EditRemove, "id", randomScalar(rng), nil})
		}
		for range rng.IntN(3) {
			e = append(e, edit{op.EditUpdate, "id", randomScalar(rng), randomObject(rng, 1, true)})
		}
		if rng.IntN(2) == 0 {
			e = append(e, edit{op.EditAdd, "", nil, randomObjects(rng)})
		}
		return e
	}
	return randomScalar(rng)
}

// TestModel applies random ops to a model and to a profile, which sometimes has much room and sometimes little. Exports
// and recent occurrences must be equal at every step.
func TestModel(t *testing.T) {
	rng := testseed.Rand(t)
	for range 40 {
		var e, e2 Editor
		m, b := newModel(), user("u")
		for step := range 120 {
			in := make([]byte, len(b), len(b)+rng.IntN(4)*rng.IntN(100))
			copy(in, b)
			twin := slices.Clip(slices.Clone(b))
			var out []byte
			do := func(o op.Op, rec *op.Record) {
				out, _ = e.Apply(in, o, rec, nil)
				twin, _ = e2.Apply(twin, o, rec, nil)
			}
			at := noon + rng.Int64N(40)*day + rng.Int64N(10)*hour + rng.Int64N(1000)
			name := fmt.Sprint("name", rng.IntN(4))
			switch rng.IntN(9) {
			case 0, 1:
				m.events[name] = append(m.events[name], at)
				do(eventOp(t, name, at))
			case 2:
				quantity, total := 1+rng.IntN(3), rng.Int64N(10000)-3000
				currency := []string{"USD", "EUR"}[rng.IntN(2)]
				for range quantity {
					m.products[name] = append(m.products[name], at)
				}
				m.money[currency] += total
				do(purchaseOp(t, name, at, total, uint32(quantity), currency))
			case 3:
				id := [16]byte{byte(rng.IntN(3))}
				m.groups[id] = rng.IntN(2) == 0
				do(attrsOp(t, 0, op.AttrSubscriptionGroups, []any{string(id[:]), m.groups[id]}))
			case 4:
				code := []int{op.AttrFirstName, op.AttrEmail, op.AttrEmailSubscribe, op.AttrCountry}[rng.IntN(4)]
				text := fmt.Sprint("text", rng.IntN(1000))
				if rng.IntN(4) == 0 {
					delete(m.reserved, op.AttrName(uint32(code)))
					do(attrsOp(t, 0, code, nil))
				} else {
					m.reserved[op.AttrName(uint32(code))] = text
					do(attrsOp(t, 0, code, text))
				}
			case 5:
				out, _ = e.AddAlias(in, []byte(name), []byte("n"))
				twin, _ = e2.AddAlias(twin, []byte(name), []byte("n"))
				if !slices.Contains(m.aliases, name) {
					m.aliases = append(m.aliases, name)
				}
			default:
				var flags op.Flags
				if rng.IntN(2) == 0 {
					flags = op.MergeObjects
				}
				name2 := fmt.Sprint("other", rng.IntN(3))
				v, v2 := randomValue(rng), randomValue(rng)
				m.set(name, v, flags != 0)
				m.set(name2, v2, flags != 0)
				do(attrsOp(t, flags, name, v, name2, v2))
			}
			require.NoError(t, Check(out))
			require.Equal(t, twin, out, "step %d: room must not matter", step)
			require.Equal(t, m.json(), decoded(t, AppendJSON(nil, out, 0, Export{})), "step %d", step)
			for tag, lists := range map[byte]map[string][]int64{tagEvent: m.events, tagProduct: m.products} {
				for name, all := range lists {
					require.Equal(t, recentOf(all), recent(out, tag, name), "step %d", step)
				}
			}
			b = slices.Clone(out)
		}
	}
}

// recentOf is the definition of recent occurrences: the hours of the newest fifty of those that are at most 720 hours
// older than the newest.
func recentOf(all []int64) (out []int64) {
	newest := slices.Max(all) / hour
	for _, at := range all {
		if at/hour >= newest-30*24 {
			out = append(out, at/hour)
		}
	}
	slices.Sort(out)
	return out[max(0, len(out)-50):]
}
