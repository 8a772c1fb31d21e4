package encryption

// This file selects the cipher that encrypted a value, by the prefixes of the value.

import (
	"bytes"
	"context"
	"errors"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	storagevalue "k8s.io/apiserver/pkg/storage/value"
)

// transformer encrypts and decrypts values. It is implemented by chain, cipher, plugin and
// identity.
type transformer interface {
	seal(v value, plain []byte) ([]byte, error)
	open(v value, sealed []byte) (plain []byte, stale bool, err error)
}

// value contains information about the object that is being transformed.
type value struct {
	key      string // in etcd
	resource string // for metrics
	late     bool   // write even if the plug-in's seed has expired
}

// AuthenticatedData implements value.Context of k8s.io/apiserver.
func (v value) AuthenticatedData() []byte { return []byte(v.key) }

// chain is a list of transformers with prefixes. The first one writes. When a value is read, the
// transformers with a matching prefix are tried in order.
type chain struct {
	links   []link
	none    error // returned if no prefix matches
	figures *figures
}

type link struct {
	prefix string
	by     transformer
}

// encrypts reports whether new values are encrypted.
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
			if err != nil { // the value is encrypted by another link
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

// identity leaves values unencrypted.
type identity struct{}

var errEncrypted = errors.New("identity transformer tried to read encrypted data")

func (identity) seal(_ value, plain []byte) ([]byte, error) { return plain, nil }

func (identity) open(_ value, sealed []byte) ([]byte, bool, error) {
	if bytes.HasPrefix(sealed, []byte("k8s:enc:")) {
		return nil, false, errEncrypted
	}
	return sealed, false, nil
}

// cipher is a cipher of k8s.io/apiserver with a key. Values of fewer than least bytes are rejected,
// because the implementation of AES-CBC does not check the length.
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
