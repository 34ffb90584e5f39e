package profile

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

func TestCheckFinds(t *testing.T) {
	f := func(why string, change func(b []byte) []byte) {
		t.Helper()
		b := change(user("u"))
		err := Check(b)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, why)
	}
	field := func(tag byte, payload ...byte) func([]byte) []byte {
		return func(b []byte) []byte { return appendField(b, tag, payload) }
	}
	summary := func(tag byte, count uint64, first, last int64, total byte, recent ...uint16) func([]byte) []byte {
		h := hours{total}
		for _, x := range recent {
			h = binary.LittleEndian.AppendUint16(h, x)
		}
		return func(b []byte) []byte {
			return append(appendSummary(b, tag, []byte("n"), Summary{count, first, last, h}), h[1+2*h.len():]...)
		}
	}
	f("bytes", func(b []byte) []byte { return nil })
	f("bytes", func(b []byte) []byte { return b[:23] })
	f("entry of kind 2", func(b []byte) []byte { b[0] = 2; return b })
	f("home of kind 6", func(b []byte) []byte { b[1] = 6; return b })
	f("home is no alias", func(b []byte) []byte { b[1] = byte(op.Alias); return b })
	f("home key is cut short", func(b []byte) []byte { b[2] = 200; return b })
	f("cut short", func(b []byte) []byte { return append(b, tagEvent, 1) })
	f("cut short", func(b []byte) []byte { return append(b, tagExternalID, 2, 0, 'x') })
	f("cut short", func(b []byte) []byte { return append(b, tagExternalID|wide, 1, 0, 0, 0, 'x') })
	f("cut short", func(b []byte) []byte { return append(b, tagExternalID|wide, 0, 0, 0xff, 0xff, 'x') })
	f("unknown tag", field(0))
	f("unknown tag", field(tagLast+1))
	f("unknown tag", field(tagReserved))
	f("twice", func(b []byte) []byte {
		return field(tagHardBounce, make([]byte, markBytes)...)(field(tagHardBounce, make([]byte, markBytes)...)(b))
	})
	f("tag 1 stands behind its rank", func(b []byte) []byte { return field(tagBlocked)(field(tagExternalID, 'x')(b)) })
	f("behind its rank", func(b []byte) []byte { return field(tagEmail, val("a@b.c")...)(field(tagExternalID, 'x')(b)) })
	f("behind its rank", func(b []byte) []byte { return field(tagEmail, val("a@b.c")...)(field(tagPhone, val("+1")...)(b)) })
	f("wrong size", field(tagBlocked, 1))
	f("wrong size", field(tagGroup, 1))
	f("wrong size", field(tagRevenue))
	f("wrong size", field(tagSessions, 1))
	f("empty external id", field(tagExternalID))
	f("no alias", field(tagAlias, 5, 0, 'x'))
	f("name is cut short", field(tagCustom, 5, 0, 'x'))
	f("no value", field(tagCustom, 1, 0, 'x'))
	f("no value", field(tagCustom, 1, 0, 'x', byte(op.Null)))
	f("no value", field(reservedTag(op.AttrEmail), byte(op.String), 5, 'x'))
	f("more than a value", field(reservedTag(op.AttrEmail), byte(op.True), byte(op.True)))
	f("more than a value", field(reservedTag(op.AttrEmail), append([]byte{byte(op.True)}, make([]byte, maxSpare+1)...)...))
	f("operator", field(tagCustom, 1, 0, 'x', byte(op.Increment), 2))
	f("operator", field(tagCustom, 1, 0, 'x', byte(op.Array), 2, byte(op.Increment), 2))
	f("array is cut short", field(tagCustom, 1, 0, 'x', byte(op.Array), 1, byte(op.Float)))
	f("object is cut short", field(tagCustom, 1, 0, 'x', byte(op.Object), 2, 5, 'a'))
	f("summary is cut short", field(tagEvent, 1, 0, 'x', 1))
	f("first is after last", summary(tagEvent, 1, 5, 4, 1, 1))
	f("occurrences of an app", summary(tagApp, 1, 5, 5, 1, 1))
	f("more occurrences than are counted", summary(tagEvent, 1, 5000, 5000, 2, 2))
	at := func(age int64, times uint16) uint16 { return uint16(noon/hour+age)<<countBits | times }
	f("wrong number", summary(tagEvent, 9, noon, noon, 0))
	f("wrong number", summary(tagEvent, 9, noon, noon, 2, at(0, 1)))
	f("wrong number", summary(tagEvent, 90, noon, noon, 51, at(0, 50), at(-1, 1)))
	f("out of order", summary(tagEvent, 9, noon, noon, 1, at(1, 1)))
	f("out of order", summary(tagEvent, 9, noon, noon, 1, at(-1, 1)))
	f("out of order", summary(tagEvent, 9, noon, noon, 2, at(0, 1), at(0, 1)))
	f("out of order", summary(tagEvent, 9, noon, noon, 3, at(0, 1), at(-2, 1), at(-1, 1)))
	f("out of order", summary(tagEvent, 9, noon, noon, 2, at(0, 1), at(-721, 1)))
	f("hour without occurrences", summary(tagEvent, 9, noon, noon, 1, at(0, 1), at(-1, 0)))
	f("hour without occurrences", summary(tagEvent, 9, noon, noon, 2, at(0, 1), 0, at(-1, 1)))
	f("cut short", field(tagEvent, append([]byte{1, 0, 'x'}, make([]byte, summaryFixed+2)...)...))
	f("nested too deep", func(b []byte) []byte {
		v := val(1)
		for range 100 {
			v = op.AppendBlock(nil, op.Array, v)
		}
		return appendField(b, tagCustom, append([]byte{1, 0, 'x'}, v...))
	})
}

