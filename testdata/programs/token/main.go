// Token opens a continue token with the server's own key, and shows it field by field.
//
//	go run . --ephemeral --continue-key-file keys &
//	go run ./testdata/programs/token -keys keys -list //configmaps/ "$TOKEN"
//
// It does what Codec.Open in internal/continuetoken does, from the same bytes and without its code: a second reading of the format. -list is the
// key range that the list walks: /GROUP/RESOURCE/, with NAMESPACE/ after it where the list was of one.
//
// What one learns: a token holds no name that could be read without the key (the third of the ways that the design document on chunks
// weighs under "Security implications of returning last or next key in the continue token"), and opens for the very list that it is from.
package main

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
)

// A row is a field of the token: where it lies, what it is called, and what it says.
type row struct {
	offset, size int
	name, value  string
}

func main() {
	keys := flag.String("keys", "", "the `file` that the server has as --continue-key-file")
	list := flag.String("list", "//configmaps/", "the key `range` of the list")
	labels := flag.String("labels", "", "the list's label `selector`")
	fields := flag.String("fields", "", "the list's field `selector`")
	flag.Parse()
	rows, err := open(*keys, *list, *labels, *fields, flag.Arg(0))
	for _, r := range rows {
		fmt.Printf("%2d %3d  %-10s %s\n", r.offset, r.size, r.name, r.value)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "token:", err)
		os.Exit(1)
	}
}

// open returns what it could read, also beside an error: the part before the ciphertext is open to everybody.
func open(keys, list, labels, fields, text string) ([]row, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(raw) < 21 {
		return nil, errors.New("this is no continue token")
	}
	version, id, tag, hidden := raw[0], raw[1:5], raw[5:21], raw[21:]
	rows := []row{
		{0, 1, "version", fmt.Sprint(version)},
		{1, 4, "key", fmt.Sprintf("%x", id)},
		{5, 16, "tag", fmt.Sprintf("%x", tag)},
		{21, len(hidden), "hidden", fmt.Sprintf("%x", hidden)},
	}
	secret, err := secretOf(keys, id)
	if err != nil {
		return rows, err
	}
	block, err := aes.NewCipher(derive(secret, "encryption"))
	if err != nil {
		return rows, err
	}
	plain := make([]byte, len(hidden))
	cipher.NewCTR(block, tag).XORKeyStream(plain, hidden)
	if !hmac.Equal(sign(derive(secret, "signature"), list, labels, fields, plain), tag) {
		return rows, errors.New("the signature is not that of this list")
	}
	return append(rows, inside(plain)...), nil
}

// inside reads the plaintext.
func inside(plain []byte) []row {
	if len(plain) < 4 {
		return nil
	}
	lineage, rest := plain[:4], plain[4:]
	revision, n := binary.Varint(rest)
	left, m := binary.Varint(rest[max(n, 0):])
	start := rest[max(n, 0)+max(m, 0):]
	return []row{
		{21, 4, " lineage", fmt.Sprintf("%x, of the data file", lineage)},
		{25, n, " revision", fmt.Sprint(revision)},
		{25 + n, m, " left", fmt.Sprint(left)},
		{25 + n + m, len(start), " start", fmt.Sprintf("%q, after the range's beginning", start)},
	}
}

// secretOf is the line of the file whose id the token names.
func secretOf(path string, id []byte) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err == nil && bytes.Equal(derive(secret, "id")[:4], id) {
			return secret, nil
		}
	}
	return nil, errors.New("none of the keys has sealed it")
}

// derive makes one key for each purpose of the one secret.
func derive(secret []byte, purpose string) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("apilet continue token " + purpose))
	return mac.Sum(nil)
}

// sign is over the plaintext and the identity of the list, each part of which has its length before it.
func sign(key []byte, list, labels, fields string, plain []byte) []byte {
	selectors := ""
	if labels != "" || fields != "" {
		selectors = labels + "\x00" + fields
	}
	mac := hmac.New(sha256.New, key)
	for _, part := range []string{list, selectors} {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write([]byte(part))
	}
	mac.Write(plain)
	return mac.Sum(nil)[:16]
}
