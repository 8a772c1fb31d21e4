package plugins

// This file implements NodeRestriction. The credentials of a node may only be used to write
// objects of that node. A node is the user system:node:NAME in the group system:nodes. RBAC
// decides which resources it may access at all (ClusterRole system:node, bound to that group). Of
// these it may write only:
//
//	its Node                  except taints, owners, and labels that are used to select nodes
//	pods that run on it       their status; delete, evict; create mirror pods without references
//	claims                    the size and conditions in their status
//	tokens of accounts        bound to a pod that runs on it, for an audience that the pod mounts
//	its Lease, its CSINode, its ResourceSlices
//	requests for certificates with its own name, and for certificates of pods that run on it
//
// Checks that depend on other objects must use the newest version, so replicas catch up with the
// log first. Otherwise a pod that another server has just bound, moved or deleted might be refused
// to its node, or be accessible to a former node.
//
// The rules and messages match kube-apiserver's plugin/pkg/admission/noderestriction. CSI
// migration, in which CSI drivers replace in-tree volume plug-ins, is not supported.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/kubernetes/pkg/features"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/bounded"
	"apilet/internal/kinds/validation"
	"apilet/internal/request"
	"apilet/internal/store"
)

// restrictedToNodes lists the resources that NodeRestriction checks.
var restrictedToNodes = []string{"pods", "pods/status", "pods/eviction", "pods/binding", "pods/ephemeralcontainers", "pods/resize", "nodes", "nodes/status",
	"persistentvolumeclaims", "persistentvolumeclaims/status", "serviceaccounts/token", "leases.coordination.k8s.io", "csinodes.storage.k8s.io",
	"resourceslices.resource.k8s.io", "certificatesigningrequests.certificates.k8s.io", "csinodes.storage.k8s.io/status",
	"podcertificaterequests.certificates.k8s.io", "podcertificaterequests.certificates.k8s.io/status"}

// restriction implements the plug-in.
type restriction struct {
	store     *store.Store
	authorize func(request.User, request.Info) (bool, string)
}

// nodeWrite is a write requested by a node.
type nodeWrite struct {
	*admission.Attributes
	restriction
	node string
}

func (w *nodeWrite) forbid(format string, args ...any) error {
	return w.Forbidden(fmt.Errorf(format, args...))
}

func (r restriction) admit(ctx context.Context, a *admission.Attributes) error {
	if a.Request == nil || !slices.Contains(a.Request.User.Groups, request.GroupNodes) {
		return nil
	}
	name, isNode := strings.CutPrefix(a.Request.User.Name, request.NodePrefix)
	if !isNode {
		return nil
	}
	w := &nodeWrite{a, r, name}
	if name == "" {
		return w.forbid("could not determine node from user %q", a.Request.User.Name)
	}
	switch a.Resource.Plural {
	case "pods":
		return w.pod(ctx)
	case "nodes":
		return w.ownNode()
	case "persistentvolumeclaims":
		return w.claim()
	case "serviceaccounts":
		return w.token(ctx)
	case "leases":
		return w.lease()
	case "csinodes":
		if a.Name() != name {
			return w.forbid("can only access CSINode with the same name as the requesting node")
		}
		if w.Subresource == "status" && !utilfeature.DefaultFeatureGate.Enabled(features.CSIVolumeHealth) {
			return w.forbid("CSIVolumeHealth feature gate is disabled")
		}
	case "resourceslices":
		return w.slice()
	case "certificatesigningrequests":
		return w.certificate()
	case "podcertificaterequests":
		return w.podCertificate(ctx)
	}
	return nil
}

// ---- Pods ----

func (w *nodeWrite) pod(ctx context.Context) error {
	switch {
	case w.Subresource == "status":
		return w.podStatus()
	case w.Subresource == "eviction":
		pod, err := w.storedPod(ctx, w.Request.Info.Namespace, w.Request.Info.Name)
		if err == nil && pod.Spec.NodeName != w.node {
			err = w.forbid("node %s can only evict pods with spec.nodeName set to itself", w.node)
		}
		return err
	case w.Subresource != "":
		return w.forbid("unexpected pod subresource %q, only 'status' and 'eviction' are allowed", w.Subresource)
	case w.Operation == admission.OpCreate:
		return w.mirrorPod(ctx)
	case w.Operation == admission.OpDelete:
		if w.Old.(*corev1.Pod).Spec.NodeName != w.node {
			return w.forbid("node %q can only delete pods with spec.nodeName set to itself", w.node)
		}
		return nil
	}
	return w.forbid("unexpected operation %q, node %q can only create and delete mirror pods", w.Operation, w.node)
}

