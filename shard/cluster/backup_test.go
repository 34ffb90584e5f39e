package cluster

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard"
	"millrace/shard/backup"
	"millrace/shard/bodies"
	"millrace/shard/cluster/facts"
	"millrace/shard/cluster/founding"
	"millrace/shard/replica"
	"millrace/wal/quorum"
)

// takeBackup returns a backup of the cluster, made by one of its nodes, as an archive.
func (c *testCluster) takeBackup(node quorum.Node) []byte {
	c.t.Helper()
	b, err := c.node(node).Backup(context.Background(), "test", time.Now())
	require.NoError(c.t, err)
	var out bytes.Buffer
	size, err := b.Write(context.Background(), &out)
	require.NoError(c.t, err)
	require.NoError(c.t, b.Release())
	require.EqualValues(c.t, out.Len(), size)
	require.Greater(c.t, size, b.Bytes)
	left, err := filepath.Glob(filepath.Join(c.dir, "*", facts.GroupsDir, "*", "{backup,image}"))
	require.NoError(c.t, err)
	require.Empty(c.t, left)
	return out.Bytes()
}

// Backups that are made in the midst of merges across groups conserve. In the cluster that is made from a backup, each
// event of the event log is in exactly one profile. All events that were acknowledged before the backup are there, and
// none that were sent after it.
func TestBackupUnderLoad(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	for name, test := range map[string]struct {
		nodes, replicas int
	}{"replicas everywhere": {3, 3}, "some groups elsewhere": {3, 2}} {
		t.Run(name, func(t *testing.T) {
			if test.replicas == test.nodes && !testsize.Stress() {
				t.Skip("the other one has all of it, and reads of other nodes besides")
			}
			c := startCluster(t, test.nodes, func(o *Options) { o.Replicas = test.replicas })
			crowd := &crowd{t: t, numbers: map[uint64]bool{}}
			require.NoError(t, c.node(1).Coordinator().PutDocuments(7, []bodies.DocumentChange{{Key: "workspace/1", Doc: []byte("one")}}, []byte("entry")))
			crowd.run(seed, 3, 40, func() *shard.Coordinator { return c.node(1).Coordinator() })
			stop := make(chan struct{})
			var load sync.WaitGroup
			for i := range 3 {
				r := rand.New(rand.NewPCG(seed, uint64(100+i)))
				load.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := crowd.request(c.node(quorum.Node(1+i)).Coordinator(), r); err != nil {
							t.Error(err)
							return
						}
						breath(r)
					}
				})
			}
			type taken struct {
				archive     []byte
				least, most int
			}
			var backups []taken
			for i := range testsize.Of(3, 2, 2) {
				crowd.mu.Lock()
				x := taken{least: crowd.sent}
				crowd.mu.Unlock()
				x.archive = c.takeBackup(quorum.Node(1 + i%3))
				crowd.mu.Lock()
				x.most = crowd.some + 8*3 // and what was just being sent
				crowd.mu.Unlock()
				backups = append(backups, x)
			}
			close(stop)
			load.Wait()
			for i, x := range backups {
				restored := newTestCluster(t, 2, nil)
				f := restored.bootstrap()
				f.Groups, f.Replicas = 0, 2
				founded, about, err := founding.RestoreBackup(context.Background(), bytes.NewReader(x.archive), f)
				require.NoError(t, err)
				require.Equal(t, "test", about.Program)
				require.Equal(t, 4, founded.Groups)
				require.NotEqual(t, c.node(1).facts.Get().Cluster, founded.Cluster)
				restored.start(1)
				if i == 0 { // others join
					restored.start(2)
					restored.spread()
				}
				restored.settle()
				e := restored.node(1).Coordinator()
				counted := crowd.counted(e)
				require.Equal(t, counted, countEvents(t, restored.node(1)), "profiles and event log are of one moment")
				require.GreaterOrEqual(t, counted, x.least)
				require.LessOrEqual(t, counted, x.most)
				control := restored.node(1).Coordinator()
				_, err = control.VerifyAudit()
				require.NoError(t, err)
				require.Equal(t, []byte("one"), control.Document("workspace/1"))
				if i == 0 {
					crowd2 := &crowdOf{crowd, counted}
					crowd2.goesOn(restored, seed)
				}
			}
		})
	}
}

// crowdOf is a crowd whose store has been restored, and how many events were restored.
type crowdOf struct {
	*crowd
	had int
}

// goesOn works with the new cluster. What the cluster acknowledges is there afterwards, together with what was there
// before.
func (c *crowdOf) goesOn(restored *testCluster, seed uint64) {
	sent, some := c.sent, c.some
	c.run(seed+5, 2, 30, func() *shard.Coordinator { return restored.node(2).Coordinator() })
	restored.settle()
	counted := c.counted(restored.node(1).Coordinator())
	require.GreaterOrEqual(c.t, counted, c.had+c.sent-sent)
	require.LessOrEqual(c.t, counted, c.had+c.some-some)
	require.Equal(c.t, counted, countEvents(c.t, restored.node(2)))
}

