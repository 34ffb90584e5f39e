package document

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A preference center that is sent as it is isn't changed: neither its times, which a sender may name, nor the audit log
// say otherwise.
func TestSamePreferenceCenter(t *testing.T) {
	old := PreferenceCenter{ID: "p", Name: "P", PageHTML: "x", ConfirmationHTML: "x", CreatedAt: 1, UpdatedAt: 2}
	same, other := old, old
	same.CreatedAt, same.UpdatedAt = 7, 8
	same.Stamp(&old, 9)
	require.Equal(t, old, same)
	other.Title = "title"
	other.Stamp(&old, 9)
	require.Equal(t, []Millis{1, 9}, []Millis{other.CreatedAt, other.UpdatedAt})
}
