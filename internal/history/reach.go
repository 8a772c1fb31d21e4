package history

import (
	"apilet/internal/request"
	"apilet/internal/store"
)

// A Reach says how far back a right of now goes. Namespaces and names are inherited: who is given a namespace is not given what its former owner
// had in one of that name, and who may read one object by its name may not read another that had it before. So a right reaches back
//
//	in all namespaces, to any name    as far as history does
//	in one namespace                  to where that namespace begins, the one that has the name now
//	to one name                       to where that object begins
//	to one name in one namespace      to the later of the two
//
// and what is not there now has no past for those whose right is about it alone.
type Reach struct {
	Store *store.Store
	May   func(request.User, request.Info) bool // the rules of now
}

// namespaces is what the keys of Namespaces begin with; their own namespace is "".
const namespaces = "//namespaces//"

// Since is the first revision of which a user may see what a request asks for, where the rules of now allow the request. key is the one object's
// that a request with a name is about.
func (p *Reach) Since(u request.User, info request.Info, key string) (rev int64, err error) {
	if info.Namespace == "" && info.Name == "" {
		return 0, nil
	}
	everywhere := info
	everywhere.Namespace = ""
	anything, all := info, everywhere
	anything.Name, all.Name = "", ""
	if p.May(u, all) {
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
	if inNamespace > 0 && p.May(u, everywhere) {
		rev = ofName
	}
	if ofName > 0 && p.May(u, anything) {
		rev = min(rev, inNamespace)
	}
	return rev, nil
}
