// Package etcd starts real etcd clusters of one and three members and several servers that use
// them. It checks that writes are immediately visible on other servers, that a server can resume
// from its file after it was killed, and how it behaves if etcd is unavailable, full, compacted, or
// replaced.
//
//	go test .                                # about a minute; builds apilet from the folder above, and etcd from its module
//	APILET=./apilet ETCD=./etcd go test -count=1 .
//
// The folder ../linear tests the histories of three servers on three members that are killed at
// random.
package etcd
