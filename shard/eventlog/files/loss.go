package files

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/errors/oserror"

	"millrace/shard/eventlog/erased"
	"millrace/wal/durable"
)

// ErrLost is wrapped by errors of Accept when files of the event log are gone, and events with them: blocks or
// deletions that STATE lists, or STATE itself. Put them back, or create AcceptLossName in the directory: the next start
// goes on without them.
var ErrLost = errors.New("event log: events are lost")

// AcceptLossName is the file by which an operator accepts the loss (Accept, ForgetAcceptance).
const AcceptLossName = "ACCEPT-LOSS"

// Loss is what the directory misses.
type Loss struct {
	blocks []Block // those that STATE lists and the directory lacks
	of     int     // number of blocks that STATE lists
	// gap says that neither blocks nor the engine's log have these positions, because STATE is older or missing, or has
	// deletions that are missing. It is then unknown who was deleted at them, so the older blocks can't be shown to
	// anybody either.
	gap      bool
	from, to uint64
	cause    string
}

// FindLoss compares STATE, if it is known, with the files that are there and with what others know: nobody else has
// anything up to the position gone, and isNoted says that there was an event log here before.
func (d Dir) FindLoss(s *State, known bool, gone uint64, isNoted bool) (lost Loss, err error) {
	names, err := d.list()
	if err != nil {
		return lost, err
	}
	there := make(map[string]bool, len(names)) // there may be many
	for _, name := range names {
		if isListed(name) {
			there[name] = true
		}
	}
	switch {
	case !known && (isNoted && gone > 0 || len(there) > 0):
		lost = Loss{gap: true, from: 1, to: gone, cause: "is missing"}
	case known && s.Packed < gone:
		lost = Loss{gap: true, from: s.Packed + 1, to: gone, cause: fmt.Sprintf("ends at position %d", s.Packed)}
	}
	for _, r := range s.Runs {
		if name := erased.Name(r.First, r.Last); !there[name] && !lost.gap {
			lost = Loss{gap: true, from: 1, to: gone, cause: fmt.Sprintf("lists %s, which is missing", name)}
		}
	}
	for _, b := range s.Blocks {
		if !there[BlockName(b.First, b.Last)] {
			lost.blocks = append(lost.blocks, b)
		}
	}
	lost.of = len(s.Blocks)
	return lost, nil
}

// Any reports whether anything is lost.
func (x *Loss) Any() bool { return x.gap || len(x.blocks) > 0 }

// maxTold is how many blocks an error names.
const maxTold = 10

// String says what is lost.
func (x *Loss) String() string {
	if x.gap {
		return fmt.Sprintf("%s %s, and the engine's log doesn't go back behind position %d: events from position %d "+
			"to %d are not there, nor who was deleted by them, so that no older block can be used either",
			StateName, x.cause, x.to, x.from, x.to)
	}
	var names []string
	for _, b := range x.blocks[:min(len(x.blocks), maxTold)] {
		names = append(names, b.String())
	}
	if more := len(x.blocks) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("of %d blocks %d are missing: %s", x.of, len(x.blocks), strings.Join(names, ", "))
}

// Positions is how many positions the loss covers.
func (x *Loss) Positions() (n uint64) {
	if x.gap {
		return x.to - x.from + 1
	}
	for _, b := range x.blocks {
		n += b.Last - b.First + 1
	}
	return n
}

// Last is the last position that is lost.
func (x *Loss) Last() uint64 {
	if x.gap {
		return x.to
	}
	return x.blocks[len(x.blocks)-1].Last
}

// Accept makes s what is left after a loss, if the operator has accepted it. Otherwise it returns an ErrLost.
func (d Dir) Accept(s *State, lost *Loss) error {
	path := d.path(AcceptLossName)
	if _, err := d.FS.Stat(path); oserror.IsNotExist(err) {
		return fmt.Errorf("%w: %q: %s. Put back what is missing, or, to go on without these events, create an empty "+
			"file %q and start again", ErrLost, d.Path, lost, path)
	} else if err != nil {
		return err
	}
	if lost.gap {
		*s = State{Packed: lost.to}
	}
	s.Blocks = slices.DeleteFunc(s.Blocks, func(b Block) bool { return slices.Contains(lost.blocks, b) })
	return nil
}

// ForgetAcceptance removes the operator's file, so that it doesn't apply to a later loss.
func (d Dir) ForgetAcceptance() error {
	path := d.path(AcceptLossName)
	if err := d.FS.Remove(path); oserror.IsNotExist(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove %q: %w", path, err)
	}
	return durable.SyncDir(d.FS, d.Path)
}
