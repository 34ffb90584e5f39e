package control

import (
	"bytes"
	"errors"
	"strconv"
	"time"
)

// Millis is a time in a document that operators see, Unix ms, which is how it is stored. Operators are shown Text, and
// may send that back.
type Millis int64

// Text is the time in ISO 8601.
func (m Millis) Text() string {
	return time.UnixMilli(int64(m)).UTC().Format("2006-01-02T15:04:05.000Z")
}

// UnmarshalJSON reads what is stored, or Text.
func (m *Millis) UnmarshalJSON(value []byte) error {
	if n, err := strconv.ParseInt(string(value), 10, 64); err == nil {
		*m = Millis(n)
		return nil
	}
	t, err := time.Parse(time.RFC3339Nano, string(bytes.Trim(value, `"`)))
	if err != nil {
		return errors.New("not a time")
	}
	*m = Millis(t.UnixMilli())
	return nil
}
