package durable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SealText returns v as JSON followed by a line with the JSON's CRC-32C in hex, so that damage isn't mistaken for a
// value. It panics when v can't be encoded as JSON.
func SealText(v any) []byte {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		panic(fmt.Sprintf("BUG: durable: %v", err))
	}
	b = append(b, '\n')
	return append(b, seal(b)...)
}

// sealBytes is the size of a seal: eight digits and a newline.
const sealBytes = 9

func seal(b []byte) []byte { return fmt.Appendf(nil, "%08x\n", crc32.Checksum(b, castagnoli)) }

// UnsealText decodes what SealText has made into v. It returns io.ErrUnexpectedEOF when the text is too short, and
// another error when anything in it was changed.
func UnsealText(b []byte, v any) error {
	n := len(b) - sealBytes
	if n < 0 {
		return io.ErrUnexpectedEOF
	}
	if !bytes.Equal(b[n:], seal(b[:n])) {
		return errors.New("it fails its checksum")
	}
	return json.Unmarshal(b[:n], v)
}
