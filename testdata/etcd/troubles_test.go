package etcd

// This file tests how servers respond and recover if a server or etcd is down, full, compacted, or
// replaced.

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"apilet/apilettest"
)

func check(s *server) (string, error) {
	out, err := exec.Command(apilettest.Program(s.t), "check", "--data", s.data).CombinedOutput()
	return string(out), err
}

// filled returns the number of times the server has loaded its replica from a snapshot.
func (s *server) filled() int { return strings.Count(s.Log(), "the replica of etcd is complete") }

// TestRestarts checks that a server resumes from its file after it was killed, and that it fills
// the replica again if the changes have been compacted.
func TestRestarts(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a, b := c.startServer(), c.startServer()
	old := read(t, a.do(201, "POST", maps, aMap("kept", "1", ""))).Metadata.ResourceVersion
	a.do(201, "POST", maps, aMap("gone", "1", ""))
	for n := range 5 {
		a.signal([]syscall.Signal{syscall.SIGKILL, syscall.SIGTERM}[n%2])
		b.do(200, "PATCH", maps+"/kept", fmt.Sprintf(`{"data":{"v":"%d"}}`, n+2))
		a.Launch()
		a.ready()
		if o := read(t, a.do(200, "GET", maps+"/kept", "")); o.Data["v"] != fmt.Sprint(n+2) {
			t.Errorf("restart %d: got %v", n, o)
		}
		if o := read(t, a.do(200, "GET", maps+"?resourceVersionMatch=Exact&resourceVersion="+old, "")); len(o.Items) != 1 && len(o.Items) != 2 || o.Items[0].Data["v"] != "1" {
			t.Errorf("restart %d: at %s there is %v", n, old, o.Items)
		}
	}
	if n := a.filled(); n != 1 {
		t.Errorf("the replica was filled %d times in six lives", n)
	}
	a.Kill()
	b.do(200, "DELETE", maps+"/gone", "")
	b.do(201, "POST", maps, aMap("new", "1", ""))
	o := read(t, b.do(200, "PATCH", maps+"/kept", `{"data":{"v":"9"}}`))
	var rev int64
	fmt.Sscan(o.Metadata.ResourceVersion, &rev)
	if _, err := c.client().Compact(context.Background(), rev); err != nil {
		t.Fatal(err)
	}
	a.Launch()
	a.ready()
	if n := a.filled(); n != 2 {
		t.Errorf("the replica was filled %d times, with one compaction behind its back", n)
	}
	a.do(404, "GET", maps+"/gone?resourceVersion=0", "")
	a.do(200, "GET", maps+"/new?resourceVersion=0", "")
	if o := read(t, a.do(200, "GET", maps+"/kept?resourceVersion=0", "")); o.Data["v"] != "9" {
		t.Errorf("got %v", o)
	}
	a.do(410, "GET", maps+"?resourceVersionMatch=Exact&resourceVersion="+old, "")
	w := a.watch(t, maps, old)
	apilettest.Until(t, "a watch from before is over", func() error {
		if story := w.story(); len(story) != 1 || story[0] != "ERROR " {
			return fmt.Errorf("it tells %v", story)
		}
		return nil
	})
	// If the machine crashes while the file is open, the state of the file is unknown.
	a.Kill()
	note, err := os.ReadFile(a.data + ".replica")
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(note), []byte("\n"))
	if err := os.WriteFile(a.data+".replica", append(append(lines[0], "\n"...), "another run of the machine\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Launch()
	a.ready()
	if n := a.filled(); n != 3 || !strings.Contains(a.Log(), "not closed before the machine was") {
		t.Errorf("the replica was filled %d times", n)
	}
	a.Stop()
	if report, err := check(a); err != nil {
		t.Errorf("apilet check: %s %v", report, err)
	}
	// Without etcd the file cannot be used.
	out, err := exec.Command(apilettest.Program(t), "--data", a.data, "--listen", "127.0.0.1:0").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--etcd-servers") {
		t.Errorf("a replica as a data file: %s %v", out, err)
	}
}

// TestEtcdIsAway checks that the replica can be read and watched while etcd is down. Other requests
// must fail within seconds, and must succeed when etcd is available again.
func TestEtcdIsAway(t *testing.T) {
	t.Parallel()
	for _, how := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(how.String(), func(t *testing.T) {
			t.Parallel()
			c := startCluster(t, 1)
			a := c.startServer()
			rev := read(t, a.do(201, "POST", maps, aMap("o", "1", ""))).Metadata.ResourceVersion
			w := a.watch(t, maps, rev)
			c.members[0].signal(how)
			var asking sync.WaitGroup
			for _, request := range [][3]string{{"GET", maps + "/o", ""}, {"GET", maps, ""}, {"POST", maps, aMap("p", "1", "")}, {"DELETE", maps + "/o", ""},
				{"PUT", maps + "/o", aMap("o", "2", rev)}} {
				asking.Go(func() {
					begin := time.Now()
					code, text, err := a.try(request[0], request[1], request[2], patience/2)
					if err != nil || code < 500 {
						t.Errorf("%s %s without etcd: %d %s %v after %v", request[0], request[1], code, text, err, time.Since(begin))
					}
				})
			}
			asking.Wait()
			a.do(200, "GET", maps+"/o?resourceVersion=0", "")
			a.do(200, "GET", maps+"?resourceVersion="+rev, "")
			code, text, err := a.try("GET", "/readyz?verbose", "", patience)
			if err != nil || code != 500 || !strings.Contains(text, "[-]etcd failed") {
				t.Errorf("/readyz without etcd: %d %s %v", code, text, err)
			}
			a.do(200, "GET", "/livez", "")
			if how == syscall.SIGSTOP {
				c.members[0].Resume()
			} else {
				c.members[0].Launch()
			}
			a.ready()
			apilettest.Until(t, "writes work again", func() error {
				code, text, err := a.try("POST", maps, aMap("after", "1", ""), patience)
				if code != 201 && code != 409 {
					return fmt.Errorf("%d %s %v", code, text, err)
				}
				return nil
			})
			apilettest.Until(t, "the watch goes on", func() error {
				for _, told := range w.story() {
					if told == "ADDED after" {
						return nil
					}
				}
				return fmt.Errorf("it tells %v", w.story())
			})
			if n := a.filled(); n != 1 {
				t.Errorf("the replica was filled %d times", n)
			}
		})
	}
}

