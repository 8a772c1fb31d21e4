package admission

// This file defines the chain of admission plug-ins. All writes use the same plug-ins in the same
// order. Mutating plug-ins run first. Validating plug-ins run after the object has been prepared
// and validated by the rules of its type.
//
//	decode ──▶ default ──▶ admit: LimitRanger, ServiceAccount, … MutatingAdmissionPolicy, MutatingAdmissionWebhook
//	       ──▶ prepare, validate by type ──▶ validate: … ValidatingAdmissionPolicy, ValidatingAdmissionWebhook, ResourceQuota ──▶ commit
//
// A plug-in consists of a name, the list of writes that it handles, and two functions. A function
// may be nil. The chain selects the rows for a write by operation, resource and
// subresource, using a map that is built at startup. Plug-ins that handle every write use Idle to
// report whether they have anything to do. A write without an interested row costs only the
// look-up and allocates no memory.
//
// Policies and webhooks may change fields that have been set by a built-in plug-in. If that
// happens, the whole chain runs a second time, as in kube-apiserver. During the second run,
// policies and webhooks are only called again if they ask for reinvocation.

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/warning"

	"apilet/internal/request"
	"apilet/internal/scheme"
)

// Operations, as named in rules and reviews.
const (
	OpCreate = "CREATE"
	OpUpdate = "UPDATE"
	OpDelete = "DELETE"

	// OpConnect is a request to a kubelet or a Pod, such as an exec. Object has the options of the
	// request as an unstructured object.
	OpConnect = "CONNECT"
)

// Attributes describe a write for the plug-ins. Object and Old are in the storage version. They
// are typed, except for custom resources. Old is nil for a create, and Object is nil for a
// deletion. The write owns Object: a plug-in may modify it in place, but only in Admit. Old is
// never modified.
type Attributes struct {
	Resource        *scheme.Resource // the type, at the version of the request
	Subresource     string           // "" for the object itself
	Operation       string           // OpCreate, OpUpdate, OpDelete or OpConnect
	Manager         string           // fieldManager, as sent
	FieldValidation string           // as sent: Ignore, Warn, Strict or ""
	// If DryRun is true, nothing is stored, and plug-ins must not have side effects.
	DryRun      bool
	Deleting    *metav1.DeleteOptions // options of a deletion
	Object, Old scheme.Object         // new and stored object; each may be nil

	Request      *request.Request // nil for the server's own writes
	reinvocation bool             // true in the second run of the chain

	changed  bool        // whether a policy or a webhook changed the object
	webhooks *invocation // state of the first run
	Policies any         // state of the mutating policies from the first run
}

// MarkChanged records that a policy or a webhook changed the object. The chain then runs again.
func (a *Attributes) MarkChanged() { a.changed = true }

// FromClient reports whether the write was requested by the client, rather than being a consequence
// of the request or a write by the server itself.
func (a *Attributes) FromClient() bool {
	rec := a.Request
	if rec == nil || rec.Info.Resource != a.Resource.Plural || rec.Info.Group != a.Resource.Group || rec.Info.Subresource != a.Subresource {
		return false
	}
	if a.Operation == OpConnect {
		return true
	}
	switch rec.Info.Verb {
	case "create":
		return a.Operation == OpCreate
	case "update", "patch":
		return a.Operation != OpDelete
	case "delete", "deletecollection":
		return a.Operation == OpDelete
	}
	return false
}

// Name returns the name of the object as the request specifies it. For a create, it returns the
// name in the body, which is empty if generateName is used. It returns "" for the objects in a
// deleted collection.
func (a *Attributes) Name() string {
	switch {
	case a.FromClient() && a.Request.Info.Name != "":
		return a.Request.Info.Name
	case a.Operation == OpCreate:
		return a.Object.GetName()
	case a.FromClient():
		return ""
	}
	return a.Old.GetName()
}

// Namespace returns the namespace of the object, or "" if the object is cluster-scoped.
func (a *Attributes) Namespace() string {
	if a.Operation == OpConnect {
		return a.Request.Info.Namespace
	}
	if a.Object != nil {
		return a.Object.GetNamespace()
	}
	return a.Old.GetNamespace()
}

