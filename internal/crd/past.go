package crd

// This file returns the registry at an earlier revision. It contains the built-in types and the
// CRDs at that revision.
//
// Every authenticated user may request any revision, so the cost must be low. Since the last
// change of a CRD, the current registry is valid. For earlier revisions a digest, which does not
// read the CRDs, identifies the set of CRDs. If the registry of that set is not cached, only the
// CRDs that are not part of another cached set are read. One registry is built at a time. If a
// registry is being built, the other requests have to wait.
//
// The registry of an earlier revision does not call the old webhooks. The current webhook
// converts their objects (see converter.current).

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	pastsMax   = 4                // maximum number of cached registries of the past
	definedMax = 1024             // maximum number of cached definitions
	pastIdle   = 10 * time.Minute // they are removed if they are not used for this long
)

// pastCache caches the registries of earlier revisions that were requested recently.
type pastCache struct {
	buildLock chan struct{} // used as a lock while a registry is built

	mu      sync.Mutex                       // guards the fields below; not held during reads
	kept    []*pastRegistry                  // sorted by the time of the last use
	defined map[versionKey]*cachedDefinition // definitions, including those of kept
	changed int64                            // revision of the last change to a CRD
	digest  uint64                           // digest of the CRDs at that revision
}

// A past contains the registry for a set of CRDs.
type pastRegistry struct {
	digest uint64 // digest of the CRDs and their versions
	reg    *scheme.Registry
	table  map[string]*cachedDefinition
	used   time.Time
}

// A written identifies a version of a stored CRD.
type versionKey struct {
	key string
	rev int64
}

// A lately is a cached definition with its compiled schemas. Several pasts can share it.
type cachedDefinition struct {
	*definition
	used time.Time
}

// RegistryAt returns the registry at a revision. If no CRD has changed since, it returns the
// current registry.
func (d *Definitions) RegistryAt(ctx context.Context, rev int64) (*scheme.Registry, error) {
	changed := d.changed.Load()
	if rev >= changed {
		return d.reg, nil
	}
	now, err := d.digestNow(ctx, changed)
	if err != nil {
		return nil, err
	}
	then, err := d.st.Digest(ctx, d.row.Base, rev)
	if err != nil || then == now {
		return d.reg, err
	}
	if reg := d.pastCache.find(then, rev); reg != nil {
		return reg, nil
	}
	select {
	case d.pastCache.buildLock <- struct{}{}:
		defer func() { <-d.pastCache.buildLock }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if reg := d.pastCache.find(then, rev); reg != nil { // a concurrent request has built it
		return reg, nil
	}
	p, err := d.buildAt(ctx, rev)
	if err != nil {
		return nil, err
	}
	p.digest = then
	d.pastCache.add(p)
	return p.reg, nil
}

// digestNow returns the digest of the CRDs since their last change.
func (d *Definitions) digestNow(ctx context.Context, changed int64) (uint64, error) {
	d.pastCache.mu.Lock()
	known, digest := d.pastCache.changed == changed, d.pastCache.digest
	d.pastCache.mu.Unlock()
	if known {
		return digest, nil
	}
	digest, err := d.st.Digest(ctx, d.row.Base, changed)
	if err != nil {
		return 0, err
	}
	d.pastCache.mu.Lock()
	defer d.pastCache.mu.Unlock()
	d.pastCache.changed, d.pastCache.digest = changed, digest
	return digest, nil
}

// buildAt builds the registry of a revision. It skips unreadable CRDs, which were not served.
func (d *Definitions) buildAt(ctx context.Context, rev int64) (*pastRegistry, error) {
	then := &Definitions{st: d.st, reg: d.reg.WithoutCustom(), wr: d.wr, log: d.log, row: d.row, reserved: d.reserved, events: d.events,
		table: map[string]*definition{}, at: rev}
	p := &pastRegistry{reg: then.reg, table: map[string]*cachedDefinition{}}
	for rec, err := range d.st.All(store.Span{Prefix: d.row.Base, Rev: rev, SkipDamaged: true}) {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		def := d.pastCache.known(rec, rev)
		if def == nil {
			crd, err := then.outline(rec)
			if err != nil {
				continue
			}
			def = d.pastCache.addDefinition(rec, d.defineAt(then, crd, rec))
		}
		p.table[def.name], then.table[def.name] = def, def.definition
	}
	then.serveLocked() // no other goroutine uses it yet
	return p, nil
}

// defineAt is define for an earlier CRD, whose objects the current webhook converts.
func (d *Definitions) defineAt(then *Definitions, crd *apiextensionsv1.CustomResourceDefinition, rec *store.Record) *definition {
	def := then.define(crd, rec, nil)
	if def.converter != nil {
		def.converter.now = func() *converter { return d.converterOf(def) }
	}
	return def
}

// converterOf returns the current converter for the objects of an earlier CRD. It returns nil if
// there is no converter, or if the CRD was deleted and created again.
func (d *Definitions) converterOf(then *definition) *converter {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := d.table[then.name]; now != nil && now.created == then.created {
		return now.converter
	}
	return nil
}

// find returns a cached registry.
func (p *pastCache) find(digest uint64, rev int64) *scheme.Registry {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.IndexFunc(p.kept, func(old *pastRegistry) bool { return old.digest == digest })
	if at < 0 {
		return nil
	}
	found := p.kept[at]
	p.kept = append(slices.Delete(p.kept, at, at+1), found)
	found.used = time.Now()
	for _, def := range found.table {
		def.used = found.used
		def.schemas.readAt(rev)
	}
	return found.reg
}

// add caches a registry and removes the least recently used ones.
func (p *pastCache) add(made *pastRegistry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	made.used = time.Now()
	p.kept = append(p.kept, made)
	p.kept = slices.Delete(p.kept, 0, max(0, len(p.kept)-pastsMax))
	if len(p.defined) > definedMax {
		maps.DeleteFunc(p.defined, func(_ versionKey, def *cachedDefinition) bool { return made.table[def.name] != def })
	}
}

// known returns the cached definition if it is used by another registry.
func (p *pastCache) known(rec *store.Record, rev int64) *cachedDefinition {
	p.mu.Lock()
	defer p.mu.Unlock()
	def := p.defined[versionKey{rec.Key, rec.Rev}]
	if def != nil {
		def.used = time.Now()
		def.schemas.readAt(rev)
	}
	return def
}

func (p *pastCache) addDefinition(rec *store.Record, def *definition) *cachedDefinition {
	p.mu.Lock()
	defer p.mu.Unlock()
	made := &cachedDefinition{def, time.Now()}
	p.defined[versionKey{strings.Clone(rec.Key), rec.Rev}] = made
	return made
}

// forget removes cached registries and definitions that have been idle.
func (p *pastCache) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = slices.DeleteFunc(p.kept, func(old *pastRegistry) bool { return now.Sub(old.used) > pastIdle })
	for at, def := range p.defined {
		if def.schemas.forget(now); now.Sub(def.used) > pastIdle {
			delete(p.defined, at)
		}
	}
}
