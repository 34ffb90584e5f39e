package main

import (
	"context"
	"errors"

	"millrace/api/admin"
	"millrace/api/control"
	"millrace/api/control/document"
	"millrace/shard/cluster"
	"millrace/shard/cluster/placement"
	"millrace/wal/quorum"
)

// clusterDoor is a node's cluster as package api sees it.
type clusterDoor struct{ node *cluster.Node }

// Status is the node's.
func (d clusterDoor) Status(ctx context.Context) (any, error) { return d.node.Operator().Status(ctx) }

// Add is the node's.
func (d clusterDoor) Add(ctx context.Context, node uint32, address string, entry admin.ClusterEntry) error {
	return clusterError(d.node.Operator().Add(ctx, quorum.Node(node), address, encodeEntry(entry)))
}

// Drain is the node's.
func (d clusterDoor) Drain(ctx context.Context, node uint32, entry admin.ClusterEntry) error {
	return clusterError(d.node.Operator().Drain(ctx, quorum.Node(node), encodeEntry(entry)))
}

// Remove is the node's.
func (d clusterDoor) Remove(ctx context.Context, node uint32, force bool, entry admin.ClusterEntry) error {
	return clusterError(d.node.Operator().Remove(ctx, quorum.Node(node), force, encodeEntry(entry)))
}

func encodeEntry(entry admin.ClusterEntry) func(placement.Entry) []byte {
	return func(e placement.Entry) []byte { return entry(e.What, e.Kind, e.ID, e.Before, e.After, e.Details) }
}

// reconcilerEntry makes the audit log's entries for what no operator has asked for (cluster.Options.Audit).
func reconcilerEntry(c *control.Control) func(placement.Entry) []byte {
	return func(e placement.Entry) []byte {
		return c.DocumentEntry(control.Actor{Name: "reconciler"}, e.What, e.Kind, e.ID, e.Before, e.After,
			e.Details...).Encode()
	}
}

// saidError is an error with the meaning of another one.
type saidError struct {
	error
	meaning error
}

// Unwrap returns both.
func (e saidError) Unwrap() []error { return []error{e.error, e.meaning} }

// clusterError gives an error of package cluster the meaning that the admin API knows.
func clusterError(err error) error {
	for from, to := range map[error]error{placement.ErrInvalid: document.ErrInvalid,
		placement.ErrNotFound: control.ErrNotFound, placement.ErrRefused: control.ErrConflict} {
		if errors.Is(err, from) {
			return saidError{err, to}
		}
	}
	return err
}
