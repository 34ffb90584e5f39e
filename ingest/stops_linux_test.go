package ingest

import (
	"bytes"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"millrace/ingest/stops"
	"millrace/shard/op"
)

// fenced returns a page that is read-only, with pages before and behind it that may not be accessed.
func fenced(t *testing.T, content []byte) []byte {
	page := os.Getpagesize()
	all, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(all)) })
	copy(all[page:2*page], content)
	require.NoError(t, syscall.Mprotect(all[:page], syscall.PROT_NONE))
	require.NoError(t, syscall.Mprotect(all[page:2*page], syscall.PROT_READ))
	require.NoError(t, syscall.Mprotect(all[2*page:], syscall.PROT_NONE))
	return all[page : 2*page]
}

// Nothing before or behind a body is touched, and nothing in it is written. A load beyond it would crash this test.
func TestNothingOutsideOfTheBodyIsRead(t *testing.T) {
	d, ws := testDecoder(), testWorkspace()
	const tail = `","name":"Caf\u00e9","time":"2026-11-21T04:23:01.123Z","properties":{"a":1.5,"b":"é"}}]}`
	body := []byte(`{"events":[{"external_id":"u`)
	text := bytes.Repeat([]byte("x"), os.Getpagesize())
	atStart := fenced(t, append(body, text...))
	for cut := range 3 * stops.BlockBytes {
		whole := append(bytes.Clone(text[:cut]), tail...)
		whole = append(append([]byte{}, body...), whole...)
		atEnd := fenced(t, append(bytes.Repeat([]byte(" "), os.Getpagesize()-len(whole)), whole...))
		for _, from := range []int{len(atEnd) - len(whole), 0} { // a good body at the end of the page, and all of the page
			var b op.Builder
			b.Reset(12)
			_, status := d.Track(nil, atEnd[from:], ws, &b, &fakeRouter{Builder: &b}, testNow)
			require.Equal(t, 201, status)
		}
		for _, bad := range [][]byte{atStart[:cut], atStart[len(atStart)-cut:]} {
			var b op.Builder
			b.Reset(12)
			_, status := d.Track(nil, bad, ws, &b, &fakeRouter{Builder: &b}, testNow)
			require.Equal(t, 400, status)
		}
	}
}
