package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// network is what lies between the nodes of a cluster under test. Nodes are numbered from 1.
type network interface {
	// raft is where a node listens for the others (--raft), member where the others find it (--members).
	raft(node int) string
	member(node int) string
	// api and admin are where a node listens for clients.
	api(node int) string
	admin(node int) string
	// command runs a program where the node is.
	command(node int, program string, args ...string) (string, []string)
	// started tells which process a node is.
	started(node, pid int)
	// cut stops everything that goes from one node to another, as if packets were lost: nothing is refused, it just doesn't arrive. The other direction is left
	// as it is. mend undoes it: what has waited arrives late, or its connections have broken meanwhile, as reset says.
	cut(from, to int)
	mend(from, to int, reset bool)
	// delay makes what goes from one node to another take longer.
	delay(from, to int, by time.Duration)
}

// links is a network in user space, which needs no rights: a proxy in front of each node, which sees whose connection it is by the socket's owner, and lets each
// direction between two nodes through, or holds it.
type links struct {
	t       *testing.T
	members []*link

	mu    sync.Mutex
	ways  map[[2]int]*way
	pids  map[int]int // node → process
	conns map[net.Conn][2]int
}

// link is the proxy of one node.
type link struct {
	node               int
	listener           net.Listener
	target, api, admin string
}

// way is one direction between two nodes.
type way struct {
	open  chan struct{} // closed while what comes is let through
	delay time.Duration
}

// newLinks makes proxies for so many nodes.
func newLinks(t *testing.T, nodes int) *links {
	l := &links{t: t, ways: map[[2]int]*way{}, pids: map[int]int{}, conns: map[net.Conn][2]int{}}
	for node := 1; node <= nodes; node++ {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		m := &link{node: node, listener: listener, target: freeAddr(t), api: freeAddr(t), admin: freeAddr(t)}
		l.members = append(l.members, m)
		go l.serve(m)
	}
	t.Cleanup(l.close)
	return l
}

func (l *links) close() {
	for _, m := range l.members {
		m.listener.Close()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.conns {
		c.Close()
	}
}

func (l *links) raft(node int) string   { return l.members[node-1].target }
func (l *links) member(node int) string { return l.members[node-1].listener.Addr().String() }
func (l *links) api(node int) string    { return l.members[node-1].api }
func (l *links) admin(node int) string  { return l.members[node-1].admin }

func (l *links) command(_ int, program string, args ...string) (string, []string) {
	return program, args
}

func (l *links) started(node, pid int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pids[node] = pid
}

// way is that between two nodes, made open when it is new. The lock is held.
func (l *links) way(from, to int) *way {
	w := l.ways[[2]int{from, to}]
	if w == nil {
		w = &way{open: make(chan struct{})}
		close(w.open)
		l.ways[[2]int{from, to}] = w
	}
	return w
}

func (w *way) isOpen() bool {
	select {
	case <-w.open:
		return true
	default:
		return false
	}
}

func (l *links) cut(from, to int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.way(from, to); w.isOpen() {
		w.open = make(chan struct{})
	}
}

func (l *links) mend(from, to int, reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reset {
		for c, between := range l.conns {
			if between == [2]int{from, to} || between == [2]int{to, from} {
				c.Close()
			}
		}
	}
	if w := l.way(from, to); !w.isOpen() {
		close(w.open)
	}
}

func (l *links) delay(from, to int, by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.way(from, to).delay = by
}

// pass waits until something may go from one node to another.
func (l *links) pass(from, to int) {
	for {
		l.mu.Lock()
		w := l.way(from, to)
		open, delay := w.open, w.delay
		l.mu.Unlock()
		select {
		case <-open:
		default:
			<-open
			continue
		}
		time.Sleep(delay)
		return
	}
}

func (l *links) serve(m *link) {
	for {
		c, err := m.listener.Accept()
		if err != nil {
			return
		}
		go l.connect(m, c)
	}
}

// connect carries one connection. Each direction is held by itself, an end of it too.
func (l *links) connect(m *link, near net.Conn) {
	defer near.Close()
	from := l.owner(near.RemoteAddr().(*net.TCPAddr).Port)
	if from == 0 {
		return // who dialled is gone
	}
	l.pass(from, m.node)
	far, err := net.DialTimeout("tcp", m.target, 5*time.Second)
	l.pass(m.node, from)
	if err != nil {
		_ = near.(*net.TCPConn).SetLinger(0) // refused
		return
	}
	defer far.Close()
	l.mu.Lock()
	l.conns[near], l.conns[far] = [2]int{from, m.node}, [2]int{from, m.node}
	l.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { l.carry(near, far, from, m.node) })
	both.Go(func() { l.carry(far, near, m.node, from) })
	both.Wait()
	l.mu.Lock()
	delete(l.conns, near)
	delete(l.conns, far)
	l.mu.Unlock()
}

