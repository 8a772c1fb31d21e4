package validation

// This file: what a pod may be, and with it the template of every workload: ValidatePodSpec, ValidatePodTemplateSpec and what they call in
// k8s.io/kubernetes, pkg/apis/core/validation/validation.go.
//
// A podChecker walks one spec in kube-apiserver's order: volumes, containers of the three kinds, then the pod's own fields. What one
// part must know of another (which volumes a mount may name) is gathered on the way; a volume that is refused cannot be mounted, so one
// wrong volume is reported where it is defined and where it is used, as in Kubernetes.

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/bounded"
	"apilet/internal/kinds/defaults"
)

var (
	protocols          = []string{"SCTP", "TCP", "UDP"}
	messagePolicies    = []string{"File", "FallbackToLogsOnError"}
	restartPolicies    = []string{"Always", "OnFailure", "Never"}
	containerRestarts  = []string{"Always", "Never", "OnFailure"}
	restartRuleActions = []string{"Restart", "RestartAllContainers"}
	setOperators       = []string{"In", "NotIn"}
	dnsPolicies        = []string{"ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"}
	preemptionPolicies = []string{"PreemptLowerPriority", "Never"}
	httpSchemes        = []string{"HTTP", "HTTPS"}
	mountPropagations  = []string{"Bidirectional", "HostToContainer", "None"}
	recursiveReadOnly  = []string{"Disabled", "Enabled", "IfPossible"}
	profileTypes       = []string{"Localhost", "RuntimeDefault", "Unconfined"}
	resizeResources    = []string{"cpu", "memory"}
	resizePolicies     = []string{"NotRequired", "RestartContainer"}
	fsGroupPolicies    = []string{"Always", "OnRootMismatch"}
	groupsPolicies     = []string{"Merge", "Strict"}
	seLinuxPolicies    = []string{"MountOption", "Recursive"}
	procMounts         = []string{"Default", "Unmasked"}
	seccompAnnotated   = []string{"runtime/default", "docker/default", "unconfined"}
	appArmorAnnotated  = []string{"", "runtime/default", "unconfined"}
	podSystems         = []string{"linux", "windows"}
	sysctlName         = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`)
	updatablePodFields = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
	ephemeralForbidden = []string{"Ports", "Resources", "LivenessProbe", "ReadinessProbe", "StartupProbe", "Lifecycle", "ResizePolicy", "RestartPolicy", "RestartPolicyRules"}
	sysctlOfIPC        = []string{"kernel.sem", "kernel.shm", "kernel.msg", "fs.mqueue."}
)

// A podChecker checks one pod spec.
type podChecker struct {
	*Checker
	spec    *corev1.PodSpec
	meta    *metav1.ObjectMeta // of a Pod; nil for a template
	volumes map[string]*corev1.Volume
	claims  set    // names of spec.resourceClaims
	noClaim string // what is said of others
}

// podTemplate checks the template of a workload; p is the template's path.
func podTemplate(c *Checker, p *field.Path, template *corev1.PodTemplateSpec) {
	c.labels(p, "labels", template.Labels)
	if len(template.Annotations) > 0 {
		c.Add(metavalidation.ValidateAnnotations(template.Annotations, p.Child("annotations"))...)
		podAnnotations(c, p.Child("annotations"), template.Annotations, &template.Spec)
	}
	spec := p.Child("spec")
	pc := podSpec(c, spec, &template.Spec, nil)
	pc.seccompMatchesAnnotations(spec, template.Annotations)
	pc.appArmorMatchesAnnotations(spec, template.Annotations)
	c.Forbid(spec, "ephemeralContainers", len(template.Spec.EphemeralContainers) > 0, "ephemeral containers not allowed in pod template")
}

// checkPod is what creating and updating have in common.
func checkPod(c *Checker, pod *corev1.Pod) *podChecker {
	spec := field.NewPath("spec")
	podAnnotations(c, field.NewPath("metadata", "annotations"), pod.Annotations, &pod.Spec)
	pc := podSpec(c, spec, &pod.Spec, &pod.ObjectMeta)
	for i := range pod.Spec.Volumes {
		if projected := pod.Spec.Volumes[i].Projected; projected != nil && pod.Spec.ServiceAccountName == "" {
			for j := range projected.Sources {
				c.Forbid(spec.Child("volumes").Index(i).Child("projected", "sources").Index(j), "serviceAccountToken",
					projected.Sources[j].ServiceAccountToken != nil, "must not be specified when serviceAccountName is not set")
			}
		}
	}
	imagesAreTrimmed(c, spec.Child("containers"), pod.Spec.Containers)
	imagesAreTrimmed(c, spec.Child("initContainers"), pod.Spec.InitContainers)
	return pc
}

func createPod(c *Checker, pod *corev1.Pod) {
	spec := field.NewPath("spec")
	pc := checkPod(c, pod)
	c.Forbid(spec, "ephemeralContainers", len(pod.Spec.EphemeralContainers) > 0, "cannot be set on create")
	c.Forbid(spec, "nodeName", pod.Spec.NodeName != "" && len(pod.Spec.SchedulingGates) > 0, "cannot be set until all schedulingGates have been cleared")
	pc.seccompMatchesAnnotations(spec, pod.Annotations)
	pc.appArmorMatchesAnnotations(spec, pod.Annotations)
}

func imagesAreTrimmed(c *Checker, p *field.Path, containers []corev1.Container) {
	for i := range containers {
		imageIsTrimmed(c, p.Index(i), containers[i].Image)
	}
}

func imageIsTrimmed(c *Checker, p *field.Path, image string) {
	if image != strings.TrimSpace(image) {
		c.Invalid(p, "image", image, "must not have leading or trailing whitespace")
	}
}

func podAnnotations(c *Checker, p *field.Path, annotations map[string]string, spec *corev1.PodSpec) {
	if value, mirror := annotations[corev1.MirrorPodAnnotationKey]; mirror && spec.NodeName == "" {
		c.Invalid(p.Key(corev1.MirrorPodAnnotationKey), "", value, "must set spec.nodeName if mirror pod annotation is set")
	}
	tolerationsAnnotation(c, p, annotations)
	if cost, ok := annotations[corev1.PodDeletionCost]; ok {
		if value, err := strconv.ParseInt(cost, 10, 32); err != nil || strconv.FormatInt(value, 10) != cost {
			c.Invalid(p.Key(corev1.PodDeletionCost), "", cost, "must be a 32bit integer")
		}
	}
	for _, key := range sortedKeys(annotations) {
		isPod, ofContainer := key == corev1.SeccompPodAnnotationKey, strings.HasPrefix(key, corev1.SeccompContainerAnnotationKeyPrefix)
		if isPod || ofContainer {
			seccompAnnotation(c, p.Child(key), annotations[key])
		}
	}
	appArmorAnnotations(c, p, annotations, spec)
}

// tolerationsAnnotation is where tolerations were before they had a field.
func tolerationsAnnotation(c *Checker, p *field.Path, annotations map[string]string) {
	text := annotations[corev1.TolerationsAnnotationKey]
	if text == "" {
		return
	}
	var list []corev1.Toleration
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		c.Invalid(p, "", corev1.TolerationsAnnotationKey, err.Error())
		return
	}
	placementChecker{c}.tolerations(p.Child(corev1.TolerationsAnnotationKey), list)
}

func seccompAnnotation(c *Checker, p *field.Path, profile string) {
	local, isLocal := strings.CutPrefix(profile, corev1.SeccompLocalhostProfileNamePrefix)
	switch {
	case slices.Contains(seccompAnnotated, profile):
	case isLocal:
		for _, message := range isDescending(local) {
			c.Invalid(p, "", local, message)
		}
	default:
		c.Invalid(p, "", profile, "must be a valid seccomp profile")
	}
}

func appArmorAnnotations(c *Checker, p *field.Path, annotations map[string]string, spec *corev1.PodSpec) {
	var names set
	for _, key := range sortedKeys(annotations) {
		container, found := strings.CutPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
		if !found {
			continue
		}
		if names == nil {
			names = containerNames(spec)
		}
		if !names[container] {
			c.Invalid(p.Key(key), "", container, "container not found")
		}
		profile := annotations[key]
		if !slices.Contains(appArmorAnnotated, profile) && !strings.HasPrefix(profile, corev1.DeprecatedAppArmorBetaProfileNamePrefix) {
			c.Invalid(p.Key(key), "", profile, fmt.Sprintf("invalid AppArmor profile name: %q", profile))
		}
	}
}

func containerNames(spec *corev1.PodSpec) set {
	names := set{}
	for i := range spec.InitContainers {
		names[spec.InitContainers[i].Name] = true
	}
	for i := range spec.Containers {
		names[spec.Containers[i].Name] = true
	}
	for i := range spec.EphemeralContainers {
		names[spec.EphemeralContainers[i].Name] = true
	}
	return names
}

// keepPodAnnotations refuses to change what was checked when the pod was made, and is not looked at again: kubelets read it before the fields.
func keepPodAnnotations(c *Checker, pod, old *corev1.Pod) {
	p := field.NewPath("metadata", "annotations")
	for _, key := range sortedKeys(old.Annotations) {
		value, kept := pod.Annotations[key]
		if kept && value == old.Annotations[key] {
			continue
		}
		c.Forbid(p.Key(key), "", isAppArmorKey(key), "may not remove or update AppArmor annotations")
		c.Forbid(p.Key(key), "", key == corev1.MirrorPodAnnotationKey, "may not remove or update mirror pod annotation")
	}
	for _, key := range sortedKeys(pod.Annotations) {
		if _, was := old.Annotations[key]; was {
			continue
		}
		c.Forbid(p.Key(key), "", isAppArmorKey(key), "may not add AppArmor annotations")
		c.Forbid(p.Key(key), "", key == corev1.MirrorPodAnnotationKey, "may not add mirror pod annotation")
	}
	podAnnotations(c, p, pod.Annotations, &pod.Spec)
}

func isAppArmorKey(key string) bool {
	return strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix)
}

// podSpec checks the whole of a spec; meta is nil for a template.
func podSpec(c *Checker, p *field.Path, spec *corev1.PodSpec, meta *metav1.ObjectMeta) *podChecker {
	pc := &podChecker{Checker: c, spec: spec, meta: meta, volumes: make(map[string]*corev1.Volume, len(spec.Volumes))}
	pc.podVolumes(p.Child("volumes"))
	pc.resourceClaims(p.Child("resourceClaims"))
	pc.containers(p.Child("containers"))
	pc.initContainers(p.Child("initContainers"))
	pc.ephemeralContainers(p.Child("ephemeralContainers"))
	pc.podResources(p.Child("resources"))
	pc.hostPortsMatch(p.Child("containers"))
	c.Known(p, "restartPolicy", string(spec.RestartPolicy), restartPolicies)
	c.Known(p, "dnsPolicy", string(spec.DNSPolicy), dnsPolicies)
	c.labels(p, "nodeSelector", spec.NodeSelector)
	if spec.SecurityContext != nil {
		pc.podSecurity(p.Child("securityContext"), spec.SecurityContext)
	}
	if spec.Affinity != nil {
		placementChecker{c}.affinity(p.Child("affinity"), spec.Affinity)
	}
	pc.dnsConfig(p.Child("dnsConfig"))
	pc.gates(p)
	placementChecker{c}.spreadConstraints(p.Child("topologySpreadConstraints"), spec.TopologySpreadConstraints)
	pc.hostProcess(p)
	pc.userNamespace(p)
	pc.podNames(p)
	pc.podLimits(p)
	pc.system(p)
	pc.filesOfEnvironment(p)
	return pc
}

// podVolumes gathers what containers may mount.
func (c *podChecker) podVolumes(p *field.Path) {
	names := set{}
	vc := volumeChecker{Checker: c.Checker}
	if c.meta != nil {
		vc.pod, vc.podName = true, c.meta.Name
	}
	ephemeral := c.ephemeralClaims()
	for i := range c.spec.Volumes {
		volume, vp := &c.spec.Volumes[i], p.Index(i)
		before := len(c.Errs)
		vc.source(vp, volume)
		c.Name(vp, "name", volume.Name, isLabel)
		if names[volume.Name] {
			c.Add(field.Duplicate(vp.Child("name"), volume.Name))
		}
		if len(c.Errs) == before {
			names[volume.Name] = true
			c.volumes[volume.Name] = volume
		}
		if claim := volume.PersistentVolumeClaim; claim != nil && ephemeral[claim.ClaimName] {
			c.Invalid(vp.Child("persistentVolumeClaim"), "claimName", claim.ClaimName, "must not reference a PVC that gets created for an ephemeral volume")
		}
	}
}

// ephemeralClaims are the names of the claims that the pod's volumes make.
func (c *podChecker) ephemeralClaims() set {
	names := set{}
	for i := range c.spec.Volumes {
		if v := &c.spec.Volumes[i]; v.Ephemeral != nil && c.meta != nil && c.meta.Name != "" {
			names[c.meta.Name+"-"+v.Name] = true
		}
	}
	return names
}

func (c *podChecker) gates(p *field.Path) {
	for i, gate := range c.spec.ReadinessGates {
		c.Words(p.Child("readinessGates").Index(i), "conditionType", string(gate.ConditionType), isQualifiedName)
	}
	seen := set{}
	for i, gate := range c.spec.SchedulingGates {
		c.Words(p.Child("schedulingGates").Index(i), "", gate.Name, isQualifiedName)
		c.unique(p.Child("schedulingGates").Index(i), "", seen, gate.Name)
	}
}

// podNames are the fields that name something.
func (c *podChecker) podNames(p *field.Path) {
	spec := c.spec
	if name := spec.HostnameOverride; name != nil {
		c.Forbid(p, "hostnameOverride", spec.SetHostnameAsFQDN != nil && *spec.SetHostnameAsFQDN, "may not be specified when setHostnameAsFQDN is true")
		c.Forbid(p, "hostnameOverride", spec.HostNetwork, "may not be specified when hostNetwork is true")
		if len(*name) > 64 {
			c.Add(field.TooLong(p.Child("hostnameOverride"), "", 64))
		}
		c.Words(p, "hostnameOverride", *name, isSubdomain)
	}
	c.Maybe(p, "serviceAccountName", spec.ServiceAccountName, isSubdomain)
	c.Maybe(p, "nodeName", spec.NodeName, isSubdomain)
	if spec.ActiveDeadlineSeconds != nil {
		c.within(p, "activeDeadlineSeconds", *spec.ActiveDeadlineSeconds, 1, math.MaxInt32)
	}
	c.Maybe(p, "hostname", spec.Hostname, isLabel)
	c.Maybe(p, "subdomain", spec.Subdomain, isLabel)
	placementChecker{c.Checker}.tolerations(p.Child("tolerations"), spec.Tolerations)
	for i, alias := range spec.HostAliases {
		c.ip(p.Child("hostAliases").Index(i), "ip", alias.IP, nil)
		for j, name := range alias.Hostnames {
			c.Words(p.Child("hostAliases").Index(i).Child("hostnames").Index(j), "", name, isSubdomain)
		}
	}
}

func (c *podChecker) podLimits(p *field.Path) {
	spec := c.spec
	c.Maybe(p, "priorityClassName", spec.PriorityClassName, isSubdomain)
	c.maybeRef(p, "runtimeClassName", spec.RuntimeClassName, isSubdomain)
	if spec.PreemptionPolicy != nil {
		c.Known(p, "preemptionPolicy", string(*spec.PreemptionPolicy), preemptionPolicies)
	}
	overheadOfPod(c.Checker, p.Child("overhead"), spec.Overhead)
}

// overheadOfPod is what a runtime class adds to a pod.
func overheadOfPod(c *Checker, p *field.Path, overhead corev1.ResourceList) {
	if overhead != nil {
		pc := &podChecker{Checker: c}
		pc.resources(p, &corev1.ResourceRequirements{Limits: overhead}, (*Checker).containerResource)
	}
}

// ---- containers ----

func (c *podChecker) containers(p *field.Path) {
	if len(c.spec.Containers) == 0 {
		c.Required(p, "", "")
		return
	}
	names, hostPorts := set{}, set{}
	for i := range c.spec.Containers {
		container, cp := &c.spec.Containers[i], p.Index(i)
		c.container(cp, container)
		c.unique(cp, "name", names, container.Name)
		c.lifecycle(cp, container.Lifecycle)
		c.probes(cp, container)
		c.containerRestart(cp, container)
	}
	for i := range c.spec.Containers {
		c.hostPortsAreUnique(p, i, hostPorts, &c.spec.Containers[i])
	}
}

func (c *podChecker) initContainers(p *field.Path) {
	names := set{}
	for i := range c.spec.Containers {
		names[c.spec.Containers[i].Name] = true
	}
	const onlySidecars = "may not be set for init containers without restartPolicy=Always"
	for i := range c.spec.InitContainers {
		container, cp := &c.spec.InitContainers[i], p.Index(i)
		c.container(cp, container)
		c.containerRestart(cp, container)
		c.unique(cp, "name", names, container.Name)
		// every init container is looked at alone, and reported as the first
		c.hostPortsAreUnique(p, 0, set{}, container)
		if defaults.IsSidecar(container) {
			c.lifecycle(cp, container.Lifecycle)
			c.probes(cp, container)
			continue
		}
		c.Forbid(cp, "lifecycle", container.Lifecycle != nil, onlySidecars)
		c.Forbid(cp, "livenessProbe", container.LivenessProbe != nil, onlySidecars)
		c.Forbid(cp, "readinessProbe", container.ReadinessProbe != nil, onlySidecars)
		c.Forbid(cp, "startupProbe", container.StartupProbe != nil, onlySidecars)
		for j, resize := range container.ResizePolicy {
			if resize.RestartPolicy == corev1.RestartContainer {
				c.Invalid(cp.Child("resizePolicy").Index(j), "restartPolicy", resize.RestartPolicy, "must not be set to 'RestartContainer' for non-sidecar initContainers")
			}
		}
	}
}

// ephemeralContainers have fewer fields than others.
func (c *podChecker) ephemeralContainers(p *field.Path) {
	if len(c.spec.EphemeralContainers) == 0 {
		return
	}
	const never = "cannot be set for an Ephemeral Container"
	all, others := set{}, set{}
	for _, list := range [...][]corev1.Container{c.spec.Containers, c.spec.InitContainers} {
		for i := range list {
			all[list[i].Name], others[list[i].Name] = true, true
		}
	}
	for i := range c.spec.EphemeralContainers {
		ephemeral, cp := &c.spec.EphemeralContainers[i], p.Index(i)
		container := (*corev1.Container)(&ephemeral.EphemeralContainerCommon)
		c.container(cp, container)
		imageIsTrimmed(c.Checker, cp, container.Image)
		c.unique(cp, "name", all, ephemeral.Name)
		if target := ephemeral.TargetContainerName; target != "" && !others[target] {
			c.Add(field.NotFound(cp.Child("targetContainerName"), target))
		}
		for _, name := range ephemeralForbidden {
			c.Forbid(cp, strings.ToLower(name[:1])+name[1:], !reflect.ValueOf(container).Elem().FieldByName(name).IsZero(), never)
		}
		for j, mount := range container.VolumeMounts {
			c.Forbid(cp.Child("volumeMounts").Index(j), "subPath", mount.SubPath != "", never)
			c.Forbid(cp.Child("volumeMounts").Index(j), "subPathExpr", mount.SubPathExpr != "", never)
		}
	}
}

// container is what the three kinds of containers share.
func (c *podChecker) container(p *field.Path, container *corev1.Container) {
	c.Name(p, "name", container.Name, isLabel)
	c.Need(p, "image", container.Image != "", "")
	c.Known(p, "terminationMessagePolicy", string(container.TerminationMessagePolicy), messagePolicies)
	if len(container.Ports) > 0 {
		ports, names := p.Child("ports"), set{}
		for i := range container.Ports {
			c.containerPort(ports.Index(i), &container.Ports[i], names)
		}
	}
	for i := range container.Env {
		c.environment(p, i, &container.Env[i])
	}
	for i := range container.EnvFrom {
		c.environmentFrom(p.Child("envFrom"), i, &container.EnvFrom[i])
	}
	c.mounts(p, container)
	c.devices(p.Child("volumeDevices"), container)
	c.Known(p, "imagePullPolicy", string(container.ImagePullPolicy), pullPolicies)
	c.resources(p.Child("resources"), &container.Resources, (*Checker).containerResource)
	c.resizePolicy(p.Child("resizePolicy"), container.ResizePolicy)
	if container.SecurityContext != nil {
		c.containerSecurity(p.Child("securityContext"), container.SecurityContext)
	}
}

func (c *podChecker) containerPort(p *field.Path, port *corev1.ContainerPort, names set) {
	if port.Name != "" {
		if messages := isPortName(port.Name); len(messages) > 0 {
			c.Words(p, "name", port.Name, isPortName)
		} else {
			c.unique(p, "name", names, port.Name)
		}
	}
	if port.ContainerPort == 0 {
		c.Required(p, "containerPort", "")
	} else {
		c.port(p, "containerPort", port.ContainerPort)
	}
	if port.HostPort != 0 {
		c.port(p, "hostPort", port.HostPort)
	}
	c.Known(p, "protocol", string(port.Protocol), protocols)
}

func (c *podChecker) hostPortsAreUnique(p *field.Path, index int, seen set, container *corev1.Container) {
	for i := range container.Ports {
		if port := &container.Ports[i]; port.HostPort != 0 {
			key := string(port.Protocol) + "/" + port.HostIP + "/" + strconv.Itoa(int(port.HostPort))
			c.unique(p.Index(index).Child("ports").Index(i), "hostPort", seen, key)
		}
	}
}

// hostPortsMatch: on the host's network a port is a host port.
func (c *podChecker) hostPortsMatch(p *field.Path) {
	if !c.spec.HostNetwork {
		return
	}
	for i := range c.spec.Containers {
		for j, port := range c.spec.Containers[i].Ports {
			if port.HostPort != port.ContainerPort && (c.meta != nil || port.HostPort != 0) {
				c.Invalid(p.Index(i).Child("ports").Index(j), "hostPort", port.HostPort, "must match `containerPort` when `hostNetwork` is true")
			}
		}
	}
}

func (c *podChecker) environment(p *field.Path, i int, env *corev1.EnvVar) {
	from := env.ValueFrom
	if from == nil && env.Name != "" && len(validation.IsRelaxedEnvVarName(env.Name)) == 0 {
		return
	}
	p = p.Child("env").Index(i)
	c.Name(p, "name", env.Name, validation.IsRelaxedEnvVarName)
	if from == nil {
		return
	}
	p = p.Child("valueFrom")
	sources := 0
	if from.FieldRef != nil {
		sources++
		fieldRef(c.Checker, p.Child("fieldRef"), from.FieldRef, envFields)
	}
	if from.ResourceFieldRef != nil {
		sources++
		resourceFieldRef(c.Checker, p.Child("resourceFieldRef"), from.ResourceFieldRef)
	}
	if ref := from.ConfigMapKeyRef; ref != nil {
		sources++
		c.keyRef(p.Child("configMapKeyRef"), ref.Name, ref.Key)
	}
	if ref := from.SecretKeyRef; ref != nil {
		sources++
		c.keyRef(p.Child("secretKeyRef"), ref.Name, ref.Key)
	}
	if ref := from.FileKeyRef; ref != nil {
		sources++
		c.Name(p.Child("fileKeyRef"), "key", ref.Key, validation.IsRelaxedEnvVarName)
		c.Name(p.Child("fileKeyRef"), "volumeName", ref.VolumeName, isLabel)
		c.Name(p.Child("fileKeyRef"), "path", ref.Path, noBacksteps)
	}
	switch {
	case sources == 0:
		c.Invalid(p, "", "", "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`")
	case env.Value != "":
		c.Invalid(p, "", "", "may not be specified when `value` is not empty")
	case sources > 1:
		c.Invalid(p, "", "", "may not have more than one field specified at a time")
	}
}

