package aggregation

// When a namespace is being deleted, this file deletes its objects on other servers. Like the
// namespace controller of kube-controller-manager it uses the API: for each resource it deletes the
// collection, or the objects one by one, and then counts the remaining objects.
//
//	v := <-g.EmptyNamespace(ctx, "shop") v.Objects  {"flunders.wardle.example.com": 1}
//	                                v.Unknown  a server is unavailable; the namespace waits for it, or for the APIService to be deleted
//	                                v.Failed   requests that were rejected
//
// If a server hangs, only the deletion of namespaces is delayed. The requests for a namespace time
// out after a minute, and the number of concurrent requests is limited.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/discovery"
	"apilet/internal/gc"
	"apilet/internal/request"
)

const (
	emptyTimeout = time.Minute
	emptyEach    = 30 * time.Second
	maxList      = 16 << 20 // maximum size in bytes of a list of metadata
	listLimit    = 500      // maximum number of objects in a list
)

// namespaceController is the user of these requests.
var namespaceController = request.User{Name: request.ServiceAccountPrefix + "kube-system:namespace-controller"}.WithImplicitGroups("")

// EmptyNamespace deletes the objects in a namespace on other servers. The remaining objects are
// sent to the returned channel, which is buffered. If there are no other servers, EmptyNamespace
// returns nil.
func (g *Aggregator) EmptyNamespace(ctx context.Context, namespace string) <-chan gc.Remaining {
	t := g.table.Load()
	if t == nil {
		return nil
	}
	remaining := make(chan gc.Remaining, 1)
	go func() { // ends within emptyTimeout, or with ctx
		ctx, cancel := context.WithTimeout(ctx, emptyTimeout)
		defer cancel()
		remaining <- t.emptyNamespace(ctx, namespace)
	}()
	return remaining
}

func (t *table) emptyNamespace(ctx context.Context, namespace string) gc.Remaining {
	v := gc.Remaining{Objects: map[string]int{}, Finalizers: map[string]int{}}
	var away []string
	for i := range t.others.All {
		other := &t.others.All[i]
		s := t.servers[metav1.GroupVersion{Group: other.Group, Version: other.Version}]
		if other.Stale {
			gv := other.Group + "/" + other.Version
			away = append(away, gv+": stale GroupVersion discovery: "+gv+" (APIService "+s.name+")")
			continue
		}
		for j := range other.Resources {
			res := &other.Resources[j]
			verbs := res.Verbs
			if string(res.Scope) != "Namespaced" || !slices.Contains(verbs, "list") || !slices.Contains(verbs, "delete") && !slices.Contains(verbs, "deletecollection") {
				continue
			}
			c := collection{s.route, other, res.Resource, namespace}
			if err := c.deleteObjects(ctx, slices.Contains(verbs, "deletecollection"), &v); err != nil {
				v.Errors = append(v.Errors, fmt.Errorf("%s.%s of APIService %s: %w", res.Resource, other.Group, s.name, err))
			}
		}
	}
	if len(away) > 0 {
		v.Err = errors.New("unable to retrieve the complete list of server APIs: " + strings.Join(away, ", "))
	}
	return v
}

// collection identifies a resource in a namespace on another server.
type collection struct {
	route     *route
	of        *discovery.RemoteVersion
	resource  string
	namespace string
}

func (c *collection) path(name string) string {
	p := "/apis/" + c.of.Group + "/" + c.of.Version + "/namespaces/" + url.PathEscape(c.namespace) + "/" + url.PathEscape(c.resource)
	if name != "" {
		p += "/" + url.PathEscape(name)
	}
	return p
}

// do sends a request. It returns an error for an unsuccessful status code, except for 404.
func (c *collection) do(ctx context.Context, method, path, body string) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, emptyEach)
	defer cancel()
	header := http.Header{"Accept": {"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"}}
	if method == http.MethodDelete {
		header = http.Header{"Accept": {"application/json"}, "Content-Type": {"application/json"}}
	}
	a, err := c.route.do(ctx, method, path, &namespaceController, header, []byte(body), maxList)
	if err == nil && (a.code < 200 || a.code > 299) && a.code != http.StatusNotFound {
		err = errors.New(cmp.Or(truncate(gjson.GetBytes(a.body, "message").String()), fmt.Sprintf("bad status from %s: %d", c.route.url(path), a.code)))
	}
	return a, err
}

// deleteObjects deletes the objects and counts the remaining ones.
func (c *collection) deleteObjects(ctx context.Context, together bool, v *gc.Remaining) error {
	const options = `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`
	left, err := c.list(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	if together {
		_, err = c.do(ctx, http.MethodDelete, c.path(""), options)
	} else {
		for _, name := range slices.Sorted(maps.Keys(left)) {
			if _, one := c.do(ctx, http.MethodDelete, c.path(name), options); one != nil {
				err = one
			}
		}
	}
	left, listed := c.list(ctx)
	for _, finalizers := range left {
		v.Objects[c.resource+"."+c.of.Group]++
		for _, name := range finalizers {
			v.Finalizers[name]++
		}
	}
	return cmp.Or(err, listed)
}

// list returns the names of up to listLimit objects with their finalizers.
func (c *collection) list(ctx context.Context) (map[string][]string, error) {
	a, err := c.do(ctx, http.MethodGet, c.path("")+fmt.Sprintf("?limit=%d", listLimit), "")
	if err != nil || a.code == http.StatusNotFound {
		return nil, err
	}
	if !gjson.ValidBytes(a.body) || !gjson.GetBytes(a.body, "items").Exists() {
		return nil, errors.New("the response to a list is not a list")
	}
	left := map[string][]string{}
	for _, item := range gjson.GetBytes(a.body, "items").Array() {
		var finalizers []string
		for _, name := range item.Get("metadata.finalizers").Array() {
			finalizers = append(finalizers, name.String())
		}
		left[item.Get("metadata.name").String()] = finalizers
	}
	return left, nil
}
