package bootstrap

// This file keeps two parts of the server in step with objects that are stored like any other: the authorizer with roles and bindings,
// flow control with flow schemas and priority levels. Both work on a configuration that never changes while it is in force. A reconciler
// brings the default objects into the store at start and puts a new configuration in force after the commits that touch one of its
// kinds: roles and bindings before the write is answered, flow control a moment later, woken as a watcher would be.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/auth"
	"apilet/internal/auth/rbac"
	"apilet/internal/flowcontrol"
	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// A reconciler reads and writes the objects of a few kinds.
type reconciler struct {
	st    *store.Store
	wr    *registry.Writer
	kinds []*scheme.Resource
}

func newReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, group string, plurals ...string) reconciler {
	k := reconciler{st: st, wr: wr}
	for _, plural := range plurals {
		k.kinds = append(k.kinds, reg.Lookup(group, "v1", plural))
	}
	return k
}

// follow follows all kinds.
func (k *reconciler) follow() *store.Follower {
	var bases []string
	for _, res := range k.kinds {
		bases = append(bases, res.Base)
	}
	return k.st.Follow(bases...)
}

// load reads all objects of the kinds. One that cannot be read is left out: the others, and what was deleted, have to take effect.
func (k *reconciler) load() (objects []scheme.Object, err error) {
	for _, res := range k.kinds {
		for rec, err := range k.st.All(store.Span{Prefix: res.Base, Sound: true}) {
			if err != nil {
				return nil, err
			}
			if obj, err := k.wr.Read(res, rec); err == nil {
				objects = append(objects, obj)
			}
		}
	}
	return objects, nil
}

// Run calls apply at once and after each commit that touches one of the kinds, until ctx ends. report is told what came of each round.
func (k *reconciler) Run(ctx context.Context, apply func(context.Context) error, report func(error)) {
	for log := k.follow(); ctx.Err() == nil; {
		log.From(k.st.Revision())
		if err := apply(ctx); ctx.Err() == nil {
			report(err)
		}
		log.Wait(ctx, time.Time{}, nil)
	}
}

// write creates, updates and deletes objects. What somebody else was faster with is left to the next round.
func (k *reconciler) write(ctx context.Context, create, update, remove []scheme.Object) error {
	for _, obj := range remove {
		_, _, err := k.wr.Delete(ctx, k.kindOf(obj), obj.GetNamespace(), obj.GetName(), &metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s: %w", obj.GetName(), err)
		}
	}
	if err := registry.Parallel(create, registry.DeleteWorkers, func(obj scheme.Object) error {
		_, err := k.wr.Insert(ctx, k.kindOf(obj), obj, registry.Options{Manager: "apilet"})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}); err != nil {
		return fmt.Errorf("creating default objects: %w", err)
	}
	for _, obj := range update {
		t := registry.Target{Resource: k.kindOf(obj), Namespace: obj.GetNamespace(), Name: obj.GetName()}
		_, _, err := k.wr.Modify(ctx, t, registry.Options{Manager: "apilet"}, func(scheme.Object, *store.Record) (scheme.Object, error) {
			return obj.DeepCopyObject().(scheme.Object), nil
		})
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("updating %s: %w", obj.GetName(), err)
		}
	}
	return nil
}

func (k *reconciler) kindOf(obj scheme.Object) *scheme.Resource {
	for _, res := range k.kinds {
		if res.GoType == reflect.TypeOf(obj).Elem() {
			return res
		}
	}
	panic(fmt.Sprintf("%T is not kept here", obj))
}

// kindAt is the kind of a key.
func (k *reconciler) kindAt(key string) *scheme.Resource {
	return k.kinds[slices.IndexFunc(k.kinds, func(res *scheme.Resource) bool { return strings.HasPrefix(key, res.Base) })]
}

// ---- Roles and bindings

// A PolicyReconciler keeps an authenticator's policy that of the store. It does not follow the log as a watcher would: whoever is answered
// that a role or a binding is written may use it in the next request, and whoever is answered that one is deleted has lost what it gave.
// So each such write waits until a policy with it is in force. Of writers that wait at the same time the first reads for all.
type PolicyReconciler struct {
	reconciler
	auth   *auth.Authenticator
	report func(error) // told why a policy cannot be read

	mu     sync.Mutex      // guards what follows; held while the policy is read
	log    *store.Follower // the policy in force has all that it has shown
	policy *rbac.Policy
}

// NewPolicyReconciler does nothing yet; report hears of the errors that no caller waits for.
func NewPolicyReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, auth *auth.Authenticator, report func(error)) *PolicyReconciler {
	kinds := newReconciler(st, reg, wr, rbacv1.GroupName, "clusterroles", "clusterrolebindings", "roles", "rolebindings")
	return &PolicyReconciler{reconciler: kinds, log: kinds.follow(), auth: auth, report: report}
}

