package host

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"millrace/loadtest/testlog"
	"millrace/wal/quorum/host/testnet"
)

// testHost listens on loopback. All hosts of a test know the addresses, which are separated by spaces.
func testHost(t *testing.T, where map[Node]string, n Node, cluster string, c *tls.Config) *Host {
	h, err := Listen(Options{Node: n, Listen: "127.0.0.1:0", TLS: c, Logger: slog.New(slog.DiscardHandler), Resolve: func(n Node) []string {
		return strings.Fields(where[n])
	}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = h.Close() })
	if cluster != "" {
		h.SetCluster(cluster)
	}
	where[n] = h.Addr().String()
	return h
}

// talk sends something over a connection for calls, both ways.
func talk(t *testing.T, from, to *Host) (there *Conn) {
	t.Helper()
	c, err := from.DialCalls(to.Node(), time.Minute)
	require.NoError(t, err)
	defer c.Close()
	a, err := to.Calls().Accept()
	require.NoError(t, err)
	defer a.Close()
	for _, pair := range [][2]net.Conn{{c, a}, {a, c}} {
		_, err = pair[0].Write([]byte("hello"))
		require.NoError(t, err)
		b := make([]byte, 5)
		_, err = io.ReadFull(pair[1], b)
		require.NoError(t, err)
		require.Equal(t, "hello", string(b))
	}
	require.Equal(t, to.Node(), c.(*Conn).Node)
	return a.(*Conn)
}

func TestHost(t *testing.T) {
	where := map[Node]string{}
	one, two := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "c", nil)
	there := talk(t, one, two)
	require.EqualValues(t, 1, there.Node)
	require.Equal(t, "c", there.Cluster)
	require.Equal(t, two.Addr(), two.Calls().Addr())
	_, err := one.DialRequests(2, time.Minute)
	require.NoError(t, err)
	_, err = two.Requests().Accept()
	require.NoError(t, err)

	c, err := one.DialAddress(two.Addr().String(), time.Minute)
	require.NoError(t, err)
	require.EqualValues(t, 2, c.Node)
	_, err = one.DialCalls(9, time.Minute)
	require.ErrorContains(t, err, "not known")
	_, err = one.dialNode(2, purposeRaft, 5, time.Minute)
	require.ErrorIs(t, err, ErrAbsent)
	_, err = one.dialNode(2, 77, 0, time.Minute)
	require.ErrorIs(t, err, ErrAbsent)

	require.NoError(t, two.Close())
	require.NoError(t, two.Close())
	_, err = io.ReadAll(c) // Close has ended it
	require.NoError(t, err)
	_, err = two.Calls().Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = two.OpenGroup(1)
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = one.DialCalls(2, time.Minute)
	require.Error(t, err)
}

// A node that may be at several addresses is looked for at each of them, first where it was last.
func TestHostAtAnotherAddress(t *testing.T) {
	where := map[Node]string{}
	one, two, three := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "c", nil), testHost(t, where, 3, "c", nil)
	there := two.Addr().String()
	where[2] = three.Addr().String() + " " + there // where another node is by now
	require.EqualValues(t, 1, talk(t, one, two).Node)
	require.Equal(t, []string{there, three.Addr().String()}, one.addressesOf(2))
	require.NoError(t, three.Close())
	talk(t, one, two)

	silent, err := net.Listen("tcp", "127.0.0.1:0") // takes all the time that there is
	require.NoError(t, err)
	defer silent.Close()
	where[2] = silent.Addr().String() + " " + there
	one.setLast(2, "")
	_, err = one.DialCalls(2, 50*time.Millisecond)
	require.Error(t, err)
	talk(t, one, two)

	require.NoError(t, two.Close())
	where[2] = there + " " + three.Addr().String()
	_, err = one.DialCalls(2, time.Minute)
	require.ErrorContains(t, err, there)
	require.ErrorContains(t, err, three.Addr().String())
	where[2] = "nowhere"
	require.Equal(t, []string{"nowhere"}, one.addressesOf(2), "the last address counts among those that it may have")
}

