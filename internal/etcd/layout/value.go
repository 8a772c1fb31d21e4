package layout

// This file converts the values.
//
//	stored JSON ──without resourceVersion, kind and apiVersion before it──▶ value                  usual case: no object in between
//	stored JSON ──▶ object ──▶ object of kube-apiserver's storage version ──▶ value                 definitions, stored here in v1, written in v1beta1
//	value ──by its apiVersion's row──▶ object ──scheme's EncodeStored──▶ stored JSON
//
// Every value is decoded into its Go type, because the objects in the store must be readable, and
// other clients of etcd may write arbitrary values. Then the defaults are set: kube-apiserver
// stores objects without some of them (a claim's status is {}) and sets them at each read.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tidwall/gjson"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "sigs.k8s.io/json"

	"apilet/internal/bounded"
	"apilet/internal/kinds/defaults"
	"apilet/internal/scheme"
	"apilet/internal/scheme/protobuf"
)

// Document is an object in the form that store.Change requires: the decimal revision belongs at
// JSON[RevAt].
type Document struct {
	JSON     []byte // does not contain the revision
	RevAt    int    // offset at which the revision belongs
	Deleting bool   // the object has a deletionTimestamp
	Stale    bool   // Encode would now encrypt the value differently
}

// ---- Writing

// Encode returns the etcd value of stored JSON. The JSON may contain the revision. The value is
// identical, byte for byte, to the value that kube-apiserver writes in JSON for the same object.
func (l *Layout) Encode(key string, stored []byte) ([]byte, error) {
	value, err := l.encode(key, stored)
	if err != nil || !l.Encryption.Enabled() {
		return value, err
	}
	at, err := l.EtcdKey(key)
	if err != nil {
		return nil, err
	}
	return l.Encryption.SealForEtcd(key, at, value)
}

func (l *Layout) encode(key string, stored []byte) ([]byte, error) {
	base, _, _, ok := scheme.SplitKey(key)
	if !ok {
		return nil, fmt.Errorf("%q is not the key of an object", key)
	}
	t := l.byBase[base]
	if t == nil {
		return l.encodeCustom(base, stored)
	}
	if t.out != nil {
		obj, err := t.storeVersion.DecodeStored(stored)
		if err == nil {
			obj, err = t.out(obj)
		}
		if err != nil {
			return nil, err
		}
		if stored, err = json.Marshal(obj); err != nil {
			return nil, err
		}
	}
	return appendValue(t.etcdVersion.Prefix, stored), nil
}

// appendValue adds kind and apiVersion before the members of stored JSON, and removes the revision.
func appendValue(kind string, stored []byte) []byte {
	from, to := revisionMember(stored)
	value := make([]byte, 0, len(kind)+len(stored)+1)
	value = append(append(value, '{'), kind...)
	value = append(append(value, stored[1:from]...), stored[to:]...)
	return append(value, '\n')
}

// revisionMember returns the position of the member metadata.resourceVersion, including a comma if
// it has one. It returns 1, 1 if the member does not exist.
func revisionMember(stored []byte) (from, to int) {
	found := gjson.GetBytes(stored, "metadata.resourceVersion")
	if found.Index == 0 {
		return 1, 1
	}
	from, to = found.Index-len(`"resourceVersion":`), found.Index+len(found.Raw)
	switch {
	case to < len(stored) && stored[to] == ',':
		to++
	case stored[from-1] == ',':
		from--
	}
	return from, to
}

// encodeCustom encodes a custom resource. Like kube-apiserver, it sorts the members by name. The
// kind is that of the definition.
func (l *Layout) encodeCustom(base string, stored []byte) ([]byte, error) {
	row := l.customRow(base)
	if row == nil {
		return nil, fmt.Errorf("there is no established definition of %s", strings.Trim(base, "/"))
	}
	version, at := row.Custom.StoredVersion(stored)
	if version == "" {
		version = row.Custom.StorageVersion
	}
	kind, _ := json.Marshal(row.Kind)
	apiVersion, _ := json.Marshal(scheme.GroupVersionString(row.Group, version))
	members := []member{{"apiVersion", `"apiVersion":` + string(apiVersion)}, {"kind", `"kind":` + string(kind)}}
	rest := slices.Concat([]byte("{"), stored[at:])
	from, to := revisionMember(rest)
	rest = slices.Delete(rest, from, to)
	gjson.ParseBytes(rest).ForEach(func(name, value gjson.Result) bool {
		members = append(members, member{name.String(), name.Raw + ":" + value.Raw})
		return true
	})
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	value := make([]byte, 0, len(rest)+len(members[0].text)+len(members[1].text)+4)
	for i := range members {
		value = append(append(value, "{,"[min(i, 1)]), members[i].text...)
	}
	return append(value, "}\n"...), nil
}

