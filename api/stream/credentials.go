package stream

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"millrace/api/bounded"
	"millrace/api/control/document"
)

// CredentialsVariable is the prefix of environment variables with credentials.
const CredentialsVariable = "MILLRACE_STREAM_CREDENTIALS_"

// credentials reads what the operator has given the server under a name for the streams of a workspace: a JSON object,
// in the file <CredentialsDir>/<workspace>/<name>.json or else in an environment variable. Errors contain nothing of
// it.
func (o *Options) credentials(workspace, name string, into any) error {
	file := filepath.Join(o.CredentialsDir, workspace, name+".json")
	variable := variableOf(workspace, name)
	text, err := bounded.ReadFile(file, bounded.SmallFile)
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

// kafkaCredentials is the form of credentials for Kafka: for SASL, and for TLS, in PEM.
type kafkaCredentials struct {
	User        string `json:"user,omitempty"`
	Password    string `json:"password,omitempty"`
	CA          string `json:"ca,omitempty"` // whom to trust instead of the machine's authorities
	Certificate string `json:"certificate,omitempty"`
	Key         string `json:"key,omitempty"`
	// For the schema registry: a user, or a token.
	RegistryUser     string `json:"registry_user,omitempty"`
	RegistryPassword string `json:"registry_password,omitempty"`
	RegistryToken    string `json:"registry_token,omitempty"`
}

func (c *kafkaCredentials) mechanism(name string) (sasl.Mechanism, error) {
	if name != "" && c.User == "" {
		return nil, errors.New("user is missing")
	}
	switch name {
	case document.SASLPlain:
		return plain.Auth{User: c.User, Pass: c.Password}.AsMechanism(), nil
	case document.SASLScram256:
		return thrifty{scram.Auth{User: c.User, Pass: c.Password}.AsSha256Mechanism()}, nil
	case document.SASLScram512:
		return thrifty{scram.Auth{User: c.User, Pass: c.Password}.AsSha512Mechanism()}, nil
	}
	return nil, nil
}

// thrifty is a mechanism of SCRAM that refuses to hash the password as often as a broker likes: up to 2³¹ times and
// more, which takes a core for minutes, and which nothing ends.
type thrifty struct{ sasl.Mechanism }

// Authenticate begins a session.
func (m thrifty) Authenticate(ctx context.Context, host string) (sasl.Session, []byte, error) {
	s, message, err := m.Mechanism.Authenticate(ctx, host)
	return thriftySession{s}, message, err
}

type thriftySession struct{ sasl.Session }

// maxIterations is how often a password is hashed: brokers want 4,096, and Kafka's own no more than 16,384.
const maxIterations = 1_000_000

// Challenge answers a message of the broker.
func (s thriftySession) Challenge(message []byte) (done bool, answer []byte, err error) {
	for part := range bytes.SplitSeq(message, []byte{','}) {
		count, ok := bytes.CutPrefix(part, []byte("i="))
		if n, err := strconv.Atoi(string(count)); ok && err == nil && n > maxIterations {
			return false, nil, fmt.Errorf("the broker wants %d iterations of SCRAM: at most %d", n, maxIterations)
		}
	}
	return s.Session.Challenge(message)
}

func (c *kafkaCredentials) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM([]byte(c.CA)) {
			return nil, errors.New("ca has no certificate in PEM")
		}
	}
	if c.Certificate != "" || c.Key != "" {
		pair, err := tls.X509KeyPair([]byte(c.Certificate), []byte(c.Key))
		if err != nil {
			return nil, errors.New("certificate and key are no pair in PEM")
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
