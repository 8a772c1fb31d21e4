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
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"

	"apilet/internal/scheme/internalversion"
)

// ValidateCreate returns the errors of a new object and its metadata. gv is the group and version of
// the request, because the rules of Events depend on it.
func ValidateCreate(ctx context.Context, gv schema.GroupVersion, obj runtime.Object) field.ErrorList {
	rules, convert := rulesFor(obj)
	if rules == nil {
		return nil
	}
	obj = convert(obj)
	if err := exceedsLimit("", obj, nil); err != nil {
		return field.ErrorList{err}
	}
	return rules.create(withRequest(ctx, gv, ""), obj)
}

// ValidateUpdate returns the errors of an object that replaces old. sub is the subresource that the
// request writes to, or "". Most rules validate the metadata again that the caller has validated, and
// so report its errors twice, as kube-apiserver does.
func ValidateUpdate(ctx context.Context, gv schema.GroupVersion, sub string, obj, old runtime.Object) field.ErrorList {
	rules, convert := rulesFor(obj)
	if rules == nil || rules.updates[sub] == nil {
		return nil
	}
	obj, old = convert(obj), convert(old)
	if err := exceedsLimit(sub, obj, old); err != nil {
		return field.ErrorList{err}
	}
	return rules.updates[sub](withRequest(ctx, gv, sub), obj, old)
}

// rules are the validation functions of one type.
type rules struct {
	create  createFunc
	updates map[string]updateFunc // by subresource; "" is the object itself
}

type (
	createFunc func(ctx context.Context, obj runtime.Object) field.ErrorList
	updateFunc func(ctx context.Context, obj, old runtime.Object) field.ErrorList
)

// rulesFor returns the rules of an object's type, and the function that converts objects for them. The
// rules are nil for a type without any.
func rulesFor(obj runtime.Object) (*rules, func(runtime.Object) runtime.Object) {
	all := allRules()
	if own := all[reflect.TypeOf(obj)]; own != nil {
		return own, func(obj runtime.Object) runtime.Object { return obj }
	}
	return all[reflect.TypeOf(internalversion.From(obj))], internalversion.From
}

// allRules returns the rules by Go type, which is an internal type but for policyRules.
var allRules = sync.OnceValue(func() map[reflect.Type]*rules {
	all := strategyRules()
	maps.Copy(all, coreRules())
	maps.Copy(all, otherRules())
	maps.Copy(all, policyRules())
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
