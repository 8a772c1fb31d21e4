package history

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A Visibility decides how far back in time a current permission applies. Names can be reused. If
// users are granted access to a namespace, they must not be able to see objects from a deleted
// namespace with the same name. Likewise, if users are allowed to read an object by name, they must
// not be able to read a deleted object with the same name. Therefore a permission reaches back
//
//	in all namespaces, to any name    as far as the history does
//	in one namespace                  to the creation of the current namespace of that name
//	to one name                       to the creation of the current object of that name
//	to one name in one namespace      to the later of the two
//
// If the object or namespace has been deleted, none of its history is visible to users who only
// have permission for that name.
type Visibility struct {
	Store     *store.Store
	Authorize func(request.User, request.Info) bool // authorizes by the current rules
}

// namespaces is the key prefix of Namespaces. Their own namespace is "".
const namespaces = "//namespaces//"

// VisibleSince returns the first revision at which the user may see the requested objects, provided
// that the current rules allow the request. key is the key of the object if the request names one.
func (p *Visibility) VisibleSince(u request.User, info request.Info, key string) (rev int64, err error) {
	if info.Namespace == "" && info.Name == "" {
		return 0, nil
	}
	everywhere := info
	everywhere.Namespace = ""
	anything, all := info, everywhere
	anything.Name, all.Name = "", ""
	if p.Authorize(u, all) {
		return 0, nil
	}
	inNamespace, ofName := int64(0), int64(0)
	if info.Namespace != "" {
		if inNamespace, err = p.Store.Since(namespaces + info.Namespace); err != nil {
			return 0, err
		}
	}
	if info.Name != "" {
		if ofName, err = p.Store.Since(key); err != nil {
			return 0, err
		}
	}
	rev = max(inNamespace, ofName)
	if inNamespace > 0 && p.Authorize(u, everywhere) {
		rev = ofName
	}
	if ofName > 0 && p.Authorize(u, anything) {
		rev = min(rev, inNamespace)
	}
	return rev, nil
}

// OfRequest returns the first revision at which the user of the request in ctx may see the
// requested objects.
func (p *Visibility) OfRequest(ctx context.Context, res *scheme.Resource) (int64, error) {
	rec := request.From(ctx)
	return p.VisibleSince(rec.User, rec.Info, res.Key(res.Scope(rec.Info.Namespace), rec.Info.Name))
}

// Hides reports whether the user may not see the requested objects as they were at revision rev. If
// so, it warns the client that the name may have belonged to an older object.
func (p *Visibility) Hides(ctx context.Context, res *scheme.Resource, rev int64) (bool, error) {
	since, err := p.OfRequest(ctx, res)
	if err != nil || rev >= since {
		return false, err
	}
	warning.AddWarning(ctx, "", fmt.Sprintf("what is asked for begins after revision %d: what had its name before, or its namespace's, is not shown", rev))
	return true, nil
}

// TimeSince returns the time since which the user may see the requested objects.
func (p *Visibility) TimeSince(u request.User, info request.Info) time.Time {
	switch rev, err := p.VisibleSince(u, info, ""); {
	case err != nil: // if the file is damaged, the scrub reports it
		return time.Now()
	case rev > 0:
		return p.Store.TimeOf(rev)
	}
	return time.Time{}
}

// Check returns a 404 if the request in ctx names an object that the user may not see as it was at
// revision rev. If rev is 0, the request is about the present.
func (p *Visibility) Check(ctx context.Context, res *scheme.Resource, rev int64) error {
	if rev == 0 {
		return nil
	}
	info := &request.From(ctx).Info
	if !info.Form.Named {
		return nil
	}
	if hidden, err := p.Hides(ctx, res, rev); err != nil || !hidden {
		return err
	}
	return apierrors.NewNotFound(res.GroupResource(), info.Name)
}
