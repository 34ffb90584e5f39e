package marker

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"millrace/wal/quorum/host"
)

func TestMarkerNeverGoesBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	s := NewStore(Options{Path: path, Fail: func(err error) error { return err }}, Marker{})
	list, err := s.List()
	require.NoError(t, err)
	require.Empty(t, list)
	m := Marker{Version: Version, Index: 7, Term: 2, ConfigurationIndex: 3, Restored: true,
		Configuration: raft.Configuration{Servers: []raft.Server{{ID: "1", Address: "1"}}}}
	require.NoError(t, s.Save(m))
	require.Error(t, s.Save(Marker{Version: Version, Index: 6, Term: 3}))
	require.Equal(t, m, s.Current())
	read, err := Read(path)
	require.NoError(t, err)
	require.Equal(t, m, read)
	require.True(t, m.Is(&Marker{Index: 7, Term: 2}))
	require.False(t, m.Is(&Marker{Index: 7, Term: 3}))
}

// While a marker is being sent, it is known which: as a locator of this node, from which its receiver tells whom to ask.
func TestMarkerInTransit(t *testing.T) {
	path := filepath.Join(t.TempDir(), Name)
	s := NewStore(Options{Path: path, Self: 3, Fail: func(err error) error { return err }}, Marker{Version: Version, Index: 7, Term: 2})
	list, err := s.List()
	require.NoError(t, err)
	require.Len(t, list, 1)
	for range 2 {
		_, ok := s.InTransit()
		require.False(t, ok)
		_, one, err := s.Open(list[0].ID)
		require.NoError(t, err)
		meta, two, err := s.Open(list[0].ID)
		require.NoError(t, err)
		sent, err := io.ReadAll(two)
		require.NoError(t, err)
		require.EqualValues(t, meta.Size, len(sent))
		from, err := parseLocator(sent)
		require.NoError(t, err)
		require.Equal(t, host.Node(3), from)
		for _, sending := range []io.Closer{one, two} {
			index, ok := s.InTransit()
			require.True(t, ok)
			require.EqualValues(t, 7, index)
			require.NoError(t, sending.Close())
			require.NoError(t, sending.Close())
		}
	}
	require.NoError(t, s.Save(Marker{Version: Version, Index: 8, Term: 2}))
	_, _, err = s.Open(list[0].ID)
	require.ErrorContains(t, err, "superseded")
	_, err = parseLocator([]byte("millfetch0\x03\x00\x00\x00"))
	require.Error(t, err)
}
