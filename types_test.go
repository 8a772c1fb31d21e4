package main

import (
	"encoding/json"
	"fmt"
	"testing"
)

func TestScratch(t *testing.T) {
	reg := newRegistry()
	for _, res := range reg.all() {
		fmt.Println(res.group, res.version, res.plural, res.kind, res.deprecation)
	}
	cm := reg.lookup("", "v1", "configmaps")
	for _, b := range []string{"", "{", "hello this is not json at all, you know it is not", "[]", "null", `{"kind":"Secret","apiVersion":"v1","metadata":{"name":"x"}}`, `{"data":5}`, `{"metadata":{"name":5}}`, `{"metadata":{"name":"x","foo":1},"bogus":1,"bogus":2,"data":{"a":"1","a":"2"}}`} {
		obj, strict, err := cm.decode([]byte(b), "application/json", "")
		fmt.Println(strict, err)
		if err == nil {
			st, at, err := cm.encodeStored(obj)
			fmt.Println(string(st), at, err)
		}
	}
	h := reg.lookup("autoscaling", "v1", "horizontalpodautoscalers")
	obj, _, err := h.decode([]byte(`{"metadata":{"name":"x"},"spec":{"maxReplicas":3,"targetCPUUtilizationPercentage":50,"scaleTargetRef":{"kind":"Deployment","name":"x","apiVersion":"apps/v1"}}}`), "", "")
	fmt.Println(err)
	st, at, err := h.encodeStored(obj)
	fmt.Println(string(st), at, err)
	d, err := h.document(st)
	fmt.Println(string(d), err, json.Valid(d))
}
