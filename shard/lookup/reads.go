package lookup

// On a node of a cluster a request waits for the groups that it reads, and for no others: while a group has no leader,
// requests for users of other groups notice nothing. A group is asked for a barrier when its first entry is looked at,
// after the request has come in. So what is found there has all that was acknowledged before, and so has whatever it
// leads to: from an address to its users, from a user to the addresses, from a merged user to the one that they are
// now. Only users who share an address need one more barrier, behind the look at the address's row: a choice among them
// has to be of one moment.

// Reads are the reads of one request. They belong to one goroutine. The copies of profiles that Find, FindNumber and
// FindMerged return are to be used until the next of these calls.
type Reads struct{ *Reader }

// NewReads makes reads that can be used for one request after the other (Begin), and count in room what they copy; nil:
// nowhere.
func (r *Reader) NewReads(room Room) *Reads {
	own := *r
	own.room = room
	if r.sole == nil { // else there is nothing to wait for
		own.barriers = &barriers{Nodes: r.nodes}
		own.nodes = own.barriers
	}
	return &Reads{&own}
}

// Begin begins another request, or continues one that has changed something: what is read from now on has all that was
// acknowledged before. What was copied until then is no longer used.
func (r *Reads) Begin() {
	r.giveBack()
	if r.barriers != nil {
		r.barriers.begin()
	}
}

// Extent says what is read besides the entries that identifiers lead to.
type Extent uint8

const (
	OfUsers  Extent = 1 << iota // the users whom the identifiers name
	OfEmails                    // the users' addresses, too
	OfPhones
)

// Expect says what will be read, so that groups are asked for barriers together: first the groups that the identifiers
// lie in, then those of the users, then those of the users' addresses. What it doesn't foresee is asked for when it is
// read. Without Expect, there would be a round of the quorum between two looks.
func (r *Reads) Expect(workspace uint32, extent Extent, list ...Identifier) error {
	f := r.barriers
	if f == nil {
		return nil
	}
	homes := make([]uint64, len(list))
	for i, named := range list {
		homes[i] = r.homeOf(workspace, &list[i], named)
	}
	if err := f.here(homes); err != nil || extent == 0 {
		return err
	}
	users, err := r.usersHere(workspace, homes, list)
	if err == nil {
		err = f.ofUsers(users)
	}
	if err != nil || extent == OfUsers {
		return err
	}
	rows, err := r.rowsHere(workspace, extent, users[:min(len(users), maxExpected)])
	if err != nil {
		return err
	}
	return f.here(rows)
}

// maxExpected is how many users Expect looks at: thousands may share an address.
const maxExpected = 128

// usersHere are the users whom identifiers with these homes name, as far as this node can tell by itself.
func (r *Reader) usersHere(workspace uint32, homes []uint64, list []Identifier) (users []uint64, err error) {
	for i, named := range list {
		if !r.isHere(homes[i]) {
			continue
		}
		if users, err = r.numbers(users, homes[i], workspace, named.ID, named.Key); err != nil {
			return nil, err
		}
	}
	return users, nil
}

// rowsHere are the directory rows of the addresses that users have, as far as this node can tell by itself.
func (r *Reader) rowsHere(workspace uint32, extent Extent, users []uint64) (rows []uint64, err error) {
	for _, number := range users {
		if !r.isHere(number) {
			continue
		}
		err := r.view(number, func(blob []byte) {
			of := r.addressRows(workspace, blob)
			if extent&OfEmails != 0 {
				rows = append(rows, of[atEmail])
			}
			if extent&OfPhones != 0 {
				rows = append(rows, of[atPhone])
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return rows, nil
}
