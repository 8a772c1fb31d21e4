package history

// This file contains the configuration of a Log and the limits on concurrent requests.

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	followersMax = 256 // maximum number of concurrent followers, a quarter of which may belong to the same user
	pagesMax     = 32  // the same limit for requests that do not follow
)

// Config is the configuration of a Log.
type Config struct {
	Store       *store.Store       // holds the changes
	Maintenance *store.Maintenance // maps times to revisions
	Types       *scheme.Registry   // the current types
	// Selectable maps the key prefixes of types that are not in Types to their selectable fields.
	// It may be nil.
	Selectable map[string][]string

	// the authorization rules for the history
	Visibility Visibility
	// reports whether the user may list any resource
	MayListAny func(request.User) bool
	// OnCaughtUp is called when all existing changes have been sent to a follower, if it is not
	// nil.
	OnCaughtUp func(context.Context)
	WriteError func(http.ResponseWriter, *http.Request, error) // writes an error response
	// timeout for writes to clients that do not read
	WriteTimeout time.Duration
	// a follower ends after a random time between Lifetime and twice Lifetime
	Lifetime     time.Duration
	ShuttingDown <-chan struct{} // closed when followers must end
}

// A Log serves the history.
type Log struct {
	Config
	followers, pages *limits.Slots // limit the followers and the other requests
	reading          chan struct{} // semaphore for requests that are reading the store
}

// New returns a Log.
func New(c Config) *Log {
	return &Log{Config: c, followers: limits.NewSlots(followersMax), pages: limits.NewSlots(pagesMax),
		reading: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// acquire waits for permission to read the store. The returned release function ends the read; it
// may be called more than once. It is nil if ctx ended first.
func (l *Log) acquire(ctx context.Context) (release func()) {
	select {
	case l.reading <- struct{}{}:
		return sync.OnceFunc(func() { <-l.reading })
	case <-ctx.Done():
		return nil
	}
}

// typesByBase maps each key prefix to the type in whose version its objects are stored.
func (l *Log) typesByBase() map[string]*scheme.Resource {
	types := map[string]*scheme.Resource{}
	for _, res := range l.Types.All() {
		stored := res.Conversion == nil && (res.Custom == nil || res.GoType != nil || res.Version == res.Custom.StorageVersion)
		if !res.Virtual && (stored || types[res.Base] == nil) {
			types[res.Base] = res
		}
	}
	return types
}

// groupResource splits the key prefix /GROUP/RESOURCE/ into its parts.
func groupResource(base string) (group, resource string) {
	group, resource, _ = strings.Cut(strings.Trim(base[1:], "/"), "/")
	if strings.HasPrefix(base, "//") {
		return "", group
	}
	return group, resource
}
