// Package certs keeps the authority and the serving certificate that are made where none is given, renews them before they end, and follows
// files of certificates so that a changed one holds at its next use.
//
//	// ca.crt, ca.key, apiserver.crt, apiserver.key: made, or read
//	folder, err := certs.OpenCertFolder(certs.Config{Dir: "certs", Hosts: hosts, Now: now, Log: log})
//	err = folder.Renew()                                      // now and then: a serving certificate whose end is near is made anew
//	pair, err := certs.FollowPair(log, "tls.crt", "tls.key")  // files of somebody else; pair.Now() is what they hold now
//	listener = tls.NewListener(listener, certs.TLSConfig(pair.Now, authorities.Now))
//
// It is what kubeadm and cert-manager do for kube-apiserver, and what dynamiccertificates in k8s.io/apiserver/pkg/server does in it.
// Certificates are RFC 5280's, keys are ECDSA P-256.
//
// Invariants: files with keys are mode 0600, or put right, or the server does not start (exposed.go); a file appears whole or not at all
// (package atomicfile); an authority that clients may trust already is never replaced.
package certs
