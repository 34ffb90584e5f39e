package entries

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"millrace/shard/arena"
	"millrace/shard/op"
	"millrace/shard/profile"
)

// Folder folds deltas into an entry, change by change, with the same result as apply: by the same editor, with the same
// limits. It is scratch, for one goroutine at a time.
type Folder struct {
	Entry   []byte // empty: there is none
	Strays  []byte // deltas of other users, whose home number the entry has
	Created bool   // nothing was there before

	ed     profile.Editor
	change change
	limits profile.Limits // of the last change with a limit of its own
	of     *profile.Limits
}

// Begin begins with a value of the store, nil for none. limits are the engine's.
func (f *Folder) Begin(value []byte, limits *profile.Limits) error {
	entry, strays, err := splitValue(value)
	f.Entry, f.Strays = append(f.Entry[:0], entry...), append(f.Strays[:0], strays...)
	f.Created, f.of = false, limits
	return err
}

// splitValue splits a value of the store that has no operands into the entry and the deltas of other users.
func splitValue(value []byte) (entry, strays []byte, err error) {
	if len(value) == 0 || value[0] != KindMixed {
		return value, nil, nil
	}
	n := 0
	if len(value) >= mixedHeader {
		n = int(binary.LittleEndian.Uint32(value[4:]))
	}
	if n < profile.HeaderBytes || n > len(value)-mixedHeader {
		return nil, nil, fmt.Errorf("%w: value is cut short", errDamaged)
	}
	return value[mixedHeader : mixedHeader+n], value[mixedHeader+n:], nil
}

// Value is the entry with the deltas of other users.
func (f *Folder) Value() []byte {
	if len(f.Strays) == 0 {
		return f.Entry
	}
	var head [mixedHeader]byte
	head[0] = KindMixed
	binary.LittleEndian.PutUint32(head[4:], uint32(len(f.Entry)))
	return slices.Concat(head[:], f.Entry, f.Strays)
}

// Add folds deltas in, the oldest first.
func (f *Folder) Add(deltas []byte) (err error) {
	for len(deltas) > 0 && err == nil {
		var d Delta
		if d, deltas, err = NextDelta(deltas); err != nil {
			return err
		}
		id, _ := profile.HomeID(d)
		switch {
		case len(f.Entry) > 0 && d.IsFor(f.Entry), len(f.Entry) == 0 && id != op.NoID:
			err = f.AddAll(d, false)
		case id == op.NoID:
			nobodys.Inc() // an error would end the store's compactions, and the process, for good
		default:
			f.Strays, err = AppendJoined(f.Strays, d)
		}
	}
	return err
}

// IsFor says whether an entry is the profile that the delta changes.
func (d Delta) IsFor(entry []byte) bool {
	if profile.Kind(entry) != profile.KindUser {
		return false
	}
	id, key := profile.HomeID(d)
	return id == op.NoID && profile.Workspace(entry) == profile.Workspace(d) ||
		IsOf(entry, profile.Workspace(d), id, key)
}

// AddAll folds the changes of a delta into its profile, or makes the profile. born: the profile is not at its home
// number, and keeps where it was made, like those that machine.Worker.create makes.
func (f *Folder) AddAll(d Delta, born bool) (err error) {
	c := &f.change
	for changes := []byte(d[d.Start():]); len(changes) > 0; {
		if changes, err = c.next(d, changes); err != nil {
			return err
		}
		if len(f.Entry) == 0 {
			_, key := profile.HomeID(d)
			f.Entry = profile.New(f.Entry[:0], c.rec.Workspace, op.ExternalID, key, c.rec.Stamp)
			f.Created = true
			if born {
				f.keep(f.ed.SetBorn(f.Entry, c.place))
			}
		}
		if len(f.Entry)+2*len(c.op)+ProfileSlack > arena.MaxEntryBytes {
			Overgrown.Inc()
			continue
		}
		out, _ := f.ed.Apply(f.Entry, c.op, &c.rec, f.limit())
		f.keep(out)
	}
	return nil
}

// keep keeps what the editor returned, with some room for the next change.
func (f *Folder) keep(out []byte) {
	if &out[0] == &f.Entry[0] {
		f.Entry = out
		return
	}
	f.Entry = append(slices.Grow(f.Entry[:0], len(out)+len(out)/4+256), out...)
}

// limit is the bounds of a profile for the change at hand.
func (f *Folder) limit() *profile.Limits {
	n := int(f.change.rec.MaxArray)
	if n == 0 {
		return f.of
	}
	f.limits = *f.of
	f.limits.MaxArray = n
	return &f.limits
}

// AppendJoined appends deltas to deltas. Adjacent deltas of one user become one.
func AppendJoined(dst, deltas []byte) (joined []byte, err error) {
	last := -1
	for rest, at := dst, 0; len(rest) > 0; {
		var d Delta
		if d, rest, err = NextDelta(rest); err != nil {
			return dst, err
		}
		last, at = at, at+len(d)
	}
	for len(deltas) > 0 {
		var d Delta
		if d, deltas, err = NextDelta(deltas); err != nil {
			return dst, err
		}
		if last < 0 || !Delta(dst[last:]).isSameUser(d) {
			last = len(dst)
			dst = append(dst, d...)
			Delta(dst[last:]).SetSaving(0, 0)
			continue
		}
		changes := Delta(dst[last:]).Changes() + d.Changes()
		dst = append(dst, d[d.Start():]...)
		Delta(dst[last:]).SetSize(changes)
	}
	return dst, nil
}

func (d Delta) isSameUser(other Delta) bool {
	return d.Start() == other.Start() && profile.Workspace(d) == profile.Workspace(other) &&
		bytes.Equal(d[profile.HeaderBytes:d.Start()], other[profile.HeaderBytes:other.Start()])
}