// A member contains the name of a member of a JSON object, which is used for sorting, and its
// complete text.
type member struct{ name, text string }

// ---- Reading

// Decode decodes an etcd value in JSON or protobuf. If it fails, the error wraps
// scheme.ErrUnreadable, and Document is a stand-in with the object's name that cannot be decoded
// either. With the stand-in, the object exists, is reported, and can be deleted.
func (l *Layout) Decode(key string, value []byte) (Document, error) {
	base, namespace, name, ok := scheme.SplitKey(key)
	if !ok {
		return Document{}, fmt.Errorf("%q is not the key of an object", key)
	}
	var stored Document
	value, stale, err := l.decrypt(key, value)
	if t := l.byBase[base]; err == nil && t != nil {
		stored, err = t.decode(value)
	} else if err == nil {
		stored, err = decodeCustom(strings.Split(base, "/")[1], value)
	}
	if err != nil {
		return standIn(namespace, name, err), fmt.Errorf("%w: %s: %w", scheme.ErrUnreadable, key, err)
	}
	stored.Stale = stale
	return stored, nil
}

// decrypt returns the plain value. stale reports whether the value should be encrypted again.
func (l *Layout) decrypt(key string, value []byte) (plain []byte, stale bool, err error) {
	if !l.Encryption.Enabled() {
		return value, false, encrypted(value)
	}
	at, err := l.EtcdKey(key)
	if err != nil {
		return nil, false, err
	}
	return l.Encryption.OpenFromEtcd(key, at, value)
}

// Equal reports whether two values represent the same document. Two encryptions of the same
// document differ.
func (l *Layout) Equal(key string, a, b []byte) bool {
	if bytes.Equal(a, b) || !l.Encryption.Enabled() {
		return bytes.Equal(a, b)
	}
	one, _, err := l.decrypt(key, a)
	other, _, failed := l.decrypt(key, b)
	return err == nil && failed == nil && bytes.Equal(one, other)
}

// encrypted returns an error if kube-apiserver has encrypted the value
// (--encryption-provider-config). Encrypted values have the prefix "k8s:enc:PROVIDER:VERSION:KEY:"
// and cannot be decoded without the key.
func encrypted(value []byte) error {
	const mark = "k8s:enc:"
	if !bytes.HasPrefix(value, []byte(mark)) {
		return nil
	}
	how := strings.SplitN(string(value[:min(len(value), 100)]), ":", 6)
	if len(how) < 6 {
		how = append(how[:2], "unknown")
	}
	return fmt.Errorf("kube-apiserver has encrypted it (%q), and this server has no key: set --encryption-provider-config",
		strings.ToValidUTF8(strings.Join(how[:min(len(how), 5)], ":"), "?"))
}

// standIn returns the document that replaces an unreadable object. It is valid JSON with the name
// of the object and the reason. Its creation time is intentionally out of range, so that decoding
// it fails.
func standIn(namespace, name string, why error) Document {
	meta := `{"metadata":{"name":` + quoted(name)
	if namespace != "" {
		meta += `,"namespace":` + quoted(namespace)
	}
	meta += `,"resourceVersion":"`
	return Document{JSON: []byte(meta + `","creationTimestamp":"10000-01-01T00:00:00Z"},"` + scheme.StandInReason + `":` + quoted(fmt.Sprintf("%.300s", why)) + `}`), RevAt: len(meta)}
}

