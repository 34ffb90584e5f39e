package outgoing

import (
	"encoding/binary"
	"maps"
	"slices"

	"millrace/shard/identity"
)

// All replicas of a group keep the messages of its outboxes until they are told, through the log, that other groups
// have applied them.

// Arrived are messages that are applied in other groups.
type Arrived struct {
	upTo    map[arrival]uint64 // all messages up to this sequence
	rows    int                // how many messages these are
	groupOf *[identity.Partitions]int
}

// arrival names the partition that has sent messages, and the group that they went to.
type arrival struct {
	sender uint8
	group  int
}

func newArrived(groupOf *[identity.Partitions]int) *Arrived {
	return &Arrived{upTo: make(map[arrival]uint64), groupOf: groupOf}
}

func (a *Arrived) add(at arrival, seq uint64) { a.upTo[at] = max(a.upTo[at], seq) }

// AppendOf appends what has arrived of a partition's messages: the body of a Delivered op, nothing for none.
func (a *Arrived) AppendOf(body []byte, sender uint8) []byte {
	for _, at := range slices.SortedFunc(maps.Keys(a.upTo), func(a, b arrival) int { return a.group - b.group }) {
		if at.sender != sender {
			continue
		}
		// The partitions of the group, adjacent ones together.
		for first := 0; first < identity.Partitions; first++ {
			if a.groupOf[first] != at.group {
				continue
			}
			last := first
			for last+1 < identity.Partitions && a.groupOf[last+1] == at.group {
				last++
			}
			body = binary.LittleEndian.AppendUint64(append(body, byte(first), byte(last)), a.upTo[at])
			first = last
		}
	}
	return body
}
