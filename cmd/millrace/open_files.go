package main

import (
	"fmt"

	"millrace/shard/store"
)

// The limit of open files is divided at the start. The engine fails when it can't open a file, and how many connections
// there are is up to clients; so connections get a part, and never what the engine may need.

const (
	// leastFiles is the limit below which a server doesn't start, and leastOfNode that of a cluster's node, whose
	// groups have a log and a store each.
	leastFiles, leastOfNode = 256, 1024
	// engineFiles is what log, store, events and streams may have open, most of it tables of the store; nodeFiles is
	// the same for a node that has a replica of every group.
	engineFiles, nodeFiles = 5 << 10, 9 << 10
	// maxCallConns is how many connections between nodes take the place of clients' connections.
	maxCallConns = 4 << 10
)

// boundConns lowers --max-conns to what the limit of open files leaves, and says how many connections there may be
// between this node and others.
func (s *serving) boundConns() error {
	limit, least, engine := store.ProcessFiles(), leastFiles, engineFiles
	if s.Node != 0 {
		least, engine = leastOfNode, nodeFiles
	}
	if limit < least {
		return fmt.Errorf("the limit of open files is %d, and at least %d are needed: raise it "+
			"(ulimit -n, LimitNOFILE=)", limit, least)
	}
	public, operators := divideConns(limit, engine)
	s.operatorConns = min(s.MaxConns, operators)
	if s.Node != 0 {
		public, s.callConns = divideCalls(public, s.MaxConns)
	}
	if public < s.MaxConns {
		s.logger.Warn("the limit of open files allows fewer connections than --max-conns: raise it "+
			"(ulimit -n, LimitNOFILE=)", "limit", limit, "max_conns", s.MaxConns, "allowed", public)
		s.MaxConns = public
	}
	return nil
}

// divideConns returns how many connections may be open to the API, and to each of the operators' two listeners. They
// have shares of their own, so that a server whose clients take all they can get still shows what it does.
func divideConns(limit, engine int) (public, operators int) {
	all := limit - min(engine, limit/2)
	return min(all-all/8, 1<<30), min(all/16, 1<<30)
}

// divideCalls takes the connections between nodes out of those to the API: two sevenths, and what is left of them by
// --max-conns. Each request of a client may cause calls to all other nodes, but these are over sooner.
func divideCalls(conns, maxConns int) (public, calls int) {
	public = conns - min(conns*2/7, maxCallConns)
	return public, conns - min(public, maxConns)
}
