package host

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"
)

// DialRequests opens a connection for calls of the second kind. Its errors are those of DialCalls.
func (h *Host) DialRequests(to Node, timeout time.Duration) (net.Conn, error) {
	return h.dialNode(to, purposeRequests, 0, timeout)
}

// DialCalls opens a connection for calls to a node. When the connection is closed, what has not been sent yet is
// dropped. Errors: ErrUnauthenticated, or an error of the network.
func (h *Host) DialCalls(to Node, timeout time.Duration) (net.Conn, error) {
	return h.dialNode(to, purposeCalls, 0, timeout)
}

// DialAddress opens a connection for calls to whichever node is at an address. Errors: a StrangerError when the node is
// of another cluster, or those of DialCalls.
func (h *Host) DialAddress(address string, timeout time.Duration) (*Conn, error) {
	return h.dial(address, handshake{purpose: purposeCalls}, time.Now().Add(handshakeWithin(timeout)))
}

// DialRaft opens a connection to a group on another node. Its errors are those of DialCalls.
func (h *Host) DialRaft(to Node, group uint32, timeout time.Duration) (net.Conn, error) {
	return h.dialNode(to, purposeRaft, group, timeout)
}

// DialState opens a connection over which a group on another node sends its state. Its errors are those of DialCalls.
func (h *Host) DialState(to Node, group uint32, timeout time.Duration) (net.Conn, error) {
	return h.dialNode(to, purposeState, group, timeout)
}

func (h *Host) dialNode(to Node, purpose byte, group uint32, timeout time.Duration) (*Conn, error) {
	addresses := h.addressesOf(to)
	if len(addresses) == 0 {
		return nil, fmt.Errorf("quorum: where node %d is is not known", to)
	}
	deadline := time.Now().Add(handshakeWithin(timeout))
	var failures []error
	for _, address := range addresses {
		c, err := h.dial(address, handshake{to: to, purpose: purpose, group: group}, deadline)
		if err == nil || errors.Is(err, ErrAbsent) {
			h.setLast(to, address)
			return c, err
		}
		if failures = append(failures, err); !time.Now().Before(deadline) {
			break
		}
	}
	h.setLast(to, addresses[1%len(addresses)]) // the first one may have taken all the time
	return nil, errors.Join(failures...)
}

func (h *Host) setLast(node Node, address string) {
	h.mu.Lock()
	h.last[node] = address
	h.mu.Unlock()
}

// addressesOf returns the addresses where a node may be, in the order in which they are tried.
func (h *Host) addressesOf(node Node) []string {
	addresses := slices.Clone(h.opts.Resolve(node))
	h.mu.Lock()
	last := h.last[node]
	h.mu.Unlock()
	if i := slices.Index(addresses, last); i > 0 {
		addresses[0], addresses[i] = last, addresses[0]
	}
	return addresses
}

// handshakeWithin bounds the time for a connection and its handshake.
func handshakeWithin(timeout time.Duration) time.Duration {
	if timeout <= 0 {
		return handshakeTimeout
	}
	return min(timeout, handshakeTimeout)
}

func (h *Host) dial(address string, out handshake, deadline time.Time) (*Conn, error) {
	raw, err := h.opts.Sockets.Dial(address, deadline)
	if err != nil {
		return nil, err
	}
	if out.purpose == purposeCalls || out.purpose == purposeRequests {
		discardOnClose(raw)
	}
	_ = raw.SetDeadline(deadline)
	if h.client != nil {
		raw = tls.Client(raw, h.client)
	}
	if raw, err = h.conns.Add(raw); err != nil {
		return nil, err
	}
	c := &Conn{Conn: raw}
	if err := h.introduce(c, out); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("connect to node %d at %s: %w", out.to, address, err)
	}
	_ = raw.SetDeadline(time.Time{})
	return c, nil
}

// discardOnClose makes the kernel drop unsent data when a connection is closed, or the process ends: a call that was
// given up must not arrive later, when the network has recovered. Callers only close connections whose answers they no
// longer wait for.
func discardOnClose(c net.Conn) {
	if c, ok := c.(interface{ SetLinger(seconds int) error }); ok {
		_ = c.SetLinger(0)
	}
}

func (h *Host) introduce(c *Conn, out handshake) error {
	out.from, out.cluster, out.records = h.opts.Node, h.clusterID(), h.opts.Records
	if _, err := c.Conn.Write(out.append(nil)); err != nil {
		return err
	}
	in, err := readHandshake(c.Conn)
	if err == nil {
		err = h.checkRecords(in)
	}
	switch {
	case err != nil:
		return err
	case in.status == statusAbsent:
		return ErrAbsent
	case in.status != statusWelcome, out.to != 0 && in.from != out.to, !h.related(in, out.cluster):
		return &StrangerError{in.from, in.cluster}
	}
	c.Node, c.Cluster = in.from, in.cluster
	return nil
}
