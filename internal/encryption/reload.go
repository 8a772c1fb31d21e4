package encryption

// This file reloads the configuration file when it changes, if
// --encryption-provider-config-automatic-reload is set.

import (
	"context"
	"fmt"
	"time"
)

const (
	reloadInterval = time.Minute      // interval between checks of the file
	reloadRetry    = 10 * time.Second // delay after a failed reload
	// time limit for the plug-ins of a new file to become healthy
	healthTimeout = 10 * time.Second
	// delay before the previous configuration is closed
	closeDelay = 10 * time.Second
)

// Run periodically checks whether the file has changed, and reloads it, until ctx is done.
func (p *Providers) Run(ctx context.Context) { p.run(ctx, reloadInterval, reloadRetry) }

func (p *Providers) run(ctx context.Context, every, again time.Duration) {
	if !p.Enabled() || !p.cfg.Reload {
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
			p.cfg.Log.Error().Err(err).Msgf("error processing encryption config file %s; keeping the previous configuration", p.cfg.Path)
		}
		if changed {
			p.figures.reloaded("success")
			p.figures.loaded(p.Hash())
			p.cfg.Log.Info().Str("file", p.cfg.Path).Msg("reloaded the encryption configuration")
			if p.cfg.OnReload != nil {
				p.cfg.OnReload()
			}
		}
	}
}

// reload loads the file if its hash has changed.
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
	before := p.current.Swap(next)
	time.AfterFunc(closeDelay, before.close)
	return true, nil
}

// awaitHealth waits until the plug-ins of a new configuration are healthy.
func (f *configuration) awaitHealth(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, healthTimeout)
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
