package millrace

import (
	_ "github.com/anishathalye/porcupine"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/raft"
	_ "github.com/hashicorp/raft-wal"
)
