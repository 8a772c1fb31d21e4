// This file keeps two parts of the server in step with objects that are stored like any other: the authorizer with roles and bindings,
// flow control with flow schemas and priority levels. Both work on a configuration that never changes while it is in force. A keeper
// brings the default objects into the store at start, sleeps until a commit touches one of its kinds, as a watcher would, and then puts a
// new configuration in force.
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A keeper reads and writes the objects of a few kinds.
type keeper struct {
	st    *store
	wr    *writes
	kinds []*resource
}

func newKeeper(st *store, reg *registry, wr *writes, group string, plurals ...string) keeper {
	k := keeper{st: st, wr: wr}
	for _, plural := range plurals {
		k.kinds = append(k.kinds, reg.lookup(group, "v1", plural))
	}
	return k
}

// load reads all objects of the kinds.
func (k *keeper) load() (objects []object, err error) {
	c := &chunk{}
	for _, res := range k.kinds {
		for at := (span{prefix: res.keyPrefix("")}); ; at.rev, at.start = c.rev, c.next {
			if err := k.st.chunk(at, c); err != nil {
				return nil, err
			}
			for i := range c.records {
				obj, err := res.decodeStored(c.records[i].json)
				if err != nil {
					return nil, errors.Join(fmt.Errorf("reading %s", c.records[i].key), err)
				}
				objects = append(objects, obj)
			}
			if c.next == "" {
				break
			}
		}
	}
	return objects, nil
}

// follow calls apply at once and after each commit that touches one of the kinds, until ctx ends. report is told of failures.
func (k *keeper) follow(ctx context.Context, apply func(context.Context) error, report func(error)) {
	for ctx.Err() == nil {
		cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
		for _, res := range k.kinds {
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(k.st.wake(res.keyPrefix("")))})
		}
		if err := apply(ctx); err != nil && ctx.Err() == nil {
			report(err)
		}
		reflect.Select(cases)
	}
}

// write creates, updates and deletes objects. What somebody else was faster with is left to the next round.
func (k *keeper) write(ctx context.Context, create, update, remove []object) error {
	for _, obj := range remove {
		_, _, err := k.wr.delete(ctx, k.kindOf(obj), obj.GetNamespace(), obj.GetName(), &metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting %s: %w", obj.GetName(), err)
		}
	}
	if err := parallel(create, deleteWorkers, func(obj object) error {
		_, err := k.wr.insert(ctx, k.kindOf(obj), obj, writeOptions{manager: "apilet"})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}); err != nil {
		return fmt.Errorf("creating default objects: %w", err)
	}
	for _, obj := range update {
		t := target{res: k.kindOf(obj), namespace: obj.GetNamespace(), name: obj.GetName()}
		_, _, err := k.wr.modify(ctx, t, writeOptions{manager: "apilet"}, func(object, *record) (object, error) {
			return obj.DeepCopyObject().(object), nil
		})
		if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return fmt.Errorf("updating %s: %w", obj.GetName(), err)
		}
	}
	return nil
}

func (k *keeper) kindOf(obj object) *resource {
	for _, res := range k.kinds {
		if res.goType == reflect.TypeOf(obj).Elem() {
			return res
		}
	}
	panic(fmt.Sprintf("%T is not kept here", obj))
}

// ---- Roles and bindings

// A policyKeeper keeps an authenticator's policy that of the store.
type policyKeeper struct {
	keeper
	auth *authenticator
}

func newPolicyKeeper(st *store, reg *registry, wr *writes, auth *authenticator) *policyKeeper {
	return &policyKeeper{newKeeper(st, reg, wr, rbacv1.GroupName, "clusterroles", "clusterrolebindings", "roles", "rolebindings"), auth}
}

// reconcile writes what the stored policy lacks of the default one, and puts the result in force.
func (k *policyKeeper) reconcile(ctx context.Context) error {
	stored, err := k.load()
	if err != nil {
		return err
	}
	changes := reconcilePolicy(stored, builtinPolicy())
	if err := k.write(ctx, append(changes.create, changes.replace...), changes.update, changes.replace); err != nil {
		return err
	}
	return k.apply(ctx)
}