// Forbidden returns a 403 error with the message of err. It uses the name in the request, or
// generateName if the server chooses the name. If err is already a 403, it is returned unchanged.
func (a *Attributes) Forbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return err
	}
	name := a.Name()
	if name == "" {
		name = "Unknown"
		if a.Object != nil {
			name = cmp.Or(a.Object.GetName(), a.Object.GetGenerateName(), name)
		}
	}
	return apierrors.NewForbidden(a.Resource.GroupResource(), name, err)
}

// A Plugin describes a plug-in in the chain.
type Plugin struct {
	Name             string // as in --enable-admission-plugins
	EnabledByDefault bool   // enabled by default
	// The resources that the plug-in handles, such as "pods", "pods/binding" or
	// "ingresses.networking.k8s.io". Empty means all resources and subresources.
	Resources []string
	// The operations that the plug-in handles. Empty means all operations.
	Operations []string

	Admit    func(ctx context.Context, a *Attributes) error // may modify a.Object; may be nil
	Validate func(ctx context.Context, a *Attributes) error // must not modify a.Object; may be nil

	// Idle reports whether the plug-in currently has nothing to do for any write. nil means never.
	// It is called for each write, so it must be cheap.
	Idle func() bool
	// OnlyWithOthers marks a plug-in that runs only if another plug-in runs. The store later
	// rejects everything that such a plug-in rejects.
	OnlyWithOthers bool
}

// A Chain contains the enabled plug-ins. The nil *Chain has none.
type Chain struct {
	special map[string][]special // maps a resource to the rows that name it
	general [4]rows              // by operation; all other writes
}

// writeKind identifies the kind of a write, which does not depend on the body.
type writeKind struct{ operation, group, resource, subresource string }

type rows struct{ admit, validate []*Plugin }

type special struct {
	writeKind
	rows
}

var operations = [4]string{OpCreate, OpUpdate, OpDelete, OpConnect}

// NewChain returns a chain of the enabled rows, in the order of the table.
func NewChain(table []Plugin, on map[string]bool) *Chain {
	c := &Chain{special: map[string][]special{}}
	for i, operation := range operations {
		places := map[writeKind]bool{}
		for i := range table {
			for _, name := range table[i].Resources {
				places[parseWriteKind(operation, name)] = true
			}
		}
		for at := range places {
			r := rowsAt(table, on, func(p *Plugin) bool { return p.handles(at) })
			c.special[at.resource] = append(c.special[at.resource], special{at, r})
		}
		c.general[i] = rowsAt(table, on, func(p *Plugin) bool { return len(p.Resources) == 0 && p.handles(writeKind{operation: operation}) })
	}
	return c
}

// rowsAt returns the enabled rows for which wanted is true.
func rowsAt(table []Plugin, on map[string]bool, wanted func(*Plugin) bool) (r rows) {
	for i := range table {
		p := &table[i]
		if !on[p.Name] || !wanted(p) {
			continue
		}
		if p.Admit != nil {
			r.admit = append(r.admit, p)
		}
		if p.Validate != nil {
			r.validate = append(r.validate, p)
		}
	}
	return r
}

// parseWriteKind parses an element of Plugin.Resources, which has the form
// RESOURCE[.GROUP][/SUBRESOURCE].
func parseWriteKind(operation, name string) writeKind {
	at := writeKind{operation: operation}
	name, at.subresource, _ = strings.Cut(name, "/")
	at.resource, at.group, _ = strings.Cut(name, ".")
	return at
}

func (p *Plugin) handles(at writeKind) bool {
	if len(p.Operations) > 0 && !slices.Contains(p.Operations, at.operation) {
		return false
	}
	return len(p.Resources) == 0 || slices.ContainsFunc(p.Resources, func(name string) bool { return parseWriteKind(at.operation, name) == at })
}

// rowsFor returns the rows that handle a write.
func (c *Chain) rowsFor(a *Attributes) rows {
	if c == nil {
		return rows{}
	}
	named := c.special[a.Resource.Plural]
	for i := range named {
		at := &named[i]
		if at.operation == a.Operation && at.group == a.Resource.Group && at.subresource == a.Subresource {
			return at.rows
		}
	}
	return c.general[slices.Index(operations[:], a.Operation)]
}