// A caller that comes to the wrong node again and again doesn't fill the node's log.
func TestHostSaysSeldomWhoIsNotOfTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said bytes.Buffer
		h := &Host{opts: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}}
		for range 100 {
			ours, theirs := net.Pipe()
			go func() { _, _ = theirs.Write(make([]byte, handshakeBytes)) }()
			h.welcome(ours)
		}
		require.Equal(t, 1, strings.Count(said.String(), "it is no node"), said.String())
	})
}

// A node that does not know its cluster yet may call. Its connection is marked, and it gets no further.
func TestHostWithoutCluster(t *testing.T) {
	where := map[Node]string{}
	one, fresh := testHost(t, where, 1, "c", nil), testHost(t, where, 2, "", nil)
	require.Empty(t, talk(t, fresh, one).Cluster)
	require.Equal(t, "c", talk(t, one, fresh).Cluster)
	_, err := one.OpenGroup(5)
	require.NoError(t, err)
	_, err = fresh.dialNode(1, purposeRaft, 5, time.Minute)
	require.ErrorIs(t, err, ErrUnauthenticated)
	_, err = fresh.dialNode(1, purposeRequests, 0, time.Minute)
	require.ErrorIs(t, err, ErrUnauthenticated)
	_, err = fresh.OpenGroup(5)
	require.NoError(t, err)
	_, err = one.dialNode(2, purposeRaft, 5, time.Minute)
	require.ErrorIs(t, err, ErrUnauthenticated)
	fresh.SetCluster("c")
	c, err := fresh.dialNode(1, purposeRaft, 5, time.Minute)
	require.NoError(t, err)
	_ = c.Close()
}

func TestUnauthenticatedPeers(t *testing.T) {
	where := map[Node]string{}
	one := testHost(t, where, 1, "c", nil)
	other := testHost(t, where, 2, "another", nil)
	before := unauthenticatedTotal.Get()
	_, err := other.DialCalls(1, time.Minute)
	require.ErrorIs(t, err, ErrUnauthenticated)
	_, err = one.DialCalls(2, time.Minute)
	require.ErrorIs(t, err, ErrUnauthenticated)

	// Another node is at the address.
	where[3] = where[1]
	friend := testHost(t, where, 4, "c", nil)
	_, err = friend.DialCalls(3, time.Minute)
	require.ErrorIs(t, err, ErrUnauthenticated)

	for _, text := range []string{"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", handshakeMagic + "\x09" + string(bytes.Repeat([]byte{0}, 40))} {
		c, err := net.Dial("tcp", where[1])
		require.NoError(t, err)
		_, err = c.Write([]byte(text))
		require.NoError(t, err)
		b, _ := io.ReadAll(c)
		require.Empty(t, b, "nothing is told")
	}
	require.Eventually(t, func() bool { return unauthenticatedTotal.Get() >= before+5 }, time.Minute, time.Millisecond, "they are counted")
	talk(t, friend, one)
}

// A node of another version is told from a stranger, with both versions: in a rolling upgrade this is all that is said.
func TestHandshakeOfAnotherVersion(t *testing.T) {
	b := handshake{from: 1, to: 2, cluster: "c"}.append(nil)
	b[len(handshakeMagic)]++
	_, err := readHandshake(bytes.NewReader(b))
	require.ErrorIs(t, err, ErrUnauthenticated)
	require.ErrorContains(t, err, fmt.Sprintf("it speaks version %d of the protocol between nodes, and this program speaks version %d", handshakeVersion+1, handshakeVersion))
}

