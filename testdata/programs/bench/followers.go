package main

// This file measures the performance of etcd: the number of writes, and the cost of servers that
// watch all writes, read the current revision, or request the progress of the watch. It uses
// clients of etcd with separate connections instead of servers.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// alone measures the transactions of both servers in etcd.
func (s *stage) alone(ctx context.Context, length time.Duration) error {
	client, err := s.client()
	if err != nil {
		return err
	}
	defer client.Close()
	value, err := storedMap(0, false)
	if err != nil {
		return err
	}
	fmt.Printf("\n%-38s%12s%33s\n", "etcd without a server", "Txn/s", "µs of its processors' time")
	for _, clients := range []int{1, 16, 64} {
		before, err := cpu(s.etcd.cmd.Process.Pid)
		if err != nil {
			return err
		}
		prefix := fmt.Sprintf("/alone/%d-%d/", clients, time.Now().UnixNano())
		once := func(of int, i int64) error {
			key := fmt.Sprint(prefix, of, "-", i)
			_, err := client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", 0)).Then(clientv3.OpPut(key, value)).Else(clientv3.OpGet(key)).Commit()
			return err
		}
		written, err := repeat(clients, length, once)
		if err != nil {
			return err
		}
		after, err := cpu(s.etcd.cmd.Process.Pid)
		if err != nil {
			return err
		}
		fmt.Printf("%-38s%12.4g%33.3g\n", fmt.Sprint(clients, " clients"), float64(written.done)/written.took.Seconds(),
			float64((after-before).Microseconds())/float64(written.done))
	}
	return nil
}

// client returns a client of etcd that does not use a server.
func (s *stage) client() (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: []string{s.etcdURL}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
}

// followers measures the performance of etcd with a number of followers.
func (s *stage) followers(ctx context.Context, length time.Duration) error {
	fmt.Printf("\n%-24s%16s%12s%12s%16s%14s%12s%20s\n", "servers that follow", "µs for a write", "p50, ms", "p99, ms", "newest reads/s", "µs for one", "p99, ms", "µs for a progress")
	for _, n := range []int{1, 10, 100} {
		if err := s.followedBy(ctx, n, length); err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) followedBy(ctx context.Context, n int, length time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	prefix := fmt.Sprintf("/followed/%d/", time.Now().UnixNano())
	all := make([]*follower, n)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range all {
		client, err := s.client()
		if err != nil {
			return err
		}
		defer client.Close()
		f := &follower{client: client, progress: make(chan struct{}, 1)}
		f.ctx = clientv3.WithRequireLeader(ctx)
		news := client.Watch(f.ctx, prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
		<-news
		wg.Go(func() { f.follow(news) })
		all[i] = f
	}
	etcd := func(do func() (int, error)) (microseconds float64, err error) {
		before, err := cpu(s.etcd.cmd.Process.Pid)
		if err != nil {
			return 0, err
		}
		n, err := do()
		if err != nil {
			return 0, err
		}
		after, err := cpu(s.etcd.cmd.Process.Pid)
		return float64((after - before).Microseconds()) / float64(n), err
	}
	write, err := etcd(func() (int, error) { return writePaced(ctx, all[0].client, prefix, length) })
	if err != nil {
		return err
	}
	for len(all[n-1].heard()) < pacedCount(length)/2 { // half the rate of the servers' writes
		if !pause(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
	delays := all[n-1].heard()
	var took []float64
	read, err := etcd(func() (int, error) {
		took, err = readAtOnce(ctx, all, prefix, length)
		return len(took), err
	})
	if err != nil {
		return err
	}
	progress, err := etcd(func() (int, error) { return askProgress(all, length/2) })
	fmt.Printf("%-24d%16.3g%12.3g%12.3g%16.4g%14.3g%12.3g%20.3g\n", n, write, quantile(delays, 0.5), quantile(delays, 0.99),
		float64(len(took))/length.Seconds(), read, quantile(took, 0.99), progress)
	return err
}

// A follower stands for a server.
type follower struct {
	ctx      context.Context
	client   *clientv3.Client
	progress chan struct{}

	mu     sync.Mutex // guards delays
	delays []float64  // milliseconds
}

func (f *follower) follow(news clientv3.WatchChan) {
	for told := range news {
		if told.IsProgressNotify() {
			select {
			case f.progress <- struct{}{}:
			default:
			}
		}
		f.mu.Lock()
		for _, ev := range told.Events {
			f.delays = append(f.delays, float64(time.Now().UnixNano()-int64(binary.BigEndian.Uint64(ev.Kv.Value)))/1e6)
		}
		f.mu.Unlock()
	}
}

func (f *follower) heard() []float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.delays
}

// writePaced writes 1 KiB values to etcd at a fixed rate. Each value starts with a timestamp.
func writePaced(ctx context.Context, client *clientv3.Client, prefix string, length time.Duration) (int, error) {
	const writers = pacedWriters / 2
	return pacedCount(length) / 2, together(writers, func(of int) error {
		ticks := time.NewTicker(time.Second * pacedWriters / pacedWrites)
		defer ticks.Stop()
		for range pacedCount(length) / pacedWriters {
			<-ticks.C
			value := binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))
			if _, err := client.Put(ctx, fmt.Sprint(prefix, of), string(value)+strings.Repeat("x", bodyBytes)); err != nil {
				return err
			}
		}
		return nil
	})
}

// readAtOnce makes each follower read the current revision repeatedly. It returns the milliseconds
// of each response.
func readAtOnce(ctx context.Context, all []*follower, prefix string, length time.Duration) (took []float64, err error) {
	var mu sync.Mutex // guards took
	begun := time.Now()
	err = together(len(all), func(i int) error {
		var own []float64
		for time.Since(begun) < length {
			asked := time.Now()
			if _, err := all[i].client.Get(ctx, prefix+"nothing", clientv3.WithCountOnly()); err != nil {
				return err
			}
			own = append(own, float64(time.Since(asked).Microseconds())/1e3)
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, own...)
		return nil
	})
	return took, err
}

// askProgress makes each follower request its watch's progress repeatedly.
func askProgress(all []*follower, length time.Duration) (int, error) {
	var answered atomic.Int64
	begun := time.Now()
	err := together(len(all), func(i int) error {
		for time.Since(begun) < length {
			if err := all[i].client.RequestProgress(all[i].ctx); err != nil {
				return err
			}
			select {
			case <-all[i].progress:
				answered.Add(1)
			case <-time.After(10 * time.Second):
				return errors.New("etcd does not tell a watch's progress")
			}
		}
		return nil
	})
	return int(answered.Load()), err
}