func anyActive(all []*Plugin) bool {
	for _, p := range all {
		if !p.OnlyWithOthers && (p.Idle == nil || !p.Idle()) {
			return true
		}
	}
	return false
}

// Handles reports whether any plug-in handles the write. Callers use it to avoid computing inputs
// that only plug-ins read.
func (c *Chain) Handles(a Attributes) bool {
	r := c.rowsFor(&a)
	return anyActive(r.admit) || anyActive(r.validate)
}

// Admit runs the mutating plug-ins and returns the resulting object. An error rejects the write.
func (c *Chain) Admit(ctx context.Context, a Attributes) (scheme.Object, error) {
	all := c.rowsFor(&a).admit
	if !anyActive(all) {
		return a.Object, nil
	}
	// The copy escapes to the heap. a itself must not, so that writes without plug-ins allocate
	// nothing.
	subject := a
	var owners []metav1.ManagedFieldsEntry
	if subject.Object != nil {
		owners = subject.Object.GetManagedFields()
	}
	if err := subject.run(ctx, all); err != nil || subject.Object == nil {
		return nil, err
	}
	if !subject.changed {
		return subject.Object, nil
	}
	if err := managedfields.ValidateManagedFields(subject.Object.GetManagedFields()); err != nil {
		subject.Object.SetManagedFields(owners)
		warning.AddWarning(ctx, "", fmt.Sprintf(".metadata.managedFields was in an invalid state after admission; this could be caused by an "+
			"outdated mutating admission controller; please fix your requests: %v", err))
	}
	return subject.Object, nil
}

// run runs the plug-ins in order, and a second time if a policy or a webhook changed the object.
func (a *Attributes) run(ctx context.Context, all []*Plugin) error {
	for {
		for _, p := range all {
			if p.Idle != nil && p.Idle() {
				continue
			}
			if err := p.Admit(ctx, a); err != nil {
				return err
			}
		}
		if !a.changed || a.reinvocation {
			return nil
		}
		a.reinvocation = true
	}
}

// Validate runs the validating plug-ins. It returns the first error.
func (c *Chain) Validate(ctx context.Context, a Attributes) error {
	all := c.rowsFor(&a).validate
	if !anyActive(all) {
		return nil
	}
	subject := a
	for _, p := range all {
		if p.Idle != nil && p.Idle() {
			continue
		}
		if err := p.Validate(ctx, &subject); err != nil {
			return err
		}
	}
	return nil
}

// Decide runs Admit and Validate for a write that needs no processing between them, such as a
// virtual resource, a subresource or a deletion.
func (c *Chain) Decide(ctx context.Context, a Attributes) (scheme.Object, error) {
	obj, err := c.Admit(ctx, a)
	if err != nil {
		return nil, err
	}
	a.Object = obj
	return obj, c.Validate(ctx, a)
}

// Options returns the options of the request, in the type of the operation. For a PATCH, these are
// UpdateOptions or CreateOptions. A CONNECT has none.
func (a *Attributes) Options() runtime.Object {
	var dryRun []string
	if a.DryRun {
		dryRun = []string{metav1.DryRunAll}
	}
	of := func(kind string) metav1.TypeMeta {
		return metav1.TypeMeta{Kind: kind, APIVersion: metav1.SchemeGroupVersion.String()}
	}
	switch a.Operation {
	case OpConnect:
		return nil
	case OpCreate:
		return &metav1.CreateOptions{TypeMeta: of("CreateOptions"), DryRun: dryRun, FieldManager: a.Manager, FieldValidation: a.FieldValidation}
	case OpUpdate:
		return &metav1.UpdateOptions{TypeMeta: of("UpdateOptions"), DryRun: dryRun, FieldManager: a.Manager, FieldValidation: a.FieldValidation}
	}
	options := metav1.DeleteOptions{}
	if a.Deleting != nil {
		options = *a.Deleting
	}
	options.TypeMeta = of("DeleteOptions")
	return &options
}
