// Package datafile looks after the data file of a server that runs: it is scrubbed once a day (this file), backups of it are streamed
// (backup.go), and /metrics tells how it is (figures.go). What lies in it is package store; the commands that work on a file which no server
// has open are package datafile/datacmd.
//
//	scrub := &datafile.Scrub{Store: st, Maintenance: maintenance, Log: log}
//	go scrub.Run(ctx)
//	ready := []health.Check{{"scrub", scrub.Intact}, {"damage", scrub.Whole}}
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
	scrubAfter = time.Minute
	scrubAgain = 10 * time.Minute // after one that has found something: an administrator who has mended it is to see that
	scrubEvery = 24 * time.Hour
)

// A Scrub reads the whole file now and then, to find damage before it is needed.
type Scrub struct {
	Store       *store.Store             // that is read
	Maintenance *store.Maintenance       // reads it
	Log         zerolog.Logger           // is told what is found
	problems    atomic.Pointer[[]string] // what the last round found
}

// Run looks for damage a while after the start and then daily, or soon again while there is some, until ctx ends.
func (s *Scrub) Run(ctx context.Context) {
	for wait := scrubAfter; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		if wait = scrubEvery; !s.round(ctx) {
			wait = scrubAgain
		}
	}
}

// round looks once. What it finds is logged, unless the last round found it, too, and kept for Intact.
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
		s.Store.File.Found.Forget()
	}
	known := s.problems.Swap(&report.Problems)
	for _, problem := range report.Problems {
		if known == nil || !slices.Contains(*known, problem) {
			s.Log.Error().Str("problem", problem).Msg("the data file is damaged")
		}
	}
	return sound
}

// Intact is the health check that shows what the scrub found.
func (s *Scrub) Intact() error {
	if problems := s.problems.Load(); problems != nil && len(*problems) > 0 {
		return errors.New((*problems)[0])
	}
	return nil
}

// Whole is the health check that shows what reads and writes have found since.
func (s *Scrub) Whole() error {
	if err := s.Store.File.Found.Err(); err != nil {
		return fmt.Errorf("%s: %w", s.Store.File.Path, err)
	}
	return nil
}
