// Package node implements the Node authorizer, which allows a kubelet to access only the objects
// that are related to its node:
//
//	a := node.New(st, types, read)
//	go a.Run(ctx)
//	allowed, reason := a.Decide(user, info) // "no relationship found between node 'n1' and this object"
//
// A node is a user with the name system:node:NAME in the group system:nodes. The ClusterRole
// system:node contains the permissions of all nodes. For resources such as Secrets that would be
// too much, and this package requires a path from the object to the node (graph.go):
//
//	node ◀── pod ◀── secret, configmap, serviceaccount, resourceclaim, claim
//	                                                                   ▲
//	                                                    persistentvolume ◀── secret
//	node ◀── volumeattachment, resourceslice, podcertificaterequest
//
// A pod belongs to a node when it is bound to it. A mirror pod, which is created by the node
// itself, has no paths. A node may get, list and watch Secrets and ConfigMaps only by name, and may
// list and watch Pods and ResourceSlices only with a field selector for the node. For Node, Lease
// and CSINode, the name must be the name of the node. The admission plug-in NodeRestriction checks
// the writes of nodes. The rules are the same as in Kubernetes' plugin/pkg/auth/authorizer/node.
//
// Invariants: The authorizer never denies a request. If a request is not allowed, it is passed to
// the next authorizer. A path exists as soon as the write that created it has been acknowledged,
// because each question first reads the store's log to its end. Before a replica refuses a request,
// it waits for the writes of other servers. Memory grows with the number of bound pods, volumes and
// attachments.
package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"

	"apilet/internal/auth/rbac"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// catchUpTimeout is the maximum time to wait for writes of other servers.
const catchUpTimeout = 2 * time.Second

// Authorizer decides about requests of nodes. It is safe for concurrent use.
type Authorizer struct {
	store *store.Store
	rules *rbac.Index // permissions of all nodes
	graph *liveGraph
}

// New returns an authorizer that reads the store when it is first used. It calls read with the
// result each time it has read the whole store, and with errors.
func New(st *store.Store, types *scheme.Registry, read func(error)) *Authorizer {
	return &Authorizer{store: st, rules: nodeRules(), graph: newLiveGraph(st, types, read)}
}

// Run follows the log until ctx ends, so that questions have little to read. It does nothing if a
// is nil.
func (a *Authorizer) Run(ctx context.Context) {
	if a != nil {
		a.graph.run(ctx)
	}
}

// nodeRules returns a policy that grants all nodes the default role for nodes.
func nodeRules() *rbac.Index {
	objects := []scheme.Object{&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.GroupKind, Name: request.GroupNodes}}}}
	for _, obj := range rbac.BuiltinPolicy() {
		if _, is := obj.(*rbacv1.ClusterRole); is && obj.GetName() == role {
			objects = append(objects, obj)
		}
	}
	return rbac.NewIndex(objects)
}

const role = "system:node"

// NoRules is returned because the permissions of a node cannot be listed.
const NoRules = "node authorizer does not support user rule resolution"

// Identify reports whether the user is a node, and returns its name. The name may be empty.
func Identify(u request.User) (name string, ok bool) {
	name, ok = strings.CutPrefix(u.Name, request.NodePrefix)
	return name, ok && slices.Contains(u.Groups, request.GroupNodes)
}

// Decide reports whether a node may send the request. It returns false without a reason for other
// users.
func (a *Authorizer) Decide(u request.User, info request.Info) (allowed bool, reason string) {
	name, ok := Identify(u)
	switch {
	case !ok:
		return false, ""
	case name == "":
		return false, fmt.Sprintf("unknown node for user %q", u.Name)
	}
	q := &nodeRequest{Info: info, node: name, graph: a}
	if info.ResourceRequest {
		if decide := special[schema.GroupResource{Group: info.Group, Resource: info.Resource}]; decide != nil {
			return decide(q)
		}
	}
	allowed, _ = a.rules.Allows(&rbac.Access{Groups: []string{request.GroupNodes}, ResourceRequest: info.ResourceRequest, Verb: info.Verb, Group: info.Group,
		Resource: info.Resource, Subresource: info.Subresource, Namespace: info.Namespace, Name: info.Name, Path: info.Path})
	return allowed, ""
}

