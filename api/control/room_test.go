package control

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
)

// TestDocumentsAreBounded: documents that are new or grow are refused when a workspace, or all together, would outgrow
// the bound. What puts things right is taken: a removal, a smaller document, the settings of workspaces, keys.
func TestDocumentsAreBounded(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	c.options.MaxBytes = 400_000
	by := Actor{Name: "test"}
	for _, w := range []string{"a", "b"} {
		_, err := c.CreateWorkspace(by, document.Settings{ID: w})
		require.NoError(t, err)
	}
	put := func(workspace, id string, size int) error {
		_, err := c.Campaigns.Change(by, workspace, id, func(*document.Campaign) (*document.Campaign, error) {
			return &document.Campaign{ID: id, Messages: []document.Message{{ID: "m", Channel: "email",
				Source: map[string]string{"x": strings.Repeat("x", size)}}}}, nil
		})
		return err
	}
	bytes := func() (n int64) {
		for _, doc := range m.docs {
			n += int64(len(doc))
		}
		return n
	}
	require.NoError(t, put("a", "1", 200_000))
	puts := m.puts
	require.ErrorIs(t, put("a", "2", 100_000), ErrNoRoom, "three quarters for one workspace")
	require.Equal(t, puts, m.puts)
	require.ErrorContains(t, put("a", "1", 310_000), "300000 are allowed")
	require.ErrorContains(t, put("a", "1", 310_000), "--max-documents", "it may keep a server from starting")
	require.NoError(t, put("b", "1", 150_000))
	require.ErrorIs(t, put("b", "2", 50_000), ErrNoRoom, "all of it")
	require.Equal(t, bytes(), c.Bytes())

	require.NoError(t, put("a", "1", 199_000))
	require.NoError(t, put("b", "1", 199_000))
	require.ErrorIs(t, put("a", "3", 5_000), ErrNoRoom)
	_, _, err := c.CreateKey(by, "a", document.KeySpec{Name: strings.Repeat("k", 200), Permissions: []string{"*"}})
	require.NoError(t, err)
	_, err = c.UpdateSettings(by, "a", func(s *document.Settings) error { s.Plan = "mau"; return nil })
	require.NoError(t, err)
	require.NoError(t, c.Campaigns.Remove(by, "b", "1", nil))
	require.NoError(t, put("a", "3", 5_000))
	require.Equal(t, bytes(), c.Bytes())

	again := New(Options{MaxBytes: 10}) // a bound that is too small for what there is
	for key, doc := range m.docs {
		again.Apply(key, []byte(doc))
	}
	require.Equal(t, c.Bytes(), again.Bytes(), fmt.Sprint("of ", len(m.docs), " documents"))
}
