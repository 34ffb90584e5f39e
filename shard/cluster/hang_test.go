package cluster

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"millrace/loadtest/testaddr"
	"millrace/shard"
	"millrace/shard/op"
	"millrace/wal/quorum"
)

// fog lies between nodes: what a node that is in it sends, or is sent, doesn't arrive, and nobody is told. Each node has an address before it.
type fog struct {
	mu     sync.Mutex
	hidden quorum.Node
	clear  sync.Cond
}

func newFog() *fog {
	f := &fog{}
	f.clear.L = &f.mu
	return f
}

func (f *fog) hide(node quorum.Node) {
	f.mu.Lock()
	f.hidden = node
	f.mu.Unlock()
	f.clear.Broadcast()
}

// pass waits while one of the nodes is hidden.
func (f *fog) pass(a, b quorum.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.hidden != 0 && (f.hidden == a || f.hidden == b) {
		f.clear.Wait()
	}
}

// before listens at an address and carries connections to where the node really is.
func (f *fog) before(t *testing.T, node quorum.Node, address, real string) {
	l, err := net.Listen("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go f.carry(c, node, real)
		}
	}()
}

const greetingBytes = 24 // of who dials; its number stands at 12 (quorum.Host)

func (f *fog) carry(from net.Conn, node quorum.Node, real string) {
	defer from.Close()
	greeting := make([]byte, greetingBytes)
	if _, err := io.ReadFull(from, greeting); err != nil {
		return
	}
	dialer := quorum.Node(binary.LittleEndian.Uint32(greeting[12:]))
	f.pass(dialer, node)
	to, err := net.Dial("tcp", real)
	if err != nil {
		return
	}
	defer to.Close()
	if _, err := to.Write(greeting); err != nil {
		return
	}
	copying := func(dst, src net.Conn) {
		defer dst.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := src.Read(b)
			f.pass(dialer, node)
			if err != nil {
				return
			}
			if _, err := dst.Write(b[:n]); err != nil {
				return
			}
		}
	}
	go copying(from, to)
	copying(to, from)
}

// commitOnce commits an event of a user under a key, as a request with an Idempotency-Key.
func commitOnce(e *shard.Engine, key, user, name string) error {
	b := e.NewBatch(testWorkspace, 0)
	defer b.Release()
	addEvent(b, op.ExternalID, user, name)
	b.KeepAnswer([]byte(key), [32]byte{}, 201, []byte("done"))
	return b.Commit()
}

// A node that leads groups falls silent under requests, and nobody closes a connection. All calls of it end by the one verdict, long before their own time is
// over; requests with a key are done by who leads then, once; those without are done or unknown, and nothing that was acknowledged is lost.
func TestSilentLeader(t *testing.T) {
	t.Parallel()
	f := newFog()
	c := newTestCluster(t, 3, func(o *Options) {
		o.HelloTimeout = time.Second
		o.CommitTimeout, o.FenceTimeout, o.LeaderWait = time.Hour, time.Hour, time.Hour // nothing ends by itself
	})
	real := map[quorum.Node]string{}
	for node, address := range c.members {
		real[node] = testaddr.Free(t)
		f.before(t, node, address, real[node])
	}
	change := c.change
	c.change = func(o *Options) {
		change(o)
		o.Listen = real[o.Node]
	}
	t.Cleanup(func() { f.hide(0) }) // before nodes are closed
	c.start(1, 2, 3)

	all := users("u", 12)
	keyed, unkeyed := make(chan error, len(all)), make(chan error, len(all))
	lost := quorum.Node(0)
	for i := range c.node(1).replicas { // some other node that leads a user group
		if leader := c.node(1).routes.leader(uint32(i)); i > 0 && leader != 1 {
			lost = leader
		}
	}
	if lost == 0 {
		require.NoError(t, c.node(1).group(1).log.Transfer(3))
		lost = 3
	}
	front := c.node(1).Front()
	var warm sync.WaitGroup
	for _, u := range all { // so that there are connections
		warm.Go(func() { assert.NoError(t, track(front, "before", u)) })
	}
	warm.Wait()
	f.hide(lost)
	for _, u := range all {
		go func() { keyed <- commitOnce(front, "key-"+u, u, "keyed") }()
		go func() { unkeyed <- track(front, "unkeyed", u) }()
	}
	acked := 0
	for range all {
		if err := <-keyed; err != nil {
			require.ErrorIs(t, err, shard.ErrKept, "done before, by the first try")
		}
		switch err := <-unkeyed; {
		case err == nil:
			acked++
		default:
			require.True(t, errors.Is(err, shard.ErrUnknown) || errors.Is(err, shard.ErrUnavailable), "%v", err)
		}
	}
	f.hide(0)
	total := 0
	for _, u := range all {
		n, err := events(front, op.ExternalID, u, "keyed")
		require.NoError(t, err)
		require.Equal(t, 1, n, u)
		n, err = events(front, op.ExternalID, u, "unkeyed")
		require.NoError(t, err)
		require.LessOrEqual(t, n, 1, u)
		total += n
	}
	require.GreaterOrEqual(t, total, acked)
	t.Logf("of %d requests without a key %d were acknowledged, %d done", len(all), acked, total)
}
