package control

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

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
		_, err := c.Bootstrap(t.Context(), tester, manyGroups(groups))
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

// manyGroups is a bootstrap file of a workspace with n groups.
func manyGroups(n int) *document.BootstrapFile {
	w := document.BootstrapWorkspace{Settings: document.Settings{ID: "w"}}
	for i := range n {
		w.Groups = append(w.Groups, document.Group{ID: groupID(i), Name: "g", Channel: "email"})
	}
	return &document.BootstrapFile{Workspaces: []document.BootstrapWorkspace{w}}
}

// The groups of a bootstrap file wait for the disk together: the store has the first of them done when it has got as
// many as may go together.
func TestGroupsAreStoredTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m, _ := start(t, map[string]string{})
		_, err := c.Bootstrap(t.Context(), tester, manyGroups(0))
		require.NoError(t, err)
		var together sync.WaitGroup
		together.Add(maxTogether)
		m.before = func([]Change) {
			together.Done()
			together.Wait()
		}
		_, err = c.Bootstrap(t.Context(), tester, manyGroups(maxTogether))
		require.NoError(t, err)
		require.Len(t, c.Snapshot().Lookup("w").Groups, maxTogether)
		require.Len(t, m.audit, 1+maxTogether)
	})
}

// Groups that are stored together are refused as if they came one after the other: the error is of the first that
// can't be stored, and nobody gets past the number of groups that there may be.
func TestGroupsTogetherAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, m, _ := start(t, map[string]string{})
		m.before = func([]Change) { time.Sleep(time.Second) } // all that go together are judged by now
		file := manyGroups(3 * maxTogether)
		groups := file.Workspaces[0].Groups
		_, err := c.Bootstrap(t.Context(), tester, manyGroups(2))
		require.NoError(t, err)
		groups[0].Channel, groups[1].Channel = "sms", "sms"
		_, err = c.Bootstrap(t.Context(), tester, file)
		require.ErrorContains(t, err, "workspaces[0] (w): subscription_groups[0]: ")
		require.Equal(t, maxTogether, c.count(kindGroup, "w"))
		groups[0].Channel, groups[1].Channel = "email", "email"
		c.counts[kindGroup+"/w"] += MaxDocuments - 2*maxTogether - 10
		_, err = c.Bootstrap(t.Context(), tester, file)
		require.ErrorContains(t, err, fmt.Sprintf("subscription_groups[%d]: ", 2*maxTogether+10))
		require.ErrorIs(t, err, ErrConflict)
		require.Equal(t, MaxDocuments, c.count(kindGroup, "w"))
	})
}

// A bootstrap file ends with its context, also between groups.
func TestBootstrapEndsAmongGroups(t *testing.T) {
	c, m, _ := start(t, map[string]string{})
	_, err := c.Bootstrap(t.Context(), tester, manyGroups(0))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	m.before = func([]Change) { cancel() }
	_, err = c.Bootstrap(ctx, tester, manyGroups(3*maxTogether))
	require.ErrorIs(t, err, context.Canceled)
	require.LessOrEqual(t, len(c.Snapshot().Lookup("w").Groups), maxTogether)
}

// A workspace is prepared when a request first needs it, not for each of the documents that a bootstrap file has.
func TestPreparedWhenAsked(t *testing.T) {
	c, _, _ := start(t, map[string]string{})
	prepared := 0
	c.options.Prepare = func(w *Workspace) any {
		prepared++
		return len(w.Apps) + len(w.Groups)
	}
	bootstrap(t, c, full)
	require.Zero(t, prepared)
	for range 2 {
		require.Equal(t, 2, c.Snapshot().Lookup("demo").Prepared())
	}
	_, _, err := c.CreateKey(tester, "demo", document.KeySpec{Name: "another"})
	require.NoError(t, err)
	require.Equal(t, 2, c.Snapshot().Lookup("demo").Prepared())
	require.Equal(t, 1, prepared, "a key changes nothing of it")
	require.NoError(t, c.Apps.Remove(tester, "demo", "11ae5b4b-2445-4440-a04f-bf537764c9ad", nil))
	require.Equal(t, 1, c.Snapshot().Lookup("demo").Prepared())
}

