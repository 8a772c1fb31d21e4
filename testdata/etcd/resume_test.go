package etcd

// This file tests clients that resume while the server's storage is replaced by another file or
// cluster. They must receive a 410 or all events; they must never miss events silently.

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// An informer stores the objects like an informer of client-go. It lists and then watches, and it
// lists again when the server requires this.
type informer struct {
	t     *testing.T
	rev   string
	cache map[string]string // values of the ConfigMaps by name
	told  int               // status that caused the last list (410 or 504), or 0
}

func (s *server) informer() *informer {
	i := &informer{t: s.t}
	i.list(s)
	return i
}

func (i *informer) list(s *server) {
	all := read(i.t, s.do(200, "GET", maps, ""))
	i.rev, i.cache = all.Metadata.ResourceVersion, map[string]string{}
	for _, o := range all.Items {
		i.cache[o.Metadata.Name] = o.Data["v"]
	}
}

// resume continues the watch on the server until it has received the object.
func (i *informer) resume(s *server, last string) {
	i.t.Helper()
	i.told = 0
	for begin := time.Now(); i.cache[last] == ""; {
		if time.Since(begin) > patience {
			i.t.Fatalf("nobody tells of %s", last)
		}
		if code := i.watch(s, last); code != 0 {
			i.told = code
			i.list(s)
		}
	}
}

// watch returns the status code of the watch, or 0 if the last object was received.
func (i *informer) watch(s *server, last string) int {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, "GET", s.URL()+maps+"?watch=1&resourceVersion="+i.rev, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	answer, err := cmp.Or(s.client, http.DefaultClient).Do(request)
	if err != nil {
		i.t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != 200 {
		return answer.StatusCode
	}
	for frames := json.NewDecoder(answer.Body); i.cache[last] == ""; {
		var ev event
		if err := frames.Decode(&ev); err != nil {
			i.t.Fatalf("a watch from %s: %v", i.rev, err)
		}
		switch name := ev.Object.Metadata.Name; ev.Type {
		case "ERROR":
			return ev.Object.Code
		case "DELETED":
			delete(i.cache, name)
		default:
			i.cache[name] = ev.Object.Data["v"]
		}
		i.rev = ev.Object.Metadata.ResourceVersion
	}
	return 0
}

// wantSame compares a cache with the stored objects.
func (i *informer) wantSame(s *server, when string, told int) {
	i.t.Helper()
	now := &informer{t: i.t}
	now.list(s)
	if !reflect.DeepEqual(i.cache, now.cache) {
		i.t.Errorf("%s: the client has\n%v\nand there is\n%v", when, i.cache, now.cache)
	}
	if i.told != told {
		i.t.Errorf("%s: the client was told %d, want %d", when, i.told, told)
	}
}

// work creates, changes and deletes objects, and finally creates one for the client to wait for.
func (s *server) work(round string, n int) (last string) {
	s.t.Helper()
	for i := range n {
		s.do(201, "POST", maps, aMap(fmt.Sprint(round, "-", i), round, ""))
	}
	s.do(200, "PATCH", maps+"/"+round+"-0", `{"data":{"v":"changed"}}`)
	s.do(200, "DELETE", maps+"/"+round+"-1", "")
	last = round + "-last"
	s.do(201, "POST", maps, aMap(last, round, ""))
	return last
}

// expired checks that the revision cannot be used for lists and watches.
func (s *server) expired(rev string) {
	s.t.Helper()
	s.do(410, "GET", maps+"?resourceVersionMatch=Exact&resourceVersion="+rev, "")
	i := &informer{t: s.t, rev: rev, cache: map[string]string{}}
	if code := i.watch(s, "nothing"); code != 410 {
		s.t.Errorf("a watch from %s is told %d", rev, code)
	}
}

func number(t *testing.T, rev string) (n int64) {
	if _, err := fmt.Sscan(rev, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestClientsMissNothingInMigrations moves the data from a file to etcd, back to a file, and to
// etcd again. Clients that started at any time must have the current objects. The revisions of the
// first file are also valid in the second file, because it has more revisions.
func TestClientsMissNothingInMigrations(t *testing.T) {
	t.Parallel()
	c, dir := startCluster(t, 1), t.TempDir()
	data := filepath.Join(dir, "data.db")
	on := startOnFile(t, data)
	first := on.informer()
	on.work("file", 60)
	second := on.informer()
	on.Stop()

	for _, way := range []string{"etcd", "file-again", "etcd-again", "copy"} {
		more, back := []string(nil), filepath.Join(dir, way)
		switch way {
		case "etcd-again":
			more = []string{"--etcd-prefix", "/again"}
			fallthrough
		case "etcd":
			if said, problem := c.migrate(data, more...); problem != "" {
				t.Fatalf("%s%s", said, problem)
			}
			on = c.startServer(more...)
		default:
			if way == "copy" { // of the current storage
				on = c.startServer("--etcd-prefix", "/again")
				back = filepath.Join(dir, "copy")
				more = []string{"--etcd-prefix", "/again"}
			}
			said, problem := c.migrate(back, append(more, "--to-file")...)
			if problem != "" || strings.Contains(said, "Servers have etcd in use") != (way == "copy") {
				t.Fatalf("%s: %s%s", way, said, problem)
			}
			if way == "copy" {
				on.work("meanwhile", 50)
				second.resume(on, "meanwhile-last")
				on.Stop()
			}
			data = back
			on = startOnFile(t, data)
		}
		for _, known := range []string{first.rev, second.rev} {
			on.expired(known)
		}
		last := on.work(way, 150)
		for _, known := range []string{first.rev, second.rev} {
			on.expired(known)
		}
		third := on.informer()
		first.resume(on, last)
		first.wantSame(on, way, 410)
		last = on.work(way+"-more", 3)
		third.resume(on, last)
		third.wantSame(on, way, 0)
		if number(t, third.rev) <= number(t, second.rev) {
			t.Errorf("%s: the revision was %s and is %s", way, second.rev, third.rev)
		}
		second = on.informer()
		on.Stop()
	}

	// The copy's revisions are a billion higher. etcd's revision cannot be raised that far.
	said, problem := c.migrate(data, "--etcd-prefix", "/third")
	if !strings.Contains(problem, "etcdutl snapshot restore --bump-revision") || !strings.Contains(problem, "--revisions-go-back") {
		t.Errorf("%s%s", said, problem)
	}
	if said, problem := c.migrate(data, "--etcd-prefix", "/third", "--revisions-go-back"); problem != "" {
		t.Errorf("%s%s", said, problem)
	}
}

// TestClientsMissNothingUnderAnotherPrefix uses another prefix of the same etcd with the same
// replica file. Revisions of etcd count for all prefixes, so the server must return 410 for the
// client's revision.
func TestClientsMissNothingUnderAnotherPrefix(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	a := c.startServer()
	a.work("before", 20)
	client := a.informer()
	a.Stop()
	other := c.aServer("--etcd-prefix", "/other")
	for i, arg := range other.Args {
		if arg == other.data {
			other.Args[i] = a.data
		}
	}
	other.run()
	other.expired(client.rev)
	client.resume(other, other.work("after", 20))
	client.wantSame(other, "another prefix", 410)
}
