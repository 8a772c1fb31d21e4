// Package signature verifies the signatures of JSON Web Tokens at a limited cost. It is used before
// the client is authenticated, and therefore before flow control.
//
//	var gate signature.Gate                     // one per issuer: a costly issuer delays only its own tokens
//	token, err := signature.Parse(bearer)       // decodes the header; nothing is trusted yet
//	err = gate.Verify(ctx, token, keys)         // nil: one of the keys has signed the token
//
// Invariants: A Gate uses at most half of the processors. Verification stops when the request has
// ended. At most MaxKeys keys are used to verify a token. A token with a critical header extension
// is rejected, because this package does not implement any.
package signature

import (
	"context"
	"crypto"
	"encoding/base64"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/golang-jwt/jwt/v5"
)

const (
	// MaxKeys is the maximum number of keys that are tried for one token.
	MaxKeys = 16
	// MaxModulusBits and MaxExponent limit RSA keys. The cost of a check grows with the square of
	// the first and with the length of the second.
	MaxModulusBits = 8192
	MaxExponent    = 1<<24 + 1
)

// ErrInvalid is returned if the token was not signed with one of the keys.
var ErrInvalid = errors.New("invalid signature")

// A Token is a parsed token. The signature has not been verified.
type Token struct {
	KeyID     string // "" if the header names no key
	Algorithm string
	Payload   []byte // the claims, in JSON

	method    jwt.SigningMethod
	signed    string // the part of the token that the signature covers
	signature []byte
}

// Parse parses a token without verifying it. It rejects a header with "crit" (RFC 7515, section
// 4.1.11).
func Parse(text string) (*Token, error) {
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return nil, errors.New("the token does not have three parts")
	}
	decoded := [3][]byte{}
	for i, part := range parts {
		var err error
		if decoded[i], err = base64.RawURLEncoding.DecodeString(part); err != nil {
			return nil, errors.New("the token is not base64")
		}
	}
	var header map[string]json.RawMessage
	if err := json.Unmarshal(decoded[0], &header); err != nil {
		return nil, errors.New("the token's header is not JSON")
	}
	if _, ok := header["crit"]; ok {
		return nil, errors.New("the token's header has critical extensions, which are not supported")
	}
	t := &Token{Payload: decoded[1], signed: text[:len(parts[0])+1+len(parts[1])], signature: decoded[2]}
	for name, into := range map[string]*string{"alg": &t.Algorithm, "kid": &t.KeyID} {
		if value, ok := header[name]; ok && json.Unmarshal(value, into) != nil {
			return nil, errors.New("the token's header has no string " + name)
		}
	}
	if t.method = jwt.GetSigningMethod(t.Algorithm); t.method == nil {
		return nil, errors.New("the token's algorithm is not supported")
	}
	return t, nil
}

// A Gate limits how many signatures are checked concurrently. The zero Gate is ready to use.
type Gate struct {
	once   sync.Once
	slots  chan struct{} // one element for each check that runs
	checks atomic.Int64
}

// Checks returns the number of signature checks so far.
func (g *Gate) Checks() int64 { return g.checks.Load() }

// Do calls check when a place is free. It returns the context's error if the request ends first.
func (g *Gate) Do(ctx context.Context, check func() error) error {
	g.once.Do(func() { g.slots = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2)) })
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-g.slots }()
	return check()
}

// Verify returns nil if one of the keys has signed the token, and ErrInvalid if none has. Any other
// error is from the context.
func (g *Gate) Verify(ctx context.Context, t *Token, keys []crypto.PublicKey) error {
	return g.Do(ctx, func() error {
		for _, key := range keys[:min(len(keys), MaxKeys)] {
			if err := ctx.Err(); err != nil {
				return err
			}
			g.checks.Add(1)
			if t.method.Verify(t.signed, t.signature, key) == nil {
				return nil
			}
		}
		return ErrInvalid
	})
}
