package stream

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// CredentialsVariable is the prefix of environment variables with credentials.
const CredentialsVariable = "MILLRACE_STREAM_CREDENTIALS_"

// credentials reads what the operator has given the server under a name for the streams of a workspace: a JSON object,
// in the file <CredentialsDir>/<workspace>/<name>.json or else in an environment variable. Errors contain nothing of
// it.
func (o *Options) credentials(workspace, name string, into any) error {
	file := filepath.Join(o.CredentialsDir, workspace, name+".json")
	variable := variableOf(workspace, name)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		if other := o.claimant(variable, workspace); other != "" {
			return fmt.Errorf("credentials %q: there is no file %s, and the variable %s is of workspace %q, too", name,
				file, variable, other)
		}
		if text = []byte(os.Getenv(variable)); len(text) == 0 {
			return fmt.Errorf("credentials %q: there is neither the file %s nor the variable %s", name, file, variable)
		}
	} else if err != nil {
		return fmt.Errorf("credentials %q: %w", name, err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("credentials %q: want a JSON object with the fields that docs/streams.md has", name)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("credentials %q: there is something behind the JSON object", name)
	}
	return nil
}

// variableOf returns the name of the environment variable for a name in a workspace.
func variableOf(workspace, name string) string {
	return CredentialsVariable + strings.ToUpper(strings.ReplaceAll(workspace+"_"+name, "-", "_"))
}

// claimant returns another workspace that a variable belongs to by its name, so that no workspace uses what was given
// to another. If the name of one of two workspaces begins with that of the other, the variable belongs to the longer
// name.
func (o *Options) claimant(variable, workspace string) string {
	for _, ws := range o.Control.Snapshot().Workspaces() {
		if ws.ID != workspace && len(ws.ID) >= len(workspace) && strings.HasPrefix(variable, variableOf(ws.ID, "")) {
			return ws.ID
		}
	}
	return ""
}
