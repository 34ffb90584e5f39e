package loadtest

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// as-ever leaves the files of tests where TMPDIR says, and passes on how the test ends.
func TestAsEver(t *testing.T) {
	run := exec.Command("./as-ever", "sh", "-c", `echo "$TMPDIR $GOGC"; exit 7`)
	run.Env = append(run.Environ(), "TMPDIR=/here", "GOGC=400")
	text, err := run.Output()
	require.EqualError(t, err, "exit status 7")
	require.Equal(t, "/here \n", string(text))
}
