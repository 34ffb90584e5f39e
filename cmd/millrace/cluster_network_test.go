package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"millrace/loadtest/testaddr"
)

// network is what lies between the nodes of a cluster under test, and between them and the test. Nodes are numbered
// from 1.
type network interface {
	// raft, api and admin are where a node listens, for the others and for clients.
	raft(node int) string
	api(node int) string
	admin(node int) string
	// flags are those that a node's network needs.
	flags(node int) []string
	// command runs a program where the node is, under the same process id.
	command(node int, program string, args ...string) (string, []string)
	// canCut: whether there is cut.
	canCut() bool
	// cut loses everything that one node sends to another. The other direction, and clients, are left alone. mend
	// undoes it.
	cut(from, to int)
	mend(from, to int)
}

// newNetwork is made of namespaces where that is permitted. Elsewhere nothing can be cut; what else is tested is tested
// all the same.
func newNetwork(t *testing.T, nodes int) network {
	t.Helper()
	for range 3 { // another test may have taken the same addresses in the same moment
		n, err := newNamespaces(t, nodes)
		if err == nil {
			return n
		}
		t.Logf("no network namespaces, so the network is never cut here: %v", err)
		if !errors.Is(err, errUnreachable) {
			break
		}
	}
	return newLoopback(t, nodes)
}

// loopback is all nodes on 127.0.0.1.
type loopback [][3]string

func newLoopback(t *testing.T, nodes int) loopback {
	var l loopback
	for range nodes {
		l = append(l, [3]string{testaddr.Free(t), testaddr.Free(t), testaddr.Free(t)})
	}
	return l
}

func (l loopback) raft(node int) string  { return l[node-1][0] }
func (l loopback) api(node int) string   { return l[node-1][1] }
func (l loopback) admin(node int) string { return l[node-1][2] }
func (l loopback) flags(int) []string    { return []string{"--raft-insecure"} }
func (l loopback) canCut() bool          { return false }
func (l loopback) cut(int, int)          { panic("BUG: nothing can be cut on loopback") }
func (l loopback) mend(int, int)         { panic("BUG: nothing can be cut on loopback") }

func (l loopback) command(_ int, program string, args ...string) (string, []string) {
	return program, args
}

// namespaces is a network namespace for each node, and one with the switch that they and the test are connected to. Who
// has which Ethernet address is written down in each of them. A direction is cut by writing down one that nobody has:
// so packets are lost, as in a broken network, and nobody is told.
type namespaces struct {
	t      *testing.T
	name   string // of the namespaces, before what tells them apart
	subnet string // the first three bytes of all addresses
	nodes  int
	certs  string // directory
}

var (
	namespaceCount atomic.Int64
	errUnreachable = errors.New("a node's namespace can't be reached")
)

// newNamespaces makes them. When it fails, nothing is left behind.
func newNamespaces(t *testing.T, nodes int) (*namespaces, error) {
	removeStaleNamespaces()
	n := &namespaces{t: t, name: fmt.Sprintf("mr%d-%d", os.Getpid(), namespaceCount.Add(1)), nodes: nodes, certs: t.TempDir()}
	var err error
	if n.subnet, err = freeSubnet(); err != nil {
		return nil, err
	}
	err = n.build()
	t.Cleanup(n.remove)
	if err != nil {
		n.remove()
		return nil, err
	}
	ca := newAuthority(t, n.certs, "ca")
	for node := 1; node <= nodes; node++ {
		ca.issue(int64(node), n.cert(node, "cert"), n.cert(node, "key"))
	}
	return n, nil
}

// freeSubnet is one of those that are kept for tests of networks (RFC 2544), and not in use here.
func freeSubnet() (string, error) {
	taken, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
	for range 100 {
		subnet := fmt.Sprintf("198.%d.%d.", 18+rand.IntN(2), rand.IntN(256))
		isTaken := false
		for _, a := range taken {
			isTaken = isTaken || strings.HasPrefix(a.String(), subnet)
		}
		if !isTaken {
			return subnet, nil
		}
	}
	return "", errors.New("no subnet is free")
}

func (n *namespaces) space(node int) string   { return fmt.Sprintf("%s-%d", n.name, node) }
func (n *namespaces) address(node int) string { return fmt.Sprint(n.subnet, node) }
func ethernet(node int) string                { return fmt.Sprintf("02:00:00:00:00:%02x", node) }

const (
	switchSpace = 0                   // the switch's namespace counts as node 0
	testHost    = 254                 // last byte of the test's own address
	nowhere     = "02:ff:ff:ff:ff:ff" // an Ethernet address that nobody has
)

func (n *namespaces) build() error {
	for node := switchSpace; node <= n.nodes; node++ {
		if err := ip("", "netns", "add", n.space(node)); err != nil {
			return err
		}
	}
	wiring := "link add switch type bridge forward_delay 0\nlink set switch up\n"
	for node := 1; node <= n.nodes; node++ {
		wiring += fmt.Sprintf("link add port%d type veth peer name node address %s netns %s\nlink set port%d master switch up\n", node, ethernet(node), n.space(node), node)
	}
	if err := ip(wiring, "-n", n.space(switchSpace)); err != nil {
		return err
	}
	// Made from here: the namespace of the process is that of its first thread, which a listener of another test may have
	// taken elsewhere (socket).
	if err := ip(fmt.Sprintf("link add %s type veth peer name clients netns %s\naddr add %s/24 dev %s\nlink set %s up\n",
		n.name, n.space(switchSpace), n.address(testHost), n.name, n.name)); err != nil {
		return err
	}
	if err := ip("link set clients master switch up\n", "-n", n.space(switchSpace)); err != nil {
		return err
	}
	for node := 1; node <= n.nodes; node++ {
		setup := fmt.Sprintf("link set lo up\naddr add %s/24 dev node\nlink set node up\n", n.address(node))
		for other := 1; other <= n.nodes; other++ {
			if other != node {
				setup += fmt.Sprintf("neigh replace %s lladdr %s dev node nud permanent\n", n.address(other), ethernet(other))
			}
		}
		if err := ip(setup, "-n", n.space(node)); err != nil {
			return err
		}
	}
	program, args := n.command(1, "true")
	if err := command(program, args...); err != nil {
		return err
	}
	for node := 1; node <= n.nodes; node++ {
		c, err := net.DialTimeout("tcp", n.address(node)+":1", 2*time.Second)
		if err == nil {
			c.Close()
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // nobody listens there, and says so
			return fmt.Errorf("%w: %v", errUnreachable, err)
		}
	}
	return nil
}

