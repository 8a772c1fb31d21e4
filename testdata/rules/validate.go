// Package rules validates objects with Kubernetes' own validation functions. Its test compares apilet's
// rules (internal/kinds/validation) with them. It is a module of its own, so that k8s.io/kubernetes
// stays out of the server.
//
// An object is converted to the internal type of its group, which shares its memory, and passed to the
// strategy of its resource (k8s.io/kubernetes/pkg/registry/GROUP/RESOURCE). The packages of some
// strategies are large, because they also contain storage and clients; for those resources functions.go
// calls the validation functions that the strategy would call. The rules of admissionregistration.k8s.io
// are left out: their package depends on 500 others.
package rules

import (
	"context"
	"maps"
	"reflect"
	"sync"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"
)

// ValidateCreate returns the errors of a new object and its metadata. gv is the group and version of
// the request, because the rules of Events depend on it.
func ValidateCreate(ctx context.Context, gv schema.GroupVersion, obj runtime.Object) field.ErrorList {
	obj, rules := rulesOf(obj)
	if rules == nil {
		return nil
	}
	return rules.create(withRequest(ctx, gv, ""), obj)
}

// ValidateUpdate returns the errors of an object that replaces old. sub is the subresource that the
// request writes to, or "". Most rules validate the metadata again that the caller has validated, and
// so report its errors twice, as kube-apiserver does.
func ValidateUpdate(ctx context.Context, gv schema.GroupVersion, sub string, obj, old runtime.Object) field.ErrorList {
	obj, rules := rulesOf(obj)
	if rules == nil || rules.updates[sub] == nil {
		return nil
	}
	return rules.updates[sub](withRequest(ctx, gv, sub), obj, toInternal(old))
}

// rules are the validation functions of one type. They take the objects that toInternal returns.
type rules struct {
	create  createFunc
	updates map[string]updateFunc // by subresource; "" is the object itself
}

type (
	createFunc func(ctx context.Context, obj runtime.Object) field.ErrorList
	updateFunc func(ctx context.Context, obj, old runtime.Object) field.ErrorList
)

// rulesOf returns obj as toInternal returns it, and its rules. They are nil for a type without rules.
func rulesOf(obj runtime.Object) (runtime.Object, *rules) {
	all := allRules()
	obj = toInternal(obj)
	return obj, all[reflect.TypeOf(obj)]
}

// allRules returns the rules by Go type. The first call also allows privileged Pods in the process,
// as kube-apiserver's --allow-privileged does.
var allRules = sync.OnceValue(func() map[reflect.Type]*rules {
	capabilities.Setup(true, 0)
	apiregistration.Install(legacyscheme.Scheme)
	all := strategyRules()
	maps.Copy(all, coreRules())
	maps.Copy(all, otherRules())
	return all
})

// toInternal converts obj to the internal type of its group. Both share memory. Objects whose rules
// are not imported have no internal type, and are returned as they are.
func toInternal(obj runtime.Object) runtime.Object {
	internal, err := legacyscheme.Scheme.UnsafeConvertToVersion(obj, runtime.InternalGroupVersioner)
	switch {
	case runtime.IsNotRegisteredError(err):
		return obj
	case err != nil:
		panic(err) // the conversion of a decoded object cannot fail
	}
	return internal
}

// withRequest returns a context with the request information that strategies read. Its logger drops
// the differences between declarative and handwritten validation, which are Kubernetes' own to fix.
func withRequest(ctx context.Context, gv schema.GroupVersion, sub string) context.Context {
	info := &request.RequestInfo{IsResourceRequest: true, APIGroup: gv.Group, APIVersion: gv.Version, Subresource: sub}
	return logr.NewContext(request.WithRequestInfo(ctx, info), logr.Discard())
}
