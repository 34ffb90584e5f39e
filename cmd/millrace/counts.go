package main

import "millrace/api/census"

// Counts of consent: the flag of the server, and how a node counts.

// censusOptions returns the options from the flags; nil: there is no counting.
func (c *serveCommand) censusOptions() *census.Options {
	if c.CountShare == 0 {
		return nil
	}
	return &census.Options{Share: c.CountShare}
}

// openCensus makes the node count consent when somebody asks for it. The census ends before the engine.
func (n *node) openCensus(o *nodeOptions) error {
	if o.census == nil {
		return nil
	}
	options := *o.census
	options.Store, options.Logger = n.engine, n.log
	if n.cluster != nil {
		options.Peers = members{n.cluster, n.self, censusService}
	}
	var err error
	if n.census, err = census.New(options); err != nil {
		return err
	}
	n.parts.open(censusService, n.census)
	n.ends = append(n.ends, n.census.Close)
	return nil
}
