package main

// This file contains the members that validation requires and the schema does not mention. Each
// entry contains only the members that are required for a valid object. For other types, the schema
// is sufficient.

import (
	"slices"
	"strings"
)

const (
	podSpec  = `{"containers":[{"name":"c","image":"i"}]}`
	template = `"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":` + podSpec + `}`
	jobSpec  = `{"template":{"spec":{"restartPolicy":"Never","containers":[{"name":"c","image":"i"}]}}}`
	webhooks = `{"webhooks":[{"name":"a.b.example","clientConfig":{"url":"https://127.0.0.1:1/"},"sideEffects":"None","failurePolicy":"Ignore","admissionReviewVersions":["v1"]}]}`
	claim    = `{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"c.example"}}]}}`
	role     = `"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"},"subjects":[{"kind":"User","name":"nobody","apiGroup":"rbac.authorization.k8s.io"}]`
	matches  = `"resourceRules":[{"apiGroups":["none.example"],"apiVersions":["*"],"operations":["CREATE"],"resources":["*"]}]`
	onlyNone = `"matchResources":{"namespaceSelector":{"matchLabels":{"no":"where"}}}`
)

// needs contains the required members other than apiVersion, kind and metadata, by kind. An entry
// for "group/version Kind" takes precedence over an entry for "Kind".
var needs = map[string]string{
	"Binding":                          `{"target":{"kind":"Node","name":"n1"}}`,
	"Endpoints":                        `{"subsets":[{"addresses":[{"ip":"10.1.2.3"}],"ports":[{"port":80}]}]}`,
	"v1 Event":                         `{"involvedObject":{"kind":"Pod","name":"p","namespace":"NAMESPACE"},"reason":"r","message":"m","type":"Normal"}`,
	"events.k8s.io/v1 Event":           `{"regarding":{"kind":"Pod","name":"p","namespace":"NAMESPACE"},"eventTime":"2026-01-02T03:04:05.000001Z","reportingController":"a.b/c","reportingInstance":"i","action":"a","reason":"r","type":"Normal"}`,
	"LimitRange":                       `{"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"9P"}}]}}`,
	"PersistentVolumeClaim":            `{"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`,
	"Pod":                              `{"spec":` + podSpec + `}`,
	"Eviction":                         `{}`,
	"PodTemplate":                      `{"template":{"metadata":{"labels":{"a":"b"}},"spec":` + podSpec + `}}`,
	"ReplicationController":            `{"spec":{"selector":{"a":"b"},"template":{"metadata":{"labels":{"a":"b"}},"spec":` + podSpec + `}}}`,
	"ResourceQuota":                    `{"spec":{"hard":{"count/widgets.example":"9"}}}`,
	"TokenRequest":                     `{"spec":{"audiences":["a"],"expirationSeconds":600}}`,
	"Service":                          `{"spec":{"ports":[{"port":80}]}}`,
	"PersistentVolume":                 `{"spec":{"capacity":{"storage":"1Gi"},"accessModes":["ReadWriteOnce"],"hostPath":{"path":"/x"}}}`,
	"MutatingAdmissionPolicy":          `{"spec":{"reinvocationPolicy":"Never","failurePolicy":"Ignore","matchConstraints":{` + matches + `},"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{}"}}]}}`,
	"MutatingAdmissionPolicyBinding":   `{"spec":{"policyName":"siege",` + onlyNone + `}}`,
	"MutatingWebhookConfiguration":     webhooks,
	"ValidatingWebhookConfiguration":   webhooks,
	"ValidatingAdmissionPolicy":        `{"spec":{"failurePolicy":"Ignore","matchConstraints":{` + matches + `},"validations":[{"expression":"true"}]}}`,
	"ValidatingAdmissionPolicyBinding": `{"spec":{"policyName":"siege","validationActions":["Warn"],` + onlyNone + `}}`,
	"CustomResourceDefinition": `{"metadata":{"name":"things.siege.example"},"spec":{"group":"siege.example","scope":"Namespaced","names":{"plural":"things","singular":"thing","kind":"Thing","listKind":"ThingList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object"}}}}}]}}`,
	"APIService":                 `{"metadata":{"name":"v1.siege2.example"},"spec":{"group":"siege2.example","version":"v1","groupPriorityMinimum":1,"versionPriority":1,"insecureSkipTLSVerify":true,"service":{"name":"x","namespace":"default"}}}`,
	"ControllerRevision":         `{"revision":1,"data":{"a":1}}`,
	"DaemonSet":                  `{"spec":{` + template + `}}`,
	"Deployment":                 `{"spec":{` + template + `}}`,
	"ReplicaSet":                 `{"spec":{` + template + `}}`,
	"StatefulSet":                `{"spec":{"serviceName":"s",` + template + `}}`,
	"TokenReview":                `{"spec":{"token":"x"}}`,
	"LocalSubjectAccessReview":   `{"metadata":{"namespace":"NAMESPACE"},"spec":{"user":"u","resourceAttributes":{"namespace":"NAMESPACE","verb":"get","resource":"pods"}}}`,
	"SelfSubjectAccessReview":    `{"spec":{"resourceAttributes":{"namespace":"NAMESPACE","verb":"get","resource":"pods"}}}`,
	"SelfSubjectRulesReview":     `{"spec":{"namespace":"NAMESPACE"}}`,
	"SubjectAccessReview":        `{"spec":{"user":"u","resourceAttributes":{"namespace":"NAMESPACE","verb":"get","resource":"pods"}}}`,
	"HorizontalPodAutoscaler":    `{"spec":{"maxReplicas":3,"scaleTargetRef":{"apiVersion":"apps/v1","kind":"Deployment","name":"d"}}}`,
	"CronJob":                    `{"spec":{"schedule":"0 0 1 1 *","jobTemplate":{"spec":` + jobSpec + `}}}`,
	"Job":                        `{"spec":` + jobSpec + `}`,
	"CertificateSigningRequest":  `{"spec":{"signerName":"example.com/s","usages":["client auth"],"request":"REQUEST"}}`,
	"EndpointSlice":              `{"addressType":"IPv4","endpoints":[{"addresses":["10.1.2.3"]}],"ports":[{"port":80}]}`,
	"FlowSchema":                 `{"spec":{"priorityLevelConfiguration":{"name":"workload-low"},"matchingPrecedence":9999}}`,
	"PriorityLevelConfiguration": `{"spec":{"type":"Limited","limited":{"nominalConcurrencyShares":1,"limitResponse":{"type":"Reject"}}}}`,
	"IngressClass":               `{"spec":{"controller":"example.com/c"}}`,
	"IPAddress":                  `{"metadata":{"name":"10.96.77.77"},"spec":{"parentRef":{"resource":"services","namespace":"default","name":"x"}}}`,
	"Ingress":                    `{"spec":{"defaultBackend":{"service":{"name":"s","port":{"number":80}}}}}`,
	"ServiceCIDR":                `{"spec":{"cidrs":["10.97.0.0/24"]}}`,
	"RuntimeClass":               `{"handler":"h"}`,
	"PodDisruptionBudget":        `{"spec":{"minAvailable":1,"selector":{"matchLabels":{"a":"b"}}}}`,
	"ClusterRoleBinding":         `{` + role + `}`,
	"RoleBinding":                `{` + role + `}`,
	"ResourceClaim":              `{"spec":` + claim + `}`,
	"ResourceClaimTemplate":      `{"spec":{"spec":` + claim + `}}`,
	"ResourceSlice":              `{"spec":{"driver":"d.example","nodeName":"n1","pool":{"name":"p","generation":1,"resourceSliceCount":1}}}`,
	"CSIStorageCapacity":         `{"storageClassName":"s"}`,
	"StorageClass":               `{"provisioner":"example.com/p"}`,
	"VolumeAttachment":           `{"spec":{"attacher":"a.example","nodeName":"n1","source":{"persistentVolumeName":"v"}}}`,
	"VolumeAttributesClass":      `{"driverName":"d.example","parameters":{"a":"b"}}`,
	"CSINode":                    `{"spec":{"drivers":[]}}`,
	"Lease":                      `{"spec":{"holderIdentity":"h"}}`,
}

