// Package datafile maintains the data file of a running server: it scrubs the file once a day (this
// file), streams backups (backup.go) and exports metrics (figures.go). The file itself is
// implemented by package store. The commands for data files that are not in use are in package
// datafile/datacmd.
//
//	scrub := &datafile.Scrub{Store: st, Maintenance: maintenance, Log: log}
//	go scrub.Run(ctx)
//	ready := []health.Check{{"scrub", scrub.CheckLastScrub}, {"damage", scrub.CheckDamage}}
package datafile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"apilet/internal/store"
)

const (
	scrubDelay      = time.Minute
	damagedInterval = 10 * time.Minute // interval while the file is damaged, so repairs are noticed soon
	scrubInterval   = 24 * time.Hour
)

// A Scrub periodically reads the whole file, to find damage early.
type Scrub struct {
	Store       *store.Store             // the store to read
	Maintenance *store.Maintenance       // reads the store
	Log         zerolog.Logger           // receives the problems
	problems    atomic.Pointer[[]string] // the problems of the last round
}

// Run scrubs the file until ctx is done. The first scrub starts after a short delay. It is repeated
// once a day, or more often if the file is damaged.
func (s *Scrub) Run(ctx context.Context) {
	for wait := scrubDelay; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if wait = scrubInterval; !s.round(ctx) {
			wait = damagedInterval
		}
	}
}

// round scrubs the file once. New problems are logged. All problems are stored so that they can be
// returned by CheckLastScrub.
func (s *Scrub) round(ctx context.Context) (sound bool) {
	report, err := s.Maintenance.Scrub(ctx)
	if err != nil {
		report.Problem("%v", err)
	}
	if ctx.Err() != nil {
		return false
	}
	sound = len(report.Problems) == 0
	if sound {
		s.Store.File.Damage.Clear()
	}
	known := s.problems.Swap(&report.Problems)
	for _, problem := range report.Problems {
		if known == nil || !slices.Contains(*known, problem) {
			s.Log.Error().Str("problem", problem).Msg("the data file is damaged")
		}
	}
	return sound
}

// CheckLastScrub is a health check. It returns an error if the last scrub found a problem.
func (s *Scrub) CheckLastScrub() error {
	if problems := s.problems.Load(); problems != nil && len(*problems) > 0 {
		return errors.New((*problems)[0])
	}
	return nil
}

// CheckDamage is a health check. It returns damage that reads and writes have found since the last
// clean scrub.
func (s *Scrub) CheckDamage() error {
	if err := s.Store.File.Damage.Err(); err != nil {
		return fmt.Errorf("%s: %w", s.Store.File.Path, err)
	}
	return nil
}
