package rules

// This file creates the REST storage for all resources like pkg/registry/GROUP/rest, but without
// authorization, kubelets and proxies.

import (
	"net"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/generic"
	"k8s.io/apiserver/pkg/registry/rest"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiservice "k8s.io/kube-aggregator/pkg/registry/apiservice/etcd"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/kubelet/client"
	mutatingpolicy "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy/storage"
	mutatingbinding "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding/storage"
	mutatingwebhook "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration/storage"
	validatingpolicy "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy/storage"
	validatingbinding "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding/storage"
	validatingwebhook "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration/storage"
	controllerrevision "k8s.io/kubernetes/pkg/registry/apps/controllerrevision/storage"
	daemonset "k8s.io/kubernetes/pkg/registry/apps/daemonset/storage"
	deployment "k8s.io/kubernetes/pkg/registry/apps/deployment/storage"
	replicaset "k8s.io/kubernetes/pkg/registry/apps/replicaset/storage"
	statefulset "k8s.io/kubernetes/pkg/registry/apps/statefulset/storage"
	autoscaler "k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler/storage"
	cronjob "k8s.io/kubernetes/pkg/registry/batch/cronjob/storage"
	job "k8s.io/kubernetes/pkg/registry/batch/job/storage"
	certificates "k8s.io/kubernetes/pkg/registry/certificates/certificates/storage"
	clustertrustbundle "k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle/storage"
	podcertificaterequest "k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest/storage"
	lease "k8s.io/kubernetes/pkg/registry/coordination/lease/storage"
	configmap "k8s.io/kubernetes/pkg/registry/core/configmap/storage"
	endpoints "k8s.io/kubernetes/pkg/registry/core/endpoint/storage"
	event "k8s.io/kubernetes/pkg/registry/core/event/storage"
	limitrange "k8s.io/kubernetes/pkg/registry/core/limitrange/storage"
	namespace "k8s.io/kubernetes/pkg/registry/core/namespace/storage"
	node "k8s.io/kubernetes/pkg/registry/core/node/storage"
	volume "k8s.io/kubernetes/pkg/registry/core/persistentvolume/storage"
	claim "k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim/storage"
	pod "k8s.io/kubernetes/pkg/registry/core/pod/storage"
	podtemplate "k8s.io/kubernetes/pkg/registry/core/podtemplate/storage"
	controller "k8s.io/kubernetes/pkg/registry/core/replicationcontroller/storage"
	resourcequota "k8s.io/kubernetes/pkg/registry/core/resourcequota/storage"
	secret "k8s.io/kubernetes/pkg/registry/core/secret/storage"
	"k8s.io/kubernetes/pkg/registry/core/service/ipallocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	service "k8s.io/kubernetes/pkg/registry/core/service/storage"
	serviceaccount "k8s.io/kubernetes/pkg/registry/core/serviceaccount/storage"
	endpointslice "k8s.io/kubernetes/pkg/registry/discovery/endpointslice/storage"
	flowschema "k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema/storage"
	prioritylevel "k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration/storage"
	ingress "k8s.io/kubernetes/pkg/registry/networking/ingress/storage"
	ingressclass "k8s.io/kubernetes/pkg/registry/networking/ingressclass/storage"
	ipaddress "k8s.io/kubernetes/pkg/registry/networking/ipaddress/storage"
	networkpolicy "k8s.io/kubernetes/pkg/registry/networking/networkpolicy/storage"
	servicecidr "k8s.io/kubernetes/pkg/registry/networking/servicecidr/storage"
	runtimeclass "k8s.io/kubernetes/pkg/registry/node/runtimeclass/storage"
	disruptionbudget "k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget/storage"
	clusterrole "k8s.io/kubernetes/pkg/registry/rbac/clusterrole/storage"
	clusterrolebinding "k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding/storage"
	role "k8s.io/kubernetes/pkg/registry/rbac/role/storage"
	rolebinding "k8s.io/kubernetes/pkg/registry/rbac/rolebinding/storage"
	deviceclass "k8s.io/kubernetes/pkg/registry/resource/deviceclass/storage"
	devicetaintrule "k8s.io/kubernetes/pkg/registry/resource/devicetaintrule/storage"
	resourceclaim "k8s.io/kubernetes/pkg/registry/resource/resourceclaim/storage"
	resourceclaimtemplate "k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate/storage"
	resourceslice "k8s.io/kubernetes/pkg/registry/resource/resourceslice/storage"
	priorityclass "k8s.io/kubernetes/pkg/registry/scheduling/priorityclass/storage"
	csidriver "k8s.io/kubernetes/pkg/registry/storage/csidriver/storage"
	csinode "k8s.io/kubernetes/pkg/registry/storage/csinode/storage"
	storagecapacity "k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity/storage"
	storageclass "k8s.io/kubernetes/pkg/registry/storage/storageclass/storage"
	volumeattachment "k8s.io/kubernetes/pkg/registry/storage/volumeattachment/storage"
	volumeattributesclass "k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass/storage"
	migration "k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration/storage"
	"k8s.io/utils/clock"
)

