package event

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
)

func TestJSONValues(t *testing.T) {
	for want, v := range map[string][]byte{
		`null`:                       {byte(op.Null)},
		`-9223372036854775808`:       op.AppendInt(nil, math.MinInt64),
		`0.1`:                        op.AppendFloat(nil, 0.1),
		`1e+21`:                      op.AppendFloat(nil, 1e21),
		`100000.0`:                   op.AppendFloat(nil, 1e5),
		`-0.0`:                       op.AppendFloat(nil, math.Copysign(0, -1)),
		`"2026-01-02T03:04:05.006Z"`: op.AppendTime(nil, 1767323045006),
		`"\"\\\u0000\n\u001fü"`:      op.AppendString(nil, []byte("\"\\\x00\n\x1fü")),
		"\"\ufffd!\"":                op.AppendString(nil, []byte("\xff!")),
		`{"a b":[1,"x \" y"]}`:       op.AppendBlock(nil, op.JSON, []byte("{ \"a b\" :\n\t[1, \"x \\\" y\"]\r}")),
		`[]`:                         op.AppendBlock(nil, op.Array, nil),
		`{"k":true,"":[false]}`:      op.AppendBlock(nil, op.Object, append(append([]byte{1, 'k', byte(op.True)}, 0), op.AppendBlock(nil, op.Array, []byte{byte(op.False)})...)),
	} {
		require.Equal(t, want, string(AppendValue(nil, v)))
	}
}

func TestParseFormat(t *testing.T) {
	f, err := ParseFormat("parquet")
	require.NoError(t, err)
	require.Equal(t, Parquet, f)
	_, err = ParseFormat("xml")
	require.Error(t, err)
}
