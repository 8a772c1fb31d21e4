package main

// This file writes an object of every built-in type to etcd, with all fields set. The objects are
// encoded in protobuf like in kube-apiserver and in JSON like in apilet. Both servers must be able
// to read both. These objects would be rejected by a server. They are used to test the decoders,
// conversions and defaults. They are stored in a separate etcd, and the servers are stopped at the
// end.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"apilet/internal/apitest/kubetest"
	"apilet/internal/etcd/layout"
	"apilet/internal/scheme"
)

const filledIn = "filled"

// fields runs the chapter about these objects.
func (t *takeover) fields() {
	t.stopAll()
	check(os.RemoveAll(filepath.Join(t.dir, "etcd")))
	t.startEtcd()
	kube, apilet := t.startKube(), t.startApilet(filledIn)
	lay := layout.New("/registry", scheme.NewRegistry())
	var refused []string
	put := 0
	for _, row := range scheme.Builtins {
		if row.Virtual || row.Conversion != nil || harmful[row.Kind] {
			continue
		}
		n, err := t.fill(lay, row)
		if put += n; err != nil {
			refused = append(refused, row.APIVersion()+" "+row.Kind+": "+err.Error())
		}
	}
	t.claim(fmt.Sprintf("%d objects with every field set are put into etcd, in protobuf and in JSON", put), refused)
	t.same("in JSON", kube, apilet)
	t.inProtobuf(kube, apilet)
	t.stop(kube)
	t.stop(apilet)
}

// harmful contains the types that would make a server forward requests to other servers.
var harmful = map[string]bool{"APIService": true}

// fill stores the objects of a type.
func (t *takeover) fill(lay *layout.Layout, row *scheme.Resource) (put int, err error) {
	var obj scheme.Object = kubetest.Filled(row.GoType)
	obj.SetDeletionTimestamp(nil)
	obj.SetResourceVersion("")
	namespace := ""
	if row.Namespaced {
		namespace = "default"
	}
	obj.SetNamespace(namespace)
	if crd, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok {
		crd.Spec.Versions, crd.Status.StoredVersions = crd.Spec.Versions[:1], []string{"v1"}
		crd.Spec.Versions[0].Name, crd.Spec.Versions[0].Storage = "v1", true
	}
	// it takes effect immediately
	if level, ok := obj.(*flowcontrolv1.PriorityLevelConfiguration); ok {
		level.Spec.Type, level.Spec.Exempt = flowcontrolv1.PriorityLevelEnablementLimited, nil
		level.Spec.Limited.LimitResponse.Type = flowcontrolv1.LimitResponseTypeQueue
	}
	if row.Kind == "DaemonSet" { // all have it, because kube-apiserver returns 0 if it is missing
		obj.SetAnnotations(map[string]string{appsv1.DeprecatedTemplateGeneration: "7"})
	}
	for _, format := range []string{"json", "protobuf"} {
		obj.SetName(filledIn + "-" + format)
		stored, _, err := row.EncodeStored(obj)
		if err != nil {
			return put, err
		}
		key := row.Key(namespace, obj.GetName())
		value, err := lay.Encode(key, stored)
		if err != nil {
			return put, err
		}
		if format == "protobuf" {
			if value, err = protobufOf(value); err != nil {
				return put, err
			}
		}
		path, err := lay.EtcdKey(key)
		if err != nil {
			return put, err
		}
		if err := t.put(path, value); err != nil {
			return put, err
		}
		put++
	}
	return put, nil
}

// protobufOf converts a value from JSON to the protobuf that kube-apiserver writes.
func protobufOf(value []byte) ([]byte, error) {
	var meta struct{ APIVersion, Kind string }
	if err := json.Unmarshal(value, &meta); err != nil {
		return nil, err
	}
	rows := slices.Concat(scheme.Builtins, scheme.Optional)
	at := slices.IndexFunc(rows, func(row *scheme.Resource) bool { return row.APIVersion() == meta.APIVersion && row.Kind == meta.Kind })
	if at < 0 {
		return nil, fmt.Errorf("%s %s is in no row", meta.APIVersion, meta.Kind)
	}
	obj := rows[at].NewObject()
	if err := json.Unmarshal(value, obj); err != nil {
		return nil, err
	}
	raw, err := obj.(interface{ Marshal() ([]byte, error) }).Marshal()
	if err != nil {
		return nil, err
	}
	unknown := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: meta.APIVersion, Kind: meta.Kind}, Raw: raw}
	text, err := unknown.Marshal()
	return append([]byte("k8s\x00"), text...), err
}

func (t *takeover) put(key string, value []byte) error {
	body, err := json.Marshal(map[string][]byte{"key": []byte(key), "value": value})
	check(err)
	answer, err := http.Post(t.etcd+"/v3/kv/put", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd: %s", answer.Status)
	}
	return nil
}

// inProtobuf compares the protobuf responses of the servers.
func (t *takeover) inProtobuf(a, b *program) {
	var problems []string
	compared, alike := 0, 0
	read := func(p *program, path string) ([]byte, error) {
		req, err := http.NewRequest("GET", p.url+path, nil)
		check(err)
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Accept", runtime.ContentTypeProtobuf)
		answer, err := t.client.Do(req)
		if err != nil {
			return nil, err
		}
		defer answer.Body.Close()
		var text bytes.Buffer
		if _, err := text.ReadFrom(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
			return nil, fmt.Errorf("%s, %s: %d %v %.200q", p.name, path, answer.StatusCode, err, text.Bytes())
		}
		return text.Bytes(), nil
	}
	for _, row := range scheme.Builtins {
		if row.Virtual || harmful[row.Kind] || row.Deprecation.IsRemoved() {
			continue
		}
		for _, format := range []string{"json", "protobuf"} {
			path := "/" + filepath.Join("apis", row.APIVersion(), map[bool]string{true: "namespaces/default"}[row.Namespaced], row.Plural, filledIn+"-"+format)
			if row.Group == "" {
				path = "/api" + path[len("/apis"):]
			}
			one, err := read(a, path)
			other, errToo := read(b, path)
			switch {
			case err != nil || errToo != nil:
				problems = append(problems, fmt.Sprint(err, errToo))
				continue
			case bytes.Equal(one, other):
				alike++
			case !sameMessage(row, one, other):
				problems = append(problems, fmt.Sprintf("%s: %.300q and %.300q", path, one, other))
			}
			compared++
		}
	}
	t.claim(fmt.Sprintf("in protobuf: %d answers are equal, %d of them byte by byte", compared, alike), problems)
}

// sameMessage reports whether two responses contain equal objects. The order of map entries does
// not matter.
func sameMessage(row *scheme.Resource, a, b []byte) bool {
	var both [2]scheme.Object
	for i, text := range [][]byte{a, b} {
		var unknown runtime.Unknown
		if len(text) < 4 || unknown.Unmarshal(text[4:]) != nil {
			return false
		}
		both[i] = row.NewObject()
		if both[i].(interface{ Unmarshal([]byte) error }).Unmarshal(unknown.Raw) != nil {
			return false
		}
	}
	return reflect.DeepEqual(both[0], both[1])
}
