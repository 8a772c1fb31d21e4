package oidc

// This file reads an issuer's public keys. The discovery document of the issuer contains their URL.
// Both are read in the background.

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/auth/signature"
	"apilet/internal/auth/ttlcache"
)

const (
	fetchTimeout     = 15 * time.Second
	maxDocumentBytes = 1 << 20          // bytes
	maxKeys          = 1000             // maximum number of keys of an issuer
	retryAfter       = 10 * time.Second // also the minimum time between two reads for unknown keys
	renewAfter       = 10 * time.Minute
	keyWaitTimeout   = time.Second
)

// A keySet holds the result of reading the keys once.
type keySet struct {
	byID     map[string]crypto.PublicKey
	all      []crypto.PublicKey
	rejected ttlcache.Cache[struct{}] // hashes of tokens rejected with these keys
}

// keys holds the keys of an issuer.
type keys struct {
	issuer, discovery string
	client            *http.Client
	log               zerolog.Logger
	current           atomic.Pointer[keySet] // nil until the keys have been read
	// wanted receives a channel from a request with an unknown key. The channel is closed when the
	// keys have been read again.
	wanted chan chan struct{}
}

func newKeys(issuer, discovery string, transport http.RoundTripper, log zerolog.Logger) *keys {
	return &keys{issuer: issuer, discovery: discovery, log: log, wanted: make(chan chan struct{}), client: &http.Client{Transport: transport,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if r.URL.Scheme != "https" || len(via) > 3 {
				return fmt.Errorf("redirects are not followed (to %s)", r.URL)
			}
			return nil
		}}}
}

func (k *keys) now() *keySet { return k.current.Load() }

// named returns the key with the ID, or all keys if the ID is empty. If the key is unknown, it may
// be new, and named waits for the keys to be read again if they were not read recently.
func (k *keys) named(ctx context.Context, id string) (*keySet, []crypto.PublicKey, error) {
	set := k.now()
	if keys := set.find(id); len(keys) > 0 {
		return set, keys, nil
	}
	done := make(chan struct{})
	select {
	case k.wanted <- done:
	default: // the keys were read recently or are being read
		return nil, nil, fmt.Errorf("unknown key %q of %s", id, k.issuer)
	}
	ctx, cancel := context.WithTimeout(ctx, keyWaitTimeout)
	defer cancel()
	select {
	case <-done:
	case <-ctx.Done():
	}
	set = k.now()
	if keys := set.find(id); len(keys) > 0 {
		return set, keys, nil
	}
	return nil, nil, fmt.Errorf("unknown key %q of %s", id, k.issuer)
}

// find returns the key with that id, or all keys if id is empty.
func (s *keySet) find(id string) []crypto.PublicKey {
	if id == "" {
		return s.all
	}
	if key, ok := s.byID[id]; ok {
		return []crypto.PublicKey{key}
	}
	return nil
}

// usableKeys returns the keys that can be used with the algorithm. Other keys would count against
// the limit of keys that are tried for a token.
func usableKeys(keys []crypto.PublicKey, algorithm string) (fit []crypto.PublicKey) {
	for _, key := range keys {
		if _, elliptic := key.(*ecdsa.PublicKey); elliptic == strings.HasPrefix(algorithm, "ES") {
			fit = append(fit, key)
		}
	}
	return fit
}

// run reads the keys regularly until ctx ends.
func (k *keys) run(ctx context.Context) {
	failing := false
	for {
		set, err := k.fetch(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !failing:
			k.log.Error().Err(err).Str("issuer", k.issuer).Msg("cannot fetch the issuer's keys; continuing with the previous keys, if any")
		case err == nil && failing:
			k.log.Info().Str("issuer", k.issuer).Msg("fetched the issuer's keys again")
		}
		if failing = err != nil; !failing {
			k.current.Store(set)
		}
		select { // limits the requests to the issuer
		case <-time.After(retryAfter):
		case <-ctx.Done():
			return
		}
		if failing {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewAfter):
		case done := <-k.wanted:
			if set, err := k.fetch(ctx); err == nil {
				k.current.Store(set)
			}
			close(done)
			select {
			case <-time.After(retryAfter):
			case <-ctx.Done():
				return
			}
		}
	}
}

