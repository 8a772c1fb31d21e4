package warnings

// This file contains the warnings for specific types. Package strategy does not import the
// strategies that would bring hundreds of packages into the program. Their few warnings are
// written here.

import (
	"context"
	"crypto/tls"
	"fmt"
	"reflect"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	jobwarnings "k8s.io/kubernetes/pkg/api/job"
	persistentvolumewarnings "k8s.io/kubernetes/pkg/api/persistentvolume"
	claimwarnings "k8s.io/kubernetes/pkg/api/persistentvolumeclaim"
	podwarnings "k8s.io/kubernetes/pkg/api/pod"
	servicewarnings "k8s.io/kubernetes/pkg/api/service"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"apilet/internal/kinds/strategy"
)

// onCreate returns the warnings about the creation of an internal object.
func onCreate(ctx context.Context, obj runtime.Object) []string {
	if s, ok := strategy.ImportedStrategies()[reflect.TypeOf(obj)]; ok {
		return s.Object.WarningsOnCreate(ctx, obj)
	}
	switch o := obj.(type) {
	case *core.Pod:
		return append(podName(o.Name, "the Pod's hostname"), podwarnings.GetWarningsForPod(ctx, o, nil)...)
	case *core.ReplicationController:
		return append(podName(o.Name, podNames), podwarnings.GetWarningsForPodTemplate(ctx, templatePath(), o.Spec.Template, nil)...)
	case *apps.ReplicaSet:
		return append(podName(o.Name, podNames), podwarnings.GetWarningsForPodTemplate(ctx, templatePath(), &o.Spec.Template, nil)...)
	case *batch.Job:
		return append(podName(o.Name, podNames), jobwarnings.WarningsForJobSpec(ctx, field.NewPath("spec"), &o.Spec, nil)...)
	case *core.ServiceAccount:
		return serviceAccount(o, nil)
	case *discovery.EndpointSlice:
		if o.AddressType == discovery.AddressTypeFQDN {
			return append([]string{"spec.addressType: FQDN endpoints are deprecated"}, endpointSlice(o)...)
		}
	}
	return always(obj)
}

// onUpdate returns the warnings about the replacement of old by obj.
func onUpdate(ctx context.Context, obj, old runtime.Object) []string {
	if s, ok := strategy.ImportedStrategies()[reflect.TypeOf(obj)]; ok {
		return s.Object.WarningsOnUpdate(ctx, obj, old)
	}
	switch o := obj.(type) {
	case *core.Pod: // written too often
		return nil
	case *core.ReplicationController:
		if before := old.(*core.ReplicationController); before.Generation != o.Generation {
			// Kubernetes looks at the old template.
			return podwarnings.GetWarningsForPodTemplate(ctx, templatePath(), before.Spec.Template, o.Spec.Template)
		}
	case *apps.ReplicaSet:
		if before := old.(*apps.ReplicaSet); before.Generation != o.Generation {
			return podwarnings.GetWarningsForPodTemplate(ctx, templatePath(), &o.Spec.Template, &before.Spec.Template)
		}
	case *batch.Job:
		if before := old.(*batch.Job); before.Generation != o.Generation {
			return jobwarnings.WarningsForJobSpec(ctx, field.NewPath("spec"), &o.Spec, &before.Spec)
		}
	case *core.ServiceAccount:
		return serviceAccount(o, old.(*core.ServiceAccount))
	}
	return always(obj)
}

// onStatus returns the warnings for an update of the status.
func onStatus(ctx context.Context, obj, old runtime.Object) (texts []string) {
	status := field.NewPath("status")
	switch o := obj.(type) {
	case *core.Pod:
		for i, ip := range o.Status.PodIPs {
			texts = append(texts, validation.GetWarningsForIP(status.Child("podIPs").Index(i).Child("ip"), ip.IP)...)
		}
		for i, ip := range o.Status.HostIPs {
			texts = append(texts, validation.GetWarningsForIP(status.Child("hostIPs").Index(i).Child("ip"), ip.IP)...)
		}
	case *core.Service:
		for i, ingress := range o.Status.LoadBalancer.Ingress {
			if ingress.IP != "" {
				texts = append(texts, validation.GetWarningsForIP(status.Child("loadBalancer", "ingress").Index(i), ingress.IP)...)
			}
		}
	case *networking.Ingress:
		return strategy.ImportedStrategies()[reflect.TypeOf(obj)].Status.WarningsOnUpdate(ctx, obj, old)
	}
	return texts
}

