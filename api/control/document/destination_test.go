package document_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	. "millrace/api/control/document"
)

// What services take is not refused, though others wouldn't take it.
func TestDestinationsThatWork(t *testing.T) {
	for _, d := range []Destination{
		{Type: DestinationS3, Bucket: "acme.lake-1", Region: "eu-central-1"},
		{Type: DestinationS3, Bucket: "abc"},
		{Type: DestinationS3, Bucket: strings.Repeat("a", 63), Prefix: strings.Repeat("a", 512)},
		{Type: DestinationS3, Bucket: "My_Lake", Addressing: AddressingPath},
		{Type: DestinationS3, Bucket: "tenant:My_Lake", Endpoint: "http://[::1]:9000"},
		{Type: DestinationS3, Bucket: "lake", Endpoint: "https://objects.example.com", Addressing: AddressingHost},
		{Type: DestinationS3, Bucket: "lake", Encryption: EncryptionKMS,
			KMSKey: "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"},
		{Type: DestinationS3, Bucket: "lake", Encryption: EncryptionKMS, KMSKey: "alias/lake"},
		{Type: DestinationHTTP, URL: "https://example.com:8443/currents?workspace=shop"},
		{Type: DestinationKafka, Brokers: "kafka-1:9093,10.0.0.1:65535,[::1]:1"},
		{Type: DestinationKafka, Brokers: "h:1", Topic: "{workspace}.{stream}.{kind}." + strings.Repeat("a", 102)},
		{Type: DestinationDirectory, Path: "lake/events"},
	} {
		s := Stream{ID: "a", Destination: d}
		s.EnsureDefaults()
		require.NoError(t, s.Validate(), "%+v", d)
	}
}

// Whoever saves JSON in an editor that begins texts with a byte order mark is told so.
func TestByteOrderMark(t *testing.T) {
	var into map[string]any
	require.ErrorContains(t, DecodeStrict([]byte("\ufeff{}"), &into), "malformed JSON at byte 0: a byte order mark")
}
