package validation

import (
	"context"
	"maps"
	"reflect"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/coordination"
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"

	"apilet/internal/scheme/internalversion"
)

// ValidateCreate returns the errors of a new object and its metadata. gv is the group and version
// of the request, because the rules of Events depend on it.
func ValidateCreate(ctx context.Context, gv schema.GroupVersion, obj runtime.Object) field.ErrorList {
	rules, obj := rulesFor(obj)
	if rules == nil {
		return nil
	}
	if err := exceedsLimit("", obj, nil); err != nil {
		return field.ErrorList{err}
	}
	ctx = withRequest(ctx, gv, "")
	return rules.addDeclared(ctx, "", rules.create(ctx, obj), obj, nil)
}

// ValidateUpdate validates an object that replaces old. sub is the subresource that is being
// updated, or "". common contains the errors that were already found in the metadata by the
// caller, and is included in the result. Most rules find them again, but equal errors are reported
// once.
func ValidateUpdate(ctx context.Context, gv schema.GroupVersion, sub string, obj, old runtime.Object, common ...*field.Error) field.ErrorList {
	rules, obj := rulesFor(obj)
	if rules == nil || rules.updates[sub] == nil {
		return common
	}
	_, old = rulesFor(old)
	if err := exceedsLimit(sub, obj, old); err != nil {
		return append(common, err)
	}
	ctx = withRequest(ctx, gv, sub)
	return rules.addDeclared(ctx, sub, append(common, rules.updates[sub](ctx, obj, old)...), obj, old)
}

// rules contains the validation functions for a type.
type rules struct {
	create  createFunc
	updates map[string]updateFunc     // by subresource; "" is the object itself
	config  configFunc                // of declarative validation; nil means the zero value
	paths   []field.NormalizationRule // for config

	handwritten bool // there are no declarative rules
	unreported  bool // if true, all declarative rules have level alpha and do not have to be run
}

type (
	createFunc func(ctx context.Context, obj runtime.Object) field.ErrorList
	updateFunc func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	configFunc func(ctx context.Context, obj, old runtime.Object) rest.DeclarativeValidationConfig
)

// rulesFor returns the rules for the type of an object, and the object converted to the type
// expected by the rules. The rules are nil for a type without any.
func rulesFor(obj runtime.Object) (*rules, runtime.Object) {
	all := allRules()
	if own := all[reflect.TypeOf(obj)]; own != nil {
		return own, obj
	}
	obj = internalversion.From(obj)
	return all[reflect.TypeOf(obj)], obj
}

// allRules returns the rules by Go type, which is an internal type but for policyRules.
var allRules = sync.OnceValue(func() map[reflect.Type]*rules {
	all := strategyRules()
	maps.Copy(all, coreRules())
	maps.Copy(all, otherRules())
	maps.Copy(all, policyRules())
	for _, hot := range []runtime.Object{&core.ConfigMap{}, &core.Secret{}, &core.ServiceAccount{}, &core.Event{}, &core.Namespace{}, &coordination.Lease{}} {
		all[reflect.TypeOf(hot)].unreported = true
	}
	return all
})

// withRequest returns a context with the request information that strategies read. Its logger drops
// the differences between declarative and handwritten validation, which are Kubernetes' own to fix.
func withRequest(ctx context.Context, gv schema.GroupVersion, sub string) context.Context {
	info := &request.RequestInfo{IsResourceRequest: true, APIGroup: gv.Group, APIVersion: gv.Version, Subresource: sub}
	return logr.NewContext(request.WithRequestInfo(ctx, info), logr.Discard())
}

// ValidateTolerations returns the errors of tolerations at the path name.
func ValidateTolerations(name string, list []corev1.Toleration) field.ErrorList {
	pod := internalversion.From(&corev1.Pod{Spec: corev1.PodSpec{Tolerations: list}}).(*core.Pod)
	return corevalidation.ValidateTolerations(pod.Spec.Tolerations, field.NewPath(name), corevalidation.PodValidationOptions{})
}
