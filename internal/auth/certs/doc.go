// Package certs creates a certificate authority and a serving certificate if none are configured,
// renews them before they expire, and reloads certificate files when they change.
//
//	// ca.crt, ca.key, apiserver.crt, apiserver.key: made, or read
//	folder, err := certs.OpenCertFolder(certs.Config{Dir: "certs", Hosts: hosts, Now: now, Log: log})
//	err = folder.Renew()                                      // now and then: a serving certificate whose end is near is made anew
//	pair, err := certs.NewDynamicPair(log, "tls.crt", "tls.key") // files of somebody else; pair.Current() is what they hold now
//	listener = tls.NewListener(listener, certs.TLSConfig(pair.Current, authorities.Current))
//
// It is used instead of kubeadm and cert-manager, and instead of dynamiccertificates in
// k8s.io/apiserver/pkg/server. Certificates follow RFC 5280, and keys are ECDSA P-256.
//
// Invariants: Files with keys have mode 0600. If the mode of such a file is wrong, it is corrected,
// or the server does not start (exposed.go). Files are replaced atomically (package atomicfile). An
// existing authority is never replaced, because clients may trust it.
package certs