func quoted(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

func (t *storedType) decode(value []byte) (Document, error) {
	obj, err := t.object(value)
	if err != nil {
		return Document{}, err
	}
	stored := Document{Deleting: obj.GetDeletionTimestamp() != nil}
	stored.JSON, stored.RevAt, err = t.storeVersion.EncodeStored(obj)
	return stored, err
}

// object decodes a value and converts it to the version used in the store.
func (t *storedType) object(value []byte) (scheme.Object, error) {
	obj, err := t.decodeUsual(value)
	if obj == nil && err == nil {
		obj, err = t.decodeOther(value)
	}
	switch {
	case err != nil:
		return nil, err
	case obj.GetName() == "" && t.storeVersion.Base != rangeBase:
		return nil, fmt.Errorf("it has no name")
	}
	defaults.Set(obj)
	return obj, nil
}

// decodeUsual decodes JSON with the prefix that Encode writes. It returns nil for other values.
func (t *storedType) decodeUsual(value []byte) (scheme.Object, error) {
	rest, ok := bytes.CutPrefix(value, []byte("{"))
	if !ok || t.in != nil || !bytes.HasPrefix(rest, []byte(t.etcdVersion.Prefix)) {
		return nil, nil
	}
	obj, err := t.etcdVersion.DecodeStored(value)
	if err != nil {
		return nil, err
	}
	// the JSON contains a second kind or apiVersion that differs
	if kind := obj.GetObjectKind().GroupVersionKind(); kind != t.etcdVersion.GroupVersionKind() {
		return nil, nil
	}
	return obj, nil
}

// decodeOther decodes all other values: protobuf and other versions.
func (t *storedType) decodeOther(value []byte) (scheme.Object, error) {
	row, format, err := t.rowOf(value)
	if err != nil {
		return nil, err
	}
	obj, _, err := row.Decode(value, string(format), "")
	if err == nil && row == t.etcdVersion && t.in != nil {
		obj, err = t.in(obj)
	}
	return obj, err
}

// rowOf returns the row for the value's apiVersion, and the value's format.
func (t *storedType) rowOf(value []byte) (*scheme.Resource, scheme.BodyFormat, error) {
	if !bytes.HasPrefix(value, protobuf.ProtobufPrefix) {
		if !json.Valid(value) {
			return nil, "", fmt.Errorf("it is neither JSON nor protobuf")
		}
		row, err := t.version(gjson.GetBytes(value, "apiVersion").String())
		return row, scheme.JSONFormat, err
	}
	envelope, err := scheme.OpenEnvelope(value)
	if err != nil {
		return nil, "", err
	}
	row, err := t.version(envelope.APIVersion)
	return row, scheme.ProtobufFormat, err
}

func (t *storedType) version(apiVersion string) (*scheme.Resource, error) {
	if row := t.versions[apiVersion]; row != nil {
		return row, nil
	}
	return nil, fmt.Errorf("apiVersion %.100q is not a known version of %s", apiVersion, t.storeVersion.Kind)
}

// decodeCustom decodes a custom resource. Its definition need not exist yet.
func decodeCustom(group string, value []byte) (Document, error) {
	u := &unstructured.Unstructured{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &u.Object); err != nil {
		return Document{}, err
	}
	apiVersion, _ := u.Object["apiVersion"].(string)
	gv, err := schema.ParseGroupVersion(apiVersion)
	if kind, _ := u.Object["kind"].(string); err != nil || kind == "" || gv.Group != group || gv.Version == "" {
		return Document{}, fmt.Errorf("apiVersion %.100q and kind %.100q are not in group %s", apiVersion, kind, group)
	}
	if _, ok := u.Object["metadata"].(map[string]any); !ok {
		return Document{}, fmt.Errorf("it has no metadata")
	}
	var meta metav1.ObjectMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts([]byte(gjson.GetBytes(value, "metadata").Raw), &meta); err != nil {
		return Document{}, err
	}
	if meta.Name == "" {
		return Document{}, fmt.Errorf("it has no name")
	}
	if err := bounded.CheckSteps(u.Object); err != nil {
		return Document{}, err
	}
	row := &scheme.Resource{Group: group, Version: gv.Version, Kind: u.GetKind()}
	stored, revAt, err := row.EncodeStored(u)
	if err != nil {
		return Document{}, err
	}
	mark := `{"apiVersion":` + quoted(gv.Version) + `,`
	return Document{JSON: slices.Concat([]byte(mark), stored[1:]), RevAt: revAt + len(mark) - 1, Deleting: meta.DeletionTimestamp != nil}, nil
}

// ---- Definitions, which kube-apiserver still stores in v1beta1