func (w *nodeWrite) podStatus() error {
	pod, old := w.Object.(*corev1.Pod), w.Old.(*corev1.Pod)
	switch {
	case old.Spec.NodeName != w.node:
		return w.forbid("node %q can only update pod status for pods with spec.nodeName set to itself", w.node)
	case !maps.Equal(pod.Labels, old.Labels):
		return w.forbid("node %q cannot update labels through pod status", w.node)
	case !equality.Semantic.DeepEqual(pod.Status.ResourceClaimStatuses, old.Status.ResourceClaimStatuses):
		return w.forbid("node %q cannot update resource claim statues", w.node)
	case !equality.Semantic.DeepEqual(pod.Status.ExtendedResourceClaimStatus, old.Status.ExtendedResourceClaimStatus):
		return w.forbid("node %q cannot update extended resource claim status", w.node)
	case !equality.Semantic.DeepEqual(pod.Status.NodeAllocatableResourceClaimStatuses, old.Status.NodeAllocatableResourceClaimStatuses):
		return w.forbid("node %q cannot update node allocatable resource claim statuses", w.node)
	}
	return nil
}

// mirrorPod checks the creation of a pod, which must be a mirror pod of the node.
func (w *nodeWrite) mirrorPod(ctx context.Context) error {
	pod := w.Object.(*corev1.Pod)
	switch {
	case !isMirror(pod):
		return w.forbid("pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, w.node)
	case pod.Spec.NodeName != w.node:
		return w.forbid("node %q can only create pods with spec.nodeName set to itself", w.node)
	case len(pod.OwnerReferences) > 1:
		return w.forbid("node %q can only create pods with a single owner reference set to itself", w.node)
	case len(pod.OwnerReferences) == 0:
		return w.forbid("node %q can only create pods with an owner reference set to itself", w.node)
	}
	owner := &pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != w.node:
		return w.forbid("node %q can only create pods with an owner reference set to itself", w.node)
	case owner.Controller == nil || !*owner.Controller:
		return w.forbid("node %q can only create pods with a controller owner reference set to itself", w.node)
	case blocks(owner):
		return w.forbid("node %q must not set blockOwnerDeletion on an owner reference", w.node)
	}
	node := &corev1.Node{}
	if err := w.catchUp(ctx); err != nil {
		return err
	}
	if err := w.read("node", "//nodes//"+w.node, w.node, node); err != nil {
		return err
	}
	if owner.UID != node.UID {
		return w.forbid("node %s UID mismatch: expected %s got %s", w.node, owner.UID, node.UID)
	}
	if what := referredKind(&pod.Spec); what != "" {
		return w.forbid("node %q can not create pods that reference %s", w.node, what)
	}
	return nil
}

// referredKind returns the kind of object that a pod refers to, for use in an error message, or "".
func referredKind(spec *corev1.PodSpec) string {
	switch {
	case spec.ServiceAccountName != "":
		return "serviceaccounts"
	case namesSecret(spec):
		return "secrets"
	case namesConfigMap(spec):
		return "configmaps"
	case len(spec.ResourceClaims) > 0:
		return "resourceclaims"
	}
	for i := range spec.Volumes {
		if what := referredByVolume(&spec.Volumes[i].VolumeSource); what != "" {
			return what
		}
	}
	return ""
}

// namesConfigMap reports whether a pod refers to any ConfigMap. References without a name do not
// count.
func namesConfigMap(spec *corev1.PodSpec) bool {
	found := false // VisitPodConfigmapNames returns true even if a container stopped the visit
	podutil.VisitPodConfigmapNames(&corev1.Pod{Spec: *spec}, func(string) (continues bool) {
		found = true
		return false
	})
	return found
}

func referredByVolume(v *corev1.VolumeSource) string {
	switch {
	case v.ConfigMap != nil:
		return "configmaps (via configmap volumes)"
	case v.Secret != nil:
		return "secrets (via secret volumes)"
	case v.CSI != nil:
		return "csidrivers (via CSI volumes)"
	case v.Glusterfs != nil:
		return "endpoints (via glusterFS volumes)"
	case v.PersistentVolumeClaim != nil:
		return "persistentvolumeclaims"
	case v.Ephemeral != nil:
		return "persistentvolumeclaims (via ephemeral volumes)"
	case v.AzureFile != nil:
		return "secrets (via azureFile volumes)"
	case v.Projected == nil:
		return ""
	}
	for i := range v.Projected.Sources {
		switch s := &v.Projected.Sources[i]; {
		case s.ConfigMap != nil:
			return "configmaps (via projected volumes)"
		case s.Secret != nil:
			return "secrets (via projected volumes)"
		case s.ServiceAccountToken != nil:
			return "serviceaccounts (via projected volumes)"
		case s.ClusterTrustBundle != nil:
			return "clustertrustbundles"
		case s.PodCertificate != nil:
			return "podcertificates"
		}
	}
	return ""
}

