// Package continuetoken encrypts the continue tokens of chunked lists. A token contains the
// revision of the list and the first key of the next chunk.
//
//	codec := continuetoken.NewCodec(keys)
//	text := codec.Seal(continuetoken.Token{Rev: 77, Start: "b", Remaining: 3}, list)
//	token, err := codec.Open(text, list)
//
// A token is opaque to clients. This is its format:
//
//	OFFSET  SIZE  MEANING
//	0       1     version, 1
//	1       4     key id
//	5       16    tag: HMAC-SHA-256 of everything below and of the list's identity, truncated
//	21      -     AES-CTR ciphertext (the tag is its IV) of: lineage u32, revision varint, remaining varint, start key
//
// The tag is used as a synthetic IV, so that equal lists have equal tokens and no unique nonce is
// needed. The tag also covers the list's key prefix and selectors, so that a token is only valid
// for the same list. The start key is encrypted because it may name an object that the client may
// not see. The base64 is strict, URL-safe and without padding, so that each token has only one
// spelling.
package continuetoken

import (
	"bufio"
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	kubestorage "k8s.io/apiserver/pkg/storage"

	"apilet/internal/selector"
	"apilet/internal/store"
)

// A Token is the position of a list between two chunks.
type Token struct {
	Rev       int64  // 0 means the newest revision, for continuing after a token has expired
	Start     string // relative to the list's prefix
	Remaining int64  // number of objects from Start on; -1 if unknown
	Lineage   uint32 // from LineageOf
}

const (
	tokenVersion = 1
	tokenHeader  = 1 + 4 + 16
	maxToken     = 4096 // in characters; keys are at most half as long
)

// LineageOf returns a prefix of the file's lineage ID, which is included in tokens.
func LineageOf(st *store.Store) uint32 {
	id := st.Lineage()
	return binary.BigEndian.Uint32(id[:])
}

// A Codec encrypts and decrypts continue tokens. To allow rotation, it encrypts with the first
// key and decrypts with any key.
type Codec struct{ keys []tokenKey }

type tokenKey struct {
	id    [4]byte
	mac   []byte
	block cipher.Block
}

// NewCodec derives a signing key and an encryption key from each secret. The caller must pass
// at least one secret of at least 32 bytes.
func NewCodec(secrets [][]byte) *Codec {
	c := &Codec{}
	for _, secret := range secrets {
		derive := func(purpose string) []byte {
			mac := hmac.New(sha256.New, secret)
			mac.Write([]byte("apilet continue token " + purpose))
			return mac.Sum(nil)
		}
		block, err := aes.NewCipher(derive("encryption"))
		if err != nil {
			panic(err) // a SHA-256 sum is a valid AES-256 key
		}
		key := tokenKey{mac: derive("signature"), block: block}
		copy(key.id[:], derive("id"))
		c.keys = append(c.keys, key)
	}
	return c
}

// tag signs a plaintext for the list that m selects.
func (k *tokenKey) tag(plain []byte, m *selector.Matcher) []byte {
	mac := hmac.New(sha256.New, k.mac)
	var length [8]byte
	for _, part := range []string{m.Prefix, m.Selectors} {
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		mac.Write(length[:])
		mac.Write([]byte(part))
	}
	mac.Write(plain)
	return mac.Sum(nil)[:16]
}

// Seal returns an encrypted token for the list that m selects.
func (c *Codec) Seal(t Token, m *selector.Matcher) string {
	k := &c.keys[0]
	plain := binary.BigEndian.AppendUint32(nil, t.Lineage)
	plain = binary.AppendVarint(binary.AppendVarint(plain, t.Rev), t.Remaining)
	plain = append(plain, t.Start...)
	tag := k.tag(plain, m)
	cipher.NewCTR(k.block, tag).XORKeyStream(plain, plain)
	out := append(append([]byte{tokenVersion}, k.id[:]...), tag...)
	return base64.RawURLEncoding.EncodeToString(append(out, plain...))
}

// Open decrypts a token. If the token is from another program, the error follows kube-apiserver.
// For an apilet token that is invalid or belongs to another list, the error is a 400 without a
// reason.
func (c *Codec) Open(text string, m *selector.Matcher) (*Token, error) {
	const invalid = "invalid continue token: continue key is not valid"
	bad := apierrors.NewBadRequest(invalid)
	if len(text) > maxToken || strings.ContainsAny(text, "\r\n") { // the decoder would ignore line breaks
		return nil, bad
	}
	raw, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(raw) == 0 || raw[0] != tokenVersion {
		return nil, foreignToken(text)
	}
	if len(raw) < tokenHeader || base64.RawURLEncoding.EncodeToString(raw) != text {
		return nil, bad
	}
	for i := range c.keys {
		k := &c.keys[i]
		if !bytes.Equal(raw[1:5], k.id[:]) {
			continue
		}
		plain := make([]byte, len(raw)-tokenHeader)
		cipher.NewCTR(k.block, raw[5:tokenHeader]).XORKeyStream(plain, raw[tokenHeader:])
		if !hmac.Equal(k.tag(plain, m), raw[5:tokenHeader]) {
			return nil, bad
		}
		if t, ok := parseToken(plain); ok {
			return t, nil
		}
	}
	return nil, bad
}

// foreignToken returns the error for a token that apilet has not created. If kube-apiserver has
// created it, the error is a 410, since both servers may use the same etcd behind the same load
// balancer. The client then starts a new list. After a 400 it would give up.
func foreignToken(text string) error {
	if _, _, err := kubestorage.DecodeContinue(text, "/"); err != nil {
		return apierrors.NewBadRequest("invalid continue token: " + err.Error())
	}
	return apierrors.NewResourceExpired("The provided continue parameter is a kube-apiserver's and leads nowhere here: start a new list without the continue parameter.")
}

func parseToken(plain []byte) (*Token, bool) {
	if len(plain) < 4 {
		return nil, false
	}
	t := &Token{Lineage: binary.BigEndian.Uint32(plain)}
	plain = plain[4:]
	var n, m int
	if t.Rev, n = binary.Varint(plain); n <= 0 || t.Rev < 0 {
		return nil, false
	}
	if t.Remaining, m = binary.Varint(plain[n:]); m <= 0 {
		return nil, false
	}
	t.Start = string(plain[n+m:])
	return t, true
}

// ReadKeys reads a file with one base64-encoded key of at least 32 bytes per line.
func ReadKeys(path string) ([][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var keys [][]byte
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(key) < 32 {
			return nil, fmt.Errorf("line %d does not contain at least 32 bytes in base64", n)
		}
		keys = append(keys, key)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(keys) == 0 {
		return nil, errors.New("the file contains no key")
	}
	return keys, nil
}

// NewKey returns a random key.
func NewKey() []byte {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}