// apply builds an index of the stored policy and puts it in force. If it cannot be built, the one before it stays.
func (k *policyKeeper) apply(context.Context) error {
	stored, err := k.load()
	if err == nil {
		k.auth.setPolicy(stored)
	}
	return err
}

// ---- Flow schemas and priority levels

// A flowKeeper keeps flow control's configuration that of the store. It also puts back what must be there, as the annotation
// apf.kubernetes.io/autoupdate-spec of each object allows, and writes the condition that says whether a schema's level exists.
type flowKeeper struct {
	keeper
	fc    *flowControl
	pacer pacer
}

func newFlowKeeper(st *store, reg *registry, wr *writes, fc *flowControl) *flowKeeper {
	return &flowKeeper{keeper: newKeeper(st, reg, wr, flowcontrolv1.GroupName, "flowschemas", "prioritylevelconfigurations"), fc: fc}
}

// begin has everything in place before the first request: the objects in the first round, their conditions in the second.
func (k *flowKeeper) begin(ctx context.Context) error {
	return errors.Join(k.apply(ctx), k.apply(ctx))
}

// apply brings the stored objects up to date and puts them in force.
func (k *flowKeeper) apply(ctx context.Context) error {
	objs, err := k.objects()
	if err != nil {
		return err
	}
	k.fc.configure(objs)
	schemas, levels := maintainSchemas(objs.schemas), maintainLevels(objs.levels)
	if err := k.write(ctx, append(asObjects(levels.create), asObjects(schemas.create)...),
		append(asObjects(levels.update), asObjects(schemas.update)...), k.named(schemas.remove, levels.remove)); err != nil {
		return err
	}
	return k.tellDangling(ctx, objs)
}

func (k *flowKeeper) objects() (objs flowObjects, err error) {
	stored, err := k.load()
	for _, obj := range stored {
		switch o := obj.(type) {
		case *flowcontrolv1.FlowSchema:
			objs.schemas = append(objs.schemas, o)
		case *flowcontrolv1.PriorityLevelConfiguration:
			objs.levels = append(objs.levels, o)
		}
	}
	return objs, err
}

// named finds the objects that are to go.
func (k *flowKeeper) named(schemas, levels []string) (found []object) {
	for _, name := range schemas {
		found = append(found, &flowcontrolv1.FlowSchema{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	for _, name := range levels {
		found = append(found, &flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return found
}

// tellDangling writes the conditions that are not as they should be, paced, in case another server thinks otherwise.
func (k *flowKeeper) tellDangling(ctx context.Context, objs flowObjects) error {
	now := time.Now()
	missing := dangling(objs, now.Truncate(time.Second))
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(missing)), func(name string) bool { return !k.pacer.allow(name, now) })
	return parallel(names, deleteWorkers, func(name string) error {
		t := target{res: k.kinds[0], name: name, sub: "status"}
		_, _, err := k.wr.modify(ctx, t, writeOptions{manager: "apilet"}, func(old object, _ *record) (object, error) {
			schema := old.DeepCopyObject().(*flowcontrolv1.FlowSchema)
			setFlowCondition(&schema.Status, missing[name])
			return schema, nil
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("writing the status of flow schema %s: %w", name, err)
		}
		return nil
	})
}

func setFlowCondition(status *flowcontrolv1.FlowSchemaStatus, condition flowcontrolv1.FlowSchemaCondition) {
	for i := range status.Conditions {
		if status.Conditions[i].Type == condition.Type {
			status.Conditions[i] = condition
			return
		}
	}
	status.Conditions = append(status.Conditions, condition)
}

func asObjects[T object](list []T) (objects []object) {
	for _, obj := range list {
		objects = append(objects, obj)
	}
	return objects
}
