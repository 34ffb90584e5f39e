// Package cluster makes one store of the engines of several nodes.
//
//	request ─▶ coordinator of any node: split by group ─▶ mesh.Take: one call to each node that leads any of them ─▶ Replica.Take: log of the group, apply
//	                                                                                            messages to other groups ─▶ mesh.Deliver ─▶ …
//	read    ─▶ mesh.Barrier: where do the leaders' logs end? wait until the own replicas have applied that far ─▶ read them
//
// A node has a coordinator (shard.Coordinator), a replica of the control group, which has the control documents, and a
// replica of each group of partitions that is placed on it: its state (replica.Replica), its event log, and the group's
// log (package quorum). The reconciler, on the node that leads the control group, decides which replica is where; all
// nodes carry it out.
//
// Invariants:
//   - A record is sent to a leader once. When it isn't known what became of it, the request gets shard.ErrUnknown and
//     is not tried again: events would count twice. What was refused was not done, and may be tried elsewhere. So may a
//     record with a request's key: whoever applies it knows it again (shard/commit.go).
//   - A node that says nothing for PingTimeout is as good as dead: nobody waits for it (remote.go).
//   - A replica is read only behind a barrier that it took part in (barrier.go).
//   - A call never waits for another one of the same pool of connections, on any node, so a full pool does not stand
//     still (remote.go).
//   - A node is known by its number and its disk. A number with another disk is refused: it would have forgotten what
//     it has voted for (start.go).
package cluster
