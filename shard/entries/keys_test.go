package entries

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/shard/op"
	"millrace/shard/profile"
)

// TestKeySet: a set has what the list has that it was made of; the same text as another kind of identifier is another
// key.
func TestKeySet(t *testing.T) {
	var e profile.Editor
	b := profile.New(nil, 3, op.ExternalID, []byte("home"), 1)
	b, _ = e.AddAlias(b, []byte("label"), []byte("name"))
	b = e.SetExternalID(b, []byte("later"))
	var keys Keys
	keys.Read(b)
	set := keys.Set()
	require.Len(t, set, 2)
	alias := Key{op.Alias, op.AppendAliasKey(nil, []byte("label"), []byte("name"))}
	for _, k := range []Key{alias, {op.ExternalID, []byte("later")}} {
		require.True(t, keys.Has(k))
		require.True(t, set.Has(k))
	}
	for _, k := range []Key{{op.ExternalID, alias.Key}, {op.ExternalID, []byte("home")}, {op.Email, []byte("later")}} {
		require.False(t, keys.Has(k))
		require.False(t, set.Has(k))
	}
	require.False(t, new(Keys).Set().Has(alias))
}
