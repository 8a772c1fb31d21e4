// Package etcd starts real etcd clusters of one and three members and several servers that use
// them. It tests them as a client: whether each server sees the other's writes immediately and in
// order, whether a killed server resumes from its file, and the responses while etcd is
// unavailable, full, compacted, or replaced.
//
//	go test .                                # about a minute; builds apilet from the folder above, and etcd from its module
//	APILET=./apilet ETCD=./etcd go test -count=1 .
//
// Histories of three servers on three members, with SIGKILL of both, are in ../linear.
package etcd
