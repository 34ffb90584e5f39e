package body

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// ReadCorpus reads recorded requests, one JSON object a line with `path` and `body`, and returns the bodies of those to
// /users/track as they were written. It leaves out other requests.
func ReadCorpus(r io.Reader) ([][]byte, error) {
	var bodies [][]byte
	in := bufio.NewReaderSize(r, 1<<16)
	for line := 1; ; line++ {
		text, err := in.ReadBytes('\n')
		if err != nil && err != io.EOF {
			return nil, err
		}
		if len(bytes.TrimSpace(text)) > 0 {
			var entry struct {
				Path string          `json:"path"`
				Body json.RawMessage `json:"body"`
			}
			if err := json.Unmarshal(text, &entry); err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			if strings.TrimRight(entry.Path, "/") == "/users/track" && len(entry.Body) > 0 {
				bodies = append(bodies, entry.Body)
			}
		}
		if err == io.EOF {
			return bodies, nil
		}
	}
}
