package auth

// This file verifies the certificate chains of clients at a bounded cost.

import (
	"context"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"sync/atomic"
	"time"

	"apilet/internal/auth/signature"
	"apilet/internal/auth/ttlcache"
)

// A chainVerifier verifies the certificates of clients. It runs before flow control, and clients
// choose the certificates. Therefore it verifies few chains concurrently, rejects keys that are
// expensive to verify, and remembers rejected chains for a moment.
type chainVerifier struct {
	gate     signature.Gate
	rejected ttlcache.Cache[*x509.CertPool] // cache of rejected chains, with the authorities used
	searches atomic.Int64                   // number of chains verified
}

const (
	maxShown    = 10 // certificates of one chain
	rejectedFor = 3 * time.Second
	maxRejected = 1024
)

var errBadChain = errors.New("the client's certificates are too many or too expensive, or were rejected recently")

// verify returns the time at which the first certificate of the chain expires. now is the time that
// is used for validity periods.
func (v *chainVerifier) verify(ctx context.Context, shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (until time.Time, err error) {
	hash, err := hashOfChain(shown)
	if err != nil {
		return until, err
	}
	// use the real time for the cache, because now may be set back
	moment := time.Now()
	if by, ok := v.rejected.Get(hash, moment); ok && by == roots {
		return until, errBadChain
	}
	err = v.gate.Do(ctx, func() error {
		v.searches.Add(1)
		until, err = verifyChain(shown, roots, now)
		return err
	})
	var ofTime x509.CertificateInvalidError
	if err != nil && ctx.Err() == nil && !errors.As(err, &ofTime) { // a certificate may become valid later
		v.rejected.Put(hash, roots, moment, moment.Add(rejectedFor))
	}
	return until, err
}

// hashOfChain returns the hash of all certificates of a chain. The first one alone is not enough,
// because it may be valid with other intermediate certificates.
func hashOfChain(shown []*x509.Certificate) (hash [sha256.Size]byte, err error) {
	if len(shown) > maxShown {
		return hash, errBadChain
	}
	all := sha256.New()
	for _, cert := range shown {
		if key, ok := cert.PublicKey.(*rsa.PublicKey); ok && (key.N.BitLen() > signature.MaxModulusBits || key.E > signature.MaxExponent) {
			return hash, errBadChain
		}
		all.Write(cert.Raw)
	}
	return [sha256.Size]byte(all.Sum(nil)), nil
}

// verifyChain returns when the first certificate of the chain expires.
func verifyChain(shown []*x509.Certificate, roots *x509.CertPool, now time.Time) (until time.Time, err error) {
	between := x509.NewCertPool()
	for _, cert := range shown[1:] {
		between.AddCert(cert)
	}
	chains, err := shown[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return time.Time{}, err
	}
	until = shown[0].NotAfter
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(until) {
			until = cert.NotAfter
		}
	}
	return until, nil
}
