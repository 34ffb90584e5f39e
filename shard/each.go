package shard

// EachUser calls f with the users of a workspace whose profiles lie in a partition, behind the number after, joined as
// Find has them, and says where to go on: next is 0 at the end. So many entries at most are looked at. It is of no one
// moment: who comes, goes or is merged meanwhile may be among them or not. ErrUnavailable: this node has no replica of
// the partition that reads may go to.
func (c *Coordinator) EachUser(
	workspace uint32, partition uint8, after uint64, most int, f func(User) error,
) (next uint64, err error) {
	numbers, err := c.numbersHere(partition, after, most)
	if err != nil {
		return 0, err
	}
	for _, number := range numbers {
		users, err := c.FindNumber(workspace, number)
		if err != nil {
			return 0, err
		}
		for _, u := range users {
			if err := f(u); err != nil {
				return 0, err
			}
		}
	}
	if len(numbers) == most {
		next = numbers[most-1]
	}
	return next, nil
}

func (c *Coordinator) numbersHere(partition uint8, after uint64, most int) ([]uint64, error) {
	r := c.nodes.Local(partition)
	if r == nil || !r.Enter() {
		return nil, ErrUnavailable
	}
	defer r.usable.RUnlock()
	return r.Numbers(partition, after, most)
}
