package aggregation

// This file sends requests to other servers, in order to check whether they are available and to
// read their types.
//
//	Available   reason                cause
//	False       ServiceNotFound       the Service does not exist
//	Unknown     ServiceAccessError    the Service cannot be read
//	False       ServicePortError      the Service does not have the port
//	False       EndpointsNotFound     the Service has no EndpointSlices
//	False       MissingEndpoints      no endpoint is ready, or none has the port
//	False       FailedDiscoveryCheck  GET /apis/GROUP/VERSION does not return 2xx within five seconds
//	True        Passed
//
// The reasons and messages are copied from pkg/controllers/status/remote in k8s.io/kube-aggregator.
// The requests are sent by the user system:kube-aggregator, who is a member of system:masters. All
// responses are limited in size. If a document is too long, too deep or has an unexpected type, the
// request fails.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tidwall/gjson"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"apilet/internal/bounded"
	"apilet/internal/discovery"
	"apilet/internal/limits"
	"apilet/internal/request"
	"apilet/internal/response"
	"apilet/internal/store"
)

const (
	requestTimeout = 5 * time.Second
	// number of concurrent requests in a check, because each may be sent to a different
	// endpoint
	attempts = 5
	// maximum size of a discovery document in bytes
	maxDiscovery = 2 << 20
	// maximum size of an OpenAPI document in bytes
	maxOpenAPI    = 8 << 20
	swaggerType   = "application/json"
	discoveryType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"
)

// loopUser is the user of the loop's requests.
var loopUser = request.User{Name: "system:kube-aggregator", Groups: []string{request.GroupMasters}}

// ---- Availability ----

// check determines the condition Available of a server.
func (g *Aggregator) check(ctx context.Context, spec *apiregistrationv1.APIServiceSpec, r *route) apiregistrationv1.APIServiceCondition {
	name, namespace, port := spec.Service.Name, spec.Service.Namespace, *spec.Service.Port
	is := func(status apiregistrationv1.ConditionStatus, reason, message string, args ...any) apiregistrationv1.APIServiceCondition {
		return apiregistrationv1.APIServiceCondition{Type: apiregistrationv1.Available, Status: status, Reason: reason, Message: truncate(fmt.Sprintf(message, args...)),
			LastTransitionTime: metav1.NewTime(time.Now().Truncate(time.Second))}
	}
	const no, unknown = apiregistrationv1.ConditionFalse, apiregistrationv1.ConditionUnknown
	service, err := g.Services.Service(namespace, name)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return is(no, "ServiceNotFound", "service/%s in %q is not present", name, namespace)
	case err != nil:
		return is(unknown, "ServiceAccessError", "service/%s in %q cannot be checked due to: %v", name, namespace, err)
	}
	if service.Spec.Type == corev1.ServiceTypeClusterIP {
		portName, found := "", false
		for _, p := range service.Spec.Ports {
			if p.Port == port && !found {
				portName, found = p.Name, true
			}
		}
		if !found {
			return is(no, "ServicePortError", "service/%s in %q is not listening on port %d", name, namespace, port)
		}
		switch addresses, any, err := g.Services.Endpoints(namespace, name, portName); {
		case err != nil:
			return is(unknown, "EndpointsAccessError", "service/%s in %q cannot be checked due to: %v", name, namespace, err)
		case !any:
			return is(no, "EndpointsNotFound", "cannot find endpointslices for service/%s in %q", name, namespace)
		case len(addresses) == 0:
			return is(no, "MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", name, namespace, portName)
		}
	}
	if err := r.checkConcurrently(ctx, "/apis/"+spec.Group+"/"+spec.Version); err != nil {
		return is(no, "FailedDiscoveryCheck", "%v", err)
	}
	return is(apiregistrationv1.ConditionTrue, "Passed", "all checks passed")
}

