package main

// This file defines the servers and the objects that are used by the cases.

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bodyBytes  = 1024 // size of an object's data
	fewObjects = 100  // in the namespace NAMESPACE-few
)

var padding = strings.Repeat("x", bodyBytes)

// A server is a server to measure.
type server struct {
	name, token string
	secure      bool   // uses TLS
	address     string // host and port
	prefix      string // prefix of all paths
	headers     string // headers of all requests
	pids        []int
	spent       effort // CPU time of this program during the last measurement
	namespace   string
	// the paths used for writes and lists
	own, listed string
	few         string // path of a namespace with a typical number of objects
	objects     int    // in the namespace NAMESPACE-list
	filled      string // a resourceVersion at which it was complete
}

// newServer parses NAME=URL,token=...,pid=1+2.
func newServer(arg string) (*server, error) {
	name, rest, ok := strings.Cut(arg, "=")
	if !ok {
		return nil, fmt.Errorf("%s: NAME=URL is what a server is", arg)
	}
	parts := strings.Split(rest, ",")
	s := &server{name: name, namespace: fmt.Sprintf("bench-%x", time.Now().UnixNano())}
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(part, "=")
		switch key {
		case "token":
			s.token = value
		case "pid":
			for text := range strings.SplitSeq(value, "+") {
				pid, err := strconv.Atoi(text)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", part, err)
				}
				s.pids = append(s.pids, pid)
			}
		default:
			return nil, fmt.Errorf("%s: unknown", part)
		}
	}
	u, err := url.Parse(parts[0])
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, fmt.Errorf("%s: no URL of a server", parts[0])
	}
	s.secure, s.prefix, s.address = u.Scheme == "https", strings.TrimSuffix(u.Path, "/"), u.Host
	if u.Port() == "" {
		s.address = net.JoinHostPort(u.Hostname(), u.Scheme)
	}
	s.headers = headers(u.Host, s.token)
	s.own, s.listed, s.few = s.maps(s.namespace), s.maps(s.namespace+"-list"), s.maps(s.namespace+"-few")
	return s, nil
}

func (s *server) maps(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps"
}

// appendConfigMap appends a request body. Bodies with different versions differ. If name is empty,
// the server generates one.
func appendConfigMap(b, name []byte, version int64) []byte {
	b = append(b, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"`...)
	if len(name) > 0 {
		b = append(append(b, `name":"`...), name...)
	} else {
		b = append(b, `generateName":"made-`...)
	}
	b = append(b, `","labels":{"app":"bench"}},"data":{"version":"`...)
	b = strconv.AppendInt(b, version, 10)
	b = append(b, `","padding":"`...)
	b = append(b, padding...)
	return append(b, `"}}`...)
}

// namespaces returns the names of the namespaces used by the cases.
func (s *server) namespaces() []string {
	return []string{s.namespace, s.namespace + "-list", s.namespace + "-few"}
}

// prepare creates the namespaces and the objects for the lists.
func (s *server) prepare(ctx context.Context, objects int) error {
	s.objects = objects
	for _, namespace := range s.namespaces() {
		if _, err := s.do(ctx, "POST", "/api/v1/namespaces", fmt.Appendf(nil, `{"metadata":{"name":%q}}`, namespace)); err != nil {
			return err
		}
	}
	if err := s.make(ctx, s.namespace+"-list", "item-%06d", 1, objects); err != nil {
		return err
	}
	if err := s.make(ctx, s.namespace+"-few", "item-%06d", 1, fewObjects); err != nil {
		return err
	}
	if err := s.make(ctx, s.namespace, "own-%d", 0, workers); err != nil {
		return err
	}
	text, err := s.do(ctx, "GET", s.maps(s.namespace+"-list")+"?limit=1", nil)
	if err != nil {
		return err
	}
	s.filled, err = revisionOf(text)
	return err
}

// make creates ConfigMaps, numbered from first.
func (s *server) make(ctx context.Context, namespace, name string, first, count int) error {
	var next atomic.Int64
	return together(32, func(number int) error {
		c := s.newClient(ctx, number)
		defer c.close()
		for i := next.Add(1); i <= int64(count); i = next.Add(1) {
			body := appendConfigMap(nil, fmt.Appendf(nil, name, int64(first)+i-1), 0)
			if _, err := c.do("POST", s.maps(namespace), body); err != nil {
				return err
			}
		}
		return nil
	})
}

// clean deletes the namespaces.
func (s *server) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, namespace := range s.namespaces() {
		// their names identify any that remain
		_, _ = s.do(ctx, "DELETE", "/api/v1/namespaces/"+namespace, nil)
	}
}

// together runs n functions concurrently and returns their errors.
func together(n int, do func(i int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, n)
	for i := range n {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

var anonymous = regexp.MustCompile(`(?m)^Anonymous:\s+(\d+) kB`)

// memory returns the anonymous memory of the server's processes in MiB (Linux).
func (s *server) memory() (float64, error) {
	total := 0.0
	for _, pid := range s.pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		found := anonymous.FindSubmatch(text)
		if found == nil {
			return 0, fmt.Errorf("no anonymous memory in smaps_rollup of %d", pid)
		}
		kib, err := strconv.ParseFloat(string(found[1]), 64)
		if err != nil {
			return 0, err
		}
		total += kib / 1024
	}
	return total, nil
}
