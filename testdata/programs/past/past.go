// Past creates a data file with a long history that can be used to test history queries. The
// changes are distributed over the given time and are made by several authors. A tenth of them are
// made to the same object.
//
//	go run ./testdata/programs/past -changes 1000000 -over 24h past.db
//	apilet --data past.db --history 0
//	apilet log deploy --data past.db --since 5m
//
// It uses the store of the server and does not wait for the disk. A million changes take half a
// minute.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"apilet/internal/store"
)

var (
	changes = flag.Int64("changes", 1_000_000, "how `many` changes")
	objects = flag.Int64("objects", 1000, "of how `many` objects")
	size    = flag.Int("size", 1000, "`bytes` of an object, about")
	over    = flag.Duration("over", 24*time.Hour, "how long ago the first change was")
)

func main() {
	flag.Parse()
	if flag.NArg() != 1 || *changes < *objects || *objects < 1 {
		fmt.Fprintln(os.Stderr, "past: name the one FILE to make, and no more objects than changes")
		os.Exit(2)
	}
	if err := makePast(flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "past:", err)
		os.Exit(1)
	}
}

// number of concurrent writers. They do not share objects.
const writers = 10

// A past holds the state of the history while it is being written.
type past struct {
	st      *store.Store
	written atomic.Int64 // number of revisions
}

func makePast(path string) (err error) {
	if _, err := os.Stat(path); err == nil {
		return errors.New(path + " is there already")
	}
	p, now := &past{}, time.Now()
	clock := func() time.Time { // advances with the number of writes
		return now.Add(-*over + time.Duration(float64(*over)*float64(p.written.Load())/float64(*changes)))
	}
	if p.st, err = store.Open(path, store.Options{Clock: clock}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.st.Close()) }()
	p.st.File.Db.NoSync = true
	var group sync.WaitGroup
	failed := make([]error, writers)
	for w := range int64(writers) {
		group.Go(func() { failed[w] = p.write(w) })
	}
	group.Wait()
	p.st.File.Db.NoSync = false
	return errors.Join(append(failed, p.st.File.Db.Sync())...)
}

// write updates the objects of a writer in turn. The first writer has only one object. A commit
// contains a change of each writer.
func (p *past) write(w int64) error {
	newest := map[int64]int64{} // revisions by object
	for turn := int64(0); ; turn++ {
		object := int64(0)
		if own := *objects / (writers - 1); w > 0 {
			object = w + turn%max(own, 1)*(writers-1)
		}
		n := p.written.Add(1)
		if n > *changes {
			return nil
		}
		rec, err := p.st.Commit(context.Background(), change(object, newest[object], n))
		if err != nil {
			return err
		}
		newest[object] = rec.Rev
	}
}

// change returns a create or an update of the object.
func change(object, rev, n int64) store.Change {
	name := fmt.Sprintf("web-%06d", object)
	head := fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"default","uid":"00000000-0000-4000-8000-%012d","creationTimestamp":"2026-01-01T00:00:00Z","generation":%d,"labels":{"app":%q,"half":"%d"},"resourceVersion":"`,
		name, object, n, name, object%2)
	tail := fmt.Sprintf(`"},"spec":{"replicas":%d,"selector":{"matchLabels":{"app":%q}},"template":{"metadata":{"labels":{"app":%[2]q},"annotations":{"pad":%q}},"spec":{"containers":[{"name":"web","image":"nginx:1.%d"}]}},"strategy":{"type":"RollingUpdate"}},"status":{"observedGeneration":%d}}`,
		n%10, name, strings.Repeat("x", max(1, *size-600)), n%30, n)
	c := store.Change{Op: store.OpCreate, Key: "/apps/deployments/default/" + name, JSON: []byte(head + tail), RevAt: len(head),
		Author: store.Author{User: "system:serviceaccount:default:worker", Agent: fmt.Sprintf("worker-%d/v1.0", n%20), Verb: "create"}}
	if rev != 0 {
		c.Op, c.Expect, c.Author.Verb = store.OpUpdate, rev, "update"
	}
	return c
}
