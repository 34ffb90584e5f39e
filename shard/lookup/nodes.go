package lookup

import (
	"millrace/shard/books"
	"millrace/shard/replica"
)

// Nodes is how a Reader reaches the partitions, wherever they are.
type Nodes interface {
	// GroupOf is the number of the group that holds a partition. It never changes, and the partitions of a group are
	// next to one another.
	GroupOf(partition uint8) int
	// Local is this node's replica of the group that holds a partition, if everything is applied in it that barriers
	// have promised; nil otherwise, or when there is none.
	Local(partition uint8) *replica.Replica
	// BarrierOf returns when everything that was acknowledged anywhere before the call, by the groups that hold these
	// partitions, is applied in this node's replicas of them, and the node's Clock has seen all stamps of it, including
	// those of groups without a replica here.
	BarrierOf(partitions ...uint8) error

	// For partitions without a replica on this node: what the Replica's methods of these names return at the leader of
	// the group, linearizable.
	Entry(number uint64) ([]byte, error)
	TrailOf(number uint64) (books.History, error)
	SuppressedPage(partition uint8, q books.SuppressedQuery) (page []books.Suppression, next books.Suppression,
		err error)
}
