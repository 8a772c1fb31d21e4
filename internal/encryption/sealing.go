package encryption

// This file provides the store's encryption functions (store.Sealing).

import (
	"errors"

	"google.golang.org/grpc/codes"

	"apilet/internal/store"
)

// Sealing returns the functions for a store with its own log. Without a configuration file it only
// has Open, which fails for encrypted values.
func (p *Providers) Sealing() *store.Sealing {
	if !p.Enabled() {
		return &store.Sealing{Open: p.Open}
	}
	return &store.Sealing{Seal: p.Seal, Open: p.Open, Encrypts: p.Encrypts}
}

// ReplicaSealing returns the functions for a replica. A replica must store the data that is already
// in etcd, so it writes even if the plug-in's seed has expired.
func (p *Providers) ReplicaSealing() *store.Sealing {
	s := p.Sealing()
	if s.Seal != nil {
		s.Seal = func(key string, json []byte) ([]byte, error) { return p.sealAs(value{late: true}, key, json) }
	}
	return s
}

// IsUnavailable reports whether err means that a plug-in did not respond, so that the operation may
// succeed later.
func IsUnavailable(err error) bool {
	var call *callError
	return errors.As(err, &call) && (call.code == codes.Unavailable || call.code == codes.DeadlineExceeded)
}