// hasPath reports whether there is a path from a stored object to the node.
func (a *Authorizer) hasPath(key, node string) bool {
	if a.graph.hasPath(key, node) {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), catchUpTimeout)
	defer cancel()
	if _, err := a.store.Current(ctx); err != nil {
		return false
	}
	return a.graph.hasPath(key, node)
}

// ---- Rules for single objects ----

// A question is a request from a node.
type nodeRequest struct {
	request.Info
	node  string
	graph *Authorizer
}

// special is used for resources to which a node has limited access.
var special = map[schema.GroupResource]func(*nodeRequest) (bool, string){
	{Resource: "secrets"}:                (*nodeRequest).read,
	{Resource: "configmaps"}:             (*nodeRequest).read,
	{Resource: "persistentvolumeclaims"}: (*nodeRequest).claim,
	{Resource: "persistentvolumes"}:      (*nodeRequest).get,
	{Resource: "serviceaccounts"}:        (*nodeRequest).account,
	{Resource: "nodes"}:                  (*nodeRequest).nodeObject,
	{Resource: "pods"}:                   (*nodeRequest).pod,

	{Group: resourcev1.GroupName, Resource: "resourceclaims"}:   (*nodeRequest).get,
	{Group: resourcev1.GroupName, Resource: "resourceslices"}:   (*nodeRequest).slice,
	{Group: storagev1.GroupName, Resource: "volumeattachments"}: (*nodeRequest).get,
	{Group: storagev1.GroupName, Resource: "csinodes"}:          (*nodeRequest).csiNode,
	{Group: coordinationv1.GroupName, Resource: "leases"}:       (*nodeRequest).lease,

	{Group: certificatesv1.GroupName, Resource: "podcertificaterequests"}: (*nodeRequest).podCertificate,
}

// related reports whether there is a path from the requested object to the node.
func (q *nodeRequest) related() (bool, string) {
	if q.Name == "" {
		return false, "No Object name found"
	}
	if !q.graph.hasPath(keyOf(q.Group, q.Resource, q.Namespace, q.Name), q.node) {
		return false, fmt.Sprintf("no relationship found between node '%s' and this object", q.node)
	}
	return true, ""
}

// read is the rule for resources that can be read by name, also with list and watch.
func (q *nodeRequest) read() (bool, string) {
	switch {
	case q.Verb != "get" && q.Verb != "list" && q.Verb != "watch":
		return false, "can only read resources of this type"
	case q.Subresource != "":
		return false, "cannot read subresource"
	case q.Namespace == "":
		return false, "can only read namespaced object of this type"
	}
	return q.related()
}

// get is the rule for resources that can only be requested by name with get.
func (q *nodeRequest) get() (bool, string) {
	switch {
	case q.Verb != "get":
		return false, "can only get individual resources of this type"
	case q.Subresource != "":
		return false, "cannot get subresource"
	}
	return q.related()
}

func (q *nodeRequest) claim() (bool, string) {
	if q.Subresource != "status" {
		return q.get()
	}
	if q.Verb != "update" && q.Verb != "patch" {
		return false, "can only get/update/patch this type"
	}
	return q.related()
}

func (q *nodeRequest) account() (bool, string) {
	switch {
	case q.Verb == "get" && q.Subresource == "":
		return q.read()
	case q.Verb != "create" || q.Name == "":
		return false, "can only create tokens for individual service accounts"
	case q.Subresource != "token":
		return false, "can only create token subresource of serviceaccount"
	}
	return q.related()
}

