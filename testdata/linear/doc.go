// Package linear repeatedly kills a server during writes and checks that the responses are
// linearizable: they must be consistent with writes to one object after another, each at one moment
// between the request and its response. etcd guarantees this and Kubernetes relies on it. Porcupine
// checks the histories. Watches that are resumed after a restart must receive every event once and
// in the correct order.
//
//	go test .                                   # about a minute, on a server built from the folder above
//	LINEAR=10m APILET=./apilet ETCD=./etcd go test -timeout 30m .
//
// The same tests are run with three servers on an etcd cluster with three members
// (cluster_test.go), and with clients that move between apilet and a kube-apiserver
// (moves_test.go).
//
// It is a separate module to keep the checker out of the server's dependencies.
package linear
