package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testseed"
	"millrace/loadtest/testsize"
	"millrace/shard/op"
	"millrace/shard/replica"
)

// F2: power is lost at random moments under concurrent clients, and any share of what was not synced is on the disk. In
// every image, what was acknowledged is there exactly once, and no request is there partially. This holds also when
// power is lost again while that image recovers.
func TestFaultPowerLoss(t *testing.T) {
	seed := testseed.Of(t)
	engines, images := testsize.Of(40, 2, 1), testsize.Of(300, 15, 5)
	var total, second atomic.Int64
	for i := range engines {
		powerLossRun(t, seed, uint64(i), images, &total, &second)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d images, %d of them of a recovery", total.Load(), second.Load())
	require.GreaterOrEqual(t, total.Load(), int64(engines*images))
}

// crashOptions are bounds so small that segments, checkpoints and evictions happen all the time.
func crashOptions(fs vfs.FS, r *rand.Rand) replica.EngineOptions {
	o := testOptions(fs)
	o.Workers = 1 + r.IntN(4)
	o.Log.SegmentBytes = 32 << 10 << r.IntN(5)
	o.CheckpointBytes = 8 << 10 << r.IntN(8)
	o.CheckpointInterval = time.Duration(1+r.IntN(50)) * time.Millisecond
	if r.IntN(2) == 0 {
		o.MemoryBytes = int64(o.Workers) * 2000 // a dozen entries each
	}
	return o
}

func powerLossRun(t *testing.T, seed, run uint64, images int, total, second *atomic.Int64) {
	r := rand.New(rand.NewPCG(seed, run))
	fs := vfs.NewCrashableMem()
	e, err := openEngine(crashOptions(fs, r))
	require.NoError(t, err)
	clients := make([]*client, 4)
	for i := range clients {
		clients[i] = &client{name: fmt.Sprint("c", i)}
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	for _, c := range clients {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := c.request(e); err != nil {
					t.Errorf("run %d: %v", run, err)
					return
				}
				time.Sleep(100 * time.Microsecond) // so that there isn't too much to replay
			}
		})
	}
	for image := range images {
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond)
		if r.IntN(8) == 0 {
			require.NoError(t, e.Checkpoint())
		}
		img := takeImage(fs, clients, r)
		total.Add(1)
		if err := img.check(r, total, second); err != nil {
			t.Errorf("run %d, image %d (%d %% of what was not synced): %v", run, image, img.percent, err)
			break
		}
	}
	close(stop)
	running.Wait()
	require.NoError(t, e.Close())
	for _, c := range clients {
		require.Positive(t, c.acked.Load())
	}
	require.NoError(t, reopen(fs, clients))
}

// image is a disk as a loss of power leaves it.
type image struct {
	fs          *vfs.MemFS
	percent     int
	clients     []*client
	least, most []int64
}

func takeImage(fs *vfs.MemFS, clients []*client, r *rand.Rand) *image {
	img := &image{clients: clients, percent: []int{0, 100, r.IntN(101)}[r.IntN(3)]}
	for _, c := range clients {
		img.least = append(img.least, c.acked.Load())
	}
	img.fs = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: img.percent, RNG: rand.New(rand.NewPCG(r.Uint64(), 0))})
	for _, c := range clients {
		img.most = append(img.most, c.sent.Load())
	}
	return img
}

// check opens the image and looks at everything. Now and then power is lost once more, before or after the look.
func (img *image) check(r *rand.Rand, total, second *atomic.Int64) error {
	e, err := openEngine(crashOptions(img.fs, r))
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	again := r.IntN(4)
	if again == 0 { // while work that was interrupted is still under way
		if err := img.again(r, total, second); err != nil {
			return errors.Join(err, e.Close())
		}
	}
	if err := img.shows(e); err != nil {
		return errors.Join(err, e.Close())
	}
	if again == 1 { // the engine goes on from where it was
		more := &client{name: "more"}
		for range 8 {
			if err := more.request(e); err != nil {
				return errors.Join(err, e.Close())
			}
		}
		img.clients, img.least, img.most = append(img.clients[:len(img.clients):len(img.clients)], more), append(img.least, 8), append(img.most, 8)
		if err := img.again(r, total, second); err != nil {
			return errors.Join(err, e.Close())
		}
	}
	return e.Close()
}

func (img *image) again(r *rand.Rand, total, second *atomic.Int64) error {
	total.Add(1)
	second.Add(1)
	next := *img
	next.percent = r.IntN(101)
	next.fs = img.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: next.percent, RNG: rand.New(rand.NewPCG(r.Uint64(), 0))})
	e, err := openEngine(crashOptions(next.fs, r))
	if err != nil {
		return fmt.Errorf("open after a second loss of power (%d %%): %w", next.percent, err)
	}
	if err := next.shows(e); err != nil {
		return errors.Join(fmt.Errorf("after a second loss of power (%d %%): %w", next.percent, err), e.Close())
	}
	return e.Close()
}

func (img *image) shows(e *Engine) error {
	return settled(e, func() error {
		for i, c := range img.clients {
			if err := c.check(e, img.least[i], img.most[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// A worker that gets nothing to do must not keep the log from being trimmed. Otherwise the log would grow for ever with
// all load on one user.
func TestFaultHotUserLetsTheLogGo(t *testing.T) {
	o := testOptions(vfs.NewMem())
	o.Workers = 4
	o.Log.SegmentBytes = 32 << 10
	e := openTest(t, o)
	for i := range 1000 {
		commitEvent(t, e, op.ExternalID, "hot", "e", 0)
		if i%100 == 99 {
			eventually(t, "the other workers have counted it", func() bool { return e.AppliedPosition() == uint64(i+1) })
			require.NoError(t, e.Checkpoint())
		}
	}
	require.Greater(t, e.FirstPosition(), uint64(1))
	require.Equal(t, uint64(1000), e.CheckpointedPosition())
}
