package bounded

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A pipe is read when somebody writes into it, be it later, and given up when nobody does.
func TestReadPipe(t *testing.T) {
	const short, long = 10 * time.Millisecond, 4 * time.Minute
	path := filepath.Join(t.TempDir(), "nobody")
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := readFile(path, SmallFile, short)
	require.ErrorContains(t, err, "nobody has opened it for writing")
	f, err := os.OpenFile(path, os.O_RDWR, 0) // ends the attempt that was left alone
	require.NoError(t, err)
	require.NoError(t, f.Close())

	path = filepath.Join(t.TempDir(), "late") // another one: that attempt would take what is written
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	go func() {
		time.Sleep(short)
		_ = os.WriteFile(path, []byte("text"), 0o600) // waits for the reader
	}()
	text, err := readFile(path, SmallFile, long)
	require.NoError(t, err)
	require.Equal(t, "text", string(text))

	in, out, err := os.Pipe()
	require.NoError(t, err)
	defer in.Close()
	defer out.Close()
	path = fmt.Sprintf("/proc/self/fd/%d", in.Fd())
	for patience := short; ; patience *= 3 {
		_, err = readFile(path, SmallFile, patience)
		if patience > long || !strings.Contains(fmt.Sprint(err), "nobody has opened it") { // a busy machine opens late
			break
		}
	}
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "there is somebody who could write")

	_, err = out.WriteString("more")
	require.NoError(t, err)
	require.NoError(t, out.Close())
	text, err = readFile(path, SmallFile, long)
	require.NoError(t, err)
	require.Equal(t, "more", string(text))
	text, err = readFile(path, SmallFile, long)
	require.NoError(t, err)
	require.Empty(t, text, "the writer has ended")
	_, err = readFile(path+"-none", SmallFile, long)
	require.ErrorIs(t, err, os.ErrNotExist)
}