func (c *podChecker) keyRef(p *field.Path, name, key string) {
	c.Words(p, "name", name, isSubdomain)
	c.Name(p, "key", key, isConfigKey)
}

func (c *podChecker) environmentFrom(p *field.Path, i int, from *corev1.EnvFromSource) {
	c.Maybe(p.Index(i), "prefix", from.Prefix, validation.IsRelaxedEnvVarName)
	if from.ConfigMapRef != nil {
		c.Name(p.Index(i).Child("configMapRef"), "name", from.ConfigMapRef.Name, isSubdomain)
	}
	if from.SecretRef != nil {
		c.Name(p.Index(i).Child("secretRef"), "name", from.SecretRef.Name, isSubdomain)
	}
	switch {
	case from.ConfigMapRef == nil && from.SecretRef == nil:
		c.Invalid(p, "", "", "must specify one of: `configMapRef` or `secretRef`")
	case from.ConfigMapRef != nil && from.SecretRef != nil:
		c.Invalid(p, "", "", "may not have more than one field specified at a time")
	}
}

// filesOfEnvironment: a file that sets a variable lies in an emptyDir.
func (c *podChecker) filesOfEnvironment(p *field.Path) {
	fromFile := func(env corev1.EnvVar) bool { return env.ValueFrom != nil && env.ValueFrom.FileKeyRef != nil }
	if !c.anyContainer(func(container *corev1.Container) bool { return slices.ContainsFunc(container.Env, fromFile) }) {
		return
	}
	volumes := map[string]*corev1.Volume{} // the first of a name
	for i := range c.spec.Volumes {
		if v := &c.spec.Volumes[i]; volumes[v.Name] == nil {
			volumes[v.Name] = v
		}
	}
	c.eachContainer(p, func(cp *field.Path, container *corev1.Container) {
		for i := range container.Env {
			from := container.Env[i].ValueFrom
			if from == nil || from.FileKeyRef == nil {
				continue
			}
			name := from.FileKeyRef.VolumeName
			named := cp.Child("env").Index(i).Child("valueFrom", "fileKeyRef", "volumeName")
			if volume := volumes[name]; volume == nil {
				c.Add(field.NotFound(named, name))
			} else if volume.EmptyDir == nil {
				c.Invalid(named, "", name, "referenced volume must be of type emptyDir")
			}
		}
	})
}