// storages returns the REST storages by resource, or by resource/subresource.
func storages(opts *options) map[schema.GroupResource]rest.Storage {
	all := map[schema.GroupResource]rest.Storage{}
	add := func(group, resource string, storage, status rest.Storage) {
		all[schema.GroupResource{Group: group, Resource: resource}] = storage
		if status != nil {
			all[schema.GroupResource{Group: group, Resource: resource + "/status"}] = status
		}
	}
	addCore(opts, add)
	addApps(opts, add)
	addNetworking(opts, add)
	addPolicies(opts, add)
	addStorage(opts, add)
	addDevices(opts, add)
	return all
}

type adder func(group, resource string, storage, status rest.Storage)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// one returns the storage of a resource that has no status.
func one[T rest.Storage](open func(generic.RESTOptionsGetter) (T, error), opts *options) (rest.Storage, rest.Storage) {
	return must(open(opts)), nil
}

// two returns the storage of a resource and the storage of its status.
func two[T, S rest.Storage](open func(generic.RESTOptionsGetter) (T, S, error), opts *options) (rest.Storage, rest.Storage) {
	storage, status, err := open(opts)
	return must(storage, err), status
}

func addCore(opts *options, add adder) {
	for name, storage := range map[string]rest.Storage{
		"configmaps":      must(configmap.NewREST(opts)),
		"limitranges":     must(limitrange.NewREST(opts)),
		"podtemplates":    must(podtemplate.NewREST(opts)),
		"secrets":         must(secret.NewREST(opts)),
		"serviceaccounts": must(serviceaccount.NewREST(opts, nil, nil, nil, 0, nil, nil, nil, nil, nil, false, 0)),
	} {
		add("", name, storage, nil)
	}
	events := must(event.NewREST(opts, 3600))
	add("", "events", events, nil)
	add("events.k8s.io", "events", events, nil)
	volumes, volumeStatus := two(volume.NewREST, opts)
	add("", "persistentvolumes", volumes, volumeStatus)
	claims, claimStatus := two(claim.NewREST, opts)
	add("", "persistentvolumeclaims", claims, claimStatus)
	quotas, quotaStatus := two(resourcequota.NewREST, opts)
	add("", "resourcequotas", quotas, quotaStatus)
	namespaces, namespaceStatus, finalize, err := namespace.NewREST(opts)
	add("", "namespaces", must(namespaces, err), namespaceStatus)
	add("", "namespaces/finalize", finalize, nil)
	controllers := must(controller.NewStorage(opts))
	add("", "replicationcontrollers", controllers.Controller, controllers.Status)
	add("", "replicationcontrollers/scale", controllers.Scale, nil)
	nodes := must(node.NewStorage(opts, client.KubeletClientConfig{}, http.DefaultTransport))
	add("", "nodes", nodes.Node, nodes.Status)
	pods := must(pod.NewStorage(opts, nil, nil, nil, nil))
	add("", "pods", pods.Pod, pods.Status)
	add("", "pods/ephemeralcontainers", pods.EphemeralContainers, nil)
	add("", "pods/resize", pods.Resize, nil)
	endpoints := must(endpoints.NewREST(opts))
	add("", "endpoints", endpoints, nil)
	_, addresses, err := net.ParseCIDR(serviceRange)
	allocator := must(ipallocator.NewInMemory(must(addresses, err)))
	ports := must(portallocator.NewInMemory(utilnet.PortRange{Base: 30000, Size: 2768}))
	services, serviceStatus, _, err := service.NewREST(opts, core.IPv4Protocol, map[core.IPFamily]ipallocator.Interface{core.IPv4Protocol: allocator},
		ports, nil, pods.Pod, nil)
	add("", "services", must(services, err), serviceStatus)
}