// ---- Nodes ----

func (w *nodeWrite) ownNode() error {
	if name := w.Name(); name != w.node {
		return w.forbid("node %q is not allowed to modify node %q", w.node, name)
	}
	if w.Operation == admission.OpDelete {
		return nil
	}
	node := w.Object.(*corev1.Node)
	if w.Operation == admission.OpCreate {
		if node.Spec.ConfigSource != nil {
			return w.forbid("node %q is not allowed to create pods with a non-nil configSource", w.node)
		}
		if keys := forbiddenLabels(node.Labels, nil); len(keys) > 0 {
			return w.forbid("node %q is not allowed to set the following labels: %s", w.node, strings.Join(keys, ", "))
		}
		return nil
	}
	old := w.Old.(*corev1.Node)
	switch {
	case node.Spec.ConfigSource != nil && !equality.Semantic.DeepEqual(node.Spec.ConfigSource, old.Spec.ConfigSource):
		return w.forbid("node %q is not allowed to update configSource to a new non-nil configSource", w.node)
	case !equality.Semantic.DeepEqual(node.Spec.Taints, old.Spec.Taints):
		return w.forbid("node %q is not allowed to modify taints", w.node)
	case !equality.Semantic.DeepEqual(node.OwnerReferences, old.OwnerReferences):
		return w.forbid("node %q is not allowed to modify ownerReferences", w.node)
	}
	if keys := forbiddenLabels(node.Labels, old.Labels); len(keys) > 0 {
		return w.forbid("is not allowed to modify labels: %s", strings.Join(keys, ", "))
	}
	return nil
}

// kubeletLabels are the labels in the kubernetes.io domain that nodes are allowed to set. It may
// also set all labels of kubelet.kubernetes.io and node.kubernetes.io.
var kubeletLabels = []string{corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion, corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion, corev1.LabelInstanceType, corev1.LabelInstanceTypeStable, corev1.LabelOSStable, corev1.LabelArchStable,
	"beta.kubernetes.io/os", "beta.kubernetes.io/arch"}