// anyContainer looks before eachContainer makes its paths.
func (c *podChecker) anyContainer(is func(*corev1.Container) bool) bool {
	for i := range c.spec.EphemeralContainers {
		if is((*corev1.Container)(&c.spec.EphemeralContainers[i].EphemeralContainerCommon)) {
			return true
		}
	}
	for _, list := range [...][]corev1.Container{c.spec.InitContainers, c.spec.Containers} {
		for i := range list {
			if is(&list[i]) {
				return true
			}
		}
	}
	return false
}

// eachContainer visits init containers first, as kube-apiserver does.
func (c *podChecker) eachContainer(p *field.Path, visit func(*field.Path, *corev1.Container)) {
	for i := range c.spec.InitContainers {
		visit(p.Child("initContainers").Index(i), &c.spec.InitContainers[i])
	}
	for i := range c.spec.Containers {
		visit(p.Child("containers").Index(i), &c.spec.Containers[i])
	}
	for i := range c.spec.EphemeralContainers {
		visit(p.Child("ephemeralContainers").Index(i), (*corev1.Container)(&c.spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
}

// mounts: paths of details lack the index, as in Kubernetes.
func (c *podChecker) mounts(p *field.Path, container *corev1.Container) {
	if len(container.VolumeMounts) == 0 {
		return
	}
	p, paths := p.Child("volumeMounts"), set{}
	devices, devicePaths := set{}, set{}
	for _, device := range container.VolumeDevices {
		devices[device.Name], devicePaths[device.DevicePath] = true, true
	}
	for i := range container.VolumeMounts {
		mount, mp := &container.VolumeMounts[i], p.Index(i)
		c.Need(mp, "name", mount.Name != "", "")
		if c.volumes[mount.Name] == nil {
			c.Add(field.NotFound(mp.Child("name"), mount.Name))
		}
		c.Need(mp, "mountPath", mount.MountPath != "", "")
		if paths[mount.MountPath] {
			c.Invalid(mp, "mountPath", mount.MountPath, "must be unique")
		}
		paths[mount.MountPath] = true
		if devices[mount.Name] {
			c.Invalid(mp, "name", mount.Name, "must not already exist in volumeDevices")
		}
		if devicePaths[mount.MountPath] {
			c.Invalid(mp, "mountPath", mount.MountPath, "must not already exist as a path in volumeDevices")
		}
		if mount.SubPath != "" {
			c.Words(p, "subPath", mount.SubPath, isDescending)
		}
		if mount.SubPathExpr != "" {
			if mount.SubPath != "" {
				c.Invalid(mp, "subPathExpr", mount.SubPathExpr, "subPathExpr and subPath are mutually exclusive")
			}
			c.Words(p, "subPathExpr", mount.SubPathExpr, isDescending)
		}
		oneOfRef(c.Checker, p, "mountPropagation", mount.MountPropagation, mountPropagations)
		if mode := mount.MountPropagation; mode != nil && *mode == corev1.MountPropagationBidirectional {
			security := container.SecurityContext
			privileged := security != nil && security.Privileged != nil && *security.Privileged
			c.Forbid(p, "mountPropagation", !privileged, "Bidirectional mount propagation is available only to privileged containers")
		}
		c.recursiveReadOnly(p, mount)
	}
}

func (c *podChecker) recursiveReadOnly(p *field.Path, mount *corev1.VolumeMount) {
	mode := mount.RecursiveReadOnly
	if mode == nil || *mode == corev1.RecursiveReadOnlyDisabled {
		return
	}
	if !slices.Contains(recursiveReadOnly, string(*mode)) {
		c.Unsupported(p, "recursiveReadOnly", *mode, recursiveReadOnly)
		return
	}
	c.Forbid(p, "recursiveReadOnly", !mount.ReadOnly, "may only be specified when readOnly is true")
	propagated := mount.MountPropagation != nil && *mount.MountPropagation != corev1.MountPropagationNone
	c.Forbid(p, "recursiveReadOnly", propagated, "may only be specified when mountPropagation is None or not specified")
}

func (c *podChecker) devices(p *field.Path, container *corev1.Container) {
	if len(container.VolumeDevices) == 0 {
		return
	}
	names, paths := set{}, set{}
	mounted, mountPaths := set{}, set{}
	for _, mount := range container.VolumeMounts {
		mounted[mount.Name], mountPaths[mount.MountPath] = true, true
	}
	for i, device := range container.VolumeDevices {
		dp := p.Index(i)
		c.Need(dp, "name", device.Name != "", "")
		if names[device.Name] {
			c.Invalid(dp, "name", device.Name, "must be unique")
		}
		volume := c.volumes[device.Name]
		if volume != nil && volume.PersistentVolumeClaim == nil && volume.Ephemeral == nil {
			c.Invalid(dp, "name", device.Name, "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode")
		}
		if volume == nil {
			c.Add(field.NotFound(dp.Child("name"), device.Name))
		}
		c.Need(dp, "devicePath", device.DevicePath != "", "")
		if paths[device.DevicePath] {
			c.Invalid(dp, "devicePath", device.DevicePath, "must be unique")
		}
		if device.DevicePath != "" && len(noBacksteps(device.DevicePath)) > 0 {
			c.Invalid(dp, "devicePath", device.DevicePath, "can not contain backsteps ('..')")
		} else {
			paths[device.DevicePath] = true
		}
		if mounted[device.Name] {
			c.Invalid(dp, "name", device.Name, "must not already exist in volumeMounts")
		}
		if mountPaths[device.DevicePath] {
			c.Invalid(dp, "devicePath", device.DevicePath, "must not already exist as a path in volumeMounts")
		}
		names[device.Name] = device.Name != ""
	}
}

func (c *podChecker) probes(p *field.Path, container *corev1.Container) {
	if probe := container.LivenessProbe; probe != nil {
		c.probe(p.Child("livenessProbe"), probe)
		c.succeedsAtOnce(p.Child("livenessProbe"), probe)
	}
	if probe := container.ReadinessProbe; probe != nil {
		c.probe(p.Child("readinessProbe"), probe)
		if grace := probe.TerminationGracePeriodSeconds; grace != nil {
			c.Invalid(p.Child("readinessProbe"), "terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
		}
	}
	if probe := container.StartupProbe; probe != nil {
		c.probe(p.Child("startupProbe"), probe)
		c.succeedsAtOnce(p.Child("startupProbe"), probe)
	}
}

func (c *podChecker) succeedsAtOnce(p *field.Path, probe *corev1.Probe) {
	if probe.SuccessThreshold != 1 {
		c.Invalid(p, "successThreshold", probe.SuccessThreshold, "must be 1")
	}
}

func (c *podChecker) probe(p *field.Path, probe *corev1.Probe) {
	c.handler(p, &probe.ProbeHandler, nil)
	c.nonNegative(p, "initialDelaySeconds", int64(probe.InitialDelaySeconds))
	c.nonNegative(p, "timeoutSeconds", int64(probe.TimeoutSeconds))
	c.nonNegative(p, "periodSeconds", int64(probe.PeriodSeconds))
	c.nonNegative(p, "successThreshold", int64(probe.SuccessThreshold))
	c.nonNegative(p, "failureThreshold", int64(probe.FailureThreshold))
	if grace := probe.TerminationGracePeriodSeconds; grace != nil {
		c.aboveZero(p, "terminationGracePeriodSeconds", *grace)
	}
}

func (c *podChecker) lifecycle(p *field.Path, lifecycle *corev1.Lifecycle) {
	if lifecycle == nil {
		return
	}
	p = p.Child("lifecycle")
	for _, hook := range [...]struct {
		name    string
		handler *corev1.LifecycleHandler
	}{{"postStart", lifecycle.PostStart}, {"preStop", lifecycle.PreStop}} {
		if h := hook.handler; h != nil {
			c.handler(p.Child(hook.name), &corev1.ProbeHandler{Exec: h.Exec, HTTPGet: h.HTTPGet, TCPSocket: h.TCPSocket}, h.Sleep)
		}
	}
}

// handler is what a probe or a hook does; only hooks sleep.
func (c *podChecker) handler(p *field.Path, h *corev1.ProbeHandler, sleep *corev1.SleepAction) {
	one := choice{Checker: c.Checker, p: p, what: "handler type"}
	if h.Exec != nil && one.first("exec") {
		c.Need(p.Child("exec"), "command", len(h.Exec.Command) > 0, "")
	}
	if h.HTTPGet != nil && one.first("httpGet") {
		c.httpGet(p.Child("httpGet"), h.HTTPGet)
	}
	if h.TCPSocket != nil && one.first("tcpSocket") {
		c.portRef(p.Child("tcpSocket"), "port", h.TCPSocket.Port)
	}
	if h.GRPC != nil && one.first("grpc") {
		c.portRef(p.Child("grpc"), "port", intstr.FromInt32(h.GRPC.Port))
	}
	if sleep != nil && one.first("sleep") {
		if grace := c.spec.TerminationGracePeriodSeconds; grace != nil && (sleep.Seconds < 0 || sleep.Seconds > *grace) {
			c.Invalid(p, "sleep", sleep.Seconds, fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))
		}
	}
	c.Need(p, "", one.count > 0, "must specify a handler type")
}

func (c *podChecker) httpGet(p *field.Path, get *corev1.HTTPGetAction) {
	c.Need(p, "path", get.Path != "", "")
	c.portRef(p, "port", get.Port)
	c.OneOf(p, "scheme", string(get.Scheme), httpSchemes)
	for _, header := range get.HTTPHeaders {
		c.Words(p, "httpHeaders", header.Name, validation.IsHTTPHeaderName)
	}
}

func (c *podChecker) containerRestart(p *field.Path, container *corev1.Container) {
	rules := container.RestartPolicyRules
	if container.RestartPolicy == nil {
		c.Need(p, "restartPolicy", len(rules) == 0, "must specify restartPolicy when restart rules are used")
		if len(rules) == 0 {
			return
		}
	} else {
		c.OneOf(p, "restartPolicy", string(*container.RestartPolicy), containerRestarts)
	}
	if len(rules) > 20 {
		c.Add(field.TooMany(p.Child("restartPolicyRules"), len(rules), 20))
	}
	for i, rule := range rules {
		rp := p.Child("restartPolicyRules").Index(i)
		c.OneOf(rp, "action", string(rule.Action), restartRuleActions)
		if rule.ExitCodes == nil {
			c.Required(rp, "exitCodes", "must be specified")
			continue
		}
		c.OneOf(rp.Child("exitCodes"), "operator", string(rule.ExitCodes.Operator), setOperators)
		if len(rule.ExitCodes.Values) > 255 {
			c.Add(field.TooMany(rp.Child("exitCodes", "values"), len(rule.ExitCodes.Values), 255))
		}
	}
}

func (c *podChecker) resizePolicy(p *field.Path, policies []corev1.ContainerResizePolicy) {
	seen := set{}
	for i, policy := range policies {
		c.unique(p.Index(i), "", seen, string(policy.ResourceName))
		c.Known(p, "", string(policy.ResourceName), resizeResources)
		c.Known(p, "", string(policy.RestartPolicy), resizePolicies)
		if c.spec.RestartPolicy == corev1.RestartPolicyNever && policy.RestartPolicy != corev1.NotRequired {
			c.Invalid(p, "", policy.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'")
		}
	}
}

// ---- resources ----

func (c *podChecker) resources(p *field.Path, r *corev1.ResourceRequirements, name func(*Checker, *field.Path, string)) {
	hugePages, compute := false, false
	note := func(name corev1.ResourceName) {
		hugePages = hugePages || isHugePages(string(name))
		compute = compute || name == corev1.ResourceCPU || name == corev1.ResourceMemory
	}
	for _, resource := range sortedKeys(r.Limits) {
		note(resource)
		if limit := r.Limits[resource]; !isPlainAmount(resource, limit) {
			c.amountOfResource(p.Child("limits").Key(string(resource)), string(resource), limit, name)
		}
	}
	for _, resource := range sortedKeys(r.Requests) {
		note(resource)
		request := r.Requests[resource]
		if !isPlainAmount(resource, request) {
			c.amountOfResource(p.Child("requests").Key(string(resource)), string(resource), request, name)
		}
		limit, limited := r.Limits[resource]
		switch {
		case limited && !mayOvercommit(string(resource)) && request.Cmp(limit) != 0:
			c.Invalid(p, "requests", request.String(), fmt.Sprintf("must be equal to %s limit of %s", resource, limit.String()))
		case limited && request.Cmp(limit) > 0:
			c.Invalid(p, "requests", request.String(), fmt.Sprintf("must be less than or equal to %s limit of %s", resource, limit.String()))
		case !limited && !mayOvercommit(string(resource)):
			c.Required(p, "limits", "Limit must be set for non overcommitable resources")
		}
	}
	c.Forbid(p, "", hugePages && !compute, "HugePages require cpu or memory")
	c.claimNames(p, r.Claims)
}

// isPlainAmount is true for nearly all there is, so that no path is built for it.
func isPlainAmount(resource corev1.ResourceName, value quantities.Quantity) bool {
	return (resource == corev1.ResourceCPU || resource == corev1.ResourceMemory) && value.Sign() >= 0
}

func (c *podChecker) amountOfResource(p *field.Path, resource string, value quantities.Quantity, name func(*Checker, *field.Path, string)) {
	name(c.Checker, p, resource)
	c.quantity(p, resource, value)
	if isHugePages(resource) && !isMultipleOfPage(resource, value.Value()) {
		c.Invalid(p, "", value.String(), fmt.Sprintf("%s is not positive integer multiple of %s", value.String(), resource))
	}
}

func isMultipleOfPage(resource string, amount int64) bool {
	size := strings.TrimPrefix(resource, corev1.ResourceHugePagesPrefix)
	if bounded.CheckQuantity(size) != nil {
		return false
	}
	page, err := quantities.ParseQuantity(size)
	return err == nil && page.Sign() > 0 && page.MilliValue()%1000 == 0 && amount%page.Value() == 0
}

func (c *podChecker) claimNames(p *field.Path, claims []corev1.ResourceClaim) {
	if len(claims) == 0 {
		return
	}
	p, seen := p.Child("claims"), set{}
	for i, claim := range claims {
		if claim.Name == "" {
			c.Required(p.Index(i), "", "")
			continue
		}
		key := claim.Name
		if claim.Request != "" {
			c.Words(p.Index(i), "request", claim.Request, isLabel)
			key += "/" + claim.Request
		}
		c.unique(p.Index(i), "", seen, key)
		if !c.claims[claim.Name] {
			missing := field.NotFound(p.Index(i), claim.Name)
			missing.Detail = c.noClaim
			c.Add(missing)
		}
	}
}

// resourceClaims also gathers their names for the containers.
func (c *podChecker) resourceClaims(p *field.Path) {
	seen := set{}
	for i, claim := range c.spec.ResourceClaims {
		cp := p.Index(i)
		switch {
		case claim.Name == "":
			c.Required(cp, "name", "")
		case seen[claim.Name]:
			c.unique(cp, "name", seen, claim.Name)
		default:
			c.Words(cp, "name", claim.Name, isLabel)
			seen[claim.Name] = true
		}
		if claim.ResourceClaimName != nil && claim.ResourceClaimTemplateName != nil {
			c.Invalid(cp, "", claim, "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified")
		}
		if claim.ResourceClaimName == nil && claim.ResourceClaimTemplateName == nil {
			c.Invalid(cp, "", claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")
		}
		c.maybeRef(cp, "resourceClaimName", claim.ResourceClaimName, isSubdomain)
		c.maybeRef(cp, "resourceClaimTemplateName", claim.ResourceClaimTemplateName, isSubdomain)
	}
	c.claims, c.noClaim = seen, "must be one of the names in pod.spec.resourceClaims which is empty"
	if len(seen) > 0 {
		c.noClaim = "must be one of the names in pod.spec.resourceClaims: " + strings.Join(sortedKeys(seen), ", ")
	}
}

// podResources are those of the pod as a whole.
func (c *podChecker) podResources(p *field.Path) {
	own := c.spec.Resources
	if own == nil {
		return
	}
	if c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
		c.Forbid(p, "", true, "may not be set for a windows pod")
		return
	}
	c.Forbid(p, "claims", own.Claims != nil, "claims may not be set for Resources at pod-level")
	c.resources(p, own, (*Checker).podResource)
	c.containersFitPod(p, own)
}

func (c *podChecker) containersFitPod(p *field.Path, own *corev1.ResourceRequirements) {
	sum := defaults.SumContainers(c.spec, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests })
	for _, name := range sortedKeys(sum) {
		total := sum[name]
		if request, ok := own.Requests[name]; ok && total.Cmp(request) > 0 {
			c.Invalid(p.Child("requests").Key(string(name)), "", request.String(), "must be greater than or equal to aggregate container requests of "+total.String())
		}
	}
	sum = defaults.SumContainers(c.spec, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits })
	for _, name := range sortedKeys(sum) {
		total := sum[name]
		if limit, ok := own.Limits[name]; ok && isHugePages(string(name)) && total.Cmp(limit) > 0 {
			c.Invalid(p.Child("limits").Key(string(name)), "", limit.String(), "must be greater than or equal to aggregate container limits of "+total.String())
		}
	}
	for i := range c.spec.Containers {
		limits := c.spec.Containers[i].Resources.Limits
		for _, name := range sortedKeys(limits) {
			limit := limits[name]
			if most, ok := own.Limits[name]; ok && limit.Cmp(most) > 0 {
				c.Invalid(p.Child("containers").Index(i).Key(string(name)), "limits", limit.String(), "must be less than or equal to pod limits of "+most.String())
			}
		}
	}
}

// ---- security ----

func (c *podChecker) podSecurity(p *field.Path, security *corev1.PodSecurityContext) {
	c.userID(p, "fsGroup", security.FSGroup, validation.IsValidGroupID)
	c.userID(p, "runAsUser", security.RunAsUser, validation.IsValidUserID)
	c.userID(p, "runAsGroup", security.RunAsGroup, validation.IsValidGroupID)
	for i := range security.SupplementalGroups {
		c.userID(p.Child("supplementalGroups").Index(i), "", &security.SupplementalGroups[i], validation.IsValidGroupID)
	}
	if share := c.spec.ShareProcessNamespace; share != nil && *share && c.spec.HostPID {
		c.Invalid(p, "shareProcessNamespace", *share, "ShareProcessNamespace and HostPID cannot both be enabled")
	}
	c.sysctls(p.Child("sysctls"), security.Sysctls)
	oneOfRef(c.Checker, p, "fsGroupChangePolicy", security.FSGroupChangePolicy, fsGroupPolicies)
	c.seccomp(p.Child("seccompProfile"), security.SeccompProfile)
	c.windowsOptions(p.Child("windowsOptions"), security.WindowsOptions)
	c.appArmor(p.Child("appArmorProfile"), security.AppArmorProfile)
	oneOfRef(c.Checker, p, "supplementalGroupsPolicy", security.SupplementalGroupsPolicy, groupsPolicies)
	oneOfRef(c.Checker, p, "seLinuxChangePolicy", security.SELinuxChangePolicy, seLinuxPolicies)
}

func (c *podChecker) userID(p *field.Path, name string, id *int64, f func(int64) []string) {
	if id != nil {
		for _, message := range f(*id) {
			c.Invalid(p, name, *id, message)
		}
	}
}

func (c *podChecker) sysctls(p *field.Path, sysctls []corev1.Sysctl) {
	seen := set{}
	for i, sysctl := range sysctls {
		switch {
		case sysctl.Name == "":
			c.Required(p.Index(i), "name", "")
		case len(sysctl.Name) > 253 || !sysctlName.MatchString(sysctl.Name):
			c.Invalid(p.Index(i), "name", sysctl.Name, fmt.Sprintf("must have at most 253 characters and match regex %s", sysctlName))
		default:
			c.unique(p.Index(i), "name", seen, sysctl.Name)
		}
		name := strings.ReplaceAll(sysctl.Name, "/", ".")
		ofIPC := slices.ContainsFunc(sysctlOfIPC, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
		if c.spec.HostNetwork && strings.HasPrefix(name, "net.") {
			c.Invalid(p.Index(i), "name", sysctl.Name, "may not be specified when 'hostNetwork' is true")
		} else if c.spec.HostIPC && ofIPC {
			c.Invalid(p.Index(i), "name", sysctl.Name, "may not be specified when 'hostIPC' is true")
		}
	}
}

func (c *podChecker) containerSecurity(p *field.Path, security *corev1.SecurityContext) {
	c.userID(p, "runAsUser", security.RunAsUser, validation.IsValidUserID)
	c.userID(p, "runAsGroup", security.RunAsGroup, validation.IsValidGroupID)
	if mount := security.ProcMount; mount != nil {
		c.OneOf(p, "procMount", string(*mount), procMounts)
		if *mount == corev1.UnmaskedProcMount && (c.spec.HostUsers == nil || *c.spec.HostUsers) {
			c.Invalid(p, "procMount", *mount, "`hostUsers` must be false to use `Unmasked`")
		}
	}
	c.seccomp(p.Child("seccompProfile"), security.SeccompProfile)
	if escalate := security.AllowPrivilegeEscalation; escalate != nil && !*escalate {
		if security.Privileged != nil && *security.Privileged {
			c.Invalid(p, "", security, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true")
		}
		if security.Capabilities != nil && slices.Contains(security.Capabilities.Add, "CAP_SYS_ADMIN") {
			c.Invalid(p, "", security, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN")
		}
	}
	c.windowsOptions(p.Child("windowsOptions"), security.WindowsOptions)
	c.appArmor(p.Child("appArmorProfile"), security.AppArmorProfile)
}

func (c *podChecker) seccomp(p *field.Path, profile *corev1.SeccompProfile) {
	if profile == nil {
		return
	}
	if profile.Type == "" {
		c.Required(p, "type", "type is required when seccompProfile is set")
	} else {
		c.OneOf(p, "type", string(profile.Type), profileTypes)
	}
	switch local := profile.Type == corev1.SeccompProfileTypeLocalhost; {
	case local && profile.LocalhostProfile == nil:
		c.Required(p, "localhostProfile", "must be set when seccomp type is Localhost")
	case local:
		c.Words(p, "localhostProfile", *profile.LocalhostProfile, isDescending)
	case profile.LocalhostProfile != nil:
		c.Invalid(p, "localhostProfile", profile, "can only be set when seccomp type is Localhost")
	}
}

func (c *podChecker) appArmor(p *field.Path, profile *corev1.AppArmorProfile) {
	if profile == nil {
		return
	}
	if profile.Type == "" {
		c.Required(p, "type", "type is required when appArmorProfile is set")
		return
	}
	c.OneOf(p, "type", string(profile.Type), profileTypes)
	const must = "must be set when AppArmor type is Localhost"
	switch local := profile.LocalhostProfile; {
	case profile.Type != corev1.AppArmorProfileTypeLocalhost:
		if local != nil && slices.Contains(profileTypes, string(profile.Type)) {
			c.Invalid(p, "localhostProfile", *local, "can only be set when AppArmor type is Localhost")
		}
	case local == nil || *local == "":
		c.Required(p, "localhostProfile", must)
	case strings.TrimSpace(*local) != *local:
		c.Invalid(p, "localhostProfile", *local, "must not be padded with whitespace")
	case len(*local) > 4095:
		c.Add(field.TooLong(p.Child("localhostProfile"), "", 4095))
	}
}

// seccompMatchesAnnotations: the annotations of long ago must say what the fields say.
func (c *podChecker) seccompMatchesAnnotations(p *field.Path, annotations map[string]string) {
	if len(annotations) == 0 {
		return
	}
	match := func(p *field.Path, key string, profile *corev1.SeccompProfile) {
		annotation, found := annotations[key]
		if !found || profile == nil {
			return
		}
		local, isLocal := strings.CutPrefix(annotation, corev1.SeccompLocalhostProfileNamePrefix)
		wrongType := false
		switch profile.Type {
		case corev1.SeccompProfileTypeUnconfined:
			wrongType = annotation != corev1.SeccompProfileNameUnconfined
		case corev1.SeccompProfileTypeRuntimeDefault:
			wrongType = annotation != corev1.SeccompProfileRuntimeDefault && annotation != corev1.DeprecatedSeccompProfileDockerDefault
		case corev1.SeccompProfileTypeLocalhost:
			wrongType = !isLocal
			c.Forbid(p, "localhostProfile", isLocal && (profile.LocalhostProfile == nil || *profile.LocalhostProfile != local),
				"seccomp profile in annotation and field must match")
		}
		c.Forbid(p, "type", wrongType, "seccomp type in annotation and field must match")
	}
	if s := c.spec.SecurityContext; s != nil {
		match(p.Child("securityContext", "seccompProfile"), corev1.SeccompPodAnnotationKey, s.SeccompProfile)
	}
	c.eachContainer(p, func(cp *field.Path, container *corev1.Container) {
		if s := container.SecurityContext; s != nil {
			match(cp.Child("securityContext", "seccompProfile"), corev1.SeccompContainerAnnotationKeyPrefix+container.Name, s.SeccompProfile)
		}
	})
}

// appArmorMatchesAnnotations: the annotation of long ago must say what the field says.
func (c *podChecker) appArmorMatchesAnnotations(p *field.Path, annotations map[string]string) {
	if len(annotations) == 0 || c.spec.OS != nil && c.spec.OS.Name == corev1.Windows {
		return
	}
	c.eachContainer(p, func(cp *field.Path, container *corev1.Container) {
		annotation, ok := annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+container.Name]
		var profile *corev1.AppArmorProfile
		if c.spec.SecurityContext != nil {
			profile = c.spec.SecurityContext.AppArmorProfile
		}
		if container.SecurityContext != nil && container.SecurityContext.AppArmorProfile != nil {
			profile = container.SecurityContext.AppArmorProfile
		}
		if !ok || profile == nil {
			return
		}
		local, isLocal := strings.CutPrefix(annotation, corev1.DeprecatedAppArmorBetaProfileNamePrefix)
		wrongType := false
		switch profile.Type {
		case corev1.AppArmorProfileTypeUnconfined:
			wrongType = annotation != corev1.DeprecatedAppArmorBetaProfileNameUnconfined
		case corev1.AppArmorProfileTypeRuntimeDefault:
			wrongType = annotation != corev1.DeprecatedAppArmorBetaProfileRuntimeDefault
		case corev1.AppArmorProfileTypeLocalhost:
			wrongType = !isLocal
			c.Forbid(cp, "securityContext.appArmorProfile.localhostProfile", isLocal && (profile.LocalhostProfile == nil || *profile.LocalhostProfile != local),
				"apparmor profile in annotation and field must match")
		}
		c.Forbid(cp, "securityContext.appArmorProfile.type", wrongType, "apparmor type in annotation and field must match")
	})
}

func (c *podChecker) windowsOptions(p *field.Path, options *corev1.WindowsSecurityContextOptions) {
	if options == nil {
		return
	}
	c.maybeRef(p, "gmsaCredentialSpecName", options.GMSACredentialSpecName, isSubdomain)
	if spec := options.GMSACredentialSpec; spec != nil && *spec == "" {
		c.Invalid(p, "gmsaCredentialSpec", *spec, "gmsaCredentialSpec cannot be an empty string")
	} else if spec != nil && len(*spec) > 64<<10 {
		c.Invalid(p, "gmsaCredentialSpec", *spec, "gmsaCredentialSpec size must be under 64 KiB")
	}
	if options.RunAsUserName != nil {
		c.Words(p, "runAsUserName", *options.RunAsUserName, isWindowsUser)
	}
}

var (
	controlCharacters = regexp.MustCompile(`[[:cntrl:]]+`)
	netBIOSName       = regexp.MustCompile(`^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$`)
	windowsDomain     = regexp.MustCompile(`^[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?)*$`)
	dotsAndSpaces     = regexp.MustCompile(`^[\. ]+$`)
)

// isWindowsUser is user or DOMAIN\user.
func isWindowsUser(name string) (messages []string) {
	say := func(wrong bool, message string) {
		if wrong {
			messages = append(messages, message)
		}
	}
	parts := strings.Split(name, `\`)
	switch {
	case name == "":
		return []string{"runAsUserName cannot be an empty string"}
	case controlCharacters.MatchString(name):
		return []string{"runAsUserName cannot contain control characters"}
	case len(parts) > 2:
		return []string{"runAsUserName cannot contain more than one backslash"}
	}
	user := parts[len(parts)-1]
	if len(parts) == 2 {
		say(len(parts[0]) >= 256, "runAsUserName's Domain length must be under 256 characters")
		say(!netBIOSName.MatchString(parts[0]) && !windowsDomain.MatchString(parts[0]), "runAsUserName's Domain doesn't match the NetBios nor the DNS format")
	}
	say(user == "", "runAsUserName's User cannot be empty")
	say(len(user) > 104, "runAsUserName's User length must not be longer than 104 characters")
	say(dotsAndSpaces.MatchString(user), "runAsUserName's User cannot contain only periods or spaces")
	say(strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`), `runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	return messages
}

// userNamespace: a pod in a user namespace of its own shares few of the host's other namespaces.
func (c *podChecker) userNamespace(p *field.Path) {
	if c.spec.HostUsers == nil || *c.spec.HostUsers {
		return
	}
	const why = "when `hostUsers` is false"
	c.Forbid(p, "hostNetwork", c.spec.HostNetwork, why)
	c.Forbid(p, "HostPID", c.spec.HostPID, why)
	c.Forbid(p, "HostIPC", c.spec.HostIPC, why)
	c.eachContainer(p, func(cp *field.Path, container *corev1.Container) {
		c.Forbid(cp, "volumeDevices", len(container.VolumeDevices) > 0, why)
	})
}

// system refuses what the pod's operating system does not have.
func (c *podChecker) system(p *field.Path) {
	if c.spec.OS == nil {
		return
	}
	switch name := c.spec.OS.Name; {
	case name == "":
		c.Required(p, "os.name", "")
	case name == corev1.Windows:
		c.windows(p)
	case name == corev1.Linux:
		const why = "windows options cannot be set for a linux pod"
		c.Forbid(p, "securityContext.windowsOptions", c.spec.SecurityContext != nil && c.spec.SecurityContext.WindowsOptions != nil, why)
		c.eachContainer(p, func(cp *field.Path, container *corev1.Container) {
			c.Forbid(cp, "securityContext.windowsOptions", container.SecurityContext != nil && container.SecurityContext.WindowsOptions != nil, why)
		})
	default:
		c.Unsupported(p, "os", name, podSystems)
	}
}

func (c *podChecker) windows(p *field.Path) {
	const why = "cannot be set for a windows pod"
	if s := c.spec.SecurityContext; s != nil {
		c.Forbid(p, "securityContext.appArmorProfile", s.AppArmorProfile != nil, why)
		c.Forbid(p, "securityContext.seLinuxOptions", s.SELinuxOptions != nil, why)
		c.Forbid(p, "hostUsers", c.spec.HostUsers != nil, why)
		c.Forbid(p, "hostPID", c.spec.HostPID, why)
		c.Forbid(p, "hostIPC", c.spec.HostIPC, why)
		c.Forbid(p, "securityContext.seccompProfile", s.SeccompProfile != nil, why)
		c.Forbid(p, "securityContext.fsGroup", s.FSGroup != nil, why)
		c.Forbid(p, "securityContext.fsGroupChangePolicy", s.FSGroupChangePolicy != nil, why)
		c.Forbid(p, "securityContext.sysctls", len(s.Sysctls) > 0, why)
		c.Forbid(p, "shareProcessNamespace", c.spec.ShareProcessNamespace != nil, why)
		c.Forbid(p, "securityContext.runAsUser", s.RunAsUser != nil, why)
		c.Forbid(p, "securityContext.runAsGroup", s.RunAsGroup != nil, why)
		c.Forbid(p, "securityContext.supplementalGroups", s.SupplementalGroups != nil, why)
		c.Forbid(p, "securityContext.supplementalGroupsPolicy", s.SupplementalGroupsPolicy != nil, why)
		c.Forbid(p, "securityContext.seLinuxChangePolicy", s.SELinuxChangePolicy != nil, why)
	}
	c.eachContainer(p, func(cp *field.Path, container *corev1.Container) {
		s := container.SecurityContext
		if s == nil {
			return
		}
		cp = cp.Child("securityContext")
		c.Forbid(cp, "appArmorProfile", s.AppArmorProfile != nil, why)
		c.Forbid(cp, "seLinuxOptions", s.SELinuxOptions != nil, why)
		c.Forbid(cp, "seccompProfile", s.SeccompProfile != nil, why)
		c.Forbid(cp, "capabilities", s.Capabilities != nil, why)
		c.Forbid(cp, "readOnlyRootFilesystem", s.ReadOnlyRootFilesystem != nil, why)
		c.Forbid(cp, "privileged", s.Privileged != nil, why)
		c.Forbid(cp, "allowPrivilegeEscalation", s.AllowPrivilegeEscalation != nil, why)
		c.Forbid(cp, "procMount", s.ProcMount != nil, why)
		c.Forbid(cp, "runAsUser", s.RunAsUser != nil, why)
		c.Forbid(cp, "runAsGroup", s.RunAsGroup != nil, why)
	})
}

// hostProcess: on Windows either all containers are processes of the host or none.
func (c *podChecker) hostProcess(p *field.Path) {
	ofPod := (*bool)(nil)
	if s := c.spec.SecurityContext; s != nil && s.WindowsOptions != nil {
		ofPod = s.WindowsOptions.HostProcess
	}
	onWindows := func(container *corev1.Container) bool {
		return container.SecurityContext != nil && container.SecurityContext.WindowsOptions != nil
	}
	if ofPod == nil && !c.anyContainer(onWindows) {
		return
	}
	all, host := 0, 0
	c.eachContainer(p, func(cp *field.Path, container *corev1.Container) {
		own := (*bool)(nil)
		if onWindows(container) {
			own = container.SecurityContext.WindowsOptions.HostProcess
		}
		if own != nil && ofPod != nil && *own != *ofPod {
			c.Invalid(cp, "securityContext.windowsOptions.hostProcess", *own, fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *ofPod))
		}
		if all++; own != nil && *own || own == nil && ofPod != nil && *ofPod {
			host++
		}
	})
	if host > 0 && host != all {
		c.Invalid(p, "", "", "If pod contains any hostProcess containers then all containers must be HostProcess containers")
	}
	if host > 0 && !c.spec.HostNetwork {
		c.Invalid(p, "hostNetwork", false, "hostNetwork must be true if pod contains any hostProcess containers")
	}
}

func (c *podChecker) dnsConfig(p *field.Path) {
	config := c.spec.DNSConfig
	if c.spec.DNSPolicy == corev1.DNSNone && (config == nil || len(config.Nameservers) == 0) {
		if config == nil {
			c.Required(p, "", "must provide `dnsConfig` when `dnsPolicy` is None")
		} else {
			c.Required(p, "nameservers", "must provide at least one DNS nameserver when `dnsPolicy` is None")
		}
		return
	}
	if config == nil {
		return
	}
	if len(config.Nameservers) > 3 {
		c.Invalid(p, "nameservers", config.Nameservers, "must not have more than 3 nameservers")
	}
	for i, server := range config.Nameservers {
		c.ip(p.Child("nameservers").Index(i), "", server, nil)
	}
	if len(config.Searches) > 32 {
		c.Invalid(p, "searches", config.Searches, "must not have more than 32 search paths")
	}
	if len(strings.Join(config.Searches, " ")) > 2048 {
		c.Invalid(p, "searches", config.Searches, "must not have more than 2048 characters (including spaces) in the search list")
	}
	for i, search := range config.Searches {
		if search != "." {
			c.Words(p.Child("searches").Index(i), "", strings.TrimSuffix(search, "."), validation.IsDNS1123SubdomainWithUnderscore)
		}
	}
	for i, option := range config.Options {
		c.Need(p.Child("options").Index(i), "", option.Name != "", "must not be empty")
	}
}
