// Package peers lets a part of a node (counts of consent, refused objects) ask its counterparts on the other nodes of a
// cluster. The messages are JSON; the cluster carries them and knows nothing of what they say.
package peers

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
)

// Peers are the nodes of the cluster as such a part sees them.
type Peers interface {
	// Self is this node's number.
	Self() uint32
	// Nodes returns the numbers of all nodes that serve requests, including this one, whether they can be reached or
	// not. The slice belongs to the caller.
	Nodes() []uint32
	// Call passes a message to the same part of another node, for Serve, and returns its answer. The message is lent
	// for the call; the answer belongs to the caller. The call ends with ctx.
	Call(ctx context.Context, node uint32, message []byte) (answer []byte, err error)
}

// Serve answers a message that Call or AskAll has sent on another node.
func Serve[Q, R any](message []byte, serve func(Q) (R, error)) ([]byte, error) {
	var q Q
	if err := json.Unmarshal(message, &q); err != nil {
		return nil, fmt.Errorf("a message of another node: %w", err)
	}
	r, err := serve(q)
	if err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// Call asks another node.
func Call[R any](ctx context.Context, p Peers, node uint32, request any) (r R, err error) {
	message, err := json.Marshal(request)
	if err != nil {
		return r, err
	}
	answer, err := p.Call(ctx, node, message)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(answer, &r)
}

// Answer is what a node has answered.
type Answer[R any] struct {
	Node  uint32
	Reply R
	Err   error
}

// AskAll asks all nodes at once; own answers for this one.
func AskAll[R any](ctx context.Context, p Peers, request any, own func() (R, error)) []Answer[R] {
	nodes := p.Nodes()
	answers := make([]Answer[R], len(nodes))
	var asking sync.WaitGroup
	for i, node := range nodes {
		asking.Go(func() {
			a := &answers[i]
			if a.Node = node; node == p.Self() {
				a.Reply, a.Err = own()
			} else {
				a.Reply, a.Err = Call[R](ctx, p, node, request)
			}
		})
	}
	asking.Wait()
	return answers
}