// fetch reads the discovery document and the keys to which it refers.
func (k *keys) fetch(ctx context.Context) (*keySet, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	var provider struct {
		Issuer  string `json:"issuer"`
		JWKSURL string `json:"jwks_uri"`
	}
	if err := k.get(ctx, k.discovery, &provider); err != nil {
		return nil, err
	}
	if provider.Issuer != k.issuer {
		return nil, fmt.Errorf("oidc: issuer did not match the issuer returned by provider, expected %q got %q", k.issuer, provider.Issuer)
	}
	if !strings.HasPrefix(provider.JWKSURL, "https://") {
		return nil, fmt.Errorf("the provider's keys are at %q, which is not an https URL", provider.JWKSURL)
	}
	var found struct {
		Keys []jsonKey `json:"keys"`
	}
	if err := k.get(ctx, provider.JWKSURL, &found); err != nil {
		return nil, err
	}
	if len(found.Keys) > maxKeys {
		return nil, fmt.Errorf("%s has more than %d keys", provider.JWKSURL, maxKeys)
	}
	return k.keySetOf(found.Keys), nil
}

// keySetOf returns the set of the usable keys. Keys of other types are ignored. Keys are also
// ignored if verification with them would be too expensive.
func (k *keys) keySetOf(found []jsonKey) *keySet {
	set := &keySet{byID: map[string]crypto.PublicKey{}, rejected: ttlcache.Cache[struct{}]{MaxEntries: maxCached}}
	costly := 0
	for _, one := range found {
		key, err := one.public()
		switch {
		case errors.Is(err, errCostlyKey):
			costly++
		case err == nil:
			set.all = append(set.all, key)
			if one.ID != "" {
				set.byID[one.ID] = key
			}
		}
	}
	if costly > 0 {
		k.log.Warn().Str("issuer", k.issuer).Int("keys", costly).Msgf("ignored RSA keys of more than %d bits or with an exponent above %d",
			signature.MaxModulusBits, signature.MaxExponent)
	}
	return set
}

func (k *keys) get(ctx context.Context, url string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := k.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK { // ctx would not end the body of a 101
		return fmt.Errorf("%s: status %d", url, response.StatusCode)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxDocumentBytes+1))
	switch {
	case err != nil:
		return err
	case len(body) > maxDocumentBytes:
		return fmt.Errorf("%s has more than %d bytes", url, maxDocumentBytes)
	}
	return json.Unmarshal(body, into)
}

// A jsonKey is a JSON Web Key (RFC 7517).
type jsonKey struct {
	Type  string `json:"kty"`
	ID    string `json:"kid"`
	Use   string `json:"use"`
	N     string `json:"n"`
	E     string `json:"e"`
	Curve string `json:"crv"`
	X     string `json:"x"`
	Y     string `json:"y"`
}

var (
	errOtherKey  = errors.New("a key of another kind")
	errCostlyKey = errors.New("a key whose signatures are too expensive to check")
)

func (j *jsonKey) public() (crypto.PublicKey, error) {
	number := func(text string) (*big.Int, error) {
		data, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(text, "="))
		if err == nil && len(data) == 0 {
			err = errOtherKey
		}
		return new(big.Int).SetBytes(data), err
	}
	if j.Use != "" && j.Use != "sig" {
		return nil, errOtherKey
	}
	switch j.Type {
	case "RSA":
		n, err := number(j.N)
		e, err2 := number(j.E)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		if n.BitLen() > signature.MaxModulusBits || e.Cmp(big.NewInt(signature.MaxExponent)) > 0 {
			return nil, errCostlyKey
		}
		if e.Int64() < 3 || n.BitLen() < 1024 {
			return nil, errOtherKey
		}
		return &rsa.PublicKey{N: n, E: int(e.Int64())}, nil
	case "EC":
		curve, ok := map[string]elliptic.Curve{"P-256": elliptic.P256(), "P-384": elliptic.P384(), "P-521": elliptic.P521()}[j.Curve]
		if !ok {
			return nil, errOtherKey
		}
		x, err := number(j.X)
		y, err2 := number(j.Y)
		if err := errors.Join(err, err2); err != nil || max(x.BitLen(), y.BitLen()) > curve.Params().BitSize {
			return nil, errors.Join(err, errOtherKey)
		}
		key := &ecdsa.PublicKey{Curve: curve, X: x, Y: y}
		if _, err := key.ECDH(); err != nil { // the point is not on the curve
			return nil, err
		}
		return key, nil
	}
	return nil, errOtherKey
}
