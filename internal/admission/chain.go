package admission

// This file is the chain: every write passes the same plug-ins in the same order, first those that may change it, and, when its type's
// rules have been applied, those that may only refuse it.
//
//	decode ──▶ default ──▶ admit: LimitRanger, ServiceAccount, … MutatingAdmissionPolicy, MutatingAdmissionWebhook
//	       ──▶ prepare, validate by type ──▶ validate: … ValidatingAdmissionPolicy, ValidatingAdmissionWebhook, ResourceQuota ──▶ commit
//
// A plug-in is a row: its name, the writes that concern it, and two functions of which one may be missing. What the chain knows of a
// write beforehand (operation, resource, subresource) chooses the rows by one look into a map that is made at the start; rows that
// concern everything say themselves, from an atomic pointer or a counter, whether they have anything to say now. So a write that no row
// wants costs that look, and no memory.
//
// Who changes an object from outside (a policy, a webhook) may upset what the built-in plug-ins have written. So the whole chain is
// walked once more then, as in kube-apiserver; on that second walk policies and webhooks ask only those again that want it.

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

// Operations, as rules and reviews name them.
const (
	OpCreate = "CREATE"
	OpUpdate = "UPDATE"
	OpDelete = "DELETE"

	// OpConnect is a request to a kubelet or a Pod, such as an exec. Its Object is the unstructured options of the request.
	OpConnect = "CONNECT"
)

// Attributes are a write as plug-ins are told of it. Object and Old are in the storage version and typed, but for custom resources; a
// create has no Old, a deletion no Object. An object is the write's own: a plug-in may change it where it is, and only while it admits.
// What is in Old is never changed.
type Attributes struct {
	Resource        *scheme.Resource      // the type, at the version of the request
	Subresource     string                // "" for the object itself
	Operation       string                // OpCreate, OpUpdate, OpDelete or OpConnect
	Manager         string                // fieldManager, as sent
	FieldValidation string                // as sent: Ignore, Warn, Strict or ""
	DryRun          bool                  // nothing is stored: a plug-in must leave nothing behind, either
	Deleting        *metav1.DeleteOptions // of a deletion
	Object, Old     scheme.Object         // as it is to be stored, and as it is; nil where there is none

	Request *request.Request // whose write it is; nil for the server's own
	again   bool             // the second walk: the object was changed from outside since the plug-in last saw it

	changed  bool        // from outside
	webhooks *invocation // of the first walk
	Policies any         // what the mutating policies remember of the first walk
}

// Changed is told by a plug-in that let others change the object: the chain will be walked once more.
func (a *Attributes) Changed() { a.changed = true }

