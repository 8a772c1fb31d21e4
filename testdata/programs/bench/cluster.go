package main

// This file compares apilet with kube-apiserver on the same etcd and with an apilet that uses a
// file. The servers use different prefixes and do not receive each other's writes. The tables are
// copied to docs/scale.md.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

const (
	kubePrefix, apiletPrefix = "/registry", "/apilet"
	manyObjects              = 100_000 // for the last tables
	manyWatchers             = 1000
	pacedWrites              = 400 // per second, while delays are measured
	pacedWriters             = 16
)

// An aimed case has a target ratio. If aim is zero, there is no target.
type aimed struct {
	measurement
	aim float64
}

var onOneEtcd = []aimed{
	{measurement{"create, 1 client", "1/s", "more", load{1, create}.rate}, 1.5},
	{measurement{"create, 16 clients", "1/s", "more", load{16, create}.rate}, 1.5},
	{measurement{"create, 64 clients", "1/s", "more", load{64, create}.rate}, 1.5},
	{measurement{"update, 1 client", "1/s", "more", load{1, update}.rate}, 1.5},
	{measurement{"update, 16 clients", "1/s", "more", load{16, update}.rate}, 1.5},
	{measurement{"update, 64 clients", "1/s", "more", load{64, update}.rate}, 1.5},
	{measurement{"get, 16 clients", "1/s", "more", load{16, get}.rate}, 0},
	{measurement{"get at 0, 16 clients", "1/s", "more", load{16, getCached}.rate}, 0},
	{measurement{"LIST of 5,000", "objects/s", "more", lists(full)}, 4},
	{measurement{"LIST of 100, 16 clients", "1/s", "more", load{16, few}.rate}, 4},
	{measurement{"the same, and one writes", "1/s", "more", besideAWriter(load{16, few}.rate)}, 4},
	{measurement{"LIST of 5,000 at 0", "objects/s", "more", lists(cached)}, 0},
	{measurement{"watch, 100 watchers", "µs/event", "less", fanOut}, 0},
}

var besideAFile = []aimed{
	{measurement{"get at 0, 16 clients", "1/s", "more", load{16, getCached}.rate}, 1},
	{measurement{"LIST of 5,000 at 0", "objects/s", "more", lists(cached)}, 1},
}

// besideAWriter runs a case while another client writes to a different object every five
// milliseconds.
func besideAWriter(run func(context.Context, *server, time.Duration) (float64, error)) func(context.Context, *server, time.Duration) (float64, error) {
	return func(ctx context.Context, s *server, length time.Duration) (value float64, err error) {
		writing, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		wg.Go(func() {
			c := s.newClient(ctx, 0)
			defer c.close()
			for pause(writing, 5*time.Millisecond) {
				if failed := update(c, 0); failed != nil {
					err = failed
					return
				}
			}
		})
		value, failed := run(ctx, s, length)
		stop()
		wg.Wait()
		return value, errors.Join(err, failed)
	}
}

