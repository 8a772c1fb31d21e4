package etcd

// This file tests the information that administrators get about etcd in /metrics, /readyz and the
// log.

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"apilet/apilettest"
)

// figures returns a server's metrics without labels.
func (s *server) figures() map[string]float64 {
	s.t.Helper()
	found := map[string]float64{}
	for line := range strings.Lines(s.do(200, "GET", "/metrics", "")) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if value, err := strconv.ParseFloat(text, 64); err == nil {
			found[name] = value
		}
	}
	return found
}

func (s *server) figure(name string, want float64) error {
	if got, ok := s.figures()[name]; !ok || got != want {
		return fmt.Errorf("%s is %v (there: %v), want %v", name, got, ok, want)
	}
	return nil
}

// TestMonitoringOfEtcd checks that all metrics in docs/monitoring exist, that exactly one server is
// the leader, and that an unresponsive etcd is detected even without requests.
func TestMonitoringOfEtcd(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1)
	servers := []*server{c.startServer(), c.startServer()}
	s := servers[0]
	for _, file := range []string{"rules.yaml", "dashboard.json"} {
		text, err := os.ReadFile("../../docs/monitoring/" + file)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`apilet_(?:etcd|replica)_\w+`).FindAllString(string(text), -1)
		if len(names) < 2 {
			t.Errorf("%s names %v", file, names)
		}
		for _, name := range names {
			if _, ok := s.figures()[name]; !ok {
				t.Errorf("%s names %s, which is not there", file, name)
			}
		}
	}
	apilettest.Until(t, "one of two servers leads", func() error {
		if sum := servers[0].figures()["apilet_leader"] + servers[1].figures()["apilet_leader"]; sum != 1 {
			return fmt.Errorf("%v of them", sum)
		}
		return nil
	})
	apilettest.Until(t, "etcd is reached", func() error { return s.figure("apilet_etcd_reachable", 1) })
	told := func(level string) error {
		for line := range strings.Lines(s.Log()) {
			if strings.Contains(line, level) && strings.Contains(line, "what=/readyz/etcd") {
				return nil
			}
		}
		return fmt.Errorf("the log does not say so:\n%s", s.Log())
	}
	c.members[0].Pause()
	apilettest.Until(t, "etcd is not reached", func() error { return s.figure("apilet_etcd_reachable", 0) })
	apilettest.Until(t, "the log says that it begins", func() error { return told("ERR") })
	if code, text, err := s.try("GET", "/readyz/etcd", "", patience); err != nil || code != 500 || !strings.Contains(text, "resourceVersion=0") {
		t.Errorf("/readyz/etcd: %d %s %v", code, text, err)
	}
	c.members[0].Resume()
	apilettest.Until(t, "etcd is reached again", func() error { return s.figure("apilet_etcd_reachable", 1) })
	apilettest.Until(t, "the log says that it is over", func() error { return told("INF") })
}

// TestMonitoringOfEtcdsQuota checks that an etcd that rejects writes is noticed from the first
// rejected write on.
func TestMonitoringOfEtcdsQuota(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 1, "--quota-backend-bytes", "1000000")
	s := c.startServer()
	if err := s.figure("apilet_etcd_space_exceeded", 0); err != nil {
		t.Error(err)
	}
	i := 0
	apilettest.Until(t, "etcd refuses a write", func() error {
		i++
		code, text, err := s.try("POST", maps, aMap(fmt.Sprint("m", i), strings.Repeat("x", 100_000), ""), patience)
		if err != nil || !strings.Contains(text, "database space exceeded") {
			return fmt.Errorf("%d %.200s %v", code, text, err)
		}
		return nil
	})
	if err := s.figure("apilet_etcd_space_exceeded", 1); err != nil {
		t.Error(err)
	}
	if text := s.do(200, "GET", "/readyz?verbose", ""); !strings.Contains(text, "[!]quota warns: etcdserver: mvcc: database space exceeded: compact and defragment") {
		t.Error(text)
	}
	s.do(200, "DELETE", maps+"/m1", "")
	if err := s.figure("apilet_etcd_space_exceeded", 1); err != nil {
		t.Errorf("after a delete: %v", err)
	}
}