func addApps(opts *options, add adder) {
	revisions, _ := one(controllerrevision.NewREST, opts)
	add("apps", "controllerrevisions", revisions, nil)
	daemons, daemonStatus := two(daemonset.NewREST, opts)
	add("apps", "daemonsets", daemons, daemonStatus)
	deployments := must(deployment.NewStorage(opts))
	add("apps", "deployments", deployments.Deployment, deployments.Status)
	add("apps", "deployments/scale", deployments.Scale, nil)
	replicas := must(replicaset.NewStorage(opts))
	add("apps", "replicasets", replicas.ReplicaSet, replicas.Status)
	add("apps", "replicasets/scale", replicas.Scale, nil)
	stateful := must(statefulset.NewStorage(opts))
	add("apps", "statefulsets", stateful.StatefulSet, stateful.Status)
	add("apps", "statefulsets/scale", stateful.Scale, nil)
	autoscalers, autoscalerStatus := two(autoscaler.NewREST, opts)
	add("autoscaling", "horizontalpodautoscalers", autoscalers, autoscalerStatus)
	cronjobs, cronjobStatus := two(cronjob.NewREST, opts)
	add("batch", "cronjobs", cronjobs, cronjobStatus)
	jobs := must(job.NewStorage(opts))
	add("batch", "jobs", jobs.Job, jobs.Status)
	budgets, budgetStatus := two(disruptionbudget.NewREST, opts)
	add("policy", "poddisruptionbudgets", budgets, budgetStatus)
	classes, _ := one(priorityclass.NewREST, opts)
	add("scheduling.k8s.io", "priorityclasses", classes, nil)
	leases, _ := one(lease.NewREST, opts)
	add("coordination.k8s.io", "leases", leases, nil)
	runtimes, _ := one(runtimeclass.NewREST, opts)
	add("node.k8s.io", "runtimeclasses", runtimes, nil)
	slices, _ := one(endpointslice.NewREST, opts)
	add("discovery.k8s.io", "endpointslices", slices, nil)
}

func addNetworking(opts *options, add adder) {
	const group = "networking.k8s.io"
	ingresses, ingressStatus := two(ingress.NewREST, opts)
	add(group, "ingresses", ingresses, ingressStatus)
	classes, _ := one(ingressclass.NewREST, opts)
	add(group, "ingressclasses", classes, nil)
	addresses, _ := one(ipaddress.NewREST, opts)
	add(group, "ipaddresses", addresses, nil)
	policies, _ := one(networkpolicy.NewREST, opts)
	add(group, "networkpolicies", policies, nil)
	ranges, rangeStatus := two(servicecidr.NewREST, opts)
	add(group, "servicecidrs", ranges, rangeStatus)
}

