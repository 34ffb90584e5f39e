package profile

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/shard/op"
)

// TestAddressesLookInFrontOnly: Addresses doesn't look at anything behind the first other field, however much there is.
func TestAddressesLookInFrontOnly(t *testing.T) {
	f := func(email, phone string, fields ...any) {
		t.Helper()
		b := set(t, user("u"), 0, fields...)
		b = appendField(appendField(b, tagEmail, val("not looked at")), tagPhone, val("not looked at")) // Check refuses that
		gotEmail, gotPhone := Addresses(b)
		require.Equal(t, []string{email, phone}, []string{textOf(gotEmail), textOf(gotPhone)})
		v, _ := Attr(b, op.AttrEmail)
		require.Equal(t, email, textOf(v))
		v, _ = Attr(b, op.AttrPhone)
		require.Equal(t, phone, textOf(v))
		require.False(t, Blocked(b))
	}
	f("", "", "plan", "free")
	f("a@example.com", "", "plan", "free", op.AttrEmail, "a@example.com")
	f("", "+491", "plan", "free", op.AttrPhone, "+491")
	f("a@example.com", "+491", "plan", "free", op.AttrPhone, "+491", "x", 1, op.AttrEmail, "a@example.com")
}

func textOf(v op.Value) string {
	if len(v) == 0 {
		return ""
	}
	return string(v.Bytes())
}

// TestFrontStaysInFront: whatever fields come, go and are merged, Addresses finds what a walk finds, and Check, which
// checks the order of fields, succeeds.
func TestFrontStaysInFront(t *testing.T) {
	rng := testseed.Rand(t)
	var e Editor
	look := func(b []byte) {
		t.Helper()
		require.NoError(t, Check(b))
		email, phone := Addresses(b)
		require.Equal(t, []op.Value{walkTo(b, tagEmail), walkTo(b, tagPhone)}, []op.Value{email, phone})
	}
	profiles := [][]byte{user("a"), New(nil, 3, op.Email, []byte("b@example.com"), 1), New(nil, 3, op.Phone, []byte("+492"), 1)}
	for range 500 {
		i, j := rng.IntN(len(profiles)), rng.IntN(len(profiles))
		b := slices.Grow(slices.Clone(profiles[i]), rng.IntN(2)*rng.IntN(100))
		code := []uint32{op.AttrEmail, op.AttrPhone, op.AttrCountry}[rng.IntN(3)]
		switch rng.IntN(6) {
		case 0:
			b = e.removeAttr(b, code)
		case 1:
			b = e.block(b)
		case 2:
			b = e.Merge(b, profiles[j], []MergeMode{MergeUsers, MergeIdentify, MergeNone}[rng.IntN(3)], 1, nil)
		case 3:
			b = e.Reimport(b, profiles[j])
		case 4:
			b = set(t, b, 0, "plan", randomText(rng), int(code), randomText(rng))
		default:
			b = e.SetAttr(b, code, val(randomText(rng)))
		}
		look(b)
		profiles[i] = slices.Clone(b)
		if len(b) > 2000 {
			profiles[i] = user("a")
		}
	}
}

func walkTo(b []byte, tag byte) op.Value {
	for i := fieldsStart(b); i < len(b); {
		t, start, end := fieldAt(b, i)
		if t == tag {
			return op.Value(bytes.TrimRight(b[start:end], "\x00")) // texts end otherwise
		}
		i = end
	}
	return nil
}

func randomText(rng *rand.Rand) string { return "abcdefghijklmnopqrstuvwxyz"[:1+rng.IntN(20)] }
