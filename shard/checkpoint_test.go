package shard

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"millrace/shard/op"
	"millrace/shard/replica"
)

// A round of checkpoints begins whenever there is enough new log for it, and when the interval has passed.
func TestCheckpointsComeByThemselves(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*replica.EngineOptions){
		"bytes": func(o *replica.EngineOptions) { o.CheckpointBytes, o.CheckpointInterval = 4<<10, time.Hour },
		"time":  func(o *replica.EngineOptions) { o.CheckpointInterval = time.Millisecond },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := testOptions(vfs.NewMem())
			set(&o)
			e := openTest(t, o)
			for round := range 5 {
				before := e.CheckpointedPosition()
				for i := range 100 {
					commitEvent(t, e, op.ExternalID, fmt.Sprint("u", i), "bought", 0)
				}
				eventually(t, fmt.Sprint("round ", round), func() bool { return e.CheckpointedPosition() > before })
			}
		})
	}
}
