package logcmd

// This file reads from a server: changes from /debug/history, page by page, and past objects from
// /at/MOMENT/.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"apilet/internal/findings"
	"apilet/internal/kubeconfig"
)

const (
	historyPath    = "/debug/history"
	answerMax      = 64 << 20 // maximum size in bytes of responses that are not streamed
	lineMax        = 16 << 20 // maximum size in bytes of a change with both objects
	pageSize       = 500
	reconnectDelay = time.Second // delay before a broken stream is reopened
)

// A server is a source that sends requests to an API server.
type server struct {
	client *kubeconfig.Client
	name   string // for error messages
}

func (s *server) namespace() string { return s.client.Namespace }
func (s *server) close() error      { return nil }

// get returns the response if its status is 200, and a *refusal otherwise.
func (s *server) get(ctx context.Context, path, accept string) (*http.Response, error) {
	answer, err := s.client.Get(ctx, path, "Accept", accept)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode == http.StatusOK {
		return answer, nil
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	why := answer.Status
	if message := gjson.GetBytes(body, "message").String(); message != "" {
		why += ": " + plain(message)
	}
	return nil, &refusal{answer.StatusCode, s.name + " answers " + why}
}

// A refusal is a response with an error status.
type refusal struct {
	code int
	why  string
}

func (r *refusal) Error() string {
	if r.code == http.StatusNotFound {
		return r.why + ": is it an apilet that keeps its history?"
	}
	return r.why
}

// log reads page after page. If a followed stream breaks, log reopens it after the last change that
// it received.
func (s *server) log(ctx context.Context, q *query, each func(*change) error) error {
	values := q.values()
	wide := q.mixed()
	for {
		last, more, err := s.page(ctx, values, func(c *change) error {
			if wide && q.leftOut(c) {
				return nil
			}
			return each(c)
		})
		switch {
		case err == nil && !more && !q.follow:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !(q.follow && last > 0 && errors.Is(err, errBroken)):
			return err
		case err != nil || !more: // the stream ended
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(reconnectDelay):
			}
		}
		if last > 0 {
			values.Set("after", strconv.FormatInt(last, 10))
			values.Del("since")
			values.Del("tail")
		}
	}
}

// values returns the query parameters for the server.
func (q *query) values() url.Values {
	v := url.Values{"limit": {strconv.Itoa(pageSize)}}
	if q.limit > 0 && q.limit < pageSize && !q.mixed() {
		v.Set("limit", strconv.Itoa(q.limit))
	}
	if q.tail > 0 {
		v.Del("limit")
		v.Set("tail", strconv.Itoa(q.tail))
	}
	for _, k := range q.kinds {
		v.Add("resource", k.name())
	}
	set := func(name, value string) {
		if value != "" {
			v.Set(name, value)
		}
	}
	switch {
	case q.since.isZero():
	case q.since.text == "":
		set("after", q.since.String())
	default:
		set("since", q.since.String())
	}
	if !q.until.isZero() {
		set("until", q.until.String())
	}
	if !q.mixed() && !(len(q.kinds) > 0 && !q.kinds[0].namespaced) {
		set("namespace", q.namespace)
	}
	set("name", q.name)
	set("labelSelector", q.labels)
	set("fieldSelector", q.fields)
	set("by", q.by)
	if q.follow {
		set("follow", "true")
	}
	if q.objects {
		set("objects", "true")
	}
	return v
}

// mixed reports whether the query names both namespaced and cluster-scoped types. In that case the
// server cannot filter by namespace.
func (q *query) mixed() bool {
	if q.namespace == "" || len(q.kinds) == 0 {
		return false
	}
	return slices.ContainsFunc(q.kinds, func(k kind) bool { return k.namespaced != q.kinds[0].namespaced })
}

func (q *query) leftOut(c *change) bool { return c.Namespace != "" && c.Namespace != q.namespace }

// errBroken reports that a stream was cut, possibly within a line.
var errBroken = errors.New("the connection broke")

