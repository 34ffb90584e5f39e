package main

import "millrace/api/live"

// What is applied, as it is applied.

// liveOptions returns the options from the flags.
func (c *serveCommand) liveOptions() live.Options {
	return live.Options{MaxViewers: c.LiveViewers, MaxViewersEach: c.LiveViewersEach, PerSecond: c.LivePerSecond}
}

// openLive makes the engine show what it applies, if anybody may watch.
func (n *node) openLive(o *nodeOptions) {
	if o.live.MaxViewers == 0 {
		return
	}
	n.live = live.NewHub(o.live)
	o.engine.Tap = n.live
}

// endLive ends all viewers.
func (n *node) endLive() {
	if n.live != nil {
		n.live.Close()
	}
}
