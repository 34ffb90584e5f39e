package control

import (
	"bytes"
	"fmt"

	"github.com/goccy/go-json"

	"millrace/api/control/document"
)

// RewindStream makes a stream begin anew with what was accepted at from or later. What is sent again has the same ids.
func (c *Control) RewindStream(by Actor, workspace, id, from string) (*document.Stream, error) {
	return c.Streams.Change(by, workspace, id, func(s *document.Stream) (*document.Stream, error) {
		if s == nil {
			return nil, fmt.Errorf("%s %q %w", c.Streams.noun, id, ErrNotFound)
		}
		if from != "" {
			s.From = from
		}
		s.StartedAt = document.Rewound
		return s, nil
	})
}

// Cursors: how far a stream has come, one document for each event log that it reads. They are of no interest to
// operators, so their changes have no entries in the audit log.

func cursorKey(workspace, stream, group string) string {
	return joinKey(kindStreamCursor, workspace, stream+"."+group)
}

// StreamCursor returns what MoveStream has last stored, nil when there is none. group is empty for a server that is
// alone. The bytes must not be changed.
func (c *Control) StreamCursor(workspace, stream, group string) []byte {
	kind, slug, id, _ := splitKey(cursorKey(workspace, stream, group))
	return c.document(kind, slug, id)
}

// StreamCursors returns all cursors of a stream, by group.
func (c *Control) StreamCursors(workspace, stream string) map[string][]byte {
	return c.partsOf(kindStreamCursor, workspace, stream)
}

// MoveStream stores a cursor, JSON, replacing was. It returns ErrConflict if the stored cursor is no longer was:
// somebody else carries the stream.
func (c *Control) MoveStream(workspace, stream, group string, was, next []byte) error {
	if !json.Valid(next) {
		panic("BUG: a cursor that is no JSON")
	}
	return c.do(Actor{}, func(d *draft) error {
		key := cursorKey(workspace, stream, group)
		if !bytes.Equal(d.get(key), was) {
			return fmt.Errorf("%w: another node now carries stream %q", ErrConflict, stream)
		}
		if c.Streams.Get(workspace, stream) == nil {
			return fmt.Errorf("%s %q %w", c.Streams.noun, stream, ErrNotFound)
		}
		d.set(key, next)
		return nil
	})
}
