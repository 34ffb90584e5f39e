package control

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/api/control/document"
)

// groupID is the id of the nth group of a test.
func groupID(n int) string { return fmt.Sprintf("5a3cc8ff-9a0e-4e2a-8a3c-%012d", n) }

// What a change of a group costs doesn't grow with the other groups of the workspace, which aren't decoded anew: a
// bootstrap file may have thousands.
func TestChangeCostsNoOtherDocuments(t *testing.T) {
	cost := func(groups int) float64 {
		c, _, _ := start(t, map[string]string{})
		f := &document.BootstrapFile{Workspaces: []document.BootstrapWorkspace{{Settings: document.Settings{ID: "w"}}}}
		for i := range groups {
			f.Workspaces[0].Groups = append(f.Workspaces[0].Groups, document.Group{ID: groupID(i), Name: "g", Channel: "email"})
		}
		_, err := c.Bootstrap(t.Context(), tester, f)
		require.NoError(t, err)
		require.Len(t, c.Snapshot().Lookup("w").Groups, groups)
		n := 0
		return testing.AllocsPerRun(10, func() {
			n++
			_, err := c.Groups.Change(tester, "w", groupID(0), func(g *document.Group) (*document.Group, error) {
				g.Name = fmt.Sprint("name ", n)
				return g, nil
			})
			require.NoError(t, err)
		})
	}
	few, many := cost(10), cost(1000)
	require.Less(t, many, 2*few, "allocations with 10 and with 1000 groups")
}

// The snapshot that grew with each change is the one that a restart makes of all documents, and so are the counts.
func TestSnapshotAsAfterRestart(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	same := func() {
		t.Helper()
		again, _, _ := start(t, m.docs)
		require.Equal(t, len(again.Snapshot().Workspaces()), len(c.Snapshot().Workspaces()))
		for _, want := range again.Snapshot().Workspaces() {
			got := c.Snapshot().Lookup(want.ID)
			require.Same(t, got, c.Snapshot().Workspace(want.Number))
			require.Equal(t, want.Apps, got.Apps)
			require.Equal(t, want.Groups, got.Groups)
			require.Equal(t, want.Prepared, got.Prepared)
			require.Equal(t, want.Keys, got.Keys)
			require.Equal(t, again.Snapshot().Keys.Len(), c.Snapshot().Keys.Len())
			for kind := range c.collections {
				require.Equal(t, again.count(kind, want.ID), c.count(kind, want.ID), kind)
			}
		}
	}
	m.put("group/w/"+groupID(9), `{"id":"`+groupID(9)+`","name":"before its workspace","channel":"email"}`)
	for _, w := range []string{"w", "x"} {
		_, err := c.CreateWorkspace(tester, document.Settings{ID: w})
		require.NoError(t, err)
		same()
		for i := range 3 {
			_, err := c.Groups.Create(tester, w, document.Group{ID: groupID(i), Name: "g", Channel: "sms"})
			require.NoError(t, err)
			_, err = c.Apps.Create(tester, w, document.App{ID: fmt.Sprint("a", i)})
			require.NoError(t, err)
			_, _, err = c.CreateKey(tester, w, document.KeySpec{Name: "k"})
			require.NoError(t, err)
			same()
		}
	}
	held := c.Snapshot().Lookup("w")
	require.NoError(t, c.Groups.Remove(tester, "w", groupID(1), nil))
	same()
	require.NoError(t, c.Apps.Remove(tester, "w", "a1", nil))
	same()
	require.Len(t, held.Groups, 4, "who has a snapshot keeps it")
	require.Len(t, held.Apps, 3)
	m.put("app/w/a2", "not JSON")
	m.put("group/w/"+groupID(2), "not JSON")
	same()
	m.put("app/w/a2", `{"id":"a2"}`)
	m.put("group/gone/"+groupID(2), `{"id":"`+groupID(2)+`"}`)
	same()
	_, err := c.UpdateSettings(tester, "w", func(s *document.Settings) error { s.Name = "W"; return nil })
	require.NoError(t, err)
	same()
}

// The second way to a document follows its changes and its end, and a document under another key does not take it over.
func TestCollectionByOtherID(t *testing.T) {
	c, _, _ := start(t, map[string]string{})
	users := c.SCIMUsers
	c.Apply("scim_user//a@example.com", []byte(`{"id":"1","userName":"A"}`))
	c.Apply("scim_user//b@example.com", []byte(`{"id":"2","userName":"B"}`))
	require.Equal(t, "A", users.Find("", "1").UserName)
	require.Equal(t, "B", users.Find("", "2").UserName)
	require.Equal(t, 2, users.Len())
	c.Apply("scim_user//a@example.com", []byte(`{"id":"1","userName":"AA"}`))
	require.Equal(t, "AA", users.Find("", "1").UserName)
	require.Same(t, users.Get("", "a@example.com"), users.Find("", "1"))
	c.Apply("scim_user//a@example.com", []byte(`{"id":"3","userName":"A"}`))
	require.Nil(t, users.Find("", "1"))
	require.Equal(t, "A", users.Find("", "3").UserName)
	c.Apply("scim_user//b@example.com", []byte(`{"id":`))
	require.Nil(t, users.Find("", "2"), "what can't be read is not there")
	c.Apply("scim_user//a@example.com", nil)
	require.Nil(t, users.Find("", "3"))
	require.Zero(t, users.Len())
	require.Nil(t, users.Find("x", "3"))
}

// A bootstrap file that takes long ends when the server does, and what it has made so far is known: a key is never
// shown again.
func TestBootstrapIsInterrupted(t *testing.T) {
	c, _, _ := start(t, map[string]string{})
	f := new(document.BootstrapFile)
	for _, id := range []string{"a", "b", "c"} {
		f.Workspaces = append(f.Workspaces, document.BootstrapWorkspace{Settings: document.Settings{ID: id}, Keys: []document.KeySpec{{Name: "k"}, {Name: "l"}}})
	}
	ctx, cancel := context.WithCancel(t.Context())
	now, made := c.options.Now, 0
	c.options.Now = func() int64 { // for each key
		if made++; made == 3 {
			cancel()
		}
		return now()
	}
	keys, err := c.Bootstrap(ctx, tester, f)
	require.ErrorIs(t, err, context.Canceled)
	require.Len(t, keys, 3)
	require.Len(t, c.Snapshot().Lookup("b").Keys, 1)
	require.Nil(t, c.Snapshot().Lookup("c"))

	keys, err = c.Bootstrap(t.Context(), tester, f)
	require.NoError(t, err)
	require.Len(t, keys, 3)
}
