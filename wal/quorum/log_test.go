package quorum

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRecordsComeInOrderOnAllNodes(t *testing.T) {
	g := newGroup(t, 3, nil)
	texts := g.write(500)
	require.Equal(t, texts, g.leader().owner.texts())
	g.same()

	f := g.follower()
	require.ErrorIs(t, f.append("no"), ErrNotLeader)
	_, err := f.log.Fence(context.Background())
	require.ErrorIs(t, err, ErrNotLeader)

	at, err := g.leader().log.Fence(context.Background())
	require.NoError(t, err)
	require.Equal(t, g.leader().log.DurablePosition(), at)
	require.NoError(t, f.log.Wait(context.Background(), at))
	require.Equal(t, texts, f.owner.texts())
}

func TestLeaderIsKilled(t *testing.T) {
	g := newGroup(t, 3, nil)
	texts := g.write(100)
	old := g.leader()
	old.kill()
	texts = append(texts, g.write(100)...)
	require.Equal(t, texts, g.leader().owner.texts())
	old.start()
	g.same()
}
