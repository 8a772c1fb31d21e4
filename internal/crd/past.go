package crd

// This file makes what was served at a revision: the built-in types, and those of the definitions as they were.
//
// Whoever is known may name any revision, so none of them may cost much. From the last change of a definition on it is the registry of now.
// Before that a digest, which reads no definition, says whether the set is one that somebody has asked for lately; and where it is not, only
// those definitions are read that no set of these had. One set is made at a time; who waits for that waits as long as the request has.
//
// The past asks nobody: where a webhook converted, that of now does it (see converter.asked).

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
	pastsMax   = 4                // registries of the past that are kept,
	definedMax = 1024             // and definitions,
	pastIdle   = 10 * time.Minute // for so long after they were asked for
)

// pasts are the registries that somebody has lately travelled to.
type pasts struct {
	making chan struct{} // a token for who makes one

	mu      sync.Mutex          // guards what follows; never held while anything is read
	kept    []*past             // the one that was asked for last comes last
	defined map[written]*lately // definitions, among them those of kept
	changed int64               // at this revision the definitions were as they are now,
	digest  uint64              // and this was their digest
}

// A past is what was served while the definitions were as they were.
type past struct {
	digest uint64 // of which definitions there were, in which versions
	reg    *scheme.Registry
	table  map[string]*lately
	used   time.Time
}

// A written definition is one version of it.
type written struct {
	key string
	rev int64
}

// A lately asked for definition, with what is compiled of it, can be that of several pasts.
type lately struct {
	*definition
	used time.Time
}

// At is what was served at a revision. It is the registry of now where no definition has changed since.
func (d *Definitions) At(ctx context.Context, rev int64) (*scheme.Registry, error) {
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
	if reg := d.pasts.find(then, rev); reg != nil { // who was before us made it
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

// digestNow is the digest of the definitions as they have been since their last change.
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

// travel makes the registry of a revision. What cannot be read was not served.
func (d *Definitions) travel(ctx context.Context, rev int64) (*past, error) {
	then := &Definitions{st: d.st, reg: d.reg.Anew(), wr: d.wr, log: d.log, row: d.row, reserved: d.reserved, events: d.events,
		table: map[string]*definition{}, at: rev}
	p := &past{reg: then.reg, table: map[string]*lately{}}
	for rec, err := range d.st.All(store.Span{Prefix: d.row.Base, Rev: rev, Sound: true}) {
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
	then.serveLocked() // nobody else knows it yet
	return p, nil
}

// defineThen is define for a definition of then, whose objects are converted by what converts them now.
func (d *Definitions) defineThen(then *Definitions, crd *apiextensionsv1.CustomResourceDefinition, rec *store.Record) *definition {
	def := then.define(crd, rec, nil)
	if def.converter != nil {
		def.converter.now = func() *converter { return d.converterOf(def) }
	}
	return def
}

// converterOf is what converts the objects of a definition of then now; nil where nothing does, or the definition is another.
func (d *Definitions) converterOf(then *definition) *converter {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now := d.table[then.name]; now != nil && now.created == then.created {
		return now.converter
	}
	return nil
}

// find is a registry that is kept.
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

// keep adds a registry, and lets go of the one that was asked for longest ago.
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

// known is a definition of then that another past has made.
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

// forget lets go of what nobody has asked for lately.
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
