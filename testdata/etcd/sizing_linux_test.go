package etcd

// This file measures the resources that three servers with TLS and an etcd of three members use,
// for the table in docs/scale.md. SIZING=1 go test -run Sizing -v .

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// use is the resource usage of a process so far.
type use struct {
	cpu       time.Duration
	rss, anon int64 // bytes
	wrote     int64 // bytes written to the disk
}

func (p *process) use(t *testing.T) (u use) {
	t.Helper()
	dir := fmt.Sprint("/proc/", p.Process().PID)
	stat := content(t, dir+"/stat")
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	for _, ticks := range fields[11:13] {
		n, err := strconv.Atoi(ticks)
		if err != nil {
			t.Fatal(err)
		}
		u.cpu += time.Duration(n) * 10 * time.Millisecond
	}
	number := func(text, name string) (n int64) {
		_, text, _ = strings.Cut(text, name+":")
		_, _ = fmt.Sscan(text, &n)
		return n
	}
	status, io := content(t, dir+"/status"), content(t, dir+"/io")
	return use{u.cpu, number(status, "VmRSS") << 10, number(status, "RssAnon") << 10, number(io, "write_bytes")}
}

// kept returns the size of a file or directory on disk.
func kept(t *testing.T, path string) (size int64) {
	t.Helper()
	err := filepath.Walk(path, func(_ string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			size += info.Size()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return size
}

// A sizing measures a cluster and its servers.
type sizing struct {
	*cluster
	servers []*server
	rows    strings.Builder
}

func TestSizing(t *testing.T) {
	if os.Getenv("SIZING") == "" {
		t.Skip("SIZING=1 measures, for some minutes")
	}
	s := &sizing{cluster: startCluster(t, 3)}
	for range 3 {
		s.servers = append(s.servers, s.aSecured("--compaction-interval", "1m"))
	}
	runSecured(t, s.servers...)
	s.fill(0, 1000)
	s.measure("1,000 objects, at rest", 0)
	s.watch(100)
	s.measure("300 watches of all, 10 writes/s", 10)
	s.measure("the same, 100 writes/s", 100)
	s.fill(1000, 50_000)
	s.measure("50,000 objects, 100 writes/s", 100)
	t.Logf("\n| with | each | processor | memory, resident / anonymous | disk | written |\n| --- | --- | --- | --- | --- | --- |\n%s", s.rows.String())
}

// fill creates objects of one kilobyte.
func (s *sizing) fill(from, to int) {
	var writers sync.WaitGroup
	for i := range 32 {
		writers.Go(func() {
			for n := from + i; n < to; n += 32 {
				code, text, err := s.servers[n%3].try("POST", maps, aMap(fmt.Sprint("m-", n), strings.Repeat("v", 1000), ""), patience)
				if err != nil || code != 201 {
					s.t.Errorf("%d %s %v", code, text, err)
					return
				}
			}
		})
	}
	writers.Wait()
}

// watch starts a number of watches on each server. Each of them uses a separate connection.
func (s *sizing) watch(each int) {
	s.t.Helper()
	for _, server := range s.servers {
		credentials, err := server.credentials()
		if err != nil {
			s.t.Fatal(err)
		}
		for range each {
			request, _ := http.NewRequestWithContext(s.t.Context(), "GET", server.URL()+maps+"?watch=1", nil)
			answer, err := (&http.Client{Transport: &http.Transport{TLSClientConfig: credentials.Clone()}}).Do(request)
			if err != nil {
				s.t.Fatal(err)
			}
			go func() { _, _ = io.Copy(io.Discard, answer.Body) }() // ends with the test
		}
	}
}

// measure writes at the given rate for a minute. The rows contain the average usage of a server and
// a member.
func (s *sizing) measure(what string, perSecond int) {
	processes := []*process{s.servers[0].process, s.servers[1].process, s.servers[2].process, s.members[0], s.members[1], s.members[2]}
	var before []use
	for _, p := range processes {
		before = append(before, p.use(s.t))
	}
	took := s.write(perSecond, time.Minute).Seconds()
	row := func(who string, from int, disk func(i int) int64) {
		var cpu, rss, anon, wrote, size float64
		for i := range 3 {
			now := processes[from+i].use(s.t)
			cpu += (now.cpu - before[from+i].cpu).Seconds() / took / 3
			rss, anon = rss+float64(now.rss)/3, anon+float64(now.anon)/3
			wrote += float64(now.wrote-before[from+i].wrote) / took / 3
			size += float64(disk(i)) / 3
		}
		fmt.Fprintf(&s.rows, "| %s | %s | %.1f %% | %.0f / %.0f MB | %.0f MB | %.0f KB/s |\n", what, who, cpu*100, rss/1e6, anon/1e6, size/1e6, wrote/1e3)
	}
	row("server", 0, func(i int) int64 { return kept(s.t, s.servers[i].data) })
	row("member of etcd", 3, func(i int) int64 { return kept(s.t, s.members[i].flag("--data-dir")) })
}

// write changes objects on all servers in turn. It returns the duration.
func (s *sizing) write(perSecond int, span time.Duration) time.Duration {
	begun := time.Now()
	if perSecond == 0 {
		time.Sleep(span)
	}
	var writing sync.WaitGroup
	for n := 0; time.Since(begun) < span; n++ {
		time.Sleep(time.Until(begun.Add(time.Duration(n) * time.Second / time.Duration(perSecond))))
		writing.Go(func() {
			code, text, err := s.servers[n%3].try("PATCH", fmt.Sprintf("%s/m-%d", maps, n%900), fmt.Sprintf(`{"data":{"n":"%d"}}`, n), patience)
			if err != nil || code != 200 {
				s.t.Errorf("%d %s %v", code, text, err)
			}
		})
	}
	writing.Wait()
	return time.Since(begun)
}