// compareOnEtcd prints all tables.
func compareOnEtcd(ctx context.Context, rounds int, length time.Duration, objects int, only string) error {
	s, err := openStage(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	apilet, err := s.startApilet(ctx, true)
	if err != nil {
		return err
	}
	kube, err := s.startKube(ctx)
	if err != nil {
		return err
	}
	for _, p := range []*program{apilet, kube} {
		if err := p.prepare(ctx, objects); err != nil {
			return fmt.Errorf("%s: %w", p.kind, err)
		}
	}
	for _, part := range []struct {
		name  string // the name for -only
		print func() error
	}{
		{"alone", func() error { return s.alone(ctx, length) }},
		{"followers", func() error { return s.followers(ctx, length) }},
		{"", func() error {
			return s.table(ctx, "On one etcd, one server each", apilet, kube, named(onOneEtcd, only), rounds, length)
		}},
		{"delays", func() error { return s.delays(ctx, apilet, kube, rounds, length) }},
		{"file", func() error { return s.fileTable(ctx, apilet, kube, rounds, length, objects) }},
		{"many", func() error { return s.many(ctx, apilet, kube, rounds) }},
	} {
		if only == "" || only == part.name || part.name == "" && len(named(onOneEtcd, only)) > 0 {
			if err := part.print(); err != nil {
				return err
			}
		}
	}
	return nil
}

// named returns all cases with the given word in their names.
func named(cases []aimed, word string) []aimed {
	return slices.DeleteFunc(slices.Clone(cases), func(c aimed) bool { return !strings.Contains(c.name, word) })
}

// A spending contains the CPU time in microseconds for a unit of a case.
type spending struct{ server, etcd float64 }

// table runs the cases on both servers and prints the medians and the CPU time.
func (s *stage) table(ctx context.Context, title string, a, b *program, cases []aimed, rounds int, length time.Duration) error {
	fmt.Printf("\n%s\n%-38s%12s%16s%8s%6s   µs of processors: %8s%16s%12s%8s\n", title, "", a.kind, b.kind, "ratio", "aim", a.kind, b.kind, "etcd under", "either")
	for _, c := range cases {
		r := result{name: c.name, unit: c.unit, better: c.better, values: make([][]float64, 2)}
		costs := make([][]spending, 2)
		for range rounds {
			for i, p := range []*program{a, b} {
				value, paid, err := s.priced(ctx, p, c.measurement, length)
				if err != nil {
					return fmt.Errorf("%s on %s: %w", c.name, p.kind, err)
				}
				r.values[i], costs[i] = append(r.values[i], value), append(costs[i], paid)
			}
		}
		x, y := medianCost(costs[0]), medianCost(costs[1])
		fmt.Printf("%-38s%12.4g%16.4g%8.2f%6s                     %8.3g%16.3g%12.3g%8.3g\n", r.name+", "+r.unit, r.median(0), r.median(1), r.ratio(), aim(c.aim),
			x.server, y.server, x.etcd, y.etcd)
	}
	return nil
}

func aim(ratio float64) string {
	if ratio == 0 {
		return ""
	}
	return fmt.Sprint(ratio)
}

// priced runs a case once.
func (s *stage) priced(ctx context.Context, p *program, c measurement, length time.Duration) (value float64, paid spending, err error) {
	before, err := s.clocks(p)
	if err != nil {
		return 0, paid, err
	}
	begun := time.Now()
	if value, err = c.run(ctx, p.server, length); err != nil {
		return 0, paid, err
	}
	count := c.count(value, time.Since(begun))
	after, err := s.clocks(p)
	return value, spending{float64((after[0] - before[0]).Microseconds()) / count, float64((after[1] - before[1]).Microseconds()) / count}, err
}

// clocks returns the CPU time used by the server and by etcd.
func (s *stage) clocks(p *program) (now [2]time.Duration, err error) {
	if now[0], err = cpu(p.pids...); err == nil {
		now[1], err = cpu(s.etcd.cmd.Process.Pid)
	}
	return now, err
}

func medianCost(all []spending) (m spending) {
	var servers, etcds []float64
	for _, c := range all {
		servers, etcds = append(servers, c.server), append(etcds, c.etcd)
	}
	return spending{quantile(servers, 0.5), quantile(etcds, 0.5)}
}

// quantile returns a value that the given share of all values does not exceed.
func quantile(all []float64, share float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(int(share*float64(len(sorted))), len(sorted)-1)]
}

// fileTable compares apilet on etcd with an apilet that stores the same objects in a file.
// kube-apiserver is stopped in the meantime.
func (s *stage) fileTable(ctx context.Context, apilet, kube *program, rounds int, length time.Duration, objects int) error {
	kube.kill()
	alone, err := s.startApilet(ctx, false)
	if err != nil {
		return err
	}
	defer alone.kill()
	if err := alone.prepare(ctx, objects); err != nil {
		return err
	}
	if err := s.table(ctx, "On etcd, and on a file alone", apilet, alone, besideAFile, rounds, length); err != nil {
		return err
	}
	if err := kube.start(); err != nil {
		return err
	}
	return kube.serves(ctx)
}

// ---- From server to server

// delays starts a second server of each kind, writes to the first server, and watches the second.
func (s *stage) delays(ctx context.Context, apilet, kube *program, rounds int, length time.Duration) error {
	second, err := s.startApilet(ctx, true)
	if err != nil {
		return err
	}
	defer second.kill()
	other, err := s.startKube(ctx)
	if err != nil {
		return err
	}
	defer other.kill()
	pairs := [2][2]*program{{apilet, second}, {kube, other}}
	found := [2][]float64{}
	writer, follower := [2][]float64{}, [2][]float64{}
	for range rounds {
		for i, pair := range pairs {
			before, err := s.clocksOf(pair)
			if err != nil {
				return err
			}
			delays, err := crossing(ctx, pair[0].server, pair[1].server, length)
			if err != nil {
				return fmt.Errorf("from %s to %s: %w", pair[0].kind, pair[1].kind, err)
			}
			after, err := s.clocksOf(pair)
			if err != nil {
				return err
			}
			found[i] = append(found[i], delays...)
			writer[i] = append(writer[i], float64((after[0]-before[0]).Microseconds())/float64(len(delays)))
			follower[i] = append(follower[i], float64((after[1]-before[1]).Microseconds())/float64(len(delays)))
		}
	}
	fmt.Printf("\nFrom a write at one server to its event at the other, %d writes/s\n%-38s%12s%16s%8s%6s\n", pacedWrites, "", apilet.kind, kube.kind, "ratio", "aim")
	row := func(name string, a, b float64, aim string) {
		fmt.Printf("%-38s%12.4g%16.4g%8.2f%6s\n", name, a, b, b/a, aim)
	}
	row("p50, ms", quantile(found[0], 0.5), quantile(found[1], 0.5), "")
	row("p99, ms", quantile(found[0], 0.99), quantile(found[1], 0.99), "1")
	row("processors' time of a write, µs", quantile(writer[0], 0.5), quantile(writer[1], 0.5), "")
	row("of following one, watched, µs", quantile(follower[0], 0.5), quantile(follower[1], 0.5), "")
	return nil
}

