package scheme

// This file converts resource.k8s.io/v1beta1, in which a request for devices has in itself what v1 keeps under exactly, and a device under basic what v1 has
// in itself. All else has the same names, so both ways go through JSON: nobody reads these versions often.

import (
	"bytes"
	"encoding/json"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
)

// ofDevices are the rows of resource.k8s.io/v1beta1.
func ofDevices() []*Resource {
	const group = "resource.k8s.io"
	return GroupVersion(group, "v1beta1",
		asIn[resourcev1beta1.DeviceClass, resourcev1.DeviceClass](Counted, group, "deviceclasses", ""),
		Row[resourcev1beta1.ResourceClaim](Namespaced, "resourceclaims", "status").storedIn(group, converting(
			reshaped[resourcev1beta1.ResourceClaim, resourcev1.ResourceClaim](intoExactly, "spec", "devices", "requests"),
			reshaped[resourcev1.ResourceClaim, resourcev1beta1.ResourceClaim](outOfExactly, "spec", "devices", "requests"))),
		Row[resourcev1beta1.ResourceClaimTemplate](Namespaced, "resourceclaimtemplates", "").storedIn(group, converting(
			reshaped[resourcev1beta1.ResourceClaimTemplate, resourcev1.ResourceClaimTemplate](intoExactly, "spec", "spec", "devices", "requests"),
			reshaped[resourcev1.ResourceClaimTemplate, resourcev1beta1.ResourceClaimTemplate](outOfExactly, "spec", "spec", "devices", "requests"))),
		Row[resourcev1beta1.ResourceSlice](Counted, "resourceslices", "").storedIn(group, converting(
			reshaped[resourcev1beta1.ResourceSlice, resourcev1.ResourceSlice](outOfBasic, "spec", "devices"),
			reshaped[resourcev1.ResourceSlice, resourcev1beta1.ResourceSlice](intoBasic, "spec", "devices"))))
}

type members = map[string]json.RawMessage

// reshaped converts by changing each element of the list at a path.
func reshaped[In, Out any](change func(element members), path ...string) func(*In) *Out {
	return func(in *In) *Out {
		out := new(Out)
		doc, err := json.Marshal(in)
		if err == nil {
			doc, err = changeAt(doc, change, path)
		}
		if err == nil {
			err = json.Unmarshal(doc, out)
		}
		if err != nil {
			panic(fmt.Errorf("a %T does not become a %T: %w", in, out, err)) // both have these fields
		}
		return out
	}
}

func changeAt(doc json.RawMessage, change func(members), path []string) (json.RawMessage, error) {
	if len(doc) == 0 || bytes.Equal(doc, []byte("null")) {
		return doc, nil
	}
	if len(path) == 0 {
		var list []members
		if err := json.Unmarshal(doc, &list); err != nil {
			return nil, err
		}
		for _, element := range list {
			change(element)
		}
		return json.Marshal(list)
	}
	var object members
	if err := json.Unmarshal(doc, &object); err != nil {
		return nil, err
	}
	child, there := object[path[0]]
	if !there {
		return doc, nil
	}
	child, err := changeAt(child, change, path[1:])
	if err != nil {
		return nil, err
	}
	object[path[0]] = child
	return json.Marshal(object)
}

// intoExactly keeps the name and the alternatives of a request where they are. Whose class is empty has none: both have an empty class for nothing.
func intoExactly(request members) { nest(request, "exactly", "name", "firstAvailable") }

func outOfExactly(request members) { unnest(request, "exactly") }

func intoBasic(device members) { nest(device, "basic", "name") }

func outOfBasic(device members) { unnest(device, "basic") }

// nest moves all members but those kept into one, unless nothing is in them.
func nest(object members, into string, kept ...string) {
	inner, stay := members{}, members{}
	for _, name := range kept {
		if value, ok := object[name]; ok {
			stay[name] = value
		}
	}
	for name, value := range object {
		if _, ok := stay[name]; !ok && string(value) != `""` {
			inner[name] = value
		}
	}
	clear(object)
	for name, value := range stay {
		object[name] = value
	}
	if _, alternatives := stay["firstAvailable"]; len(inner) > 0 || into == "basic" && !alternatives {
		object[into], _ = json.Marshal(inner)
	}
}

// unnest moves the members of one beside it.
func unnest(object members, from string) {
	var inner members
	_ = json.Unmarshal(object[from], &inner)
	delete(object, from)
	for name, value := range inner {
		object[name] = value
	}
}