func addPolicies(opts *options, add adder) {
	const rbac, registration, flow = "rbac.authorization.k8s.io", "admissionregistration.k8s.io", "flowcontrol.apiserver.k8s.io"
	roles, _ := one(role.NewREST, opts)
	add(rbac, "roles", roles, nil)
	bindings, _ := one(rolebinding.NewREST, opts)
	add(rbac, "rolebindings", bindings, nil)
	clusterRoles, _ := one(clusterrole.NewREST, opts)
	add(rbac, "clusterroles", clusterRoles, nil)
	clusterBindings, _ := one(clusterrolebinding.NewREST, opts)
	add(rbac, "clusterrolebindings", clusterBindings, nil)
	mutating, _ := one(mutatingwebhook.NewREST, opts)
	add(registration, "mutatingwebhookconfigurations", mutating, nil)
	validating, _ := one(validatingwebhook.NewREST, opts)
	add(registration, "validatingwebhookconfigurations", validating, nil)
	policies, policyStatus, err := validatingpolicy.NewREST(opts, nil, nil)
	add(registration, "validatingadmissionpolicies", must(policies, err), policyStatus)
	add(registration, "validatingadmissionpolicybindings", must(validatingbinding.NewREST(opts, nil, nil, unasked{})), nil)
	add(registration, "mutatingadmissionpolicies", must(mutatingpolicy.NewREST(opts, nil, nil)), nil)
	add(registration, "mutatingadmissionpolicybindings", must(mutatingbinding.NewREST(opts, nil, nil, unasked{})), nil)
	schemas, schemaStatus := two(flowschema.NewREST, opts)
	add(flow, "flowschemas", schemas, schemaStatus)
	levels, levelStatus := two(prioritylevel.NewREST, opts)
	add(flow, "prioritylevelconfigurations", levels, levelStatus)
	requests, requestStatus, approval, err := certificates.NewREST(opts)
	add("certificates.k8s.io", "certificatesigningrequests", must(requests, err), requestStatus)
	add("certificates.k8s.io", "certificatesigningrequests/approval", approval, nil)
	bundles, _ := one(clustertrustbundle.NewREST, opts)
	add("certificates.k8s.io", "clustertrustbundles", bundles, nil)
	podRequests, podRequestStatus, err := podcertificaterequest.NewREST(opts, everyone, clock.RealClock{})
	add("certificates.k8s.io", "podcertificaterequests", must(podRequests, err), podRequestStatus)
	migrations, migrationStatus := two(migration.NewREST, opts)
	add("storagemigration.k8s.io", "storageversionmigrations", migrations, migrationStatus)
	services := apiservice.NewREST(aggregatorscheme.Scheme, opts)
	add("apiregistration.k8s.io", "apiservices", services, apiservice.NewStatusREST(aggregatorscheme.Scheme, services))
}

func addStorage(opts *options, add adder) {
	const group = "storage.k8s.io"
	add(group, "csidrivers", must(csidriver.NewStorage(opts)).CSIDriver, nil)
	nodes := must(csinode.NewStorage(opts))
	add(group, "csinodes", nodes.CSINode, nodes.Status)
	add(group, "csistoragecapacities", must(storagecapacity.NewStorage(opts)).CSIStorageCapacity, nil)
	classes, _ := one(storageclass.NewREST, opts)
	add(group, "storageclasses", classes, nil)
	attachments := must(volumeattachment.NewStorage(opts))
	add(group, "volumeattachments", attachments.VolumeAttachment, attachments.Status)
	attributes, _ := one(volumeattributesclass.NewREST, opts)
	add(group, "volumeattributesclasses", attributes, nil)
}

func addDevices(opts *options, add adder) {
	const group = "resource.k8s.io"
	classes, _ := one(deviceclass.NewREST, opts)
	add(group, "deviceclasses", classes, nil)
	claims, claimStatus, err := resourceclaim.NewREST(opts, plainNamespaces{}, everyone)
	add(group, "resourceclaims", must(claims, err), claimStatus)
	add(group, "resourceclaimtemplates", must(resourceclaimtemplate.NewREST(opts, plainNamespaces{})), nil)
	taints, taintStatus := two(devicetaintrule.NewRESTv1, opts)
	add(group, "devicetaintrules", taints, taintStatus)
	slices, _ := one(resourceslice.NewREST, opts)
	add(group, "resourceslices", slices, nil)
}
