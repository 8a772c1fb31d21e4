package encryption

// This file encodes the messages of KMS in protobuf:
//
//	EncryptedObject   1 data, 2 key ID, 3 encrypted seed, 4 annotations, 5 source (0: the seed is the key itself, 1: keys are derived from it)
//	StatusRequest                                                StatusResponse    1 version, 2 healthz, 3 key ID
//	EncryptRequest    1 seed, 2 request ID                       EncryptResponse   1 encrypted seed, 2 key ID, 3 annotations
//	DecryptRequest    1 encrypted seed, 2 request ID,            DecryptResponse   1 seed
//	                  3 key ID, 4 annotations

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

const (
	sourceKey  = 0 // written by an older kube-apiserver
	sourceSeed = 1
)

// envelope is an EncryptedObject. It contains an encrypted value and the encrypted seed from which
// the key is derived.
type envelope struct {
	data          []byte
	keyID         string
	encryptedSeed []byte
	annotations   map[string][]byte
	source        int32
}

// seedName returns a unique name of the seed.
func (o *envelope) seedName() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %q %q", o.source, o.encryptedSeed, o.keyID)
	for _, name := range slices.Sorted(maps.Keys(o.annotations)) {
		fmt.Fprintf(&b, " %q %q", name, o.annotations[name])
	}
	return b.String()
}

func (o *envelope) marshal() []byte {
	b := make([]byte, 0, len(o.data)+len(o.encryptedSeed)+len(o.keyID)+64)
	b = appendBytes(b, 1, o.data)
	b = appendBytes(b, 2, []byte(o.keyID))
	b = appendBytes(b, 3, o.encryptedSeed)
	b = appendMap(b, 4, o.annotations)
	if o.source != 0 {
		b = protowire.AppendTag(b, 5, protowire.VarintType)
		b = protowire.AppendVarint(b, uint64(o.source))
	}
	return b
}

func (o *envelope) unmarshal(b []byte) error {
	return eachField(b, func(number protowire.Number, text []byte, n uint64) (err error) {
		switch number {
		case 1:
			o.data = text
		case 2:
			o.keyID = string(text)
		case 3:
			o.encryptedSeed = bytes.Clone(text)
		case 4:
			o.annotations, err = addEntry(o.annotations, text)
		case 5:
			o.source = int32(n)
		}
		return err
	})
}

// appendBytes appends a field unless it is empty.
func appendBytes(b []byte, number protowire.Number, text []byte) []byte {
	if len(text) == 0 {
		return b
	}
	b = protowire.AppendTag(b, number, protowire.BytesType)
	return protowire.AppendBytes(b, text)
}

func appendMap(b []byte, number protowire.Number, entries map[string][]byte) []byte {
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		entry := appendBytes(appendBytes(nil, 1, []byte(name)), 2, entries[name])
		b = protowire.AppendTag(b, number, protowire.BytesType)
		b = protowire.AppendBytes(b, entry)
	}
	return b
}

// addEntry decodes an entry of a map and adds it.
func addEntry(entries map[string][]byte, entry []byte) (map[string][]byte, error) {
	var name string
	var text []byte
	err := eachField(entry, func(number protowire.Number, field []byte, _ uint64) error {
		switch number {
		case 1:
			name = string(field)
		case 2:
			text = bytes.Clone(field)
		}
		return nil
	})
	if entries == nil {
		entries = map[string][]byte{}
	}
	entries[name] = text
	return entries, err
}

// eachField calls visit for each field of a message. If the field is not a byte string or a varint,
// the value is omitted.
func eachField(b []byte, visit func(number protowire.Number, text []byte, n uint64) error) error {
	for len(b) > 0 {
		number, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		var text []byte
		var n uint64
		switch kind {
		case protowire.BytesType:
			text, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(number, kind, b)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if err := visit(number, text, n); err != nil {
			return err
		}
	}
	return nil
}
