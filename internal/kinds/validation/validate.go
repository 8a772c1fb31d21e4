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

	"apilet/internal/kinds/internalversion"
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
	return rules.updates[sub](withRequest(ctx, gv, sub), obj, internalversion.From(old))
}

// rules are the validation functions of one type. They take the objects that internalversion.From returns.
type rules struct {
	create  createFunc
	updates map[string]updateFunc // by subresource; "" is the object itself
}

type (
	createFunc func(ctx context.Context, obj runtime.Object) field.ErrorList
	updateFunc func(ctx context.Context, obj, old runtime.Object) field.ErrorList
)

// rulesOf returns the internal form of obj and its rules. They are nil for a type without rules.
func rulesOf(obj runtime.Object) (runtime.Object, *rules) {
	all := allRules()
	obj = internalversion.From(obj)
	return obj, all[reflect.TypeOf(obj)]
}

// allRules returns the rules by Go type.
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
