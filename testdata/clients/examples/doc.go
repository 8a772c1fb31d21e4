// Package examples shows how tests of other projects use apilettest: with a reconciler of controller-runtime, with client-go's
// informers, with a webhook that the test serves, and with users whose permissions RBAC decides. apilettest/README.md refers to them.
package examples