// checkConcurrently sends several concurrent requests. It succeeds if one of them does.
func (r *route) checkConcurrently(ctx context.Context, path string) error {
	if r.err != nil {
		return r.err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	results := make(chan error, attempts)
	for range attempts {
		go func() { // ends with ctx
			a, err := r.get(ctx, path, "", "", 0)
			if err == nil && (a.code < 200 || a.code > 299) {
				err = fmt.Errorf("bad status from %s: %d", r.url(path), a.code)
			}
			results <- err
		}()
	}
	var err error
	for range attempts {
		if err = <-results; err == nil {
			return nil
		}
	}
	r.close() // the next attempt must not use the same connection
	return fmt.Errorf("failing or missing response from %s: %w", r.url(path), withoutLocalPort(err))
}

// maxText is the maximum size in bytes of another server's text in conditions and in the log.
const maxText = 1 << 10

// truncate returns the text, truncated to maxText bytes.
func truncate(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "..."
}

// withoutLocalPort removes the local port from an error. It differs each time, and the condition
// should not be rewritten for that.
func withoutLocalPort(err error) error {
	if op := new(net.OpError); errors.As(err, &op) {
		op.Source = nil
	}
	return err
}

// save writes a changed condition, unless the APIService refers to another server by now.
func (g *Aggregator) save(ctx context.Context, name string, r *route, before *apiregistrationv1.APIServiceCondition, is apiregistrationv1.APIServiceCondition) error {
	if before != nil && before.Status == is.Status && before.Reason == is.Reason && before.Message == is.Message {
		return nil
	}
	became := false
	err := g.SaveStatus(ctx, name, func(obj *apiregistrationv1.APIService) {
		became = false
		if !r.isFor(&obj.Spec) {
			return
		}
		became = is.Status != apiregistrationv1.ConditionTrue && helper.IsAPIServiceConditionTrue(obj, apiregistrationv1.Available)
		helper.SetAPIServiceCondition(obj, is)
	})
	if err == nil && became {
		g.OnUnavailable(name, is.Reason)
	}
	return err
}

// ---- Types ----

// versionDescription is the description of a server's group version.
type versionDescription struct {
	resources   []apidiscoveryv2.APIResourceDiscovery
	openAPIHash string             // hash of its OpenAPI v3 document, if any
	swagger     *discovery.Swagger // nil if there is none
}

// describeVersion reads the types of a group version and its OpenAPI descriptions. Missing
// descriptions are not an error.
func describeVersion(ctx context.Context, r *route, gv metav1.GroupVersion, before versionDescription) (is versionDescription, err error) {
	if is.resources, err = r.resources(ctx, gv); err != nil {
		return is, err
	}
	if a, err := r.get(ctx, "/openapi/v3", "application/json", "", maxDiscovery); err == nil && a.code == http.StatusOK {
		path := "apis/" + gv.Group + "/" + gv.Version
		for name, item := range gjson.GetBytes(a.body, "paths").Map() {
			if name != path {
				continue
			}
			if u, err := url.Parse(item.Get("serverRelativeURL").String()); err == nil {
				is.openAPIHash = u.Query().Get("hash")
			}
		}
	}
	etag := ""
	if before.swagger != nil {
		etag = before.swagger.ETag
	}
	switch a, err := r.get(ctx, "/openapi/v2", swaggerType, etag, maxOpenAPI); {
	case err != nil:
	case a.code == http.StatusNotModified:
		is.swagger = before.swagger
	case a.code == http.StatusOK && bounded.Inspect(a.body).Depth < 1000:
		// nil if it is not a valid document
		is.swagger, _ = discovery.NewSwagger(a.body, a.header.Get("ETag"), gv.Group, gv.Version)
	}
	return is, nil
}

// resources reads the types of a group version, from aggregated discovery if the server supports
// it, and from legacy discovery otherwise.
func (r *route) resources(ctx context.Context, gv metav1.GroupVersion) ([]apidiscoveryv2.APIResourceDiscovery, error) {
	a, err := r.get(ctx, "/apis", discoveryType, "", maxDiscovery)
	if err != nil {
		return nil, err
	}
	kind, params, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	if a.code == http.StatusOK && kind == "application/json" && params["as"] == "APIGroupDiscoveryList" && params["v"] == "v2" {
		var list apidiscoveryv2.APIGroupDiscoveryList
		if _, err := bounded.UnmarshalStrict(a.body, &list); err != nil {
			return nil, err
		}
		return findVersion(&list, gv), nil
	}
	path := "/apis/" + gv.Group + "/" + gv.Version
	if a, err = r.get(ctx, path, "application/json", "", maxDiscovery); err != nil {
		return nil, err
	}
	if a.code != http.StatusOK {
		return nil, fmt.Errorf("failed to download legacy discovery for %s: %d", path, a.code)
	}
	var list metav1.APIResourceList
	if _, err := bounded.UnmarshalStrict(a.body, &list); err != nil {
		return nil, err
	}
	return toAggregated(&list), nil
}

// findVersion returns the resources of a group version in an aggregated document, or nil if it is
// missing.
func findVersion(list *apidiscoveryv2.APIGroupDiscoveryList, gv metav1.GroupVersion) []apidiscoveryv2.APIResourceDiscovery {
	for _, group := range list.Items {
		for _, version := range group.Versions {
			if group.Name != gv.Group || version.Version != gv.Version {
				continue
			}
			for i := range version.Resources {
				addMissingKinds(&version.Resources[i])
			}
			return version.Resources
		}
	}
	return nil
}

// addMissingKinds adds missing kinds, which would crash old clients.
func addMissingKinds(res *apidiscoveryv2.APIResourceDiscovery) {
	if res.ResponseKind == nil {
		res.ResponseKind = &metav1.GroupVersionKind{}
	}
	for i := range res.Subresources {
		if res.Subresources[i].ResponseKind == nil {
			res.Subresources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
	}
}

// toAggregated converts a legacy list to the aggregated format. If the list contains a subresource
// but not its resource, modern adds a resource without verbs.
func toAggregated(list *metav1.APIResourceList) (all []apidiscoveryv2.APIResourceDiscovery) {
	at := map[string]int{}
	find := func(name string, r *metav1.APIResource) *apidiscoveryv2.APIResourceDiscovery {
		i, ok := at[name]
		if !ok {
			i = len(all)
			at[name] = i
			scope := apidiscoveryv2.ScopeCluster
			if r.Namespaced {
				scope = apidiscoveryv2.ScopeNamespace
			}
			all = append(all, apidiscoveryv2.APIResourceDiscovery{Resource: name, Scope: scope, ResponseKind: &metav1.GroupVersionKind{}})
		}
		return &all[i]
	}
	for i := range list.APIResources {
		r := &list.APIResources[i]
		kind := &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		name, sub, isPart := strings.Cut(r.Name, "/")
		res := find(name, r)
		if isPart {
			res.Subresources = append(res.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: sub, ResponseKind: kind, Verbs: r.Verbs})
			continue
		}
		res.ResponseKind, res.SingularResource, res.Verbs, res.ShortNames, res.Categories = kind, r.SingularName, r.Verbs, r.ShortNames, r.Categories
	}
	return all
}

// ---- Requests ----

// answer contains the relevant parts of a response.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (r *route) url(path string) string { return "https://" + r.host + path }

// get reads a document of at most the given number of bytes, as the user asker.
func (r *route) get(ctx context.Context, path, accept, etag string, most int64) (answer, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return r.do(ctx, http.MethodGet, path, &loopUser, http.Header{"Accept": {accept}, "If-None-Match": {etag}}, nil, most)
}

// do sends a request of this server. It does not follow redirects, because it uses a RoundTripper.
func (r *route) do(ctx context.Context, method, path string, by *request.User, header http.Header, body []byte, most int64) (answer, error) {
	if r.err != nil {
		return answer{}, r.err
	}
	q, err := http.NewRequestWithContext(ctx, method, r.url(path), bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	for key, values := range header {
		if values[0] != "" {
			q.Header[http.CanonicalHeaderKey(key)] = values
		}
	}
	q.Header.Set("User-Agent", "apilet")
	addIdentity(q.Header, by)
	a, err := r.plain.RoundTrip(q)
	if err != nil {
		return answer{}, &url.Error{Op: method[:1] + strings.ToLower(method[1:]), URL: r.url(path), Err: err}
	}
	defer a.Body.Close()
	// the body would be an open connection without a deadline
	if a.StatusCode == http.StatusSwitchingProtocols {
		return answer{}, fmt.Errorf("%s responded 101 to a request that did not ask to switch protocols", r.url(path))
	}
	if most == 0 {
		return answer{code: a.StatusCode, header: a.Header}, nil
	}
	text, err := io.ReadAll(io.LimitReader(a.Body, most+1))
	if err == nil && int64(len(text)) > most {
		err = fmt.Errorf("the response of %s is longer than %d bytes", r.url(path), most)
	}
	return answer{a.StatusCode, a.Header, text}, err
}

// ServeOpenAPI serves /openapi/v3 and the paths below it if they concern other servers, and reports
// whether it did. It fetches the document for each request.
func (g *Aggregator) ServeOpenAPI(w http.ResponseWriter, r *http.Request) bool {
	t := g.table.Load()
	if t == nil {
		return false
	}
	path := strings.Trim(strings.TrimPrefix(r.URL.Path, "/openapi/v3"), "/")
	if path == "" {
		discovery.ServeMergedIndex(g.Types, t.others, w, r)
		return true
	}
	s := t.servers[groupVersionOf(&request.Info{Path: "/" + path})]
	if s == nil || strings.Count(path, "/") != 2 {
		return false
	}
	if _, err := response.Negotiate(r.Header.Get("Accept")); err != nil {
		w.WriteHeader(http.StatusNotAcceptable)
		return true
	}
	if !s.available {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return true
	}
	if err := limits.Reserve(r.Context(), w, maxOpenAPI/4); err != nil {
		g.WriteError(w, r, err)
		return true
	}
	a, err := s.route.describe(r, path)
	if err != nil {
		g.handleError(w, r, err)
		return true
	}
	for _, key := range []string{"Etag", "Expires", "Cache-Control", "Vary"} {
		if value := a.header.Get(key); value != "" {
			w.Header().Set(key, value)
		}
	}
	// independent of the type that the other server declares
	w.Header().Set("Content-Type", "application/json")
	if w.WriteHeader(a.code); a.code != http.StatusNotModified {
		_, _ = w.Write(a.body) // fails only if the client is gone
	}
	return true
}

// describe fetches an OpenAPI v3 document. If the document has changed since the client read the
// index, it returns the new document.
func (r *route) describe(asked *http.Request, path string) (a answer, err error) {
	header := http.Header{"Accept": {"application/json"}, "If-None-Match": {asked.Header.Get("If-None-Match")}}
	queries := []string{""}
	if hash := asked.URL.Query().Get("hash"); hash != "" {
		queries = []string{"?hash=" + url.QueryEscape(hash), ""}
	}
	for _, query := range queries {
		a, err = r.do(asked.Context(), http.MethodGet, "/openapi/v3/"+path+query, &loopUser, header, nil, maxOpenAPI)
		if err != nil || a.code == http.StatusOK || a.code == http.StatusNotModified {
			return a, err
		}
	}
	return a, fmt.Errorf("bad status from %s: %d", r.url("/openapi/v3/"+path), a.code)
}
