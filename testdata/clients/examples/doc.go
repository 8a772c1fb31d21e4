// Package examples contains tests that use apilettest as other projects do. They test a controller
// based on controller-runtime, an informer, a webhook and RBAC.
package examples
