// Package layout is kube-apiserver's layout of its data in etcd: which key an object has there, and what its value is.
//
//	lay := layout.New("/registry", reg)
//	at, err := lay.EtcdKey("//services/default/web")       // "/registry/services/specs/default/web"
//	key, ok := lay.StoreKey(at)                            // and back; false for what is no object that we serve
//	value, err := lay.Encode(key, json)                    // {"kind":"Service","apiVersion":"v1","metadata":{...},...}
//	stored, err := lay.Decode(key, value)                  // what store.Change wants, from JSON or protobuf
//
// Whoever writes what this package says, and reads what it reads, can take turns with kube-apiserver on the same etcd, or work beside it:
//
//	                     internal/store                                     etcd
//	key                  //services/default/web                             /registry/services/specs/default/web
//	                     /rbac.authorization.k8s.io/roles/ns/r              /registry/roles/ns/r
//	                     /a.example.com/widgets/ns/w                        /registry/a.example.com/widgets/ns/w
//	value                {"metadata":{"name":...,"resourceVersion":"7"}...  {"kind":"Service","apiVersion":"v1","metadata":{"name":...}...
//	                     in the version that apilet keeps                   in the storage version of kube-apiserver 1.37
//
// The facts are kube-apiserver's own: its keys and storage versions were read from the etcd of a running one, and stand in testdata with the
// values, in both encodings, that the tests read and write again. In its source they are in k8s.io/kubernetes/pkg/kubeapiserver
// (SpecialDefaultResourcePrefixes, and the storage factory) and k8s.io/apiserver/pkg/server/storage.
//
// Custom resources keep in the store, as a mark before their members, the version that their value names (see scheme's StoredVersion), so
// that a value means the same whatever became of the definition meanwhile.
//
// Invariants: StoreKey(EtcdKey(k)) is k; what Decode returns without an error can be decoded by scheme, whatever the value was: rubbish is an
// error, found in time linear in its bytes, and comes with a stand-in ([Stored]) that is stored in its place. A [Layout] does not change; it may
// be used by many at once, its Encryption among them, which values go through last and come through first. It knows no etcd client.
package layout
