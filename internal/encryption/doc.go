// Package encryption is encryption at rest: what kube-apiserver's EncryptionConfiguration says, put into force.
//
//	providers, err := encryption.Open(ctx, encryption.Config{Path: "encryption.yaml", Reload: true, Log: log})
//	sealed, err := providers.Seal("//secrets/default/s", json)  // k8s:enc:secretbox:v1:key1:…; nil where the type is not named: it lies as it is
//	json, stale, err := providers.Open("//secrets/default/s", sealed)
//	go providers.Run(ctx)                                       // reads the file again when it has changed
//
// The file names providers for resources. The first of them writes, all of them read: what another than the first has written is stale, and is
// written anew by the next write of the same object, if only it is the same ("kubectl replace" of all of them).
//
//	resources:                                       written                                    read, in this order
//	- resources: ["secrets"]                         k8s:enc:secretbox:v1:key2: nonce box       key2, key1, as it is
//	  providers:
//	  - secretbox: {keys: [{name: key2, …}, {name: key1, …}]}
//	  - identity: {}
//	- resources: ["*.apps"]                          k8s:enc:kms:v2:tpm: EncryptedObject        tpm
//	  providers:
//	  - kms: {apiVersion: v2, name: tpm, endpoint: unix:///run/tpm.sock}
//
// A prefix says which provider, and which of its keys, has written a value, so that no key is tried on what it did not write. What the prefixes lead to
// is the ciphers of k8s.io/apiserver (AES, secretbox), for kms under a key that is made for each value from a seed, which the plug-in has encrypted
// (kms.go). Where a cipher authenticates more than the value, that is its key in etcd: a value that is put in another object's place is not read.
// In a data file it is the key that etcd would have, below /registry/.
//
// Words of errors, names of metrics, times between two looks and the rules of the file are kube-apiserver's; its validation is called as it is. Its
// package that does all of this is not: with it come gRPC, tracing and a hundred packages more. What KMS needs of gRPC is a POST over HTTP/2
// (grpc.go), so that a program without etcd has KMS, too.
//
// Invariants: what is in force changes as a whole, and never to a file with a mistake, or to a plug-in that does not answer; Seal under an
// identity, or of a type that the file does not name, touches nothing; keys are neither logged nor shown.
package encryption
