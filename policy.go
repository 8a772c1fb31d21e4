// This file ties the authorizer to the store. Roles and bindings are objects like any other; rbac.go decides from an index of them that
// never changes. Here the default policy that users know is brought into the store at start, and a new index is built whenever one of the
// four kinds has changed: the keeper sleeps until a commit touches them, as a watcher would.
package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// policyPlurals are the kinds that a policy consists of.
var policyPlurals = []string{"clusterroles", "clusterrolebindings", "roles", "rolebindings"}

// A policyKeeper keeps an authenticator's policy that of the store.
type policyKeeper struct {
	st    *store
	wr    *writes
	auth  *authenticator
	kinds []*resource
}

func newPolicyKeeper(st *store, reg *registry, wr *writes, auth *authenticator) *policyKeeper {
	k := &policyKeeper{st: st, wr: wr, auth: auth}
	for _, plural := range policyPlurals {
		k.kinds = append(k.kinds, reg.lookup(rbacv1.GroupName, "v1", plural))
	}
	return k
}

// reconcile writes what the stored policy lacks of the default one, and puts the result in force.
func (k *policyKeeper) reconcile(ctx context.Context) error {
	stored, err := k.load()
	if err != nil {
		return err
	}
	changes := reconcilePolicy(stored, builtinPolicy())
	for _, obj := range changes.replace {
		res := k.kindOf(obj)
		if _, _, err := k.wr.delete(ctx, res, obj.GetNamespace(), obj.GetName(), &metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("replacing %s %s: %w", res.kind, obj.GetName(), err)
		}
	}
	fresh := append(changes.create, changes.replace...)
	if err := parallel(fresh, deleteWorkers, func(obj object) error {
		_, err := k.wr.insert(ctx, k.kindOf(obj), obj, writeOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("creating the default policy: %w", err)
	}
	for _, obj := range changes.update {
		t := target{res: k.kindOf(obj), namespace: obj.GetNamespace(), name: obj.GetName()}
		if _, _, err := k.wr.modify(ctx, t, writeOptions{}, func(object, *record) (object, error) { return obj.DeepCopyObject().(object), nil }); err != nil {
			return fmt.Errorf("updating the default policy: %w", err)
		}
	}
	return k.apply()
}

// run follows changes until ctx ends. An index that cannot be built leaves the one before it in force; report is told.
func (k *policyKeeper) run(ctx context.Context, report func(error)) {
	for ctx.Err() == nil {
		cases := []reflect.SelectCase{{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ctx.Done())}}
		for _, res := range k.kinds {
			cases = append(cases, reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(k.st.wake(res.keyPrefix("")))})
		}
		if err := k.apply(); err != nil {
			report(err)
		}
		reflect.Select(cases)
	}
}

// apply builds an index of the stored policy and puts it in force.
func (k *policyKeeper) apply() error {
	stored, err := k.load()
	if err == nil {
		k.auth.setPolicy(stored)
	}
	return err
}

// load reads the stored policy.
func (k *policyKeeper) load() (objects []object, err error) {
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

func (k *policyKeeper) kindOf(obj object) *resource {
	for _, res := range k.kinds {
		if res.goType == reflect.TypeOf(obj).Elem() {
			return res
		}
	}
	panic(fmt.Sprintf("%T is no part of a policy", obj))
}
