package history

import (
	"apilet/internal/request"
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
