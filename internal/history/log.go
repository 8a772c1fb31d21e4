package history

// This file is what all answers have in common: what a Log is given, and how many may be at the store at a time.

import (
	"context"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/shares"
	"apilet/internal/store"
)

const (
	followersMax = 256 // that follow at the same time, a quarter of them of one user
	pagesMax     = 32  // that do not, likewise
)

// Config is what a Log works with.
type Config struct {
	Store       *store.Store        // where the changes are
	Maintenance *store.Maintenance  // knows which revision was current when
	Types       *scheme.Registry    // of now
	Selectable  map[string][]string // fields by which objects can be selected whose types are not in Types, by what their keys begin with; may be nil

	Reach        Reach                                           // the rules of now, and how far back they go
	MayAnything  func(request.User) bool                         // whether there is anything that a user may list
	Begun        func(context.Context)                           // told when a follower has what was there; may be nil
	Fail         func(http.ResponseWriter, *http.Request, error) // answers with an error
	Patience     time.Duration                                   // with a client that takes nothing
	Lifetime     time.Duration                                   // of a follower: between one and two of these
	ShuttingDown <-chan struct{}                                 // closed when followers have to end
}

// A Log answers what has happened.
type Log struct {
	Config
	followers, pages *shares.Places // of those who follow, and who read a page
	reading          chan struct{}  // a token for each who is at the store now
}

// New makes a Log.
func New(c Config) *Log {
	return &Log{Config: c, followers: shares.NewPlaces(followersMax), pages: shares.NewPlaces(pagesMax),
		reading: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// begin waits until not too many are at the store. It returns what ends the work there, and may be called twice; nil when ctx was over first.
func (l *Log) begin(ctx context.Context) (release func()) {
	select {
	case l.reading <- struct{}{}:
		return sync.OnceFunc(func() { <-l.reading })
	case <-ctx.Done():
		return nil
	}
}

// typesByBase are the types in whose version objects are stored.
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

// groupResource takes /GROUP/RESOURCE/ apart.
func groupResource(base string) (group, resource string) {
	group, resource, _ = strings.Cut(strings.Trim(base[1:], "/"), "/")
	if strings.HasPrefix(base, "//") {
		return "", group
	}
	return group, resource
}
