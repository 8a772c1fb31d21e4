package encryption

// This file puts a file that has changed into force, where --encryption-provider-config-automatic-reload asks for it.

import (
	"context"
	"fmt"
	"time"
)

const (
	lookEvery     = time.Minute      // at the file
	againAfter    = 10 * time.Second // when what it says could not be put into force
	healthyWithin = 10 * time.Second // a new file's plug-ins have to be
	oldStays      = 10 * time.Second // what was in force before may still be in use
)

// Run looks at the file until ctx ends, and puts it into force when it has changed.
func (p *Providers) Run(ctx context.Context) { p.run(ctx, lookEvery, againAfter) }

func (p *Providers) run(ctx context.Context, every, again time.Duration) {
	if !p.On() || !p.cfg.Reload {
		return
	}
	for pause := every; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = every
		changed, err := p.reload(ctx)
		if err != nil && ctx.Err() == nil {
			pause = again
			p.figures.reloaded("failure")
			p.cfg.Log.Error().Err(err).Msgf("error processing encryption config file %s: what it said before stays in force", p.cfg.Path)
		}
		if changed {
			p.figures.reloaded("success")
			p.figures.loaded(p.Hash())
			p.cfg.Log.Info().Str("file", p.cfg.Path).Msg("what is encrypted, and how, is as the file says now")
			if p.cfg.Changed != nil {
				p.cfg.Changed()
			}
		}
	}
}

// reload puts the file into force, if it is another.
func (p *Providers) reload(ctx context.Context) (changed bool, err error) {
	if _, hash, err := hashOf(p.cfg.Path); err != nil || hash == p.Hash() {
		return false, err
	}
	next, err := p.load(ctx)
	if err != nil {
		return false, err
	}
	if err := next.awaitHealth(ctx); err != nil {
		next.close()
		return false, err
	}
	before := p.force.Swap(next)
	time.AfterFunc(oldStays, before.close)
	return true, nil
}

// awaitHealth waits for the plug-ins of what is to be in force.
func (f *force) awaitHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthyWithin)
	defer cancel()
	for {
		err := f.health(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("health check for new transformers failed, polling error %v: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}