// Nodes with records of different versions don't meet, whoever dials: what one of them appends, the other can't apply.
func TestRecordsOfAnotherVersion(t *testing.T) {
	where := map[Node]string{}
	var log testlog.Buffer
	host := func(n Node, records uint32) *Host {
		h, err := Listen(Options{Node: n, Listen: "127.0.0.1:0", Records: records, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Resolve: func(n Node) []string { return []string{where[n]} }})
		require.NoError(t, err)
		t.Cleanup(func() { _ = h.Close() })
		h.SetCluster("c")
		where[n] = h.Addr().String()
		return h
	}
	one, two, three := host(1, 5), host(2, 6), host(3, 5)
	_, err := one.DialCalls(2, time.Minute)
	require.ErrorContains(t, err, "node 2 has records of version 6, and this program reads version 5")
	_, err = two.DialRequests(1, time.Minute)
	require.ErrorContains(t, err, "node 1 has records of version 5, and this program reads version 6")
	require.Eventually(t, func() bool {
		return strings.Contains(log.String(), "node 1 has records of version 5, and this program reads version 6") &&
			strings.Contains(log.String(), "node 2 has records of version 6, and this program reads version 5")
	}, time.Minute, time.Millisecond)
	talk(t, one, three)
}

// Peers that say nothing are cut off in the end, and the node waits for a bounded number of them. Others come through
// when there is room again.
func TestSilentPeers(t *testing.T) { testnet.Simulated(t, testSilentPeers) }

func testSilentPeers(t *testing.T) {
	net := testnet.New[Node]()
	host := func(n Node) *Host {
		h, err := Listen(Options{Node: n, Resolve: net.Resolve, Logger: slog.New(slog.DiscardHandler), Sockets: &Sockets{net.Listen(n), net.Dialer(n)}})
		require.NoError(t, err)
		t.Cleanup(func() { _ = h.Close() })
		h.SetCluster("c")
		return h
	}
	one, two := host(1), host(2)
	begun := time.Now()
	said := make(chan []byte)
	for range maxHandshakes + 10 {
		c, err := net.Dial(9, 1)
		require.NoError(t, err)
		go func() {
			b, _ := io.ReadAll(c)
			said <- b
		}()
	}
	for range 10 {
		require.Empty(t, <-said)
	}
	require.Zero(t, time.Since(begun), "those above the bound are refused at once")
	_, err := two.DialCalls(1, time.Minute)
	require.Error(t, err, "there is no room")
	for range maxHandshakes {
		require.Empty(t, <-said)
	}
	require.Equal(t, handshakeTimeout, time.Since(begun))
	talk(t, two, one)
}

// A caller that takes all the room for peers that say nothing has to make room for others, so nodes come through all
// the same.
func TestSilentPeersMakeRoom(t *testing.T) {
	where := map[Node]string{}
	authority := testnet.NewAuthority(t)
	one, two := testHost(t, where, 1, "c", authority.Config(t)), testHost(t, where, 2, "c", authority.Config(t))
	elsewhere := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var silent []net.Conn
	for range maxHandshakes {
		c, err := elsewhere.Dial("tcp", where[1])
		require.NoError(t, err)
		defer c.Close()
		silent = append(silent, c)
	}
	require.Eventually(t, func() bool {
		one.doubtful.mu.Lock()
		defer one.doubtful.mu.Unlock()
		return one.doubtful.n == maxHandshakes
	}, time.Minute, time.Millisecond, "there is no room")
	refused, err := elsewhere.Dial("tcp", where[1])
	require.NoError(t, err)
	defer refused.Close()
	_, err = refused.Read(make([]byte, 1))
	require.Error(t, err, "one more of them is closed")
	talk(t, two, one)
	_, err = silent[0].Read(make([]byte, 1))
	require.Error(t, err, "the oldest has made room")
}

