package discovery

// This file describes the subresources that connect a client with a container, a Service or a node:
// exec, attach, portforward and proxy. Their operations do not have request bodies. The fields of
// an options type become query parameters.
//
//	/api/v1/namespaces/{namespace}/pods/{name}/exec              get, post
//	/api/v1/namespaces/{namespace}/pods/{name}/proxy             every method
//	/api/v1/namespaces/{namespace}/pods/{name}/proxy/{path}      every method

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"apilet/internal/scheme"
)

var connectOptions = map[string]reflect.Type{
	"NodeProxyOptions":      reflect.TypeFor[corev1.NodeProxyOptions](),
	"PodAttachOptions":      reflect.TypeFor[corev1.PodAttachOptions](),
	"PodExecOptions":        reflect.TypeFor[corev1.PodExecOptions](),
	"PodPortForwardOptions": reflect.TypeFor[corev1.PodPortForwardOptions](),
	"PodProxyOptions":       reflect.TypeFor[corev1.PodProxyOptions](),
	"ServiceProxyOptions":   reflect.TypeFor[corev1.ServiceProxyOptions](),
}

// addConnect adds the paths of a subresource that connects the client with a backend.
func (d *oaDocument) addConnect(res *scheme.Resource, sub *scheme.Subresource, target oaTarget) {
	methods := []string{"get", "post"}
	if sub.Name == "proxy" {
		methods = []string{"delete", "get", "head", "options", "patch", "post", "put"}
		below := target
		below.path += "/{path}"
		d.addConnectPath(res, sub, below, "WithPath", methods)
	}
	d.addConnectPath(res, sub, target, "", methods)
}

func (d *oaDocument) addConnectPath(res *scheme.Resource, sub *scheme.Subresource, target oaTarget, suffix string, methods []string) {
	item := map[string]any{"parameters": d.connectParameters(target)}
	for _, method := range methods {
		item[method] = &oaOperation{
			Tags:        []string{lowerTitle(res.Group) + "_" + res.Version},
			Description: fmt.Sprintf("connect %s requests to %s of %s", strings.ToUpper(method), sub.Name, res.Kind),
			OperationID: "connect" + groupTitle(res.Group) + titleCase(res.Version) + titleCase(method) + target.id + suffix,
			Responses: map[string]oaBody{"401": {Description: "Unauthorized"},
				"200": {Description: "OK", Content: map[string]oaMedia{"*/*": {&oaSchema{Type: "string"}}}}},
			Action: "connect", Kind: target.kind,
		}
	}
	d.paths[target.path] = item
}

// connectParameters returns the path parameters and the query parameters, sorted by name.
func (d *oaDocument) connectParameters(target oaTarget) []oaParameter {
	params := slices.Clone(d.query(target.kind.Kind, connectOptions[target.kind.Kind]))
	for _, p := range pathParameters(target.path) {
		switch {
		case p.In != "path":
			continue
		case p.Name == "name":
			p.Description = "name of the " + target.kind.Kind
		}
		params = append(params, p)
	}
	slices.SortFunc(params, func(a, b oaParameter) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.In, b.In)) })
	return params
}
