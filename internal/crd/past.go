package crd

import (
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	pastsMax = 4                // registries of the past that are kept
	pastIdle = 10 * time.Minute // for so long after they were asked for
)

// pasts are the registries that somebody has lately travelled to.
type pasts struct {
	mu   sync.Mutex // guards kept, and is held while one is made: of many who travel to the same moment one makes it
	kept []*past    // the one that was asked for last comes last
}

// A past is what was served while the definitions were as they were.
type past struct {
	digest uint64 // of which definitions there were, in which versions
	reg    *scheme.Registry
	types  *Definitions
	used   time.Time
}

// At is what was served at a revision: the built-in types, and those of the definitions as they were. It is the registry of now where
// no definition has changed since.
func (d *Definitions) At(rev int64) (*scheme.Registry, error) {
	then, err := d.digest(rev)
	if err != nil {
		return nil, err
	}
	now, err := d.digest(0)
	if err != nil || then == now {
		return d.reg, err
	}
	d.pasts.mu.Lock()
	defer d.pasts.mu.Unlock()
	d.pasts.forget(time.Now())
	at := slices.IndexFunc(d.pasts.kept, func(p *past) bool { return p.digest == then })
	if at < 0 {
		p, err := d.travel(rev)
		if err != nil {
			return nil, err
		}
		p.digest = then
		d.pasts.kept = append(d.pasts.kept, p)
		at = len(d.pasts.kept) - 1
	}
	p := d.pasts.kept[at]
	p.used = time.Now()
	d.pasts.kept = append(slices.Delete(d.pasts.kept, at, at+1), p)
	if len(d.pasts.kept) > pastsMax {
		d.pasts.kept[0].end()
		d.pasts.kept = slices.Delete(d.pasts.kept, 0, 1)
	}
	return p.reg, nil
}

// digest tells sets of definitions apart; rev 0 is now.
func (d *Definitions) digest(rev int64) (uint64, error) {
	sum := fnv.New64a()
	for rec, err := range d.st.All(store.Span{Prefix: d.row.Base, Rev: rev}) {
		if err != nil {
			return 0, err
		}
		fmt.Fprintln(sum, rec.Key, rec.Rev)
	}
	return sum.Sum64(), nil
}

// travel makes the registry of a revision. What cannot be read was not served.
func (d *Definitions) travel(rev int64) (*past, error) {
	then := &Definitions{st: d.st, reg: scheme.NewRegistry(), wr: d.wr, log: d.log, row: d.row, reserved: d.reserved, services: d.services, events: d.events,
		table: map[string]*definition{}, at: rev}
	for rec, err := range d.st.All(store.Span{Prefix: d.row.Base, Rev: rev}) {
		if err != nil {
			return nil, err
		}
		if crd, err := then.outline(rec); err == nil {
			then.table[crd.Name] = then.define(crd, rec, nil)
		}
	}
	then.serveLocked() // nobody else knows it yet
	return &past{reg: then.reg, types: then}, nil
}

// forget lets go of what nobody has asked for lately. The caller holds mu.
func (p *pasts) forget(now time.Time) {
	p.kept = slices.DeleteFunc(p.kept, func(old *past) bool {
		idle := now.Sub(old.used) > pastIdle
		if idle {
			old.end()
		}
		return idle
	})
}

// end closes what conversion webhooks were asked with. A request that is on its way opens a connection of its own.
func (p *past) end() {
	for _, def := range p.types.table {
		def.converter.close(nil)
	}
}
