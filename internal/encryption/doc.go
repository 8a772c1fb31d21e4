// Package encryption implements encryption at rest as configured by kube-apiserver's
// EncryptionConfiguration.
//
//	providers, err := encryption.Open(ctx, encryption.Config{Path: "encryption.yaml", Reload: true, Log: log})
//	sealed, err := providers.Seal("//secrets/default/s", json)  // k8s:enc:secretbox:v1:key1:…; nil if the type is not configured
//	json, stale, err := providers.Open("//secrets/default/s", sealed)
//	go providers.Run(ctx)                                       // reloads the file when it has changed
//
// The file assigns providers to resources. New values are encrypted by the first provider. Existing
// values may be decrypted by any provider. A value that was not encrypted by the first provider is
// stale. The next write of the object encrypts it again, even if the object does not change
// ("kubectl replace" of all objects).
//
//	resources:                                       written                                    read, in this order
//	- resources: ["secrets"]                         k8s:enc:secretbox:v1:key2: nonce box       key2, key1, unencrypted
//	  providers:
//	  - secretbox: {keys: [{name: key2, …}, {name: key1, …}]}
//	  - identity: {}
//	- resources: ["*.apps"]                          k8s:enc:kms:v2:tpm: EncryptedObject        tpm
//	  providers:
//	  - kms: {apiVersion: v2, name: tpm, endpoint: unix:///run/tpm.sock}
//
// The provider and the key are stored as a prefix of the value, so that only this key is tried. The
// ciphers (AES, secretbox) are implemented in k8s.io/apiserver. For the provider kms, a key is
// derived for each value from a seed that was encrypted by the plug-in (kms.go). Ciphers that
// authenticate additional data use the key of the object in etcd, so a value that is copied to
// another object cannot be read. In a data file this is the key that the object would have in etcd,
// below /registry/.
//
// Error messages, metrics and polling intervals are the same as in kube-apiserver, and its
// validation function is used for the file. The package that implements encryption in
// kube-apiserver is not used, because it requires gRPC, tracing and a hundred other packages. KMS
// only needs a POST over HTTP/2 from gRPC (grpc.go), so that KMS also works in a binary without
// etcd.
//
// Invariants: the configuration is replaced atomically. It is not replaced if the new file is
// invalid or if a plug-in does not respond. Seal does nothing for the provider identity and for
// types that are not configured. Keys are neither logged nor shown.
package encryption
