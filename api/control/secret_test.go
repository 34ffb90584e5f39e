package control

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// A secret is made once, whoever asks for it first, and there after a restart; each name has its own. What is there and
// can't be read is not made anew: it would make void what was signed with it.
func TestSecret(t *testing.T) {
	c, m, log := start(t, map[string]string{})
	_, ok := c.Secret("a")
	require.False(t, ok)
	var group sync.WaitGroup
	secrets := make([][32]byte, 16)
	for i := range secrets {
		group.Go(func() {
			secret, err := c.EnsureSecret("a")
			if err != nil {
				t.Error(err)
			}
			secrets[i] = secret
		})
	}
	group.Wait()
	for _, s := range secrets {
		require.Equal(t, secrets[0], s)
	}
	require.NotZero(t, secrets[0])
	other, err := c.EnsureSecret("b")
	require.NoError(t, err)
	require.NotEqual(t, secrets[0], other)
	require.Empty(t, log.String(), "no entry of the audit log")

	again, _, _ := start(t, m.docs)
	secret, ok := again.Secret("a")
	require.True(t, ok)
	require.Equal(t, secrets[0], secret)

	damaged, _, _ := start(t, map[string]string{"secret//a": `"0123"`})
	_, err = damaged.EnsureSecret("a")
	require.ErrorContains(t, err, "can't be read")
}
