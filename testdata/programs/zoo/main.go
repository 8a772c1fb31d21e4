// Zoo is small controllers, each with one classic bug, and each with its mended twin. They make eggs (ConfigMaps) for nests (a type of their own):
//
//	apilet torture --setup testdata/programs/zoo/setup.yaml --objects testdata/programs/zoo/basic.yaml -- ZOO -server {server} -controller twice
//	go run ./testdata/programs/zoo -list
//
// docs/testing.md finds out what is wrong with them. Do not read controllers.go before you have tried.
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
	name      string
	about     string // what it does wrong
	workload  string // on which it shows
	replicas  int    // 0: one
	watches   []string
	only      []string                         // what its twin watches besides
	gone      func(z *zoo, nest *object)       // a nest's deletion was seen; may be nil
	reconcile func(z *zoo, nest *object) error // brings the world in line with a nest
	begin     func(z *zoo) error               // once, when the caches are filled; may be nil
}

// A zoo is one of them, running.
type zoo struct {
	*client
	animal *animal
	mended bool
	id     string // of this process
	caches map[string]*cache
	leads  *lease         // nil where nobody leads
	laid   map[string]int // number of eggs that this process has laid, by the nest's uid; used by duplicate alone
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

// run reconciles all nests whenever something changes, and again after an error, later each time.
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
