// Package layout implements the keys and the encoding of values that kube-apiserver uses to store
// objects in etcd.
//
//	lay := layout.New("/registry", reg)
//	at, err := lay.EtcdKey("//services/default/web")       // "/registry/services/specs/default/web"
//	key, ok := lay.StoreKey(at)                            // the reverse; false for keys of data that is not served as an object
//	value, err := lay.Encode(key, json)                    // {"kind":"Service","apiVersion":"v1","metadata":{...},...}
//	stored, err := lay.Decode(key, value)                  // the input for store.Change, from JSON or protobuf
//
// A server that uses this package can share an etcd with kube-apiserver, either in turns or at the
// same time:
//
//	                     internal/store                                     etcd
//	key                  //services/default/web                             /registry/services/specs/default/web
//	                     /rbac.authorization.k8s.io/roles/ns/r              /registry/roles/ns/r
//	                     /a.example.com/widgets/ns/w                        /registry/a.example.com/widgets/ns/w
//	value                {"metadata":{"name":...,"resourceVersion":"7"}...  {"kind":"Service","apiVersion":"v1","metadata":{"name":...}...
//	                     in the version that apilet keeps                   in the storage version of kube-apiserver 1.37
//
// The keys and storage versions were read from the etcd of a running kube-apiserver. The results
// are stored in testdata together with values in both encodings, which are used to test decoding
// and encoding. In the source of Kubernetes they are defined in k8s.io/kubernetes/pkg/kubeapiserver
// (SpecialDefaultResourcePrefixes, and the storage factory) and
// k8s.io/apiserver/pkg/server/storage.
//
// The stored JSON of a custom resource begins with a mark that holds the version of its value (see
// scheme's StoredVersion). Therefore its meaning does not depend on later changes of the
// definition.
//
// Invariants: StoreKey(EtcdKey(k)) is k. If Decode returns no error, the scheme can decode the
// result, whatever the value was. For invalid values, it returns an error and a stand-in
// ([Document]) that can be stored instead. This takes time linear in the size of the value. A
// [Layout] is immutable and safe for concurrent use, including its Encryption, which is the last
// step of Encode and the first step of Decode. The package does not depend on an etcd client.
package layout