// TestAnotherEtcd replaces etcd with a new instance at the same address. The replica must be
// discarded.
func TestAnotherEtcd(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a := c.startServer()
	a.do(201, "POST", maps, aMap("before", "1", ""))
	c.members[0].Kill()
	if err := os.RemoveAll(c.members[0].flag("--data-dir")); err != nil {
		t.Fatal(err)
	}
	for i, arg := range c.members[0].Args { // otherwise the cluster ID would be the same
		if arg == "--initial-cluster-token" {
			c.members[0].Args[i+1] = "another"
		}
	}
	c.members[0].Launch()
	apilettest.Until(t, "the server has begun anew", func() error {
		code, text, err := a.try("GET", maps+"/before", "", patience)
		if code != 404 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
	a.ready()
	a.do(201, "POST", maps, aMap("after", "1", ""))
	a.do(404, "GET", maps+"/before?resourceVersion=0", "")
}

// TestEtcdIsFull checks that writes are rejected while etcd is full, and that reads and deletions
// still succeed. (The first rejected write is executed by etcd.)
func TestEtcdIsFull(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, "--quota-backend-bytes", "8000000")
	a := c.startServer()
	big, written := strings.Repeat("x", 500_000), 0
	for full := false; !full; written++ {
		switch code, text, err := a.try("POST", maps, aMap(fmt.Sprint("o", written), big, ""), patience); {
		case err != nil || written > 1000:
			t.Fatal(err, written)
		case code != 201:
			if full = true; code != 500 || !strings.Contains(text, "space exceeded") {
				t.Errorf("a full etcd: %d %s", code, text)
			}
		}
	}
	a.do(500, "POST", maps, aMap("refused", "1", ""))
	a.do(404, "GET", maps+"/refused", "")
	a.do(200, "GET", maps+"/o0", "")
	for n := range written - 1 { // the excess over the quota depends on etcd's last commit
		a.do(200, "DELETE", fmt.Sprintf("%s/o%d", maps, n), "")
		a.do(404, "GET", fmt.Sprintf("%s/o%d", maps, n), "")
	}
	c.makeRoom()
	apilettest.Until(t, "writes work again", func() error {
		code, text, err := a.try("POST", maps, aMap("small", "1", ""), patience)
		if code != 201 {
			return fmt.Errorf("%d %s %v", code, text, err)
		}
		return nil
	})
}

// makeRoom follows etcd's handbook for the alarm. It waits until the compaction is complete.
// Otherwise the defragmentation would copy the old revisions.
func (c *cluster) makeRoom() {
	c.t.Helper()
	client, ctx := c.client(), context.Background()
	at, err := client.Get(ctx, "x")
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := client.Compact(ctx, at.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		c.t.Fatal(err)
	}
	if _, err := client.Defragment(ctx, c.urls[0]); err != nil {
		c.t.Fatal(err)
	}
	alarms, err := client.AlarmList(ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, alarm := range alarms.Alarms {
		if _, err := client.AlarmDisarm(ctx, (*clientv3.AlarmMember)(alarm)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestMembersAreKilled checks that the servers can be used if one of three members is down.
func TestMembersAreKilled(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	a, b := c.startServer(), c.startServer()
	rev := read(t, a.do(200, "GET", maps, "")).Metadata.ResourceVersion
	w, want := b.watch(t, maps, rev), 0
	for n := range 3 {
		dead := c.members[n]
		dead.Kill()
		for i := range 10 {
			name := fmt.Sprintf("o%d-%d", n, i)
			apilettest.Until(t, "a write with two members of three", func() error {
				code, text, err := []*server{a, b}[i%2].try("POST", maps, aMap(name, "1", ""), patience)
				if code != 201 && code != 409 { // an earlier attempt with an unknown result
					return fmt.Errorf("%d %s %v", code, text, err)
				}
				return nil
			})
			want++
		}
		dead.Launch()
		a.ready()
		b.ready()
	}
	apilettest.Until(t, "the watch tells each write once", func() error {
		if story := w.story(); len(story) != want {
			return fmt.Errorf("it tells %d of %d", len(story), want)
		}
		return nil
	})
	for _, s := range []*server{a, b} {
		if n := len(read(t, s.do(200, "GET", maps, "")).Items) - 0; n < want {
			t.Errorf("%d objects of %d", n, want)
		}
	}
}
