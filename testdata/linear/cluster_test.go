package linear

// This file runs the same rounds against three servers on three members of etcd. Each request goes
// to a randomly chosen server. Only one server and one member are killed at a time. Their
// connections are cut, stalled or slowed down. A member connects to another member to receive
// messages and to send messages if the stream is broken. If the connections to a member are
// disturbed, only half of its communication is affected. The members then elect a new leader if
// they can. (The machine does not crash, so data in the page cache is not lost.)
//
// A request may still be executed after the server has died, because etcd may have received it. If
// there was no response, the write may have been executed at any time during the round, or not at
// all. The same is true for responses with a status of 500 or above.

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"apilet-harness"
	"apilet-harness/proxy"
	"apilet/apilettest"
)

const (
	members = 3
	// how often the connections between members are disturbed, one in this number of times
	betweenMembers = 4
)

// startMembers starts etcd. The members reach each other through proxies.
func startMembers(t *testing.T) (all []*apilettest.Server, urls string, between []*proxy.Proxy) {
	t.Helper()
	etcd := harness.StartEtcd(t, harness.EtcdOptions{Members: members, Flags: []string{"--heartbeat-interval", "50", "--election-timeout", "500"},
		Advertise: func(listening []string) []string {
			var through string
			between, through = waysTo(t, strings.Join(listening, ","))
			return strings.Split(through, ",")
		}})
	return etcd.Members, strings.Join(etcd.URLs, ","), between
}

func TestHistoriesOfSeveralServersAreLinearizable(t *testing.T) {
	length := 3 * roundLength
	if text := os.Getenv("LINEAR"); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal("LINEAR:", err)
		}
	}
	etcd, urls, between := startMembers(t)
	var all []*apilettest.Server
	var ways [][]*proxy.Proxy
	for range 3 {
		own, behind := waysTo(t, urls)
		all, ways = append(all, startApilet(t, "--etcd-servers", behind)), append(ways, own)
	}
	begin, disturbed := time.Now(), 0
	for n := 1; n == 1 || time.Since(begin)+roundLength/2 < length; n++ {
		r := &round{t: t, s: all[0], more: all[1:], members: etcd, ways: ways, between: between, name: fmt.Sprint("round-", n), begin: time.Now()}
		disturbed += r.play()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d disturbances", disturbed)
}

// waysTo starts the proxies between a server and the members.
func waysTo(t *testing.T, urls string) (ways []*proxy.Proxy, behind string) {
	t.Helper()
	var all []string
	for _, url := range strings.Split(urls, ",") {
		way, err := proxy.Start(strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(way.Close)
		ways, all = append(ways, way), append(all, "http://"+way.Addr())
	}
	return ways, strings.Join(all, ",")
}

// open returns the servers that receive requests.
func (r *round) open() []*apilettest.Server {
	if r.moving != nil {
		return []*apilettest.Server{r.moving.current.Load()}
	}
	return slices.Concat(r.more, []*apilettest.Server{r.s})
}

// anyServer returns the current process of one of these servers.
func (r *round) anyServer() *apilettest.Process {
	all := r.open()
	return all[rand.IntN(len(all))].Process()
}

// witness returns the server whose watches must receive all events.
func (r *round) witness() *apilettest.Process {
	if r.moving != nil {
		return r.s.Process()
	}
	return r.anyServer()
}

// disturb kills and restarts servers and members until the round ends. It also disturbs their
// connections.
func (r *round) disturb(over <-chan struct{}) (n int) {
	var spoiling sync.WaitGroup
	spoilt := 0
	spoiling.Go(func() { spoilt = r.spoil(over) })
	defer func() {
		spoiling.Wait()
		n += spoilt
	}()
	for {
		select {
		case <-over:
			return n
		case <-time.After(time.Duration(200+rand.IntN(1000)) * time.Millisecond):
		}
		n++
		if m := r.members[rand.IntN(members)]; n%3 == 0 {
			m.Kill()
			time.Sleep(time.Duration(rand.IntN(500)) * time.Millisecond)
			if err := m.Run(); err != nil {
				r.t.Error(err)
				return n
			}
			continue
		}
		s := slices.Concat(r.more, []*apilettest.Server{r.s})[rand.IntN(len(r.more)+1)]
		s.Terminate([]syscall.Signal{syscall.SIGKILL, syscall.SIGKILL, syscall.SIGTERM}[rand.IntN(3)])
		if err := s.Run(); err != nil {
			r.t.Error(err)
			return n
		}
	}
}

// spoil disturbs the connections of a server or of the members until the round ends.
func (r *round) spoil(over <-chan struct{}) (n int) {
	for {
		select {
		case <-over:
			return n
		case <-time.After(time.Duration(100+rand.IntN(500)) * time.Millisecond):
		}
		n++
		ways := r.between
		if n%betweenMembers != 0 {
			ways = r.ways[rand.IntN(len(r.ways))]
		}
		if at := rand.IntN(2 * members); at < members {
			ways = ways[at : at+1]
		}
		how := []func(*proxy.Proxy){(*proxy.Proxy).Cut, (*proxy.Proxy).Stall, func(way *proxy.Proxy) { way.Slow(30 * time.Millisecond) }}[rand.IntN(3)]
		for _, way := range ways {
			how(way)
		}
		time.Sleep(time.Duration(rand.IntN(600)) * time.Millisecond)
		for _, way := range ways {
			way.Mend()
		}
	}
}