func (n *namespaces) remove() {
	_ = ip("", "link", "del", n.name)
	for node := switchSpace; node <= n.nodes; node++ {
		_ = ip("", "netns", "del", n.space(node))
	}
}

// ip runs the program of that name, with a batch when that isn't "".
func ip(batch string, args ...string) error {
	if batch != "" {
		args = append(args, "-batch", "-")
	}
	c := exec.Command("ip", args...)
	c.Stdin = strings.NewReader(batch)
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(text))
	}
	return nil
}

var namespaceName = regexp.MustCompile(`^mr(\d+)-\d+-\d+$`)

// removeStaleNamespaces removes those of tests that were killed.
func removeStaleNamespaces() {
	entries, _ := os.ReadDir("/run/netns")
	for _, e := range entries {
		if m := namespaceName.FindStringSubmatch(e.Name()); m != nil {
			if _, err := os.Stat("/proc/" + m[1]); errors.Is(err, os.ErrNotExist) {
				_ = ip("", "netns", "del", e.Name())
			}
		}
	}
}

func (n *namespaces) raft(node int) string  { return n.address(node) + ":7081" }
func (n *namespaces) api(node int) string   { return n.address(node) + ":8080" }
func (n *namespaces) admin(node int) string { return n.address(node) + ":8081" }
func (n *namespaces) canCut() bool          { return true }

func (n *namespaces) cert(node int, what string) string {
	return filepath.Join(n.certs, fmt.Sprintf("%s%d.pem", what, node))
}

func (n *namespaces) flags(node int) []string {
	return []string{"--insecure-http", "--raft-cert", n.cert(node, "cert"), "--raft-key", n.cert(node, "key"), "--raft-ca", filepath.Join(n.certs, "ca.pem")}
}

func (n *namespaces) command(node int, program string, args ...string) (string, []string) {
	return "nsenter", append([]string{"--net=/run/netns/" + n.space(node), program}, args...) // ip netns exec would keep the mounts of that moment
}

func (n *namespaces) cut(from, to int)  { n.point(from, to, nowhere) }
func (n *namespaces) mend(from, to int) { n.point(from, to, ethernet(to)) }

// point has a node send what is for another to an Ethernet address.
func (n *namespaces) point(from, to int, ethernet string) {
	n.t.Helper()
	require.NoError(n.t, ip("", "-n", n.space(from), "neigh", "replace", n.address(to), "lladdr", ethernet, "dev", "node", "nud", "permanent"))
}

// socket is one of a node's.
func (n *namespaces) socket(node int) net.PacketConn {
	n.t.Helper()
	type made struct {
		c   net.PacketConn
		err error
	}
	result := make(chan made)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine: it is not in the namespace of the others any more
		space, err := os.Open("/run/netns/" + n.space(node))
		if err == nil {
			err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET)
			space.Close()
		}
		if err != nil {
			result <- made{err: err}
			return
		}
		c, err := net.ListenPacket("udp4", n.address(node)+":9000")
		result <- made{c, err}
	}()
	m := <-result
	require.NoError(n.t, m.err)
	n.t.Cleanup(func() { m.c.Close() })
	return m.c
}

// What the test of a cluster cuts is cut, in this direction between these two, and nothing else.
func TestNamespaces(t *testing.T) {
	n, err := newNamespaces(t, 3)
	if err != nil {
		t.Skipf("no network namespaces here: %v", err)
	}
	var sockets []net.PacketConn
	for node := 1; node <= 3; node++ {
		sockets = append(sockets, n.socket(node))
	}
	cut := map[[2]int]bool{}
	check := func() {
		t.Helper()
		buffer := make([]byte, 16)
		for to := 1; to <= 3; to++ {
			var want, got []string
			for from := 1; from <= 3; from++ {
				if from != to {
					_, err := sockets[from-1].WriteTo([]byte(fmt.Sprint(from)), sockets[to-1].LocalAddr())
					require.NoError(t, err, "who sends is told nothing")
				}
				if from != to && !cut[[2]int{from, to}] {
					want = append(want, fmt.Sprint(from))
				}
			}
			for wait := 10 * time.Second; ; { // for what has to come, and then a bit for what hasn't
				if len(got) >= len(want) {
					wait = 30 * time.Millisecond
				}
				require.NoError(t, sockets[to-1].SetReadDeadline(time.Now().Add(wait)))
				k, _, err := sockets[to-1].ReadFrom(buffer)
				if err != nil {
					break
				}
				got = append(got, string(buffer[:k]))
			}
			require.ElementsMatch(t, want, got, "to node %d, with %v cut", to, cut)
		}
	}
	check()
	for _, d := range [][2]int{{1, 2}, {3, 1}, {2, 1}} {
		n.cut(d[0], d[1])
		cut[d] = true
		check()
	}
	for _, d := range [][2]int{{1, 2}, {3, 1}} {
		n.mend(d[0], d[1])
		delete(cut, d)
		check()
	}
}
