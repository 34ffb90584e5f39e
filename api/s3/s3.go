// Package s3 makes clients of services that speak S3, with the credentials that somebody names or that the machine has.
// What is asked of such a service, and of one that gives out credentials, costs no more memory and no more time than
// somebody has set, whatever it answers; objects alone may be of any size, for whoever reads them.
package s3

import (
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"millrace/api/bounded"
)

// Service says where a service is, and what it may cost.
type Service struct {
	// Endpoint is http://HOST:PORT or https://HOST.
	Endpoint string
	// Region of its buckets (default: the service is asked).
	Region string
	// Addressing of buckets: ByPath or ByHost (default: by host at AWS, else by path).
	Addressing string
	// Credentials for it (default: those that the machine has for AWS: environment, file, role).
	Credentials *Credentials
	// Patience bounds connecting, and a whole request to a service that gives out credentials.
	Patience time.Duration
	// Silence is how long the service may be silent in the middle of a request. An answer that is no object takes at
	// most ten times as long, since a service may say a byte now and then.
	Silence time.Duration
	// Tries is how often a request is tried (default: as often as the library sees fit).
	Tries int
	// Transport carries requests for buckets and objects (default: one of its own, bounded by Patience and Silence).
	Transport http.RoundTripper
}

// maxSilences is how many times Silence an answer may take.
const maxSilences = 10

// Ways of addressing buckets.
const (
	ByPath = "path"
	ByHost = "host"
)

// Credentials are one key of a service, in the form of a file.
type Credentials struct {
	AccessKeyID     string `json:"access_key_id"`
	SecretAccessKey string `json:"secret_access_key"`
	SessionToken    string `json:"session_token,omitempty"`
}

// Client returns a client of the service. It reads the machine's credentials when it needs them, and again before they
// expire.
func (s *Service) Client() (*minio.Client, error) {
	u, err := url.Parse(s.Endpoint)
	if err != nil {
		return nil, err
	}
	own, err := minio.DefaultTransport(u.Scheme == "https")
	if err != nil {
		return nil, err
	}
	bounded.Limit(own, s.Patience, s.Silence)
	carrier := s.Transport
	if carrier == nil {
		carrier = own
	}
	lookup := map[string]minio.BucketLookupType{ByPath: minio.BucketLookupPath, ByHost: minio.BucketLookupDNS}
	client, err := minio.New(u.Host, &minio.Options{Creds: s.credentials(own), Secure: u.Scheme == "https",
		Region: s.Region, BucketLookup: lookup[s.Addressing], MaxRetries: s.Tries,
		Transport: answers{carrier, maxSilences * s.Silence}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Endpoint, err)
	}
	return client, nil
}

// credentials returns the named credentials, or else the first that the machine has.
func (s *Service) credentials(carrier http.RoundTripper) *credentials.Credentials {
	if c := s.Credentials; c != nil {
		return credentials.NewStaticV4(c.AccessKeyID, c.SecretAccessKey, c.SessionToken)
	}
	return credentials.NewChainCredentials([]credentials.Provider{&credentials.EnvAWS{},
		&credentials.FileAWSCredentials{}, s.role(carrier)})
}

// role asks the metadata of an instance or a container, or the service for tokens, whichever the environment names.
// No object comes from there, so all answers are bounded.
func (s *Service) role(carrier http.RoundTripper) *credentials.IAM {
	return &credentials.IAM{Client: &http.Client{Timeout: s.Patience,
		Transport: bounded.Transport{Base: carrier, Bytes: maxAnswer}}}
}