// Own says that the request itself asks for the write, which is not one of those that follow from it or that the server makes.
func (a *Attributes) Own() bool {
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

// Name is the object's as the request has it: of a create the one in the body, "" for generateName; for each of a deleted collection "".
func (a *Attributes) Name() string {
	switch {
	case a.Own() && a.Request.Info.Name != "":
		return a.Request.Info.Name
	case a.Operation == OpCreate:
		return a.Object.GetName()
	case a.Own():
		return ""
	}
	return a.Old.GetName()
}

// Namespace is where the object lies: "" for what lies in none.
func (a *Attributes) Namespace() string {
	if a.Operation == OpConnect {
		return a.Request.Info.Namespace
	}
	if a.Object != nil {
		return a.Object.GetNamespace()
	}
	return a.Old.GetNamespace()
}

// Forbidden is the refusal of a write, a 403. It names the object as the request does: by the prefix where the server chooses the name.
// What is a refusal already stays as it is.
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

// A Plugin is one row of the chain.
type Plugin struct {
	Name       string   // as --enable-admission-plugins calls it
	On         bool     // where no flag names it
	Of         []string // the resources that concern it, as "pods", "pods/binding", "ingresses.networking.k8s.io"; none: all, and their parts
	Operations []string // the operations that concern it; none: all

	Admit    func(ctx context.Context, a *Attributes) error // may change a.Object; nil: does not admit
	Validate func(ctx context.Context, a *Attributes) error // may not; nil: does not validate

	// Idle says that there is nothing to say now, whatever the write is; nil: never. It is asked at each write, and must be cheap.
	Idle func() bool
	// Attends is a row that is asked only beside others: whatever it refuses the store refuses as well, only later.
	Attends bool
}

// A Chain is the plug-ins that are switched on. The nil chain has none.
type Chain struct {
	special map[string][]special // by resource: the writes that a row names
	general [4]rows              // by operation: those that none names
}

// A place is what is known of a write before its body is looked at.
type place struct{ operation, group, resource, subresource string }

type rows struct{ admit, validate []*Plugin }

type special struct {
	place
	rows
}

var operations = [4]string{OpCreate, OpUpdate, OpDelete, OpConnect}

// NewChain makes a chain of those rows that are switched on, in their order.
func NewChain(table []Plugin, on map[string]bool) *Chain {
	c := &Chain{special: map[string][]special{}}
	for i, operation := range operations {
		places := map[place]bool{}
		for i := range table {
			for _, name := range table[i].Of {
				places[placeOf(operation, name)] = true
			}
		}
		for at := range places {
			r := rowsAt(table, on, func(p *Plugin) bool { return p.wants(at) })
			c.special[at.resource] = append(c.special[at.resource], special{at, r})
		}
		c.general[i] = rowsAt(table, on, func(p *Plugin) bool { return len(p.Of) == 0 && p.wants(place{operation: operation}) })
	}
	return c
}

// rowsAt are the rows that are switched on and wanted.
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

// placeOf reads a name of Plugin.Of: RESOURCE[.GROUP][/SUBRESOURCE].
func placeOf(operation, name string) place {
	at := place{operation: operation}
	name, at.subresource, _ = strings.Cut(name, "/")
	at.resource, at.group, _ = strings.Cut(name, ".")
	return at
}

func (p *Plugin) wants(at place) bool {
	if len(p.Operations) > 0 && !slices.Contains(p.Operations, at.operation) {
		return false
	}
	return len(p.Of) == 0 || slices.ContainsFunc(p.Of, func(name string) bool { return placeOf(at.operation, name) == at })
}

// rowsFor finds the rows that a write concerns.
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

func awake(all []*Plugin) bool {
	for _, p := range all {
		if !p.Attends && (p.Idle == nil || !p.Idle()) {
			return true
		}
	}
	return false
}

// Concerns says that some plug-in is to be asked about a write. It saves those who ask from making what only plug-ins would see.
func (c *Chain) Concerns(a Attributes) bool {
	r := c.rowsFor(&a)
	return awake(r.admit) || awake(r.validate)
}

// Admit lets the plug-ins change the object, and returns what it became. An error refuses the write.
func (c *Chain) Admit(ctx context.Context, a Attributes) (scheme.Object, error) {
	all := c.rowsFor(&a).admit
	if !awake(all) {
		return a.Object, nil
	}
	subject := a // on the heap: a must not be, for writes that concern nobody
	var owners []metav1.ManagedFieldsEntry
	if subject.Object != nil {
		owners = subject.Object.GetManagedFields()
	}
	if err := subject.walk(ctx, all); err != nil || subject.Object == nil {
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

// walk asks the plug-ins in order, and once more when the object was changed from outside.
func (a *Attributes) walk(ctx context.Context, all []*Plugin) error {
	for {
		for _, p := range all {
			if p.Idle != nil && p.Idle() {
				continue
			}
			if err := p.Admit(ctx, a); err != nil {
				return err
			}
		}
		if !a.changed || a.again {
			return nil
		}
		a.again = true
	}
}

// Validate asks the plug-ins whether they let the write pass. The first that does not is the answer.
func (c *Chain) Validate(ctx context.Context, a Attributes) error {
	all := c.rowsFor(&a).validate
	if !awake(all) {
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

// Decide asks about a write that has nothing between admitting and validating: a question, what a subresource is told, an object that
// is to go.
func (c *Chain) Decide(ctx context.Context, a Attributes) (scheme.Object, error) {
	obj, err := c.Admit(ctx, a)
	if err != nil {
		return nil, err
	}
	a.Object = obj
	return obj, c.Validate(ctx, a)
}

// Options are the request's, in the form of the operation: a PATCH has those of an update, or of a create, and a CONNECT has none.
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
