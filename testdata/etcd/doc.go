// Package etcd starts real etcd, of one member and of three, and several servers on it, and asks what a client would: does each see what
// another wrote, at once and in order; does a server that was killed go on from its file; what is answered while etcd is away, full,
// compacted, or another one.
//
//	go test .                                # about a minute; builds apilet from the folder above, and etcd from its module
//	APILET=./apilet ETCD=./etcd go test -count=1 .
//
// Histories of three servers on three members, under SIGKILL of either, are in ../linear.
package etcd
