package encryption

// This file is how a value finds its way: prefix by prefix to the cipher that has written it.

import (
	"bytes"
	"context"
	"errors"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	storagevalue "k8s.io/apiserver/pkg/storage/value"
)

// A transformer encrypts values and decrypts them: a chain of others, a cipher, a plug-in, or nothing at all.
type transformer interface {
	seal(v value, plain []byte) ([]byte, error)
	open(v value, sealed []byte) (plain []byte, stale bool, err error)
}

// A value is whose bytes are on their way.
type value struct {
	key      string // in etcd
	resource string // for metrics
	late     bool   // it is not to be refused for a plug-in that has not been well for long
}

// AuthenticatedData is value.Context's, of k8s.io/apiserver.
func (v value) AuthenticatedData() []byte { return []byte(v.key) }

// A chain has transformers behind prefixes. The first one writes; of those whose prefix a value has, the first that can read it reads it.
type chain struct {
	links   []link
	none    error // no prefix fits
	figures *figures
}

type link struct {
	prefix string
	by     transformer
}

// encrypts says that the first link is no identity.
func (c *chain) encrypts() bool {
	_, plain := c.links[0].by.(identity)
	return !plain
}

func (c *chain) seal(v value, plain []byte) ([]byte, error) {
	first, begun := &c.links[0], time.Now()
	sealed, err := first.by.seal(v, plain)
	c.figures.transformed(v.resource, "to_storage", first.prefix, time.Since(begun), err)
	if err != nil || first.prefix == "" {
		return sealed, err
	}
	return append([]byte(first.prefix), sealed...), nil
}

func (c *chain) open(v value, sealed []byte) (plain []byte, stale bool, err error) {
	begun := time.Now()
	var errs []error
	for i := range c.links {
		l := &c.links[i]
		rest, ok := bytes.CutPrefix(sealed, []byte(l.prefix))
		if !ok {
			continue
		}
		plain, stale, err := l.by.open(v, rest)
		name := l.prefix
		if name == "" {
			if err != nil { // it is encrypted, which is another link's affair
				continue
			}
			name = "identity"
		}
		c.figures.transformed(v.resource, "from_storage", name, time.Since(begun), err)
		if err == nil {
			return plain, stale || i != 0, nil
		}
		errs = append(errs, err) // another link may have the same prefix
	}
	if err := utilerrors.Reduce(utilerrors.NewAggregate(errs)); err != nil {
		return nil, false, err
	}
	c.figures.transformed(v.resource, "from_storage", "unknown", time.Since(begun), c.none)
	return nil, false, c.none
}

// identity leaves values as they are.
type identity struct{}

var errEncrypted = errors.New("identity transformer tried to read encrypted data")

func (identity) seal(_ value, plain []byte) ([]byte, error) { return plain, nil }

func (identity) open(_ value, sealed []byte) ([]byte, bool, error) {
	if bytes.HasPrefix(sealed, []byte("k8s:enc:")) {
		return nil, false, errEncrypted
	}
	return sealed, false, nil
}

// A cipher is one of k8s.io/apiserver's with a key. Of fewer bytes than least nothing can be read, and the one for AES-CBC does not look.
type cipher struct {
	storagevalue.Transformer
	least int
}

var errShort = errors.New("the stored data was shorter than the required size")

func (c cipher) seal(v value, plain []byte) ([]byte, error) {
	return c.TransformToStorage(context.Background(), plain, v)
}

func (c cipher) open(v value, sealed []byte) ([]byte, bool, error) {
	if len(sealed) < c.least {
		return nil, false, errShort
	}
	return c.TransformFromStorage(context.Background(), sealed, v)
}
