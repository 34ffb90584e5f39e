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

// credentialsVariable begins the names of environment variables with credentials.
const credentialsVariable = "MILLRACE_STREAM_CREDENTIALS_"

// credentials reads what the operator has given the server under a name for the streams of a workspace: a JSON object,
// in the file <CredentialsDir>/<workspace>/<name>.json or else in an environment variable. Errors have nothing of it.
func (o *Options) credentials(workspace, name string, into any) error {
	file := filepath.Join(o.CredentialsDir, workspace, name+".json")
	variable := credentialsVariable + strings.ToUpper(strings.ReplaceAll(workspace+"_"+name, "-", "_"))
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
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
