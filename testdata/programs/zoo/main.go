// Zoo contains small controllers. Each of them has a classic bug, and there is a twin without the
// bug. They create eggs (ConfigMaps) for nests (a custom type):
//
//	apilet torture --setup testdata/programs/zoo/setup.yaml --objects testdata/programs/zoo/basic.yaml -- ZOO -server {server} -controller twice
//	go run ./testdata/programs/zoo -list
//
// docs/testing.md finds their bugs. Try it before you read controllers.go.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"
)

// An animal is one of the controllers.
type animal struct {
	name     string
	about    string // its bug
	workload string // workload that reveals the bug
	replicas int    // 0 means one
	watches  []string
	only     []string // additionally watched by its twin
	// called if the deletion of a nest was observed; may be nil
	gone      func(z *zoo, nest *object)
	reconcile func(z *zoo, nest *object) error // reconciles a nest
	// called after the caches are filled; may be nil
	begin func(z *zoo) error
}

// A zoo is a running controller.
type zoo struct {
	*client
	animal *animal
	mended bool
	id     string // of this process
	caches map[string]*cache
	leads  *lease // nil without leader election
	// number of eggs that were created by this process, by the UID of the nest; only used by
	// duplicate
	laid map[string]int
}

func main() {
	server := flag.String("server", "http://127.0.0.1:8080", "`URL` of a server on a plain loopback port")
	name := flag.String("controller", "", "which `one`")
	mended := flag.Bool("mended", false, "its twin that is right")
	list := flag.Bool("list", false, "print name, workload and number of replicas of each")
	flag.Parse()
	if *list {
		for _, a := range animals {
			fmt.Println(a.name, a.workload, max(1, a.replicas))
		}
		return
	}
	i := slices.IndexFunc(animals, func(a animal) bool { return a.name == *name })
	if i < 0 {
		fmt.Fprintf(os.Stderr, "zoo: no controller %q\n", *name)
		os.Exit(2)
	}
	z := &zoo{client: &client{*server, "zoo-" + *name}, animal: &animals[i], mended: *mended, id: fmt.Sprint(os.Getpid()), caches: map[string]*cache{}, laid: map[string]int{}}
	z.run(context.Background())
}

// run reconciles all nests whenever something has changed, and retries after errors with increasing
// delays.
func (z *zoo) run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	watched := append([]string{nests}, z.animal.watches...)
	if z.mended {
		watched = append(watched, z.animal.only...)
	}
	for _, collection := range watched {
		c := &cache{client: z.client, collection: collection, changed: changed}
		if collection == nests && z.animal.gone != nil {
			c.gone = func(nest *object) { z.animal.gone(z, nest) }
		}
		z.caches[collection] = c
		go c.run(ctx)
	}
	for _, c := range z.caches {
		for !c.isSynced() {
			time.Sleep(time.Millisecond)
		}
	}
	if z.animal.replicas > 1 {
		z.leads = &lease{zoo: z}
		go z.leads.run()
	}
	const least, most = 20 * time.Millisecond, time.Second
	pause := least
	if z.animal.begin != nil {
		for z.animal.begin(z) != nil {
			time.Sleep(least)
		}
	}
	for {
		if err := z.reconcileAll(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			time.Sleep(pause)
			pause = min(2*pause, most)
			continue
		}
		pause = least
		<-changed
	}
}

func (z *zoo) reconcileAll() (first error) {
	all := z.caches[nests].all("", "")
	slices.SortFunc(all, func(a, b *object) int { return len(a.key()) - len(b.key()) })
	for _, nest := range all {
		if err := z.animal.reconcile(z, nest); err != nil && first == nil {
			first = fmt.Errorf("%s: %w", nest.key(), err)
		}
	}
	return first
}