// always returns the warnings that do not depend on the old object.
func always(obj runtime.Object) (texts []string) {
	switch o := obj.(type) {
	case *core.Service:
		return servicewarnings.GetWarningsForService(o, nil)
	case *core.Secret:
		return secret(o)
	case *core.Node:
		return nodeWarnings(o)
	case *core.PersistentVolume:
		return persistentvolumewarnings.GetWarningsForPersistentVolume(o)
	case *core.PersistentVolumeClaim:
		return claimwarnings.GetWarningsForPersistentVolumeClaim(o)
	case *core.Endpoints:
		return endpoints(o)
	case *discovery.EndpointSlice:
		return endpointSlice(o)
	case *resource.ResourceSlice:
		if driver := o.Spec.Driver; driver != strings.ToLower(driver) {
			return []string{fmt.Sprintf("spec.driver: driver names should be lowercase; %q contains uppercase characters", driver)}
		}
	case *admissionregistration.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			texts = append(texts, excludedReviews(i, o.Webhooks[i].Rules)...)
		}
	case *admissionregistration.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			texts = append(texts, excludedReviews(i, o.Webhooks[i].Rules)...)
		}
	}
	return texts
}

// excludedReviews returns a warning for each resource that a rule names and for which webhooks are
// not called. It ignores rules with wildcards, which may be meant for other resources.
func excludedReviews(webhook int, rules []admissionregistration.RuleWithOperations) (texts []string) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ExcludeAdmissionWebhookVirtualResources) {
		return nil
	}
	for i := range rules {
		groups, resources := rules[i].APIGroups, rules[i].Resources
		if slices.Contains(groups, "*") || slices.Contains(resources, "*") {
			continue
		}
		excluded := exclusion.Excluded()
		for _, group := range groups {
			for _, resource := range resources {
				at := slices.Index(excluded, schema.GroupResource{Group: group, Resource: resource})
				if at < 0 {
					continue
				}
				texts = append(texts, fmt.Sprintf("%s: %s is excluded from admission webhooks; this rule will have no effect",
					field.NewPath("webhooks").Index(webhook).Child("rules").Index(i), excluded[at]))
				excluded = slices.Delete(excluded, at, at+1) // at most one warning for each resource
			}
		}
	}
	return texts
}

func templatePath() *field.Path { return field.NewPath("spec", "template") }

// podNames is the use of the names of workloads in the text of podName.
const podNames = "Pod names and hostnames"

func podName(name, usedIn string) []string {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in %s, which can result in surprising behavior; a DNS label is recommended: %v", usedIn, msgs)}
	}
	return nil
}

func serviceAccount(obj, old *core.ServiceAccount) []string {
	const enforce = "kubernetes.io/enforce-mountable-secrets"
	if old != nil {
		if _, ok := old.Annotations[enforce]; ok {
			return nil
		}
	}
	if _, ok := obj.Annotations[enforce]; ok {
		return []string{fmt.Sprintf("metadata.annotations[%s]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets", enforce)}
	}
	return nil
}

func secret(obj *core.Secret) []string {
	if obj.Type != core.SecretTypeTLS {
		return nil
	}
	if _, err := tls.X509KeyPair(obj.Data[core.TLSCertKey], obj.Data[core.TLSPrivateKeyKey]); err != nil {
		return []string{err.Error()}
	}
	return nil
}

func nodeWarnings(obj *core.Node) (texts []string) {
	if obj.Spec.ConfigSource != nil {
		texts = append(texts, "spec.configSource: the feature is removed")
	}
	if obj.Spec.DoNotUseExternalID != "" {
		texts = append(texts, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range obj.Spec.PodCIDRs {
		texts = append(texts, validation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return texts
}

func endpoints(obj *core.Endpoints) (texts []string) {
	// The controller does not write such addresses.
	if obj.Labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
		return nil
	}
	add := func(path *field.Path, addresses []core.EndpointAddress) {
		for i := range addresses {
			texts = append(texts, validation.GetWarningsForIP(path.Index(i).Child("ip"), addresses[i].IP)...)
		}
	}
	for i := range obj.Subsets {
		path := field.NewPath("subsets").Index(i)
		add(path.Child("addresses"), obj.Subsets[i].Addresses)
		add(path.Child("notReadyAddresses"), obj.Subsets[i].NotReadyAddresses)
	}
	return texts
}

func endpointSlice(obj *discovery.EndpointSlice) (texts []string) {
	switch obj.Labels[discoveryv1.LabelManagedBy] {
	// These controllers do not write such addresses.
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		return nil
	}
	for i := range obj.Endpoints {
		for j, address := range obj.Endpoints[i].Addresses {
			texts = append(texts, validation.GetWarningsForIP(field.NewPath("endpoints").Index(i).Child("addresses").Index(j), address)...)
		}
	}
	return texts
}
