// Package strategy contains the rules that are specific to certain built-in types. They determine
// the initial status of a new object, the fields that cannot be changed by an update, the
// resources that can be created with a PUT, the subresources that update a part of an object, and
// whether a deletion is delayed.
//
//	strategy.PrepareForCreate(ctx, obj)              // a Job's selector, a Pod's QoS class, the initial status
//	strategy.Canonicalize(obj)                       // completes an object after validation
//	strategy.PrepareForUpdate(ctx, "", obj, old)     // restores the status and allocated values
//	err := strategy.ValidateDelete(res, "kube-system")
//
// Most rules are imported from Kubernetes: a strategy in k8s.io/kubernetes/pkg/registry is used if
// its package is small enough (kubernetes.go). The packages of the other strategies also contain
// clients and storage. Their preparation is written here, on the internal types and with
// Kubernetes' helper functions. If a feature gate is disabled, its fields are dropped unless they
// are set in the old object.
//
// All rules are defined in a table (table.go). Package registry has the sequence of steps that all
// writes take, and calls this package between admission and validation.
//
// The caller sets the defaults of an object before it prepares the object. This package reads only
// the objects, the context, the feature gates and the clock.
package strategy