// Reconcile writes what the stored policy lacks of the default one, and puts the result in force.
func (k *PolicyReconciler) Reconcile(ctx context.Context) error {
	stored, err := k.load()
	if err != nil {
		return err
	}
	changes := rbac.ReconcilePolicy(stored, rbac.BuiltinPolicy())
	if err := k.write(ctx, append(changes.Create, changes.Replace...), changes.Update, changes.Replace); err != nil {
		return err
	}
	return k.apply(ctx)
}

// apply builds an index of the stored policy and puts it in force. If it cannot be built, the one before it stays.
func (k *PolicyReconciler) apply(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.applyLocked()
}

// Committed brings what is in force up to date after a write to a resource at a revision.
func (k *PolicyReconciler) Committed(res *scheme.Resource, rev int64) {
	if k == nil || res.Group != rbacv1.GroupName {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.log.Rev() >= rev {
		return
	}
	if err := k.applyLocked(); err != nil {
		k.report(err)
	}
}

func (k *PolicyReconciler) applyLocked() error {
	policy, changed := k.policy, map[string]scheme.Object{}
	forget := func() { policy = rbac.NewPolicy(); clear(changed) }
	if err := k.log.CatchUp(context.Background(), forget, func(ev *store.Event) {
		changed[ev.Key] = nil
		if obj, err := k.wr.Read(k.kindAt(ev.Key), &ev.Record); err == nil && !ev.Deleted {
			changed[ev.Key] = obj
		}
	}); err != nil {
		k.log.From(-1)
		return err
	}
	k.policy = policy
	k.auth.SetIndex(policy.Change(changed))
	return nil
}

// ---- Flow schemas and priority levels

// A FlowReconciler keeps flow control's configuration that of the store. It also puts back what must be there, as the annotation
// apf.kubernetes.io/autoupdate-spec of each object allows, and writes the condition that says whether a schema's level exists.
type FlowReconciler struct {
	reconciler
	configure func(flowcontrol.Objects) // puts them in force
	pacer     flowcontrol.Pacer
}

// NewFlowReconciler does nothing yet; configure puts a configuration in force (flowcontrol.Dispatcher.Configure).
func NewFlowReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, configure func(flowcontrol.Objects)) *FlowReconciler {
	return &FlowReconciler{reconciler: newReconciler(st, reg, wr, flowcontrolv1.GroupName, "flowschemas", "prioritylevelconfigurations"), configure: configure}
}

// Start has everything in place before the first request: the objects in the first round, their conditions in the second.
func (k *FlowReconciler) Start(ctx context.Context) error {
	return errors.Join(k.Apply(ctx), k.Apply(ctx))
}

// Apply brings the stored objects up to date and puts them in force.
func (k *FlowReconciler) Apply(ctx context.Context) error {
	objs, err := k.objects()
	if err != nil {
		return err
	}
	k.configure(objs)
	schemas, levels := flowcontrol.MaintainSchemas(objs.Schemas), flowcontrol.MaintainLevels(objs.Levels)
	if err := k.write(ctx, append(asObjects(levels.Create), asObjects(schemas.Create)...),
		append(asObjects(levels.Update), asObjects(schemas.Update)...), k.named(schemas.Remove, levels.Remove)); err != nil {
		return err
	}
	return k.tellDangling(ctx, objs)
}

func (k *FlowReconciler) objects() (objs flowcontrol.Objects, err error) {
	stored, err := k.load()
	for _, obj := range stored {
		switch o := obj.(type) {
		case *flowcontrolv1.FlowSchema:
			objs.Schemas = append(objs.Schemas, o)
		case *flowcontrolv1.PriorityLevelConfiguration:
			objs.Levels = append(objs.Levels, o)
		}
	}
	return objs, err
}

// named finds the objects that are to go.
func (k *FlowReconciler) named(schemas, levels []string) (found []scheme.Object) {
	for _, name := range schemas {
		found = append(found, &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range levels {
		found = append(found, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return found
}

// tellDangling writes the conditions that are not as they should be, paced, in case another server thinks otherwise.
func (k *FlowReconciler) tellDangling(ctx context.Context, objs flowcontrol.Objects) error {
	now := time.Now()
	missing := flowcontrol.Dangling(objs, now.Truncate(time.Second))
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(missing)), func(name string) bool { return !k.pacer.Allow(name, now) })
	return registry.Parallel(names, registry.DeleteWorkers, func(name string) error {
		t := registry.Target{Resource: k.kinds[0], Name: name, Subresource: "status"}
		_, _, err := k.wr.Modify(ctx, t, registry.Options{Manager: "apilet"}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
			schema := old.DeepCopyObject().(*flowcontrolv1.FlowSchema)
			flowcontrol.SetCondition(&schema.Status, missing[name])
			return schema, nil
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("writing the status of flow schema %s: %w", name, err)
		}
		return nil
	})
}

func asObjects[T scheme.Object](list []T) (objects []scheme.Object) {
	for _, obj := range list {
		objects = append(objects, obj)
	}
	return objects
}
