package refused

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"millrace/wal/durable"
	"millrace/wal/pause"
)

// debts are the deletions that other nodes have yet to be told of. They are few, since few nodes are out of reach, and
// not for long. They are on disk before anybody is answered. After the retention time the other node no longer has
// anything that old.
type debts struct {
	path    string
	options *Options
	nodes   func() []uint32 // of the cluster
	pay     func(ctx context.Context, node uint32, ids []uint64) error

	mu   sync.Mutex // guards owed and the file
	owed []debt

	stop  context.CancelFunc
	ended chan struct{}
}

type debt struct {
	Node  uint32   `json:"node"`
	Since int64    `json:"since"` // Unix ms
	IDs   []uint64 `json:"ids"`
}

const (
	payInterval = 5 * time.Second
	payTimeout  = 5 * time.Second
	maxDebts    = 100_000 // number of identifiers, for nodes of the cluster
)

// errTooMany is returned when so much is owed that no more can be added.
var errTooMany = errors.New("too many deletions wait for a node that can't be reached: remove it from the cluster, " +
	"or bring it back")

func openDebts(
	own *Store, nodes func() []uint32, pay func(context.Context, uint32, []uint64) error,
) (*debts, error) {
	d := &debts{path: filepath.Join(own.options.Dir, "OWED"), options: &own.options, nodes: nodes, pay: pay,
		ended: make(chan struct{})}
	text, err := os.ReadFile(d.path)
	if err == nil {
		err = durable.UnsealText(text, &d.owed)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	go d.run(ctx)
	return d, nil
}

func (d *debts) close() error {
	d.stop()
	<-d.ended
	return nil
}

// add notes that nodes have to be told.
func (d *debts) add(nodes []uint32, ids []uint64) error {
	if len(nodes) == 0 {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	n, known := len(nodes)*len(ids), d.nodes()
	for _, x := range d.owed { // those of removed nodes are not forgotten: this node may be behind with its documents
		if slices.Contains(known, x.Node) {
			n += len(x.IDs)
		}
	}
	if n > maxDebts {
		return errTooMany
	}
	before := d.owed
	for _, node := range nodes {
		d.owed = append(d.owed[:len(d.owed):len(d.owed)], debt{node, d.options.Now(), ids})
	}
	if err := d.save(); err != nil {
		d.owed = before
		return err
	}
	return nil
}

// save writes the file. The caller holds d.mu.
func (d *debts) save() error {
	return durable.ReplaceFile(d.path, durable.SealText(d.owed), 0o600)
}

func (d *debts) run(ctx context.Context) {
	defer close(d.ended)
	for range pause.Every(payInterval, ctx.Done()) {
		d.payAll(ctx)
	}
}

// payAll tells the nodes that it can reach, and forgets what is too old.
func (d *debts) payAll(ctx context.Context) {
	d.mu.Lock()
	owed := slices.Clone(d.owed)
	d.mu.Unlock()
	silent := map[uint32]bool{}
	var paid []debt
	for _, x := range owed {
		if silent[x.Node] || ctx.Err() != nil {
			continue
		}
		if d.options.Now()-x.Since <= d.options.Retention.Milliseconds() {
			ctx, cancel := context.WithTimeout(ctx, payTimeout)
			err := d.pay(ctx, x.Node, x.IDs)
			cancel()
			if err != nil {
				silent[x.Node] = true
				continue
			}
		}
		paid = append(paid, x)
	}
	if len(paid) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owed = slices.DeleteFunc(slices.Clone(d.owed), func(x debt) bool {
		return slices.ContainsFunc(paid,
			func(p debt) bool { return p.Node == x.Node && p.Since == x.Since && slices.Equal(p.IDs, x.IDs) })
	})
	if err := d.save(); err != nil {
		d.options.Logger.Error("refused objects: pending deletions on other nodes can't be saved", "error", err)
	}
}
