package encryption

// This file describes the key that decrypts a value.

import (
	"bytes"
	"fmt"
)

// KeyName returns a description of the provider and the key that encrypted a value. It needs no
// key.
func KeyName(sealed []byte) string {
	for _, provider := range []struct{ prefix, name string }{{secretboxPrefix, "secretbox"}, {aesgcmPrefix, "aesgcm"}, {aescbcPrefix, "aescbc"}, {kmsPrefix, "kms"}} {
		rest, ok := bytes.CutPrefix(sealed, []byte(provider.prefix))
		if !ok {
			continue
		}
		key, rest, ok := bytes.Cut(rest, []byte(":"))
		if !ok {
			break
		}
		name := fmt.Sprintf("%s key %q", provider.name, key)
		if provider.prefix != kmsPrefix {
			return name
		}
		var o envelope
		if o.unmarshal(rest) != nil {
			break
		}
		return fmt.Sprintf("kms plug-in %q with key ID %q", key, o.keyID)
	}
	return "an unknown key"
}
