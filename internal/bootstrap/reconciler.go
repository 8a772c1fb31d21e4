package bootstrap

// This file keeps two parts of the server in sync with stored objects: the authorizer with roles
// and bindings, and flow control with flow schemas and priority levels. Both use an immutable
// configuration. At the start, a reconciler writes the default objects. The configuration is
// replaced after each commit to one of its kinds. The authorizer has the new configuration before
// the write is answered. Flow control follows a moment later, when its log reader wakes up.

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

// A reconciler reads and writes objects of the given kinds.
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

// follow returns a follower of all kinds.
func (k *reconciler) follow() *store.Follower {
	var bases []string
	for _, res := range k.kinds {
		bases = append(bases, res.Base)
	}
	return k.st.Follow(bases...)
}

// load reads all objects of the kinds. If an object cannot be read, it is omitted, so that the
// changes to other objects take effect.
func (k *reconciler) load() (objects []scheme.Object, err error) {
	for _, res := range k.kinds {
		for rec, err := range k.st.All(store.Span{Prefix: res.Base, SkipDamaged: true}) {
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

// Run calls apply immediately. It calls apply again after each commit to one of the kinds, until
// ctx is done. It calls report with the result of each round.
func (k *reconciler) Run(ctx context.Context, apply func(context.Context) error, report func(error)) {
	for log := k.follow(); ctx.Err() == nil; {
		log.From(k.st.Revision())
		if err := apply(ctx); ctx.Err() == nil {
			report(err)
		}
		log.Wait(ctx, time.Time{}, nil)
	}
}

// write creates, updates and deletes objects. If there is a conflict with another writer, it is
// resolved in the next round.
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

// kindAt returns the kind of the object with the key.
func (k *reconciler) kindAt(key string) *scheme.Resource {
	return k.kinds[slices.IndexFunc(k.kinds, func(res *scheme.Resource) bool { return strings.HasPrefix(key, res.Base) })]
}

// ---- Roles and bindings

// A PolicyReconciler keeps an authenticator's policy in sync with the store. After a role or a
// binding has been written, it must be used for the next request. After one has been deleted, it
// must no longer be used. Therefore each such write waits until the new policy is in effect. If
// several writers wait at the same time, the first one reads the changes for all of them.
type PolicyReconciler struct {
	reconciler
	auth   *auth.Authenticator
	report func(error) // called with errors when the policy cannot be read

	mu     sync.Mutex      // guards the fields below; held while the policy is read
	log    *store.Follower // the policy contains all events that were read from log
	policy *rbac.Policy
}

// NewPolicyReconciler returns a reconciler. It calls report with errors that no caller receives.
func NewPolicyReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, auth *auth.Authenticator, report func(error)) *PolicyReconciler {
	kinds := newReconciler(st, reg, wr, rbacv1.GroupName, "clusterroles", "clusterrolebindings", "roles", "rolebindings")
	return &PolicyReconciler{reconciler: kinds, log: kinds.follow(), auth: auth, report: report}
}

// Reconcile adds the missing parts of the default policy to the store, and puts the result into
// effect.
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

// apply builds an index of the stored policy and puts it into effect. If that fails, the previous
// index stays in effect.
func (k *PolicyReconciler) apply(context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.applyLocked()
}

// OnCommit updates the policy after a write to the resource at the given revision. It does nothing
// for other resources.
func (k *PolicyReconciler) OnCommit(res *scheme.Resource, rev int64) {
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

// A FlowReconciler keeps flow control's configuration in sync with the store. It also restores
// mandatory objects, as far as the annotation apf.kubernetes.io/autoupdate-spec of each object
// allows, and writes the condition that reports whether a schema's level exists.
type FlowReconciler struct {
	reconciler
	configure func(flowcontrol.Objects) // puts a configuration into effect
	pacer     flowcontrol.Pacer
}

// NewFlowReconciler returns a reconciler. configure puts a configuration into effect
// (flowcontrol.Dispatcher.Configure).
func NewFlowReconciler(st *store.Store, reg *scheme.Registry, wr *registry.Writer, configure func(flowcontrol.Objects)) *FlowReconciler {
	return &FlowReconciler{reconciler: newReconciler(st, reg, wr, flowcontrolv1.GroupName, "flowschemas", "prioritylevelconfigurations"), configure: configure}
}

// Start applies the configuration before the first request. The objects are written in the first
// round, and the conditions in the second.
func (k *FlowReconciler) Start(ctx context.Context) error {
	return errors.Join(k.Apply(ctx), k.Apply(ctx))
}

// Apply updates the stored objects and puts them into effect.
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
	return k.updateConditions(ctx, objs)
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

// named returns objects for deletion.
func (k *FlowReconciler) named(schemas, levels []string) (found []scheme.Object) {
	for _, name := range schemas {
		found = append(found, &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range levels {
		found = append(found, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return found
}

// updateConditions writes the conditions that have changed. The number of writes is limited,
// because another server may disagree about a condition.
func (k *FlowReconciler) updateConditions(ctx context.Context, objs flowcontrol.Objects) error {
	now := time.Now()
	missing := flowcontrol.DanglingConditions(objs, now.Truncate(time.Second))
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