func (s *stage) clocksOf(pair [2]*program) (now [2]time.Duration, err error) {
	for i, p := range pair {
		if now[i], err = cpu(p.pids...); err != nil {
			return now, err
		}
	}
	return now, nil
}

var writtenAt = regexp.MustCompile(`"version":"(\d+)"`)

// crossing writes to one server at a fixed rate. It returns the milliseconds from sending each
// write until its event arrives from another server.
func crossing(ctx context.Context, from, to *server, length time.Duration) (delays []float64, err error) {
	text, err := to.do(ctx, "GET", from.own+"?limit=1", nil)
	if err != nil {
		return nil, err
	}
	since, err := revisionOf(text)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, length+time.Minute)
	defer cancel()
	watcher := to.newClient(ctx, 0)
	defer watcher.close()
	if err := watcher.open(request{path: from.own, query: "?watch=true&resourceVersion=" + since}); err != nil {
		return nil, err
	}
	writing := make(chan error, 1)
	go func() { writing <- from.paced(ctx, length) }()
	var event []byte // the received part
	for len(delays) < pacedCount(length) {
		piece, err := watcher.next()
		if err != nil {
			return nil, err
		}
		for end := bytes.IndexByte(piece, '\n'); end >= 0; end = bytes.IndexByte(piece, '\n') {
			event, piece = append(event, piece[:end]...), piece[end+1:]
			if at := writtenAt.FindSubmatch(event); at != nil {
				sent, err := strconv.ParseInt(string(at[1]), 10, 64)
				if err != nil {
					return nil, err
				}
				delays = append(delays, float64(time.Now().UnixNano()-sent)/1e6)
			}
			event = event[:0]
		}
		event = append(event, piece...)
	}
	return delays, <-writing
}