// carry moves what one node sends to another until the connection ends, and then ends the other half.
func (l *links) carry(src, dst net.Conn, from, to int) {
	b := make([]byte, 64<<10)
	for {
		n, err := src.Read(b)
		l.pass(from, to)
		if n > 0 {
			if _, e := dst.Write(b[:n]); e != nil {
				src.Close()
				return
			}
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				_ = dst.(*net.TCPConn).CloseWrite()
				return
			}
			_ = dst.(*net.TCPConn).SetLinger(0)
			dst.Close()
			return
		}
	}
}

// owner is the node whose process has the socket of that local port; 0: none.
func (l *links) owner(port int) int {
	inode := inodeOf(port)
	if inode == "" {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for node, pid := range l.pids {
		dir := fmt.Sprintf("/proc/%d/fd/", pid)
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if name, err := os.Readlink(dir + e.Name()); err == nil && name == "socket:["+inode+"]" {
				return node
			}
		}
	}
	return 0
}

// inodeOf is the inode of the socket at 127.0.0.1 with a local port that dialled somebody.
func inodeOf(port int) string {
	text, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return ""
	}
	local := fmt.Sprintf("0100007F:%04X", port)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == local && f[9] != "0" {
			if _, err := strconv.ParseUint(f[9], 10, 64); err == nil {
				return f[9]
			}
		}
	}
	return ""
}

// A link lets each direction through, holds it, and lets it go on or breaks it.
func TestLinks(t *testing.T) {
	l := newLinks(t, 2)
	l.started(1, os.Getpid())
	server, err := net.Listen("tcp", l.raft(2))
	require.NoError(t, err)
	defer server.Close()
	dial := func() (near, far net.Conn) {
		near, err := net.Dial("tcp", l.member(2))
		require.NoError(t, err)
		far, err = server.Accept()
		require.NoError(t, err)
		t.Cleanup(func() { near.Close(); far.Close() })
		return near, far
	}
	near, far := dial()
	send := func(c net.Conn, text string) {
		_, err := c.Write([]byte(text))
		require.NoError(t, err)
	}
	comes := func(c net.Conn, text string) {
		t.Helper()
		b := make([]byte, len(text))
		require.NoError(t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err := io.ReadFull(c, b)
		require.NoError(t, err)
		require.Equal(t, text, string(b))
	}
	nothing := func(c net.Conn) {
		t.Helper()
		require.NoError(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	}
	send(near, "there")
	comes(far, "there")
	send(far, "back")
	comes(near, "back")

	l.cut(1, 2)
	send(near, "late")
	nothing(far)
	send(far, "goes on")
	comes(near, "goes on")
	l.mend(1, 2, false)
	comes(far, "late")

	l.cut(2, 1)
	send(far, "never")
	nothing(near)
	l.mend(2, 1, true)
	require.NoError(t, near.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = near.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)

	near, far = dial()
	near.Close() // an end is an end
	require.NoError(t, far.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = far.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)

	l.mu.Lock()
	l.pids = map[int]int{}
	l.mu.Unlock()
	stranger, err := net.Dial("tcp", l.member(2))
	require.NoError(t, err)
	defer stranger.Close()
	_, err = stranger.Read(make([]byte, 1))
	require.Error(t, err)
}
