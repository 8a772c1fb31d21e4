// Package linear kills a server in the midst of writes, over and over, and asks whether what its clients saw can be explained by one
// object after another being written, each at one moment between a request and its answer: linearizability, as etcd has it and
// Kubernetes builds on it. Porcupine looks for the explanation. Watches that resume across the restarts are held against the writes:
// each event once, in order, none left out.
//
//	go test .                                   # about a minute, on a server built from the folder above
//	LINEAR=10m APILET=./apilet ETCD=./etcd go test -timeout 30m .
//
// The same is asked of three servers on an etcd cluster of three members, of which any may be killed (cluster_test.go), and of clients that move from
// apilet to a kube-apiserver on the same etcd, and back (moves_test.go).
//
// It is a module of its own, so that the server's needs no checker.
package linear
