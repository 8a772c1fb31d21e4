package encryption

// This file is what a store is given (store.Sealing).

import (
	"errors"

	"google.golang.org/grpc/codes"

	"apilet/internal/store"
)

// Sealing is what a store with a log of its own does with documents. Where nothing is encrypted it can tell alone what cannot be read.
func (p *Providers) Sealing() *store.Sealing {
	if !p.On() {
		return &store.Sealing{Open: p.Open}
	}
	return &store.Sealing{Seal: p.Seal, Open: p.Open, Does: p.Does}
}

// ReplicaSealing is what a replica does: what is in etcd already is taken over, also while a plug-in has not been well for too long to write under
// its seed.
func (p *Providers) ReplicaSealing() *store.Sealing {
	s := p.Sealing()
	if s.Seal != nil {
		s.Seal = func(key string, json []byte) ([]byte, error) { return p.sealAs(value{late: true}, key, json) }
	}
	return s
}

// IsAway says of an error that a plug-in could not be asked, so that it may be otherwise in a moment.
func IsAway(err error) bool {
	var call *callError
	return errors.As(err, &call) && (call.code == codes.Unavailable || call.code == codes.DeadlineExceeded)
}
