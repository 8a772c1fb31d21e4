// Package strategy has the rules by which single built-in types differ from the others: the status of a new
// object, the fields that an update cannot change, the resources that a PUT may create, the subresources
// that write a part of an object, and the deletions that wait.
//
//	strategy.PrepareForCreate(ctx, obj)              // a Job's selector, a Pod's QoS class, the initial status
//	strategy.Canonicalize(obj)                       // completes an object after validation
//	strategy.PrepareForUpdate(ctx, "", obj, old)     // restores the status and allocated values
//	err := strategy.ValidateDelete(res, "kube-system")
//
// Most rules are Kubernetes' own: a strategy of k8s.io/kubernetes/pkg/registry is imported if its package
// is small (kubernetes.go). The packages of the other strategies also contain clients and storage. Their
// preparation is written here, on the internal types and with Kubernetes' helper functions. A field behind
// a disabled feature gate is dropped unless the old object has it.
//
// The rules are the rows of one table (table.go). Package registry has the sequence of steps that all
// writes take, and calls this package between admission and validation.
//
// The caller sets the defaults of an object before it prepares the object. This package reads only the
// objects, the context, the feature gates and the clock.
package strategy
