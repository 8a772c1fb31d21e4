package main

// This file is a server under test: how it is asked, and the objects that the cases work on.

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	bodyBytes  = 1024 // of data in an object
	fewObjects = 100  // in the namespace NAMESPACE-few
)

// A server is one that is measured.
type server struct {
	name, url, token string
	pids             []int
	client           *http.Client
	namespace        string
	objects          int    // in the namespace NAMESPACE-list, which only the first part of list-old changes
	filled           string // a resourceVersion at which that was complete
}

// newServer reads NAME=URL,token=...,pid=1+2.
func newServer(arg string) (*server, error) {
	name, rest, ok := strings.Cut(arg, "=")
	if !ok {
		return nil, fmt.Errorf("%s: NAME=URL is what a server is", arg)
	}
	parts := strings.Split(rest, ",")
	s := &server{name: name, url: strings.TrimSuffix(parts[0], "/"), namespace: fmt.Sprintf("bench-%x", time.Now().UnixNano())}
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
	s.client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // HTTP/1.1: one connection a client on both
	return s, nil
}

// do sends a request and reads the whole answer.
func (s *server) do(ctx context.Context, method, path string, body []byte, header ...string) ([]byte, error) {
	resp, err := s.open(ctx, method, path, body, header...)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// read is do for answers of which nothing is looked at.
func (s *server) read(ctx context.Context, path string, header ...string) error {
	resp, err := s.open(ctx, "GET", path, nil, header...)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// open sends a request, and leaves the answer to the caller. Anything but a success is an error.
func (s *server) open(ctx context.Context, method, path string, body []byte, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 500))
		resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return resp, nil
}

func (s *server) maps(namespace string) string {
	return "/api/v1/namespaces/" + namespace + "/configmaps"
}

// configMap is a body; version makes two of them differ.
func configMap(name string, version int64) []byte {
	meta := map[string]any{"name": name, "labels": map[string]string{"app": "bench"}}
	if name == "" {
		meta = map[string]any{"generateName": "made-", "labels": map[string]string{"app": "bench"}}
	}
	body, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta,
		"data": map[string]string{"version": strconv.FormatInt(version, 10), "padding": strings.Repeat("x", bodyBytes)}})
	if err != nil {
		panic(err) // strings and maps of them are JSON
	}
	return body
}

// namespaces are those in which the cases work.
func (s *server) namespaces() []string {
	return []string{s.namespace, s.namespace + "-list", s.namespace + "-few"}
}

// prepare makes the namespaces, and the objects that lists read.
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

// make creates config maps, numbered from one on.
func (s *server) make(ctx context.Context, namespace, name string, first, count int) error {
	var next atomic.Int64
	return together(32, func(int) error {
		for i := next.Add(1); i <= int64(count); i = next.Add(1) {
			if _, err := s.do(ctx, "POST", s.maps(namespace), configMap(fmt.Sprintf(name, int64(first)+i-1), 0)); err != nil {
				return err
			}
		}
		return nil
	})
}

// clean deletes what prepare made.
func (s *server) clean() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, namespace := range s.namespaces() {
		_, _ = s.do(ctx, "DELETE", "/api/v1/namespaces/"+namespace, nil) // what is left is named so that one sees what it is
	}
}

// together runs n functions beside each other, and returns their first error.
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

// memory is the anonymous memory of the server's processes in MiB (Linux).
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

// processorTime is what the server's processes have used since they began (Linux, in steps of 10 ms).
func (s *server) processorTime() (total time.Duration, err error) {
	for _, pid := range s.pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name before may have spaces
		if len(fields) < 13 {
			return 0, fmt.Errorf("/proc/%d/stat is %q", pid, text)
		}
		for _, ticks := range fields[11:13] { // in user mode and in the kernel
			n, err := strconv.ParseInt(ticks, 10, 64)
			if err != nil {
				return 0, err
			}
			total += time.Duration(n) * (time.Second / 100)
		}
	}
	return total, nil
}