// A backup that meets a change of leaders is begun anew, until all groups have leaders.
func TestBackupWhileLeadersChange(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	n := c.node(1)
	leader, left := n.cuts.Leader, 8 // more often than a single cut asks
	n.cuts.Leader = func(group uint32) (quorum.Node, error) {
		if group == 1 && left > 0 {
			left--
			return 0, replica.ErrUnavailable
		}
		return leader(group)
	}
	c.takeBackup(1)
	require.Zero(t, left)

	ctx, cancel := context.WithCancel(context.Background())
	n.cuts.Leader = func(uint32) (quorum.Node, error) {
		cancel() // its client has gone
		return 0, replica.ErrUnavailable
	}
	_, err := n.Backup(ctx, "test", time.Now())
	require.Error(t, err)
}

// Of a backup that was restored on two nodes the second one is not served, whoever has begun. The first one is, with
// nodes that came with nothing, and starts again while the second one is there, too.
func TestBackupRestoredTwice(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, nil)
	require.NoError(t, track(c.node(1).Coordinator(), "bought", users("u", 30)...))
	archive := c.takeBackup(1)
	restored := newTestCluster(t, 3, nil)
	for node := quorum.Node(1); node <= 2; node++ {
		f := restored.bootstrap()
		f.Node, f.Dir, f.Groups = node, restored.options(node).Dir, 0
		_, _, err := founding.RestoreBackup(context.Background(), bytes.NewReader(archive), f)
		require.NoError(t, err)
	}
	for first := quorum.Node(1); first <= 2; first++ {
		restored.start(first)
		_, err := restored.open(3 - first)
		require.ErrorContains(t, err, fmt.Sprintf("--members leads to node %d of cluster %s", first, restored.node(first).facts.Get().Cluster))
		restored.stop(first)
	}
	restored.start(1)
	restored.start(3)
	restored.members = maps.Clone(restored.members) // the other one is started with members that it has for itself
	members := restored.members
	restored.members = map[quorum.Node]string{2: members[2]}
	restored.start(2)
	restored.members = members
	restored.stop(1)
	restored.start(1)
}

// A backup that was changed anywhere is refused, and the attempt to restore it leaves nothing.
func TestRestoreBackupRefuses(t *testing.T) {
	t.Parallel()
	seed := testseed.Of(t)
	c := startCluster(t, 1, nil)
	require.NoError(t, track(c.node(1).Coordinator(), "bought", users("u", 30)...))
	archive := c.takeBackup(1)
	_, err := backup.Verify(context.Background(), bytes.NewReader(archive))
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(seed, 1))
	restored := newTestCluster(t, 1, nil)
	restore := func(archive []byte, change func(*founding.Options)) error {
		f := restored.bootstrap()
		f.Groups = 0
		if change != nil {
			change(&f)
		}
		_, _, err := founding.RestoreBackup(context.Background(), bytes.NewReader(archive), f)
		if err != nil {
			requireNothing(t, f.Dir)
		}
		return err
	}
	for range testsize.Of(60, 4, 3) {
		cut := archive[:r.IntN(len(archive))]
		require.ErrorIs(t, restore(cut, nil), backup.ErrArchive)
		at := r.IntN(len(archive))
		flipped := bytes.Clone(archive)
		flipped[at] ^= 1 << r.IntN(8)
		require.Error(t, restore(flipped, nil), "byte %d", at)
	}
	require.ErrorContains(t, restore(archive, func(f *founding.Options) { f.Groups = 8 }), "it is of 4 groups")
	_, err = backup.Restore(context.Background(), nil, filepath.Join(t.TempDir(), "alone"), bytes.NewReader(archive))
	require.ErrorContains(t, err, "it is the backup of a cluster")

	dir, _ := killedAlone(t, seed)
	a := openAlone(t, nil, dir)
	image, err := backup.Take(context.Background(), a.Replica(), a.events, "test", time.Now())
	require.NoError(t, err)
	var single bytes.Buffer
	_, err = image.Write(context.Background(), &single)
	require.NoError(t, err)
	require.NoError(t, image.Release())
	require.ErrorContains(t, restore(single.Bytes(), nil), "it is not the backup of a cluster")

	require.NoError(t, restore(archive, nil))
	restored.start(1)
	n, err := events(restored.node(1).Coordinator(), 1, "u3", "bought")
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = os.Stat(filepath.Join(restored.bootstrap().Dir, facts.GroupsDir, "1", "log", "TAIL"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
