package main

import (
	"fmt"
	"math/rand/v2"
)

// fault is something that happens to nodes of a cluster, and how it ends. Both return at once.
type fault struct {
	name string
	end  func()
}

// The kinds of faults. Those from cutOff on need a network that can be cut.
const (
	killOne = iota
	killMore
	pauseOne
	cutOff
	cutOneWay
	cutPair
	faultKinds
)

// faultsOf are the kinds of faults that the cluster's network allows, in random order.
func (c *fleet) faultsOf(r *rand.Rand) []int {
	if c.net.canCut() {
		return r.Perm(faultKinds)
	}
	return r.Perm(cutOff)
}

// strike lets a fault of a kind happen to random nodes.
func (c *fleet) strike(r *rand.Rand, kind int) fault {
	order := r.Perm(len(c.nodes))
	var nodes []*peer
	for _, i := range order {
		nodes = append(nodes, c.nodes[i])
	}
	a, b, others := nodes[0], nodes[1], nodes[1:]
	switch kind {
	case killOne:
		return c.kill(r, nodes[:1])
	case killMore:
		return c.kill(r, nodes[:2+r.IntN(len(nodes)-1)])
	case pauseOne:
		a.pause()
		return fault{fmt.Sprintf("pause %d", a.number), a.resume}
	case cutOff:
		return c.cut(fmt.Sprintf("cut %d off", a.number), both(nodes[:1], others))
	case cutOneWay:
		if r.IntN(2) == 0 {
			return c.cut(fmt.Sprintf("cut what %d sends", a.number), one(nodes[:1], others))
		}
		return c.cut(fmt.Sprintf("cut what is sent to %d", a.number), one(others, nodes[:1]))
	case cutPair:
		return c.cut(fmt.Sprintf("cut between %d and %d", a.number, b.number), both(nodes[:1], others[:1]))
	}
	panic("BUG: no such fault")
}

// kill ends some nodes at once; the end of that is that they start.
func (c *fleet) kill(r *rand.Rand, nodes []*peer) fault {
	name := "kill"
	for _, m := range nodes {
		name += fmt.Sprint(" ", m.number)
		_ = m.p.cmd.Process.Kill() // none waits for another one's end
	}
	for _, m := range nodes {
		m.kill()
	}
	return fault{name, func() {
		for _, m := range nodes {
			m.start(bounds(r)...)
		}
	}}
}

// direction is from one node to another.
type direction struct{ from, to int }

func one(from, to []*peer) (list []direction) {
	for _, a := range from {
		for _, b := range to {
			list = append(list, direction{a.number, b.number})
		}
	}
	return list
}

func both(some, others []*peer) []direction { return append(one(some, others), one(others, some)...) }

// cut stops some directions.
func (c *fleet) cut(name string, directions []direction) fault {
	for _, d := range directions {
		c.net.cut(d.from, d.to)
	}
	return fault{name, func() {
		for _, d := range directions {
			c.net.mend(d.from, d.to)
		}
	}}
}
