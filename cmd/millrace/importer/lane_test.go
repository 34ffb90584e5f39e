package importer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/ingest/files"
)

// A further request of a file has the room that those before it needed, and no more of what they didn't.
func TestRequestsHaveRoomFromTheBeginning(t *testing.T) {
	var like sizes
	require.Equal(t, &request{rows: []sent{}}, like.newRequest())
	r := like.newRequest()
	object := &files.Object{Kind: files.Events, Text: make([]byte, 200)}
	for range 100 {
		r.add(new(files.Row), object, "")
	}
	like.note(r)
	like.note(new(request)) // a smaller one changes nothing
	next := like.newRequest()
	require.Equal(t, 100, cap(next.rows))
	require.GreaterOrEqual(t, cap(next.texts[kindNumber(files.Events)]), 100*201)
	for k, text := range next.texts {
		require.Equal(t, k == int(kindNumber(files.Events)), text != nil)
	}
}
