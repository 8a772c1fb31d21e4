// Package linear repeatedly kills a server during writes and checks that the responses are
// linearizable: they must be consistent with writes to one object after another, each at one moment
// between the request and its response. etcd guarantees this and Kubernetes relies on it. Porcupine
// checks the histories. Watches that resume across the restarts are compared with the writes: they
// must receive each event once and in order.
//
//	go test .                                   # about a minute, on a server built from the folder above
//	LINEAR=10m APILET=./apilet ETCD=./etcd go test -timeout 30m .
//
// The same is checked for three servers on an etcd cluster of three members, where each of them may
// be killed (cluster_test.go), and for clients that move from apilet to a kube-apiserver on the
// same etcd, and back (moves_test.go).
//
// It is a separate module, so that the server's module does not depend on a checker.
package linear