// base returns a valid object of a kind. It has the given name unless the type fixes the name; if
// name is empty, the server generates one.
func (k *kind) base(name string) *node {
	o := k.valid(k.schema, "")
	members, known := needs[k.apiVersion+" "+k.name]
	if !known {
		members, known = needs[k.name]
	}
	if known {
		members = strings.NewReplacer("NAMESPACE", namespace, "REQUEST", signingRequest()).Replace(members)
		o = parsed(members)
	}
	metadata := o.get("metadata")
	if metadata == nil {
		metadata = &node{Kind: "object"}
	}
	switch {
	case metadata.get("name") != nil || k.review():
	case name == "" && !k.part():
		metadata.set("generateName", text("siege-"))
	case k.part():
		metadata.set("name", text("siege"))
	default:
		metadata.set("name", text(name))
	}
	whole := &node{Kind: "object"}
	whole.set("apiVersion", text(k.apiVersion))
	whole.set("kind", text(k.name))
	whole.set("metadata", metadata)
	for _, m := range o.Members {
		whole.set(m.Name, m.Value)
	}
	return whole
}

// part reports whether a POST creates a sub-resource of the object siege.
func (k *kind) part() bool { return strings.Contains(k.collection, "/siege/") }

// review reports whether the server answers a POST without storing an object.
func (k *kind) review() bool { return !slices.Contains(k.verbs, "GET") && !k.part() }
