package jsonvalue

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

func TestStrings(t *testing.T) {
	f := func(s, want string) {
		t.Helper()
		require.Equal(t, want, string(AppendString(nil, []byte(s))))
	}
	f("", `""`)
	f("a\x00\x1f\"\\\n\r\t/\x7f", `"a\u0000\u001f\"\\\n\r\t/`+"\x7f"+`"`)
	f("ü\u2028😀�", "\"ü\u2028😀�\"")
	f("a\xffb\xc3", "\"a�b�\"")
	for c := range 256 { // wherever it stands, also as text
		for at := range 20 {
			text := []byte("01234567890123456789")
			text[at] = byte(c)
			got := AppendString(nil, text)
			require.Equal(t, got, AppendString(nil, string(text)))
			var back string
			require.NoError(t, json.Unmarshal(got, &back))
			require.Equal(t, strings.ToValidUTF8(string(text), "\uFFFD"), back)
			require.Equal(t, c < 0x20 || c == '"' || c == '\\' || c >= 0x80, len(got) > len(text)+2)
		}
	}
}

func TestTextKeptAsJSONStaysOnOneLine(t *testing.T) {
	f := func(text, want string) {
		t.Helper()
		require.Equal(t, want, string(Append(nil, op.AppendBlock(nil, op.JSON, []byte(text)))))
	}
	f("[1,\r\n\t 2]", `[1, 2]`)
	f("[1,", `"[1,"`)
	f("[\"\xff\"]", "\"[\\\"�\\\"]\"")
}

func TestNumbersStayDoubles(t *testing.T) {
	f := func(x float64, want string) {
		t.Helper()
		require.Equal(t, want, string(AppendFloat(nil, x)))
	}
	f(0, "0.0")
	f(math.Copysign(0, -1), "-0.0")
	f(0.1, "0.1")
	f(1e-7, "1e-07")
	f(1e15, "1e+15")
	f(123456789012345, "123456789012345.0")
	f(math.NaN(), "null")
	f(math.Inf(-1), "null")
}

// Times and ids are written digit by digit: as package time and hex write them.
func TestTimesAndIDs(t *testing.T) {
	for _, millis := range []int64{0, 999, -1, 1_790_000_000_123, 253402300799999, 253402300800000, -62167219200000,
		-62167219200001} {
		want := time.UnixMilli(millis).UTC().Format(TimeLayout)
		require.Equal(t, want, string(AppendTime(nil, millis)))
		require.Equal(t, `"`+want+`"`, string(AppendTimeString(nil, millis)))
	}
	for i := range 16 {
		var id [16]byte
		id[i], id[15-i] = byte(17*(i+1)), 0xA9
		x := hex.EncodeToString(id[:])
		want := strings.Join([]string{x[:8], x[8:12], x[12:16], x[16:20], x[20:]}, "-")
		require.Equal(t, want, string(AppendUUID(nil, id)))
		require.Equal(t, x[:8], string(AppendHex(nil, binary.BigEndian.Uint32(id[:]))))
	}
}

// A place of the memo of dates without a day has that of no time.
func TestNoDate(t *testing.T) {
	dates[0].Store(0)
	_, _, _, ok := dateOf(-1 << 24)
	require.False(t, ok)
}
