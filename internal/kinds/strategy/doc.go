// Package strategy holds what single built-in types do differently from all others: what a new object's status is, which fields an update
// may not touch, who may be created by a PUT, which fields the rarer subresources write, whose deletion waits.
//
//	strategy.PrepareForCreate(obj)              // a Job's selector, a Pod's QoS class, the initial status
//	strategy.Canonicalize(obj)                  // completes what validation has nothing against
//	strategy.PrepareForUpdate(obj, old)         // status stays, and what else is not the client's
//	err := strategy.ValidateDelete(res, "kube-system")
//
// These are the RESTStrategies of Kubernetes (pkg/registry/GROUP/RESOURCE/strategy.go, and k8s.io/apiserver/pkg/registry/rest for what they
// have in common), as the rows of one table (table.go) and the functions that they name. The walk that every write takes is in package registry, which names no type:
// it asks here, in this order: defaults, prepare (prepare.go), validate (package validation).
//
// Invariants: an object comes with its defaults (package defaults) and leaves with what a validator may rely on; old is never changed;
// nothing is read but the objects, and of the outside only the time.
package strategy