// FuzzCheck: no bytes make Check panic, and a profile that Check accepts can be read, exported, changed and merged.
func FuzzCheck(f *testing.F) {
	full, err := new(Importer).Import(nil, 3, []byte(fullUser), testStamp, ImportOptions{})
	require.NoError(f, err)
	f.Add(full)
	f.Add(user("u"))
	f.Add(New(nil, 1, op.Alias, op.AppendAliasKey(nil, []byte("l"), []byte("n")), 1))
	f.Add(set(f, user("u"), 0, op.AttrDateOfBirth, object{{"a", "a day."}})) // not a string, and as long as a date
	for i := 1; i < len(full); i += 37 {
		f.Add(full[:i])
	}
	eo, eRec := eventOp(f, "open", noon)
	po, pRec := purchaseOp(f, "sku", noon, 5, 2, "USD")
	ao, aRec := attrsOp(f, op.MergeObjects, "int", inc(5), "list", update{[]any{1}, []any{2}}, "o", object{{"a", nil}}, op.AttrPushTokens, []any{object{{"token", "t"}}},
		op.AttrEmailSubscribe, "opted_in", op.AttrFirstName, nil)
	f.Fuzz(func(t *testing.T, data []byte) {
		if Check(data) != nil {
			return
		}
		var e Editor
		require.True(t, json.Valid(AppendJSON(nil, data, 0, Export{SvcID: []byte("x"), Number: 1})))
		b := slices.Clone(data)
		b, _ = e.Apply(b, eo, eRec, nil)
		b, _ = e.Apply(b, po, pRec, nil)
		b, _ = e.Apply(b, ao, aRec, nil)
		b = e.SetExternalID(b, []byte("new"))
		b, _ = e.AddAlias(b, []byte("label"), []byte("name"))
		b = e.SetExternalID(b, []byte("newer"))
		b, _, _ = e.RemoveDeprecatedID(b, []byte("new"))
		b = e.AddFormer(b, Former{1, 2, Place{}, Place{3, 4}, 0})
		b = bytes.Clone(b)
		require.NoError(t, Check(e.Reimport(bytes.Clone(data), b)))
		require.NoError(t, Check(b))
		for _, mode := range []MergeMode{MergeUsers, MergeIdentify, MergeNone} {
			require.NoError(t, Check(e.Merge(data, b, mode, 1, nil)))
		}
	})
}

// FuzzImport: no line makes Import panic, and a profile that Import accepts is well-formed and is exported as valid
// JSON.
func FuzzImport(f *testing.F) {
	f.Add([]byte(fullUser))
	f.Add([]byte(`{"external_id":"x","custom_attributes":{"a":[[1],{"$time":"2024-01-01"}]}}`))
	f.Add([]byte(`{"phone":"+49","total_revenue":1e5}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		b, err := new(Importer).Import(nil, 1, line, testStamp, ImportOptions{})
		if err != nil {
			require.ErrorIs(t, err, errImport)
			return
		}
		require.NoError(t, Check(b))
		out := AppendJSON(nil, b, 0, Export{})
		require.True(t, json.Valid(out))
		again, err := new(Importer).Import(nil, 1, out, testStamp, ImportOptions{})
		require.NoError(t, err)
		require.Equal(t, string(out), string(AppendJSON(nil, again, 0, Export{})))
	})
}

// FuzzApply: an op whose body is any bytes leaves a profile that can be read.
func FuzzApply(f *testing.F) {
	ao, _ := attrsOp(f, 0, "a", edits{{op.EditUpdate, "id", 1, object{{"a", 1}}}, {op.EditAdd, "", nil, []any{object{{"id", 1}}}}}, "b", update{[]any{1}, []any{2}},
		op.AttrSubscriptionGroups, []any{strings.Repeat("x", 16), true})
	f.Add(ao.Body(), true)
	f.Add([]byte{64, byte(op.ArrayEdit), 3, 1, byte(op.String), 0}, false)
	f.Add([]byte("@\f\a0\x05\x02id\x03\x02"), false) // an edit of a kind that is none
	f.Add([]byte("\b\x03\v"), false)                 // a date of birth that is a number
	f.Fuzz(func(t *testing.T, body []byte, merge bool) {
		o, rec := one(t, testStamp, func(b *op.Builder) (op.Kind, op.Flags) {
			b.Buf = append(b.Buf, body...)
			b.Name([]byte("a"))
			b.Name([]byte("b"))
			if merge {
				return op.Attributes, op.MergeObjects
			}
			return op.Attributes, 0
		})
		var e Editor
		b := set(t, user("u"), 0, "a", []any{object{{"id", 1}}}, "b", object{{"id", object{{"c", 1}}}}, op.AttrPushTokens, []any{object{{"token", "t"}}})
		b, _ = e.Apply(b, o, rec, nil)
		require.True(t, json.Valid(AppendJSON(nil, b, 0, Export{})))
	})
}
