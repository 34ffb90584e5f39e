package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The counts of objects are those of the answers: whole refusals, single ones, values left out.
func TestObjectsAreCounted(t *testing.T) {
	d := openEngine(t, t.TempDir())
	counts := countsOf(d.control.Snapshot().Lookup("demo"))
	accepted, refused, ignored := counts.accepted.Get(), counts.refused.Get(), counts.ignored.Get()
	for _, body := range []string{
		`{"attributes":[{"external_id":"a"},{"external_id":"b","dob":"never"}],"events":[{"external_id":"a","time":"2026-01-02T03:04:05Z"}]}`,
		`{"attributes":[{"external_id":"\"errors\":[\"input_array\":"}]}`,
		`{"attributes":[{"x":1}]}`,
	} {
		d.call("POST", "/users/track", demoKey, body)
	}
	require.Equal(t, []uint64{3, 2, 1}, []uint64{counts.accepted.Get() - accepted, counts.refused.Get() - refused, counts.ignored.Get() - ignored})
}
