package testsize

import (
	"flag"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizes(t *testing.T) {
	before := flag.Lookup("test.short").Value.String()
	defer func() { require.NoError(t, flag.Set("test.short", before)) }()
	for _, test := range []struct {
		stress        string
		short         bool
		of, justShort int
	}{{"", false, 2, 2}, {"", true, 3, 3}, {"1", false, 1, 2}, {"1", true, 1, 3}} {
		t.Setenv("MILLRACE_STRESS", test.stress)
		require.NoError(t, flag.Set("test.short", strconv.FormatBool(test.short)))
		require.Equal(t, test.stress != "", Stress())
		require.Equal(t, test.of, Of(1, 2, 3))
		require.Equal(t, test.justShort, Short(2, 3))
		t.Run("serial", func(t *testing.T) {
			defer func() { require.Equal(t, test.short, t.Skipped()) }()
			SkipSerial(t)
		})
	}
}
