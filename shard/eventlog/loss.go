package eventlog

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cockroachdb/errors/oserror"

	"millrace/shard/eventlog/erased"
	"millrace/wal/durable"
)

// ErrLost is wrapped by errors of Open when files of the event log are gone, and events with them: blocks or deletions
// that STATE lists, or STATE itself. Put them back, or create AcceptLossName in the directory: the next Open goes on
// without them.
var ErrLost = errors.New("event log: events are lost")

// AcceptLossName is the file by which an operator accepts the loss. Open removes it.
const AcceptLossName = "ACCEPT-LOSS"

// loss is what Open misses.
type loss struct {
	blocks []listed // those that STATE lists and the directory lacks
	of     int      // number of blocks that STATE lists
	// gap says that neither blocks nor the engine's log have these positions, because STATE is older or missing, or has
	// deletions that are missing. It is then unknown who was deleted at them, so the older blocks can't be shown to
	// anybody either.
	gap      bool
	from, to uint64
	cause    string
}

// findLoss compares STATE with the files that are there and with what the engine knows. The engine never notes more
// than was on disk here (NotePacked), and gives up no log before that.
func (l *Log) findLoss(s *state, known bool, files []string) (lost loss, err error) {
	noted, isNoted, err := l.src.PackedPosition()
	if err != nil {
		return lost, err
	}
	gone := max(noted, l.src.FirstPosition()-1) // up to here nobody else has anything
	switch {
	case !known && (isNoted && gone > 0 || len(files) > 0):
		lost = loss{gap: true, from: 1, to: gone, cause: "is missing"}
	case known && s.packed < gone:
		lost = loss{gap: true, from: s.packed + 1, to: gone, cause: fmt.Sprintf("ends at position %d", s.packed)}
	}
	there := make(map[string]bool, len(files)) // there may be many
	for _, name := range files {
		there[name] = true
	}
	for _, r := range s.runs {
		if name := erased.Name(r.first, r.last); !there[name] && !lost.gap {
			lost = loss{gap: true, from: 1, to: gone, cause: fmt.Sprintf("lists %s, which is missing", name)}
		}
	}
	for _, b := range s.blocks {
		if !there[blockName(b.first, b.last)] {
			lost.blocks = append(lost.blocks, b)
		}
	}
	lost.of = len(s.blocks)
	return lost, nil
}

func (x *loss) any() bool { return x.gap || len(x.blocks) > 0 }

// maxTold is how many blocks an error names.
const maxTold = 10

// String says what is lost.
func (x *loss) String() string {
	if x.gap {
		return fmt.Sprintf("%s %s, and the engine's log doesn't go back behind position %d: events from position %d "+
			"to %d are not there, nor who was deleted by them, so that no older block can be used either",
			stateName, x.cause, x.to, x.from, x.to)
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

// positions is how many positions the loss covers.
func (x *loss) positions() (n uint64) {
	if x.gap {
		return x.to - x.from + 1
	}
	for _, b := range x.blocks {
		n += b.last - b.first + 1
	}
	return n
}

// last is the last position that is lost.
func (x *loss) last() uint64 {
	if x.gap {
		return x.to
	}
	return x.blocks[len(x.blocks)-1].last
}

// settleLoss returns an error for a loss, unless the operator has accepted it: then s becomes what is left.
func (l *Log) settleLoss(s *state, lost *loss) error {
	if !lost.any() {
		return nil
	}
	path := l.acceptPath()
	if _, err := l.opts.FS.Stat(path); oserror.IsNotExist(err) {
		return fmt.Errorf("%w: %q: %s. Put back what is missing, or, to go on without these events, create an empty "+
			"file %q and start again", ErrLost, l.opts.Dir, lost, path)
	} else if err != nil {
		return err
	}
	l.opts.Logger.Error("event log: events are lost; their loss was accepted", "directory", l.opts.Dir,
		"lost", lost.String())
	lostPositions.Add(int(lost.positions()))
	l.noteExpired(lost.last()) // tells streams that were to have them of the gap
	if lost.gap {
		*s = state{packed: lost.to}
	}
	s.blocks = slices.DeleteFunc(s.blocks, func(b listed) bool { return slices.Contains(lost.blocks, b) })
	return nil
}

func (l *Log) acceptPath() string { return l.opts.FS.PathJoin(l.opts.Dir, AcceptLossName) }

// forgetAcceptance removes the operator's file, so that it doesn't apply to a later loss.
func (l *Log) forgetAcceptance() error {
	path := l.acceptPath()
	if err := l.opts.FS.Remove(path); oserror.IsNotExist(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("remove %q: %w", path, err)
	}
	return durable.SyncDir(l.opts.FS, l.opts.Dir)
}
