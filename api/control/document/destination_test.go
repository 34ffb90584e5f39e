package document_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	. "millrace/api/control/document"
)

// What services take is not refused.
func TestDestinationsThatWork(t *testing.T) {
	for _, d := range []Destination{
		{Type: DestinationS3, Bucket: "lake", Encryption: EncryptionKMS,
			KMSKey: "arn:aws:kms:eu-central-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"},
		{Type: DestinationS3, Bucket: "lake", Encryption: EncryptionKMS, KMSKey: "alias/lake"},
	} {
		s := Stream{ID: "a", Destination: d}
		s.EnsureDefaults()
		require.NoError(t, s.Validate(), "%+v", d)
	}
}
