package request

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRequestInfoIsKubernetes(t *testing.T) {
	core := func(verb, namespace, resource, name, sub string) Info {
		return Info{ResourceRequest: true, APIPrefix: "api", Version: "v1", Verb: verb, Namespace: namespace, Resource: resource, Name: name, Subresource: sub}
	}
	apps := func(verb, namespace, name, sub string) Info {
		return Info{ResourceRequest: true, APIPrefix: "apis", Group: "apps", Version: "v1", Verb: verb, Namespace: namespace, Resource: "deployments", Name: name, Subresource: sub}
	}
	plain := func(verb string) Info { return Info{Verb: verb} }
	for _, c := range []struct {
		method, target string
		want           Info
	}{
		{"GET", "/api/v1/namespaces", core("list", "", "namespaces", "", "")},
		{"GET", "/api/v1/namespaces/", core("list", "", "namespaces", "", "")},
		{"GET", "/api/v1/namespaces/other", core("get", "other", "namespaces", "other", "")},
		{"PUT", "/api/v1/namespaces/other/finalize", core("update", "other", "namespaces", "other", "finalize")},
		{"PATCH", "/api/v1/namespaces/other/status", core("patch", "other", "namespaces", "other", "status")},
		{"GET", "/api/v1/namespaces/other/pods", core("list", "other", "pods", "", "")},
		{"GET", "/api/v1/namespaces/other/pods/foo", core("get", "other", "pods", "foo", "")},
		{"HEAD", "/api/v1/namespaces/other/pods/foo", core("get", "other", "pods", "foo", "")},
		{"HEAD", "/api/v1/namespaces/other/pods", core("list", "other", "pods", "", "")},
		{"GET", "/api/v1/pods/foo", core("get", "", "pods", "foo", "")},
		{"GET", "/api/v1/pods", core("list", "", "pods", "", "")},
		{"POST", "/api/v1/pods", core("create", "", "pods", "", "")},
		{"DELETE", "/api/v1/nodes/foo", core("delete", "", "nodes", "foo", "")},
		{"DELETE", "/api/v1/nodes", core("deletecollection", "", "nodes", "", "")},
		{"DELETE", "/api/v1/nodes?fieldSelector=metadata.name%3Dx", core("deletecollection", "", "nodes", "", "")},
		{"OPTIONS", "/api/v1/nodes", core("", "", "nodes", "", "")},
		{"GET", "/api/v1/namespaces/other/pods/foo/log?follow=true", core("get", "other", "pods", "foo", "log")},
		{"POST", "/api/v1/namespaces/other/pods/foo/binding", core("create", "other", "pods", "foo", "binding")},
		{"GET", "/apis/apps/v1/deployments", apps("list", "", "", "")},
		{"PATCH", "/apis/apps/v1/namespaces/n/deployments/d/scale", apps("patch", "n", "d", "scale")},
		// The verb in the path, deprecated.
		{"GET", "/api/v1/watch/pods", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/watch/pods?fieldSelector=metadata.name=x", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/watch/namespaces/other/pods", core("watch", "other", "pods", "", "")},
		{"GET", "/api/v1/watch/namespaces/other/pods/foo", core("watch", "other", "pods", "foo", "")},
		{"GET", "/api/v1/watch/namespaces/other", core("watch", "other", "namespaces", "other", "")},
		{"GET", "/api/v1/watch", plain("get")},
		{"GET", "/api/v1/proxy/nodes/foo", core("proxy", "", "nodes", "foo", "")},
		// watch as a parameter.
		{"GET", "/api/v1/pods?watch=true", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/pods?watch", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/pods?watch=", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/pods?watch=no", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/pods?limit=5&w%61tch=1", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/pods?watch=0", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?watch=FALSE", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?watch=false&watch=true", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?watch=1;a=b", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods/foo?watch=true", core("get", "", "pods", "foo", "")},
		// One name through the field selector.
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=foo", core("list", "", "pods", "foo", "")},
		{"GET", "/api/v1/pods?watch=1&fieldSelector=metadata.name%3Dfoo%2Cspec.nodeName%3Dn", core("watch", "", "pods", "foo", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata%2Ename=foo", core("list", "", "pods", "foo", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name!=foo", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=foo/bar", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=..", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=foo&labelSelector=a", core("list", "", "pods", "foo", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=foo&labelSelector=((", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=foo&limit=x", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?fieldSelector=metadata.name=foo&limit=x&watch", core("watch", "", "pods", "", "")},
		{"GET", "/api/v1/pods?fieldSelector=,metadata.name=", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/pods?fieldSelector=%zzmetadata.name=foo", core("list", "", "pods", "", "")},
		// No resource paths.
		{"GET", "/", plain("get")},
		{"POST", "/healthz", plain("post")},
		{"HEAD", "/api/v1", plain("head")},
		{"GET", "/apis", plain("get")},
		{"GET", "/apis/apps", plain("get")},
		{"GET", "/apis/apps/v1/", plain("get")},
		{"GET", "/other/v1/pods", plain("get")},
		{"OPTIONS", "/api", plain("options")},
		// Tricks: each stays what kube-apiserver sees, which serves none of them.
		{"GET", "//api/v1/pods", core("list", "", "pods", "", "")},
		{"GET", "/api/v1//pods", core("get", "", "", "pods", "")},
		{"GET", "/api//v1/pods", Info{ResourceRequest: true, APIPrefix: "api", Version: "", Verb: "get", Resource: "v1", Name: "pods"}},
		{"GET", "/api/v1/./pods", core("get", "", ".", "pods", "")},
		{"GET", "/api/v1/namespaces//pods", core("list", "", "pods", "", "")},
		{"GET", "/api/v1/namespaces/default/../../secrets", Info{ResourceRequest: true, APIPrefix: "api", Version: "v1", Verb: "get", Namespace: "default", Resource: "..", Name: "..", Subresource: "secrets"}},
		// An escaped slash is part of the name; kube-apiserver takes it for a separator.
		{"GET", "/api/v1/namespaces/x/pods/a%2Fb", core("get", "x", "pods", "a/b", "")},
		{"GET", "/api/v1/namespaces/x%2Fpods/a", core("list", "x/pods", "a", "", "")},
		{"GET", "/api%2Fv1/pods/x", plain("get")},
		{"GET", "/api/v1/pods/%70", core("get", "", "pods", "p", "")},
	} {
		r := httptest.NewRequest(c.method, "http://127.0.0.1"+c.target, nil)
		c.want.Path = r.URL.Path
		got := Parse(r)
		got.Form, got.query = PathForm{}, nil
		if got != c.want {
			t.Errorf("%s %s\n got %+v\nwant %+v", c.method, c.target, got, c.want)
		}
	}
}

// The rules are those of metav1's conversion from url.Values.
func TestListOptions(t *testing.T) {
	yes, no, five := true, false, int64(5)
	for _, c := range []struct {
		method, target string
		want           metav1.ListOptions
		err            string
	}{
		{"GET", "/api/v1/pods", metav1.ListOptions{}, ""},
		{"GET", "/api/v1/pods?limit=5&limit=x&other=1&timeoutSeconds=5", metav1.ListOptions{Limit: 5, TimeoutSeconds: &five}, ""},
		{"GET", "/api/v1/pods?limit=%zz&resourceVersion=1;2&resourceVersion=3", metav1.ListOptions{ResourceVersion: "3"}, ""},
		{"GET", "/api/v1/pods?sendInitialEvents=&allowWatchBookmarks=", metav1.ListOptions{SendInitialEvents: &yes, AllowWatchBookmarks: true}, ""},
		{"GET", "/api/v1/pods?sendInitialEvents=0&allowWatchBookmarks=False", metav1.ListOptions{SendInitialEvents: &no}, ""},
		{"GET", "/api/v1/pods?limit=", metav1.ListOptions{}, `strconv.ParseInt: parsing "": invalid syntax`},
		{"GET", "/api/v1/pods?watch&limit=x&timeoutSeconds=y", metav1.ListOptions{Watch: true}, `strconv.ParseInt: parsing "y": invalid syntax`},
		{"GET", "/api/v1/watch/namespaces/n/pods/p?allowWatchBookmarks=1", metav1.ListOptions{AllowWatchBookmarks: true}, ""},
		{"DELETE", "/api/v1/namespaces/n/pods?labelSelector=a&continue=b&resourceVersionMatch=Exact", metav1.ListOptions{LabelSelector: "a",
			Continue: "b", ResourceVersionMatch: "Exact"}, ""},
		{"GET", "/api/v1/namespaces/n/pods/p?limit=5", metav1.ListOptions{}, ""},
		{"POST", "/api/v1/namespaces/n/pods?limit=x", metav1.ListOptions{}, ""},
	} {
		info := Parse(httptest.NewRequest(c.method, c.target, nil))
		got, err := info.ListOptions()
		if text := fmt.Sprint(err); !reflect.DeepEqual(got, c.want) || c.err != "" && text != c.err || c.err == "" && err != nil {
			t.Errorf("%s %s: %+v and %v\nwant %+v and %q", c.method, c.target, got, err, c.want, c.err)
		}
	}
}

func TestRequestInfoKeepsTheRestOfAProxyPath(t *testing.T) {
	for target, want := range map[string]string{
		"/api/v1/namespaces/n/services/s/proxy/a/b%2Fc": "a/b%2Fc",
		"/api/v1/nodes/n/proxy":                         "",
		"/api/v1/proxy/namespaces/n/services/s/a/b":     "a/b",
	} {
		if got := Parse(httptest.NewRequest("GET", target, nil)); got.Rest != want {
			t.Errorf("%s: rest %q, want %q", target, got.Rest, want)
		}
	}
}

func FuzzParseRequest(f *testing.F) {
	f.Add("GET", "/api/v1/namespaces/x/pods/a%2Fb/log/c", "watch=1&fieldSelector=metadata.name%3Dx")
	f.Add("DELETE", "/apis//v1/../%00/"+strings.Repeat("x", 300), "fieldSelector=;&%zz=1&watch")
	f.Add("HEAD", "/api/v1/watch/namespaces/", "&&=&watch=0")
	f.Fuzz(func(t *testing.T, method, path, query string) {
		u, err := url.Parse("http://h/" + path)
		if err != nil {
			return
		}
		u.RawQuery = query
		info := Parse(&http.Request{Method: method, URL: u})
		if !info.ResourceRequest && (info.Resource != "" || info.Name != "" || info.Namespace != "" || info.Verb != strings.ToLower(method)) {
			t.Errorf("%s %q: no resource request, yet %+v", method, path, info)
		}
		if u.RawPath == "" {
			if strings.Contains(info.Resource+info.Namespace+info.Subresource+info.Name, "/") {
				t.Errorf("%q: a slash in %+v", path, info)
			}
		}
		options, err := info.ListOptions()
		if values := u.Query(); err == nil && info.query != nil && options.FieldSelector != values.Get("fieldSelector") {
			t.Errorf("%q: field selector %q; url.Values has %q", query, options.FieldSelector, values.Get("fieldSelector"))
		}
		if isWatch := info.query != nil && options.Watch; info.Verb == "list" && isWatch || info.Verb == "watch" && !info.Form.InPath && !isWatch {
			t.Errorf("%q: a %s; watch is %v", query, info.Verb, isWatch)
		}
	})
}

func BenchmarkParseRequest(b *testing.B) {
	r := httptest.NewRequest("GET", "/apis/apps/v1/namespaces/default/deployments?limit=500&resourceVersion=0", nil)
	b.ReportAllocs()
	for b.Loop() {
		Parse(r)
	}
}
