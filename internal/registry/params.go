package registry

// This file checks whether the writer of an admission policy or a binding may read its params.
// Expressions can read the params no matter which user wrote the policy, and the results of the
// policy reveal their content. The rules and messages are copied from kube-apiserver's
// pkg/registry/admissionregistration:
//
//	a policy with a new paramKind     get on all objects of the kind, in all namespaces
//	a binding with a paramRef         get on the object that it names, or list in its namespace

import (
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// paramUse contains the references of a policy or a binding to params.
type paramUse struct {
	kind     *admissionv1.ParamKind // set for a policy
	ref      *admissionv1.ParamRef  // set for a binding
	policy   string                 // name of the binding's policy
	policies string                 // resource of the binding's policy
}

func paramsOf(obj scheme.Object) paramUse {
	switch o := obj.(type) {
	case *admissionv1.ValidatingAdmissionPolicy:
		return paramUse{kind: o.Spec.ParamKind}
	case *admissionv1.MutatingAdmissionPolicy:
		return paramUse{kind: o.Spec.ParamKind}
	case *admissionv1.ValidatingAdmissionPolicyBinding:
		return paramUse{ref: o.Spec.ParamRef, policy: o.Spec.PolicyName, policies: "validatingadmissionpolicies"}
	case *admissionv1.MutatingAdmissionPolicyBinding:
		return paramUse{ref: o.Spec.ParamRef, policy: o.Spec.PolicyName, policies: "mutatingadmissionpolicies"}
	}
	return paramUse{}
}

// checkParams returns an error if the user is not allowed to read the params of the policy or
// binding. The old object is nil for a create.
func (wr *Writer) checkParams(rec *request.Request, res *scheme.Resource, obj, old scheme.Object) error {
	if res.Group != admissionv1.GroupName || rec == nil || !wr.Auth.EnforcesRBAC() || slices.Contains(rec.User.Groups, request.GroupMasters) {
		return nil
	}
	use, text, at := paramsOf(obj), "", "paramKind"
	switch {
	case use.kind != nil:
		if old != nil {
			if before := paramsOf(old).kind; before != nil && *before == *use.kind {
				return nil
			}
		}
		text = wr.mayReadKind(&rec.User, use.kind)
	// checked at every update, because kube-apiserver compares pointers, which always differ
	case use.ref != nil:
		at, text = "paramRef", wr.mayReadParams(&rec.User, use)
	}
	if text == "" {
		return nil
	}
	return apierror.Invalid(res.GroupKind(), obj.GetName(), field.ErrorList{field.Forbidden(field.NewPath("spec", at), text)})
}

func (wr *Writer) mayReadKind(user *request.User, kind *admissionv1.ParamKind) string {
	target, _ := wr.paramResource(kind)
	target.Verb, target.Name, target.Namespace = "get", "*", "*"
	if allowed, _ := wr.Auth.Decide(*user, target); allowed {
		return ""
	}
	return fmt.Sprintf(`user %s must have "get" permission on all objects of the referenced paramKind (kind=%s, apiVersion=%s)`,
		formatUser(user), kind.Kind, kind.APIVersion)
}

func (wr *Writer) mayReadParams(user *request.User, use paramUse) string {
	target, known := request.Info{Group: "*", Version: "*", Resource: "*", ResourceRequest: true}, true
	kind, found := wr.policyParams(use)
	if kind != nil {
		target, known = wr.paramResource(kind)
	}
	target.Verb, target.Name, target.Namespace = "get", use.ref.Name, use.ref.Namespace
	if use.ref.Name == "" {
		target.Verb = "list"
	}
	if allowed, _ := wr.Auth.Decide(*user, target); allowed {
		return ""
	}
	who, verb := formatUser(user), target.Verb
	switch all := fmt.Sprintf(`to determine minimum required permissions and user %s does not have "%s" permission for all groups, versions and resources`, who, verb); {
	case !found:
		return fmt.Sprintf("unable to get policy %s %s", use.policy, all)
	case !known:
		return fmt.Sprintf("unable to resolve paramKind &{%s %s} %s", kind.APIVersion, kind.Kind, all)
	case use.policies == "mutatingadmissionpolicies": // kube-apiserver's message also swaps them
		who, verb = verb, who
	}
	return fmt.Sprintf(`user %s does not have "%s" permission on the object referenced by paramRef`, who, verb)
}

// policyParams returns the paramKind of a binding's policy.
func (wr *Writer) policyParams(use paramUse) (kind *admissionv1.ParamKind, found bool) {
	row := scheme.Stable(admissionv1.GroupName, use.policies)
	rec, err := wr.Store.Get(row.Key("", use.policy))
	if err != nil {
		return nil, false
	}
	obj, err := wr.Read(row, &rec)
	if err != nil {
		return nil, false
	}
	return paramsOf(obj).kind, true
}

// paramResource returns the attributes to authorize for a kind. If the kind is unknown, they cover
// all resources of its version.
func (wr *Writer) paramResource(kind *admissionv1.ParamKind) (info request.Info, known bool) {
	gv, err := schema.ParseGroupVersion(kind.APIVersion)
	if err != nil {
		return request.Info{Group: "*", Version: "*", Resource: "*", ResourceRequest: true}, false
	}
	info = request.Info{Group: gv.Group, Version: gv.Version, Resource: "*", ResourceRequest: true}
	for _, res := range wr.Types.All() {
		if res.Kind == kind.Kind && res.Group == gv.Group && res.Version == gv.Version {
			info.Resource = res.Plural
			return info, true
		}
	}
	return info, false
}

// formatUser returns the user in the format of kube-apiserver's error messages.
func formatUser(u *request.User) string {
	return fmt.Sprintf("&{%s %s %v %v}", u.Name, u.UID, u.Groups, u.Extra)
}