// What one more key costs, and one more workspace, doesn't grow with the keys and workspaces that there are: a bootstrap
// file may have thousands.
func TestKeyCostsNoOtherKeys(t *testing.T) {
	cost := func(workspaces int) (key, workspace uint64) {
		c, _, _ := start(t, map[string]string{})
		f := new(document.BootstrapFile)
		for i := range workspaces {
			f.Workspaces = append(f.Workspaces, document.BootstrapWorkspace{
				Settings: document.Settings{ID: fmt.Sprint("w", i)}, Keys: []document.KeySpec{{Name: "k"}, {Name: "l"}}})
		}
		_, err := c.Bootstrap(t.Context(), tester, f)
		require.NoError(t, err)
		require.Equal(t, 2*workspaces, c.Snapshot().Keys.Len())
		n := 0
		return allocated(func() {
				_, _, err := c.CreateKey(tester, "w0", document.KeySpec{Name: "another"})
				require.NoError(t, err)
			}), allocated(func() {
				n++
				_, err := c.CreateWorkspace(tester, document.Settings{ID: fmt.Sprint("x", n)})
				require.NoError(t, err)
			})
	}
	fewKey, fewWorkspace := cost(20)
	manyKey, manyWorkspace := cost(1000)
	require.Less(t, manyKey, 2*fewKey, "bytes allocated with 40 and with 2000 keys")
	require.Less(t, manyWorkspace, 2*fewWorkspace, "bytes allocated with 20 and with 1000 workspaces")
}

// allocated returns how many bytes 20 calls allocate.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		f()
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
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
			require.Equal(t, want.Prepared(), got.Prepared())
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
	_, err := c.UpdateKey(tester, "w", "2", func(s *document.KeySpec) error { s.Permissions = []string{"*"}; return nil })
	require.NoError(t, err)
	require.NoError(t, c.RevokeKey(tester, "x", "4"))
	same()
	require.Equal(t, 5, c.Snapshot().Keys.Len())
	m.put("key/w/1", "not JSON")
	same()
	require.Equal(t, 4, c.Snapshot().Keys.Len())
	require.Len(t, held.Keys, 3, "who has a snapshot keeps it")
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
	_, err = c.UpdateSettings(tester, "w", func(s *document.Settings) error { s.Name = "W"; return nil })
	require.NoError(t, err)
	same()
}

// Of two keys with one token, which no verb makes, the older one is valid, whatever came first, and the log says so. The
// token of a revoked key is never taken again, and a lost counter gives no number out twice.
func TestKeysWithOneToken(t *testing.T) {
	c, m, log := start(t, map[string]string{})
	for _, w := range []string{"a", "b"} {
		_, err := c.CreateWorkspace(tester, document.Settings{ID: w})
		require.NoError(t, err)
	}
	_, token, err := c.CreateKey(tester, "b", document.KeySpec{Name: "older"})
	require.NoError(t, err)
	_, _, err = c.CreateKey(tester, "a", document.KeySpec{Name: "newer"})
	require.NoError(t, err)
	m.put("key/a/2", strings.NewReplacer(`"number":1`, `"number":2`, `"id":"1"`, `"id":"2"`).Replace(m.docs["key/b/1"]))
	require.Equal(t, uint32(1), c.Snapshot().Keys.Find([]byte(token)).Number)
	require.Contains(t, log.String(), "two API keys have the same token")
	again, _, _ := start(t, m.docs)
	require.Equal(t, uint32(1), again.Snapshot().Keys.Find([]byte(token)).Number)

	require.NoError(t, c.RevokeKey(tester, "b", "1"))
	require.Equal(t, uint32(2), c.Snapshot().Keys.Find([]byte(token)).Number)
	require.NoError(t, c.RevokeKey(tester, "a", "2"))
	require.Nil(t, c.Snapshot().Keys.Find([]byte(token)))
	m.put("number//key", "")
	_, _, err = c.CreateKey(tester, "a", document.KeySpec{Name: "k", Token: token})
	require.ErrorContains(t, err, `already has a key with this token, "older"`)
	k, _, err := c.CreateKey(tester, "a", document.KeySpec{Name: "k"})
	require.NoError(t, err)
	require.Equal(t, uint32(3), k.Number)
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

// TestListIsSortedOnce: a list that hasn't changed isn't made anew for each page, and one that has changed is.
func TestListIsSortedOnce(t *testing.T) {
	l := newCollection[document.Stream](nil, kindStream, "stream")
	var want []*document.Stream
	for i := range 500 {
		s := &document.Stream{ID: fmt.Sprintf("s%03d", i)}
		want = append(want, s)
		l.docs.Store("w/"+s.ID, s)
	}
	require.Equal(t, want, l.List("w"))
	require.Empty(t, l.List("v"))
	clear(l.List("w"))
	require.LessOrEqual(t, testing.AllocsPerRun(10, func() { l.List("w") }), 1.0)
	require.Equal(t, want, l.List("w"))
	l.apply("w", "s007", nil)
	require.Equal(t, slices.Delete(want, 7, 8), l.List("w"))
}