// nodeObject is the rule for Nodes. The request is allowed even if the Node does not exist yet.
func (q *nodeRequest) nodeObject() (bool, string) {
	switch q.Subresource + "/" + q.Verb {
	case "/create", "/update", "/patch", "status/update", "status/patch": // NodeRestriction checks the object
		return true, ""
	case "/get", "/list", "/watch":
		switch q.Name {
		case q.node:
			return true, ""
		case "":
			return false, fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", q.node)
		}
		return false, fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", q.node, q.Name)
	}
	return false, ""
}

func (q *nodeRequest) pod() (bool, string) {
	switch q.Subresource + "/" + q.Verb {
	case "/get":
		return q.get()
	case "/list", "/watch":
		switch {
		case q.selects("spec.nodeName"):
			return true, ""
		case q.Name != "":
			return q.related()
		}
		return false, "can only list/watch pods with spec.nodeName field selector"
	case "/create", "/delete", "status/update", "status/patch", "eviction/create": // NodeRestriction checks the object
		return true, ""
	}
	return false, ""
}

func (q *nodeRequest) slice() (bool, string) {
	if q.Subresource != "" {
		return false, "cannot authorize ResourceSlice subresources"
	}
	switch q.Verb {
	case "create": // NodeRestriction checks the object
		return true, ""
	case "get", "update", "patch", "delete":
		return q.related()
	case "watch", "list", "deletecollection":
		if q.selects(resourcev1.ResourceSliceSelectorNodeName) {
			return true, ""
		}
		return false, "can only list/watch/deletecollection resourceslices with nodeName field selector"
	}
	return false, "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection"
}

func (q *nodeRequest) lease() (bool, string) {
	switch {
	case !ownVerb(q.Verb):
		return false, "can only get, create, update, patch, or delete a node lease"
	case q.Namespace != corev1.NamespaceNodeLease:
		return false, fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	case q.Verb != "create" && q.Name != q.node: // the name is in the body, see NodeRestriction
		return false, "can only access node lease with the same name as the requesting node"
	}
	return true, ""
}

func (q *nodeRequest) podCertificate() (bool, string) {
	if q.Subresource != "" {
		return false, "nodes may not access the status subresource of PodCertificateRequests"
	}
	switch q.Verb {
	case "create": // NodeRestriction checks the object
		return true, ""
	case "get":
		return q.related()
	case "list", "watch":
		if q.selects("spec.nodeName") {
			return true, ""
		}
		return false, "can only list/watch podcertificaterequests with nodeName field selector"
	}
	return false, fmt.Sprintf("nodes may not %s podcertificaterequests", q.Verb)
}

func (q *nodeRequest) csiNode() (bool, string) {
	switch status := q.Subresource == "status"; {
	case q.Subresource == "" && !ownVerb(q.Verb):
		return false, "can only get, create, update, patch, or delete a CSINode"
	case status && !utilfeature.DefaultFeatureGate.Enabled(features.CSIVolumeHealth):
		return false, "CSINode status access requires CSIVolumeHealth feature"
	case status && q.Verb != "get" && q.Verb != "update" && q.Verb != "patch":
		return false, "can only get, update, or patch CSINode status"
	case q.Subresource != "" && !status:
		return false, "cannot authorize CSINode subresources"
	case q.Verb != "create" && q.Name != q.node:
		return false, "can only access CSINode with the same name as the requesting node"
	}
	return true, ""
}

// ownVerb reports whether a node may use the verb on objects with its name.
func ownVerb(verb string) bool {
	return slices.Contains([]string{"get", "create", "update", "patch", "delete"}, verb)
}

// selects reports whether the request has a field selector that requires the field to be the node's
// name.
func (q *nodeRequest) selects(field string) bool {
	options, err := q.ListOptions()
	if err != nil || !strings.Contains(options.FieldSelector, q.node) {
		return false
	}
	parsed, err := fields.ParseSelector(options.FieldSelector)
	return err == nil && slices.ContainsFunc(parsed.Requirements(), func(r fields.Requirement) bool {
		return r.Field == field && r.Operator == selection.Equals && r.Value == q.node
	})
}