// paced updates objects at a fixed rate. Each client updates its own object.
func (s *server) paced(ctx context.Context, length time.Duration) error {
	return together(pacedWriters, func(client int) error {
		c := s.newClient(ctx, client)
		defer c.close()
		pause(ctx, time.Duration(client)*time.Second/pacedWrites)
		ticks := time.NewTicker(time.Second * pacedWriters / pacedWrites)
		defer ticks.Stop()
		for range pacedCount(length) / pacedWriters {
			<-ticks.C
			if err := update(c, 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// pacedCount returns the number of writes in the given time.
func pacedCount(length time.Duration) int {
	return int(length.Seconds()*pacedWrites/pacedWriters) * pacedWriters
}

// ---- Many objects

// many creates a large number of objects and measures the memory, the size and the restart time.
func (s *stage) many(ctx context.Context, apilet, kube *program, rounds int) error {
	bytes, followed, err := s.fill(ctx, apilet, kube)
	if err != nil {
		return err
	}
	fmt.Printf("\nWith %d more objects of 1 KiB\n%-38s%12s%16s%8s%6s\n", manyObjects, "", apilet.kind, kube.kind, "ratio", "aim")
	row := func(name string, aim string, of func(p *program) (float64, error)) error {
		a, err := of(apilet)
		if err != nil {
			return err
		}
		b, err := of(kube)
		if err == nil {
			fmt.Printf("%-38s%12.4g%16.4g%8.2f%6s\n", name, a, b, b/a, aim)
		}
		return err
	}
	stopped, killed := map[*program]restarted{}, map[*program]restarted{}
	for _, p := range []*program{apilet, kube} {
		if stopped[p], err = s.restarts(ctx, p, 1, p.stop); err != nil {
			return err
		}
		if killed[p], err = s.restarts(ctx, p, rounds, p.kill); err != nil {
			return err
		}
	}
	memory := map[*program]float64{}
	for _, p := range []*program{apilet, kube} {
		if memory[p], err = p.memory(); err != nil {
			return err
		}
	}
	atRest, err := apilet.atRest(ctx) // kube-apiserver's memory fluctuates by more than that
	if err != nil {
		return err
	}
	for _, err := range []error{
		row("bytes of an object in etcd", "", func(p *program) (float64, error) { return bytes[p], nil }),
		row("following one of them, µs", "", func(p *program) (float64, error) { return followed[p], nil }),
		row("stopped, then ready, s", "", func(p *program) (float64, error) { return stopped[p].ready, nil }),
		row("stopped, then ready and all listed, s", "", func(p *program) (float64, error) { return stopped[p].took, nil }),
		row("killed, then ready, s", "", func(p *program) (float64, error) { return killed[p].ready, nil }),
		row("killed, then ready and all listed, s", "", func(p *program) (float64, error) { return killed[p].took, nil }),
		row("etcd sent meanwhile, MB", "", func(p *program) (float64, error) { return killed[p].heard / 1e6, nil }),
		row("processors' time meanwhile, s", "", func(p *program) (float64, error) { return killed[p].spent, nil }),
		row("memory then, MiB", "5", func(p *program) (float64, error) { return memory[p], nil }),
		row("an event that a watcher does not want, µs", "", func(p *program) (float64, error) { return p.passedOver(ctx, 3*time.Second) }),
	} {
		if err != nil {
			return err
		}
	}
	fmt.Printf("%-38s%12.4g\n", "a watcher at rest, KiB", atRest)
	return s.replica(ctx, apilet)
}

// fill writes objects directly into etcd below both prefixes, in each server's encoding. It returns
// the size of an object in etcd, and the CPU time in microseconds that is used by a server to
// process one of the writes.
func (s *stage) fill(ctx context.Context, servers ...*program) (bytes, followed map[*program]float64, err error) {
	client, err := s.client()
	if err != nil {
		return nil, nil, err
	}
	defer client.Close()
	bytes, followed = map[*program]float64{}, map[*program]float64{}
	for i, prefix := range []string{apiletPrefix, kubePrefix} {
		p := servers[i]
		before, err := s.etcdCounter(ctx, sizeInUse)
		if err != nil {
			return nil, nil, err
		}
		idle, err := cpu(p.pids...)
		if err != nil {
			return nil, nil, err
		}
		const atOnce = 128
		if err := together(atOnce, func(first int) error {
			for n := first; n < manyObjects; n += atOnce {
				value, err := storedMap(n, prefix == kubePrefix)
				if err != nil {
					return err
				}
				if _, err := client.Put(ctx, fmt.Sprintf("%s/configmaps/default/many-%06d", prefix, n), value); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			return nil, nil, err
		}
		if err := p.sees(ctx, manyObjects); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.kind, err)
		}
		busy, err := cpu(p.pids...)
		if err != nil {
			return nil, nil, err
		}
		after, err := s.etcdCounter(ctx, sizeInUse)
		if err != nil {
			return nil, nil, err
		}
		bytes[p], followed[p] = (after-before)/manyObjects, float64((busy-idle).Microseconds())/manyObjects
	}
	return bytes, followed, nil
}

// storedMap returns a ConfigMap as stored in etcd: kube-apiserver writes protobuf, apilet JSON.
func storedMap(n int, protobuf bool) (string, error) {
	m := corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("many-%06d", n), Namespace: "default", UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", n)),
			CreationTimestamp: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), Labels: map[string]string{"app": "bench"}},
		Data: map[string]string{"version": strconv.Itoa(n), "padding": strings.Repeat("x", bodyBytes)}}
	if !protobuf {
		text, err := json.Marshal(m)
		return string(text), err
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: m.APIVersion, Kind: m.Kind}}
	m.TypeMeta = metav1.TypeMeta{}
	var err error
	if unknown.Raw, err = m.Marshal(); err != nil {
		return "", err
	}
	text, err := unknown.Marshal()
	return "k8s\x00" + string(text), err
}

// sees waits until the server counts the given number of objects in the namespace default.
func (p *program) sees(ctx context.Context, objects int) error {
	c := p.newClient(ctx, 0)
	defer c.close()
	for {
		text, err := c.do("GET", "/api/v1/namespaces/default/configmaps?limit=1", nil)
		if err != nil {
			return err
		}
		var list struct {
			Metadata struct{ RemainingItemCount int }
		}
		if err := json.Unmarshal(text, &list); err != nil || list.Metadata.RemainingItemCount+1 >= objects {
			return err
		}
		if !pause(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// restarted holds the results of a restart with a large number of objects.
type restarted struct {
	// time in seconds until the server is ready, until it has listed all objects, and the CPU time
	// used
	ready, took, spent float64
	heard              float64 // bytes received from etcd
}

// restarts repeatedly stops the server by calling end and starts it again.
func (s *stage) restarts(ctx context.Context, p *program, rounds int, end func()) (m restarted, err error) {
	var up, took, spent, heard []float64
	for range rounds {
		end()
		pause(ctx, time.Second) // until etcd notices
		before, err := s.etcdCounter(ctx, sentBytes)
		if err != nil {
			return m, err
		}
		begun := time.Now()
		if err := p.start(); err != nil {
			return m, err
		}
		if err := p.ready(ctx); err != nil {
			return m, err
		}
		up = append(up, time.Since(begun).Seconds())
		if err := p.lists(ctx); err != nil {
			return m, err
		}
		took = append(took, time.Since(begun).Seconds())
		used, err := cpu(p.pids...)
		if err != nil {
			return m, err
		}
		after, err := s.etcdCounter(ctx, sentBytes)
		if err != nil {
			return m, err
		}
		spent, heard = append(spent, used.Seconds()), append(heard, after-before)
	}
	return restarted{quantile(up, 0.5), quantile(took, 0.5), quantile(spent, 0.5), quantile(heard, 0.5)}, nil
}

const (
	sizeInUse = "etcd_mvcc_db_total_size_in_use_in_bytes"
	sentBytes = "etcd_network_client_grpc_sent_bytes_total"
)

// atRest returns the memory in KiB that is used by an idle watch.
func (p *program) atRest(ctx context.Context) (float64, error) {
	before, err := p.memory()
	if err != nil {
		return 0, err
	}
	end, err := p.watchers(ctx, "/api/v1/namespaces/kube-system/configmaps", "")
	defer end()
	if err != nil {
		return 0, err
	}
	pause(ctx, 2*time.Second)
	after, err := p.memory()
	return (after - before) * 1024 / manyWatchers, err
}

// passedOver returns the CPU time in microseconds for an event that is excluded by the selector of
// a watch. It is the time for writes with many such watchers, minus the time for the same writes
// without watchers.
func (p *program) passedOver(ctx context.Context, length time.Duration) (float64, error) {
	spend := func() (time.Duration, error) {
		before, err := cpu(p.pids...)
		if err != nil {
			return 0, err
		}
		if err := p.paced(ctx, length); err != nil {
			return 0, err
		}
		after, err := cpu(p.pids...)
		return after - before, err
	}
	alone, err := spend()
	if err != nil {
		return 0, err
	}
	end, err := p.watchers(ctx, p.own, "&labelSelector=app%3Dother")
	defer end()
	if err != nil {
		return 0, err
	}
	beside, err := spend()
	return float64((beside - alone).Microseconds()) / float64(pacedCount(length)*manyWatchers), err
}

// watchers opens a large number of watches of the list. They run until end is called.
func (p *program) watchers(ctx context.Context, path, query string) (end func(), err error) {
	open := make([]*client, manyWatchers)
	for i := range open {
		open[i] = p.newClient(ctx, i)
	}
	end = func() {
		for _, c := range open {
			c.close()
		}
	}
	text, err := p.do(ctx, "GET", path+"?limit=1", nil)
	if err != nil {
		return end, err
	}
	since, err := revisionOf(text)
	if err != nil {
		return end, err
	}
	const atOnce = 20
	return end, together(atOnce, func(first int) (err error) {
		for i := first; i < manyWatchers && err == nil; i += atOnce {
			err = open[i].open(request{path: path, query: "?watch=true&timeoutSeconds=600&resourceVersion=" + since + query})
		}
		return err
	})
}

// replica prints the size of the replica and the time to fill an empty one.
func (s *stage) replica(ctx context.Context, p *program) error {
	var path string
	for i, arg := range p.args {
		if arg == "--data" {
			path = p.args[i+1]
		}
	}
	p.kill()
	files, err := filepath.Glob(path + "*")
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			return err
		}
	}
	filled, err := s.restarts(ctx, p, 1, func() {})
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("\nAn empty replica is filled in %.2f s, with %.2f s of processors' time, of %.0f MB from etcd; its file has %.0f MB\n",
		filled.took, filled.spent, filled.heard/1e6, float64(info.Size())/1e6)
	return nil
}

// pause waits for d. It returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
