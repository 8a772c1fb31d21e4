package matching

import (
	"context"

	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/cel/library"

	"apilet/internal/request"
)

// AuthorizeFunc is an authorizer. It reports whether the user may send the request, and the reason.
type AuthorizeFunc func(u request.User, info request.Info) (allowed bool, reason string)

// Authorizer returns the value of the CEL variable authorizer.
func (may AuthorizeFunc) Authorizer(u request.User) ref.Val {
	return library.NewAuthorizerVal(infoOf(u), authorizer.AuthorizerFunc(may.authorize))
}

// ResourceAuthorizer returns the value of the CEL variable authorizer.requestResource.
func (may AuthorizeFunc) ResourceAuthorizer(u request.User, target *Target, name string) ref.Val {
	return library.NewResourceAuthorizerVal(infoOf(u), authorizer.AuthorizerFunc(may.authorize), &authorizedResource{target, name})
}

func infoOf(u request.User) user.Info {
	return &user.DefaultInfo{Name: u.Name, UID: u.UID, Groups: u.Groups, Extra: u.Extra}
}

func (may AuthorizeFunc) authorize(_ context.Context, q authorizer.Attributes) (authorizer.Decision, string, error) {
	who := q.GetUser()
	info := request.Info{ResourceRequest: q.IsResourceRequest(), Verb: q.GetVerb(), Group: q.GetAPIGroup(), Version: q.GetAPIVersion(),
		Namespace: q.GetNamespace(), Resource: q.GetResource(), Subresource: q.GetSubresource(), Name: q.GetName(), Path: q.GetPath()}
	if selected, err := q.GetFieldSelector(); err == nil {
		info = info.WithFieldSelector(selectorOf(selected))
	}
	allowed, reason := may(request.User{Name: who.GetName(), UID: who.GetUID(), Groups: who.GetGroups(), Extra: who.GetExtra()}, info)
	if allowed {
		return authorizer.DecisionAllow, reason, nil
	}
	return authorizer.DecisionNoOpinion, reason, nil
}

// selectorOf formats a field selector.
func selectorOf(requirements fields.Requirements) string {
	var terms []fields.Selector
	for _, r := range requirements {
		if r.Operator == selection.NotEquals {
			terms = append(terms, fields.OneTermNotEqualSelector(r.Field, r.Value))
		} else {
			terms = append(terms, fields.OneTermEqualSelector(r.Field, r.Value))
		}
	}
	return fields.AndSelectors(terms...).String()
}

// An authorizedResource identifies the resource that authorizer.requestResource checks.
type authorizedResource struct {
	*Target
	name string
}

func (r *authorizedResource) GetName() string        { return r.name }
func (r *authorizedResource) GetNamespace() string   { return r.Namespace }
func (r *authorizedResource) GetSubresource() string { return r.Subresource }
func (r *authorizedResource) GetResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Resource}
}