// forbiddenLabels returns the sorted keys of the changed labels that a node may not set.
func forbiddenLabels(labels, old map[string]string) (keys []string) {
	all := maps.Clone(old)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, labels)
	for key := range all {
		now, set := labels[key]
		before, was := old[key]
		if (set != was || now != before) && !mayLabel(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

func mayLabel(key string) bool {
	domain, _, prefixed := strings.Cut(key, "/")
	if !prefixed {
		return true
	}
	in := func(of string) bool { return domain == of || strings.HasSuffix(domain, "."+of) }
	switch {
	case in(corev1.LabelNamespaceNodeRestriction):
		return false
	case !in("kubernetes.io") && !in("k8s.io"):
		return true
	}
	return slices.Contains(kubeletLabels, key) || in(corev1.LabelNamespaceSuffixKubelet) || in(corev1.LabelNamespaceSuffixNode)
}

// ---- Claims, tokens and others ----

func (w *nodeWrite) claim() error {
	if w.Subresource != "status" {
		return w.forbid("may only update PVC status")
	}
	claim, old := w.Object.DeepCopyObject().(*corev1.PersistentVolumeClaim), w.Old.DeepCopyObject().(*corev1.PersistentVolumeClaim)
	for _, c := range [...]*corev1.PersistentVolumeClaim{claim, old} {
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions, c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil, nil, nil
	}
	if !equality.Semantic.DeepEqual(claim, old) {
		return w.forbid("node %q is not allowed to update fields other than status.quantity and status.conditions: %v", w.node,
			validation.Diff(old, claim))
	}
	return nil
}

func (w *nodeWrite) lease() error {
	if w.Namespace() != corev1.NamespaceNodeLease {
		return w.forbid("can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	if w.Name() != w.node {
		return w.forbid("can only access node lease with the same name as the requesting node")
	}
	return nil
}

func (w *nodeWrite) slice() error {
	obj, verb := w.Object, "create"
	switch w.Operation {
	case admission.OpUpdate:
		return nil
	case admission.OpDelete:
		obj, verb = w.Old, "delete"
	}
	if slice := obj.(*resourcev1.ResourceSlice); slice.Spec.NodeName == nil || *slice.Spec.NodeName != w.node {
		return w.forbid("can only %s ResourceSlice with the same NodeName as the requesting node", verb)
	}
	return nil
}

func (w *nodeWrite) certificate() error {
	if w.Operation != admission.OpCreate {
		return nil
	}
	csr := w.Object.(*certificatesv1.CertificateSigningRequest)
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName && csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := certificatesapi.ParseCSR(csr.Spec.Request)
	if err != nil {
		return w.forbid("unable to parse csr: %w", err)
	}
	if parsed.Subject.CommonName != request.NodePrefix+w.node {
		return w.forbid("can only create a node CSR with CN=system:node:%s", w.node)
	}
	return nil
}

// podCertificate checks that the request describes the node, the pod and the service account as
// they are stored. If an outdated cache of the kubelet can explain a difference, the error is a
// 500, so that the kubelet retries.
func (w *nodeWrite) podCertificate(ctx context.Context) error {
	if w.Operation != admission.OpCreate || w.Subresource != "" {
		return w.forbid("unexpected operation %v", w.Operation)
	}
	spec := &w.Object.(*certificatesv1.PodCertificateRequest).Spec
	if string(spec.NodeName) != w.node {
		return w.forbid("PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", spec.NodeName, w.node)
	}
	if err := w.catchUp(ctx); err != nil {
		return err
	}
	podName := w.Namespace() + "/" + spec.PodName
	var node corev1.Node
	if err := w.read("node", "//nodes//"+w.node, w.node, &node); err != nil {
		return retrievalError(err, "node", w.node)
	}
	if node.UID != spec.NodeUID {
		return apierror.InternalWithoutReason(fmt.Sprintf("PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", podName, spec.NodeUID, node.UID))
	}
	var pod corev1.Pod
	if err := w.read("pod", "//pods/"+podName, spec.PodName, &pod); err != nil {
		return retrievalError(err, "pod", podName)
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case pod.UID != spec.PodUID:
		return apierror.InternalWithoutReason(fmt.Sprintf("PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", podName, spec.PodUID, pod.UID))
	case pod.Spec.NodeName != w.node:
		return w.forbid("pod %q is not running on node %q named in the PodCertificateRequest", podName, w.node)
	case mirror:
		return w.forbid("pod %q is a mirror pod", podName)
	case pod.Spec.ServiceAccountName != spec.ServiceAccountName:
		return w.forbid("PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", podName,
			spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	return w.podCertificateAccount(spec, &pod)
}

// podCertificateAccount checks the service account of a request, and that the pod mounts a
// certificate of the signer. Without such a volume the node needs a separate permission, whose
// resource is the name of the signer with colons for slashes.
func (w *nodeWrite) podCertificateAccount(spec *certificatesv1.PodCertificateRequestSpec, pod *corev1.Pod) error {
	accountName := w.Namespace() + "/" + spec.ServiceAccountName
	var account corev1.ServiceAccount
	if err := w.read("serviceaccount", "//serviceaccounts/"+accountName, spec.ServiceAccountName, &account); err != nil {
		return retrievalError(err, "service account", accountName)
	}
	if account.UID != spec.ServiceAccountUID {
		return apierror.InternalWithoutReason(fmt.Sprintf("PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)",
			w.Namespace()+"/"+spec.PodName, spec.ServiceAccountUID, account.UID))
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Projected; v != nil && slices.ContainsFunc(v.Sources, func(p corev1.VolumeProjection) bool {
			return p.PodCertificate != nil && p.PodCertificate.SignerName == spec.SignerName
		}) {
			return nil
		}
	}
	info := request.Info{ResourceRequest: true, Verb: "request-serviceaccounts-podcertificate-signer", Group: certificatesv1.GroupName, Version: "v1",
		Resource: strings.ReplaceAll(spec.SignerName, "/", ":"), Namespace: w.Namespace(), Name: spec.ServiceAccountName}
	if allowed, _ := w.authorize(w.Request.User, info); allowed {
		return nil
	}
	return w.forbid("pod %q does not mount a podCertificate projected volume for signer %q", w.Namespace()+"/"+spec.PodName, spec.SignerName)
}

// retrievalError returns the error for an object that a PodCertificateRequest names. A missing
// object may appear later, so it causes a 500.
func retrievalError(err error, kind, name string) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	return apierror.InternalWithoutReason(fmt.Sprintf("while retrieving %s %q named in the PodCertificateRequest: %v", kind, name, err))
}

func (w *nodeWrite) token(ctx context.Context) error {
	asked := w.Object.(*authenticationv1.TokenRequest)
	ref := asked.Spec.BoundObjectRef
	switch {
	case ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "":
		return w.forbid("node requested token not bound to a pod")
	case ref.UID == "":
		return w.forbid("node requested token with a pod binding without a uid")
	}
	pod, err := w.storedPod(ctx, w.Request.Info.Namespace, ref.Name)
	switch {
	case err != nil:
		return err
	case ref.UID != pod.UID:
		return w.forbid("the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	case pod.Spec.NodeName != w.node:
		return w.forbid("node requested token bound to a pod scheduled on a different node")
	case len(asked.Spec.Audiences) > 1:
		return w.forbid("node may only request 0 or 1 audiences")
	}
	audience := strings.Join(asked.Spec.Audiences, "")
	mounted, err := w.mounts(pod, audience)
	if err != nil {
		return w.forbid("error validating audience %q: %w", audience, err)
	}
	if mounted {
		return nil
	}
	info := request.Info{ResourceRequest: true, Verb: "request-serviceaccounts-token-audience", Version: "v1", Resource: audience,
		Namespace: w.Request.Info.Namespace, Name: w.Request.Info.Name}
	if allowed, _ := w.authorize(w.Request.User, info); !allowed {
		return w.forbid("%s is not authorized to request tokens for audience %q", w.Request.User.Name, audience)
	}
	return nil
}

// mounts reports whether a pod has a volume with a token for the audience, either a projected
// token or one requested by a CSI driver. An error during a look-up is only returned if no other
// volume has the token.
func (w *nodeWrite) mounts(pod *corev1.Pod, audience string) (bool, error) {
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
			return p.ServiceAccountToken != nil && p.ServiceAccountToken.Audience == audience
		}) {
			return true, nil
		}
		driver, err := w.driverOf(pod, v)
		if err == nil && driver != "" {
			var found storagev1.CSIDriver
			if err = w.read("csidriver.storage.k8s.io", "/storage.k8s.io/csidrivers//"+driver, driver, &found); err == nil &&
				slices.ContainsFunc(found.Spec.TokenRequests, func(t storagev1.TokenRequest) bool { return t.Audience == audience }) {
				return true, nil
			}
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return false, apierror.Join(errs)
}

// driverOf returns the name of the CSI driver of a volume, or "".
func (w *nodeWrite) driverOf(pod *corev1.Pod, v *corev1.Volume) (string, error) {
	claimName := ""
	switch {
	case v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil:
		claimName = pod.Name + "-" + v.Name
	case v.PersistentVolumeClaim != nil:
		claimName = v.PersistentVolumeClaim.ClaimName
	case v.CSI != nil:
		return v.CSI.Driver, nil
	default:
		return "", nil
	}
	var claim corev1.PersistentVolumeClaim
	if err := w.read("persistentvolumeclaim", "//persistentvolumeclaims/"+pod.Namespace+"/"+claimName, claimName, &claim); err != nil {
		return "", err
	}
	var volume corev1.PersistentVolume
	if err := w.read("persistentvolume", "//persistentvolumes//"+claim.Spec.VolumeName, claim.Spec.VolumeName, &volume); err != nil {
		return "", err
	}
	if volume.Spec.CSI == nil {
		return "", nil
	}
	return volume.Spec.CSI.Driver, nil
}

// catchUp must be called before objects are read.
func (w *nodeWrite) catchUp(ctx context.Context) error {
	_, err := w.store.Current(ctx)
	return err
}

func (w *nodeWrite) storedPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	if err := w.catchUp(ctx); err != nil {
		return pod, err
	}
	return pod, w.read("pod", "//pods/"+namespace+"/"+name, name, pod)
}

// read decodes a stored object. The error for a missing object names the kind, as in
// kube-apiserver.
func (w *nodeWrite) read(kind, key, name string, into any) error {
	rec, err := w.store.Get(key)
	if errors.Is(err, store.ErrNotFound) {
		return apierrors.NewNotFound(schema.ParseGroupResource(kind), name)
	}
	if err != nil {
		return w.Forbidden(err)
	}
	return bounded.Unmarshal(rec.JSON, into)
}
