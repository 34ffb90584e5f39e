package main

import (
	"context"
	"sync/atomic"

	"millrace/api/census"
	"millrace/wal/quorum"
)

// Counts of consent: the flag of the server, and how a node counts.

// censusOptions returns the options from the flags; nil: there is no counting.
func (c *serveCommand) censusOptions() *census.Options {
	if c.CountShare == 0 {
		return nil
	}
	return &census.Options{Share: c.CountShare}
}

// censusService is the name of the calls between nodes about counts of consent.
const censusService = "census"

// serveCensus answers other nodes of the cluster, once this one counts.
func (n *node) serveCensus(_ quorum.Node, body []byte) ([]byte, error) {
	if c := n.census.Load(); c != nil {
		return c.Serve(context.Background(), body)
	}
	return nil, errOpening
}

// openCensus makes the node count consent when somebody asks for it. The census ends before the engine.
func (n *node) openCensus(o *nodeOptions) error {
	if o.census == nil {
		return nil
	}
	options := *o.census
	options.Store, options.Logger = n.engine, n.log
	if n.cluster != nil {
		options.Peers = censusPeers{peers{n.cluster, n.self, censusService}}
	}
	c, err := census.New(options)
	if err != nil {
		return err
	}
	n.census.Store(c)
	n.ends = append([]func() error{c.Close}, n.ends...)
	return nil
}

// censusPeers are the nodes of the cluster as a census sees them.
type censusPeers struct{ peers }

// Leader returns the leader of a partition's group.
func (p censusPeers) Leader(partition uint8) uint32 {
	leader, _ := p.Owner(partition)
	return leader
}

// counter is a census that may not exist yet.
type counter = atomic.Pointer[census.Counter]
