package linear

// This file plays the same rounds against three servers on three members of etcd, each request at a server of its own choice. Servers and
// members are killed, one of each kind at a time, and the ways between them are cut, stall and are slow: those from servers to members, and those
// from member to member. A member dials another to hear from it, and to tell it what a broken stream did not; so what is spoilt before one of
// them leaves the others with half of what they have to say to each other, and they elect another leader, or none until it is mended. (The
// machine is not killed: what a member has written to its file is there after its death, whether the disk has it or not.)
//
// What was in flight at its server's death may yet happen: etcd has it. So a write without an answer has happened at some moment before the
// round's end, or not at all. The same holds for one that was answered with a code of 500 or above.

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
	members        = 3
	betweenMembers = 4 // each so many-th time the ways between members are spoilt
)

// startMembers starts etcd. Each member is reached by the others through a proxy.
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

// waysTo are proxies before the members, for one server.
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

// open are the servers that requests go to.
func (r *round) open() []*apilettest.Server {
	if r.moving != nil {
		return []*apilettest.Server{r.moving.current.Load()}
	}
	return slices.Concat(r.more, []*apilettest.Server{r.s})
}

// anyServer is the present life of one of these.
func (r *round) anyServer() *apilettest.Process {
	all := r.open()
	return all[rand.IntN(len(all))].Process()
}

// witness is the server whose watches are to tell everything.
func (r *round) witness() *apilettest.Process {
	if r.moving != nil {
		return r.s.Process()
	}
	return r.anyServer()
}

// disturb kills servers and members until the round is over, and starts them again. Beside that it spoils the ways between them.
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

// spoil cuts, stalls and slows the ways of one server at a time, or those between the members: one of them or all, until the round is over.
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