// The bound holds whatever comes and goes, and an address that has no more than its share of the room keeps it.
func TestDoubtful(t *testing.T) {
	var d doubtful
	from := func(address string) net.Conn {
		return &fromConn{from: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(address))}
	}
	var many, few []net.Conn
	for range maxHandshakes - 2 {
		many = append(many, from("[2001:db8::1:2]:1"))
		require.True(t, d.enter(many[len(many)-1]))
	}
	for range 2 {
		few = append(few, from("10.0.0.1:1"))
		require.True(t, d.enter(few[len(few)-1]))
	}
	require.False(t, d.enter(from("[2001:db8::3:4]:9")), "it is of the same /64")
	for i := range maxHandshakes/2 - 2 {
		few = append(few, from("[::ffff:10.0.0.1]:1"))
		require.True(t, d.enter(few[len(few)-1]), i)
		require.True(t, many[i].(*fromConn).closed, "the oldest goes")
		require.Equal(t, maxHandshakes, d.n)
	}
	require.False(t, d.enter(from("10.0.0.1:1")), "both have as many")
	third := from("10.0.0.2:1")
	require.True(t, d.enter(third))
	for _, c := range slices.Concat(many, few, []net.Conn{third, third}) {
		d.leave(c)
	}
	require.Zero(t, d.n)
	require.Empty(t, d.of)
}

// fromConn is a connection that comes from a given address.
type fromConn struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (c *fromConn) RemoteAddr() net.Addr { return c.from }
func (c *fromConn) Close() error         { c.closed = true; return nil }

func TestHostTLS(t *testing.T) {
	mine, theirs := testnet.NewAuthority(t), testnet.NewAuthority(t)
	where := map[Node]string{}
	one, two := testHost(t, where, 1, "c", mine.Config(t)), testHost(t, where, 2, "c", mine.Config(t))
	talk(t, one, two)
	c, err := one.DialCalls(2, time.Minute)
	require.NoError(t, err)
	require.IsType(t, &tls.Conn{}, c.(*Conn).Conn.(*member).Conn)

	for name, c := range map[string]*tls.Config{"another authority": theirs.Config(t), "no certificate": {RootCAs: mine.Pool}, "no TLS": nil} {
		_, err = testHost(t, where, 3, "c", c).DialCalls(1, time.Minute)
		require.Error(t, err, name)
		_, err = one.DialCalls(3, time.Minute)
		require.Error(t, err, name)
	}
	talk(t, two, one)
}

// A call that is given up doesn't arrive later: the caller closes its connection, which drops what is on its way.
// Answers, and everything else that goes between nodes, are sent to the end.
func TestClosingDropsCalls(t *testing.T) {
	for name, c := range map[string]*tls.Config{"plain": nil, "TLS": testnet.NewAuthority(t).Config(t)} {
		where := map[Node]string{}
		one, two := testHost(t, where, 1, "c", c), testHost(t, where, 2, "c", c)
		group, err := two.OpenGroup(5)
		require.NoError(t, err)
		for _, dialed := range []struct {
			purpose byte
			drops   bool
			at      net.Listener
		}{{purposeCalls, true, two.Calls()}, {purposeRequests, true, two.Requests()}, {purposeRaft, false, group.Raft}, {purposeState, false, group.State}} {
			mine, err := one.dialNode(2, dialed.purpose, 5, time.Minute)
			require.NoError(t, err)
			theirs, err := dialed.at.Accept()
			require.NoError(t, err)
			require.NoError(t, mine.Close())
			raw := theirs.(*Conn).Conn.(*member).Conn
			if encrypted, ok := raw.(*tls.Conn); ok {
				raw = encrypted.NetConn()
			}
			_, err = io.ReadAll(raw)
			if dialed.drops {
				require.ErrorIs(t, err, syscall.ECONNRESET, "%s, purpose %d", name, dialed.purpose)
			} else {
				require.NoError(t, err, "%s, purpose %d", name, dialed.purpose)
			}
			_ = theirs.Close()
		}
		answered, err := one.DialCalls(2, time.Minute)
		require.NoError(t, err)
		answers, err := two.Calls().Accept()
		require.NoError(t, err)
		require.NoError(t, answers.Close())
		_, err = io.ReadAll(answered)
		require.NoError(t, err, name)
	}
}

func FuzzHello(f *testing.F) {
	f.Add(handshake{from: 1, to: 2, purpose: purposeRaft, group: 3, cluster: "c"}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := readHandshake(bytes.NewReader(b))
		if err == nil {
			require.Equal(t, m.append(nil), b[:handshakeBytes+len(m.cluster)])
		}
	})
}
