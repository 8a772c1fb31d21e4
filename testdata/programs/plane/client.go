package main

// This file implements a client that uses the kubeconfig of the administrator. It sends JSON and
// reads metrics.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
)

type object map[string]any

// A client acts as the administrator.
type client struct {
	url, token string
	tls        *tls.Config
	http       *http.Client
}

// readKubeconfig returns a client for a kubeconfig file in JSON. It does not check certificates,
// because servers are on loopback.
func readKubeconfig(path string) (*client, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var config struct {
		Clusters []struct{ Cluster struct{ Server string } }
		Users    []struct {
			User struct {
				Token       string
				Certificate []byte `json:"client-certificate-data"`
				Key         []byte `json:"client-key-data"`
			}
		}
	}
	if err := json.Unmarshal(text, &config); err != nil {
		return nil, err
	}
	if len(config.Clusters) == 0 || len(config.Users) == 0 {
		return nil, fmt.Errorf("%s names no server", path)
	}
	c := &client{url: config.Clusters[0].Cluster.Server, token: config.Users[0].User.Token, tls: &tls.Config{InsecureSkipVerify: true}}
	if user := config.Users[0].User; len(user.Certificate) > 0 {
		pair, err := tls.X509KeyPair(user.Certificate, user.Key)
		if err != nil {
			return nil, err
		}
		c.tls.Certificates = []tls.Certificate{pair}
	}
	c.http = &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls, MaxIdleConnsPerHost: 64}}
	return c, nil
}

// alone returns a copy of the client with separate connections.
func (c *client) alone() *client {
	own := *c
	own.http = &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls}}
	return &own
}

func (c *client) do(ctx context.Context, method, path, contentType string, body []byte) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.token != "" {
		r.Header.Set("Authorization", "Bearer "+c.token)
	}
	if contentType != "" {
		r.Header.Set("Content-Type", contentType)
	}
	return c.http.Do(r)
}

// call repeats the request while the server is busy. All other errors are returned.
func (c *client) call(ctx context.Context, method, path, contentType string, body []byte) ([]byte, error) {
	for {
		response, err := c.do(ctx, method, path, contentType, body)
		if err != nil {
			return nil, err
		}
		answer, err := io.ReadAll(response.Body)
		response.Body.Close()
		switch {
		case err != nil:
			return nil, err
		case response.StatusCode == http.StatusTooManyRequests:
			continue
		case response.StatusCode > 299:
			return nil, fmt.Errorf("%s %s: %s: %s", method, path, response.Status, answer)
		}
		return answer, nil
	}
}

func (c *client) create(ctx context.Context, path string, o object) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	_, err = c.call(ctx, "POST", path, "application/json", body)
	return err
}

func (c *client) patch(ctx context.Context, path, patch string) error {
	_, err := c.call(ctx, "PATCH", path, "application/json-patch+json", []byte(patch))
	return err
}

func (c *client) delete(ctx context.Context, path string) error {
	_, err := c.call(ctx, "DELETE", path, "application/json", []byte(`{"propagationPolicy": "Background"}`))
	return err
}

// ---- Metrics

// Calls contains the number of requests that were answered by the server. Their durations are
// Kubernetes' service level indicator, which excludes the time in queues and webhooks.
type calls struct {
	durations map[string]histogram // by level, see levelOf
	busy      float64              // 429 responses
	conflicts float64              // 409 responses to PUT, PATCH and DELETE
	all       float64
	writes    float64
}

// A histogram contains the number of calls that took at most the given number of seconds.
type histogram map[float64]float64

// levels are the groups of Kubernetes' service level objectives for API calls, with the limit for
// the 99th percentile in seconds.
var levels = []struct {
	name  string
	bound float64
}{{"mutating calls of one object", 1}, {"GET of one object", 1}, {"LIST of a namespace", 5}, {"LIST of all namespaces", 30}}

func levelOf(verb, scope, subresource string) string {
	switch {
	case strings.HasPrefix(subresource, "/"): // /healthz and similar paths
		return ""
	case slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE"}, verb):
		return levels[0].name
	case verb == "GET":
		return levels[1].name
	case verb == "LIST" && scope == "namespace":
		return levels[2].name
	case verb == "LIST" && scope == "cluster":
		return levels[3].name
	}
	return ""
}

func (c *client) calls(ctx context.Context) (calls, error) {
	text, err := c.call(ctx, "GET", "/metrics", "", nil)
	if err != nil {
		return calls{}, err
	}
	is := calls{durations: map[string]histogram{}}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		name, labels, value := parseSample(lines.Text())
		switch name {
		case "apiserver_request_sli_duration_seconds_bucket":
			level := levelOf(labels["verb"], labels["scope"], labels["subresource"])
			bound, err := strconv.ParseFloat(labels["le"], 64)
			if level == "" || err != nil {
				continue
			}
			if is.durations[level] == nil {
				is.durations[level] = histogram{}
			}
			is.durations[level][bound] += value
		case "apiserver_request_total":
			is.count(labels, value)
		}
	}
	return is, nil
}

func (is *calls) count(labels map[string]string, value float64) {
	is.all += value
	if labels["code"] == "429" {
		is.busy += value
	}
	switch labels["verb"] {
	case "PUT", "PATCH", "APPLY", "DELETE":
		if labels["code"] == "409" {
			is.conflicts += value
		}
		is.writes += value
	case "POST":
		is.writes += value
	}
}

// parseSample parses a line of the text format. name is "" for comments.
func parseSample(line string) (name string, labels map[string]string, value float64) {
	name, rest, _ := strings.Cut(line, "{")
	list, number, ok := strings.Cut(rest, "} ")
	if !ok || strings.HasPrefix(line, "#") {
		return "", nil, 0
	}
	labels = map[string]string{}
	for pair := range strings.SplitSeq(list, `",`) {
		key, text, _ := strings.Cut(pair, `="`)
		labels[key] = strings.TrimSuffix(text, `"`)
	}
	value, _ = strconv.ParseFloat(number, 64)
	return name, labels, value
}

func (is calls) since(before calls) calls {
	delta := calls{durations: map[string]histogram{}, busy: is.busy - before.busy, conflicts: is.conflicts - before.conflicts,
		all: is.all - before.all, writes: is.writes - before.writes}
	for level, h := range is.durations {
		delta.durations[level] = histogram{}
		for bound, n := range h {
			delta.durations[level][bound] = n - before.durations[level][bound]
		}
	}
	return delta
}

// quantile returns the smallest bound in seconds that the share q of the calls does not exceed, or
// NaN if there are no calls.
func (h histogram) quantile(q float64) float64 {
	bounds := slices.Sorted(maps.Keys(h))
	if len(bounds) == 0 || h[bounds[len(bounds)-1]] == 0 {
		return math.NaN()
	}
	want := q * h[bounds[len(bounds)-1]]
	at := slices.IndexFunc(bounds, func(bound float64) bool { return h[bound] >= want })
	return bounds[at]
}