// page reads all lines from a single response. If there are more changes after revision last, more
// is true.
func (s *server) page(ctx context.Context, values url.Values, each func(*change) error) (last int64, more bool, err error) {
	answer, err := s.get(ctx, historyPath+"?"+values.Encode(), "application/x-ndjson")
	if err != nil {
		return 0, false, err
	}
	defer answer.Body.Close()
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(make([]byte, 0, 64<<10), lineMax)
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if next := gjson.GetBytes(line, "continue"); next.Exists() {
			return next.Int(), true, nil
		}
		var c change
		if err := json.Unmarshal(line, &c); err != nil {
			return last, false, fmt.Errorf("%w: invalid change: %w", errBroken, err)
		}
		if status := gjson.GetBytes(line, "status"); c.Kind == "Status" && status.String() == "Failure" {
			return last, false, errors.New(plain(gjson.GetBytes(line, "message").String()))
		}
		if c.Revision == 0 { // a keep-alive line, or the start of the tail
			continue
		}
		c.raw = line
		if err := each(&c); err != nil {
			return last, false, err
		}
		last = c.Revision
	}
	if err := lines.Err(); err != nil {
		return last, false, fmt.Errorf("%w: %w", errBroken, err)
	}
	return last, false, nil
}

func (s *server) findings(ctx context.Context) ([]findings.Finding, error) {
	answer, err := s.get(ctx, findings.Path, "application/json")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var list struct{ Items []findings.Finding }
	err = json.NewDecoder(io.LimitReader(answer.Body, answerMax)).Decode(&list)
	return list.Items, err
}

// list reads the objects of the given type at the given moment, in the order of their keys and in
// chunks.
func (s *server) list(ctx context.Context, at moment, k *kind, q *query, each func(object) error) error {
	path := "/at/" + url.PathEscape(at.String()) + "/api/" + k.version
	if k.group != "" {
		path = "/at/" + url.PathEscape(at.String()) + "/apis/" + k.group + "/" + k.version
	}
	if k.namespaced && q.namespace != "" {
		path += "/namespaces/" + url.PathEscape(q.namespace)
	}
	path += "/" + k.plural
	fields := q.fields
	if q.name != "" {
		fields = strings.TrimPrefix(fields+",metadata.name="+q.name, ",")
	}
	values := url.Values{"limit": {strconv.Itoa(pageSize)}}
	for name, value := range map[string]string{"labelSelector": q.labels, "fieldSelector": fields} {
		if value != "" {
			values.Set(name, value)
		}
	}
	for {
		next, err := s.chunk(ctx, path+"?"+values.Encode(), each)
		if err != nil || next == "" {
			return err
		}
		values.Set("continue", next)
	}
}

func (s *server) chunk(ctx context.Context, path string, each func(object) error) (next string, err error) {
	answer, err := s.get(ctx, path, "application/json")
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, answerMax))
	if err != nil {
		return "", err
	}
	list := gjson.ParseBytes(body)
	list.Get("items").ForEach(func(_, item gjson.Result) bool {
		err = each(object{item.Get("metadata.namespace").String(), item.Get("metadata.name").String(), item.Get("metadata.resourceVersion").String(), []byte(item.Raw)})
		return err == nil
	})
	return list.Get("metadata.continue").String(), err
}

// kinds reads the types of all groups from discovery.
func (s *server) kinds(ctx context.Context) (list []kind, err error) {
	for _, root := range []string{"/api", "/apis"} {
		of, err := s.discover(ctx, root)
		if err != nil {
			return nil, err
		}
		list = append(list, of...)
	}
	return list, nil
}

// discovered contains the required fields from an APIGroupDiscoveryList.
type discovered struct {
	Items []struct {
		Metadata struct{ Name string }
		Versions []struct {
			Version   string
			Resources []struct {
				Resource, SingularResource, Scope string
				ResponseKind                      struct{ Kind string }
				ShortNames, Categories, Verbs     []string
			}
		}
	}
}

func (s *server) discover(ctx context.Context, root string) (list []kind, err error) {
	answer, err := s.get(ctx, root, "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	var found discovered
	if err := json.NewDecoder(io.LimitReader(answer.Body, answerMax)).Decode(&found); err != nil {
		return nil, fmt.Errorf("discovery: %w", err)
	}
	seen := map[string]bool{}
	for _, group := range found.Items {
		for _, version := range group.Versions {
			for _, r := range version.Resources {
				k := kind{group: group.Metadata.Name, version: version.Version, plural: r.Resource, singular: r.SingularResource, kind: r.ResponseKind.Kind,
					short: r.ShortNames, categories: r.Categories, namespaced: r.Scope == "Namespaced", lists: slices.Contains(r.Verbs, "list")}
				if !seen[k.name()] && k.lists {
					list = append(list, k)
				}
				seen[k.name()] = true
			}
		}
	}
	return list, nil
}
