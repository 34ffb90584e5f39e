package frames

import (
	"fmt"
	"io"
	"net"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// What is sent arrives, or why not.
func TestStateStream(t *testing.T) {
	pipe := func(write func(*Writer) error) ([]byte, error) {
		a, b := net.Pipe()
		go func() {
			w := NewWriter(a)
			_ = w.Finish(write(w))
			_ = a.Close()
		}()
		return io.ReadAll(NewReader(b))
	}
	long := make([]byte, 3*frameBytes+17)
	for i := range long {
		long[i] = byte(i * i >> 8)
	}
	got, err := pipe(func(w *Writer) error {
		for _, n := range []int{0, 1, 100, frameBytes, frameBytes + 1} {
			if _, err := w.Write(long[:n]); err != nil {
				return err
			}
		}
		_, err := w.Write(long)
		return err
	})
	require.NoError(t, err)
	want := append(append(append(append([]byte{}, long[:1]...), long[:100]...), long[:frameBytes]...), long[:frameBytes+1]...)
	require.Equal(t, append(want, long...), got)
	_, err = pipe(func(w *Writer) error {
		_, _ = w.Write(long)
		return fmt.Errorf("no more")
	})
	require.ErrorContains(t, err, "no more")
	a, b := net.Pipe()
	go func() {
		w := NewWriter(a)
		_, _ = w.Write(long)
		w.mu.Lock()
		w.flush()
		w.mu.Unlock()
		_ = a.Close()
		close(w.done)
	}()
	_, err = io.ReadAll(NewReader(b))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// A state that was changed on its way, anywhere, is not taken for a whole one.
func TestChangedState(t *testing.T) {
	state := []byte("what a group's records build up")
	a, b := net.Pipe()
	go func() {
		w := NewWriter(a)
		_, err := w.Write(state)
		_ = w.Finish(err)
		_ = a.Close()
	}()
	sent, err := io.ReadAll(b)
	require.NoError(t, err)
	receive := func(sent []byte) ([]byte, error) {
		a, b := net.Pipe()
		defer b.Close()
		go func() {
			_, _ = a.Write(sent)
			_ = a.Close()
		}()
		return io.ReadAll(NewReader(b))
	}
	got, err := receive(sent)
	require.NoError(t, err)
	require.Equal(t, state, got)
	for at := range sent {
		for bit := range 8 {
			changed := slices.Clone(sent)
			changed[at] ^= 1 << bit
			_, err := receive(changed)
			require.Error(t, err, "byte %d, bit %d", at, bit)
		}
		_, err := receive(sent[:at])
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes", at)
	}
}
