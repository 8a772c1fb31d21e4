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
// converts their objects (see converter.asked).

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

// pasts caches the registries of earlier revisions that were requested recently.
type pasts struct {
	making chan struct{} // used as a lock while a registry is built

	mu      sync.Mutex          // guards the fields below; not held during reads
	kept    []*past             // sorted by the time of the last use
	defined map[written]*lately // definitions, including those of kept
	changed int64               // revision of the last change to a CRD
	digest  uint64              // digest of the CRDs at that revision
}

// A past contains the registry for a set of CRDs.
type past struct {
	digest uint64 // digest of the CRDs and their versions
	reg    *scheme.Registry
	table  map[string]*lately
	used   time.Time
}

// A written identifies a version of a stored CRD.
type written struct {
	key string
	rev int64
}

// A lately is a cached definition with its compiled schemas. Several pasts can share it.
type lately struct {
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
	if reg := d.pasts.find(then, rev); reg != nil {
		return reg, nil
	}
	select {
	case d.pasts.making <- struct{}{}:
		defer func() { <-d.pasts.making }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if reg := d.pasts.find(then, rev); reg != nil { // a concurrent request has built it
		return reg, nil
	}
	p, err := d.travel(ctx, rev)
	if err != nil {
		return nil, err
	}
	p.digest = then
	d.pasts.keep(p)
	return p.reg, nil
}

// digestNow returns the digest of the CRDs since their last change.
func (d *Definitions) digestNow(ctx context.Context, changed int64) (uint64, error) {
	d.pasts.mu.Lock()
	known, digest := d.pasts.changed == changed, d.pasts.digest
	d.pasts.mu.Unlock()
	if known {
		return digest, nil
	}
	digest, err := d.st.Digest(ctx, d.row.Base, changed)
	if err != nil {
		return 0, err
	}
	d.pasts.mu.Lock()
	defer d.pasts.mu.Unlock()
	d.pasts.changed, d.pasts.digest = changed, digest
	return digest, nil
}

// travel builds the registry of a revision. It skips unreadable CRDs, which were not served.
func (d *Definitions) travel(ctx context.Context, rev int64) (*past, error) {
	then := &Definitions{st: d.st, reg: d.reg.WithoutCustom(), wr: d.wr, log: d.log, row: d.row, reserved: d.reserved, events: d.events,
		table: map[string]*definition{}, at: rev}
	p := &past{reg: then.reg, table: map[string]*lately{}}
	for rec, err := range d.st.All(store.Span{Prefix: d.row.Base, Rev: rev, SkipDamaged: true}) {
		if err = cmp.Or(err, ctx.Err()); err != nil {
			return nil, err
		}
		def := d.pasts.known(rec, rev)
		if def == nil {
			crd, err := then.outline(rec)
			if err != nil {
				continue
			}
			def = d.pasts.add(rec, d.defineThen(then, crd, rec))
		}
		p.table[def.name], then.table[def.name] = def, def.definition
	}
	then.serveLocked() // no other goroutine uses it yet
	return p, nil
}

// defineThen is define for an earlier CRD, whose objects the current webhook converts.
func (d *Definitions) defineThen(then *Definitions, crd *apiextensionsv1.CustomResourceDefinition, rec *store.Record) *definition {
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
func (p *pasts) find(digest uint64, rev int64) *scheme.Registry {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := slices.IndexFunc(p.kept, func(old *past) bool { return old.digest == digest })
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

// keep caches a registry and removes the least recently used ones.
func (p *pasts) keep(made *past) {
	p.mu.Lock()
	defer p.mu.Unlock()
	made.used = time.Now()
	p.kept = append(p.kept, made)
	p.kept = slices.Delete(p.kept, 0, max(0, len(p.kept)-pastsMax))
	if len(p.defined) > definedMax {
		maps.DeleteFunc(p.defined, func(_ written, def *lately) bool { return made.table[def.name] != def })
	}
}

// known returns the cached definition if it is used by another registry.
func (p *pasts) known(rec *store.Record, rev int64) *lately {
	p.mu.Lock()
	defer p.mu.Unlock()
	def := p.defined[written{rec.Key, rec.Rev}]
	if def != nil {
		def.used = time.Now()
		def.schemas.readAt(rev)
	}
	return def
}

func (p *pasts) add(rec *store.Record, def *definition) *lately {
	p.mu.Lock()
	defer p.mu.Unlock()
	made := &lately{def, time.Now()}
	p.defined[written{strings.Clone(rec.Key), rec.Rev}] = made
	return made
}

// forget removes cached registries and definitions that have been idle.
func (p *pasts) forget(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = slices.DeleteFunc(p.kept, func(old *past) bool { return now.Sub(old.used) > pastIdle })
	for at, def := range p.defined {
		if def.schemas.forget(now); now.Sub(def.used) > pastIdle {
			delete(p.defined, at)
		}
	}
}
