package validation

// This file: what a status may say. Controllers and kubelets write it, through a subresource of its own; it is compared with the status
// it follows, since a Job that is done must stay done.
// Each is the ValidateXStatusUpdate of k8s.io/kubernetes, pkg/apis/GROUP/validation/validation.go; a kind without one there has none here.

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	selectorvalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// A statusChecker checks one status.
type statusChecker struct{ *Checker }

// counts are the numbers of a status, none of them negative; some may not pass another.
func (c statusChecker) counts(p *field.Path, pairs ...any) {
	for i := 0; i < len(pairs); i += 2 {
		switch name := pairs[i].(string); value := pairs[i+1].(type) {
		case int32:
			c.nonNegative(p, name, int64(value))
		case int64:
			c.nonNegative(p, name, value)
		case *int32:
			nonNegativeRef(c.Checker, p, name, value)
		}
	}
}

func (c statusChecker) notAbove(p *field.Path, name string, value, most int32, than string) {
	if value > most {
		c.Invalid(p, name, value, "cannot be greater than "+than)
	}
}

func (c statusChecker) neverLess(p *field.Path, now, old *int32) {
	if old != nil && (now == nil || *now < *old) {
		value := int32(0)
		if now != nil {
			value = *now
		}
		c.Invalid(p, "collisionCount", value, "cannot be decremented")
	}
}

func (c statusChecker) deployment(status, old *appsv1.DeploymentStatus) {
	p := field.NewPath("status")
	c.counts(p, "observedGeneration", status.ObservedGeneration, "replicas", status.Replicas, "updatedReplicas", status.UpdatedReplicas,
		"readyReplicas", status.ReadyReplicas, "availableReplicas", status.AvailableReplicas, "unavailableReplicas", status.UnavailableReplicas,
		"terminatingReplicas", status.TerminatingReplicas, "collisionCount", status.CollisionCount)
	c.notAbove(p, "updatedReplicas", status.UpdatedReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "readyReplicas", status.ReadyReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.ReadyReplicas, "readyReplicas")
	c.neverLess(p, status.CollisionCount, old.CollisionCount)
}

func (c statusChecker) replicaSet(status *appsv1.ReplicaSetStatus) {
	p := field.NewPath("status")
	c.counts(p, "replicas", status.Replicas, "fullyLabeledReplicas", status.FullyLabeledReplicas, "readyReplicas", status.ReadyReplicas,
		"availableReplicas", status.AvailableReplicas, "observedGeneration", status.ObservedGeneration, "terminatingReplicas", status.TerminatingReplicas)
	c.notAbove(p, "fullyLabeledReplicas", status.FullyLabeledReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "readyReplicas", status.ReadyReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.ReadyReplicas, "readyReplicas")
}

func (c statusChecker) statefulSet(status, old *appsv1.StatefulSetStatus) {
	p := field.NewPath("status")
	c.counts(p, "replicas", status.Replicas, "readyReplicas", status.ReadyReplicas, "currentReplicas", status.CurrentReplicas,
		"updatedReplicas", status.UpdatedReplicas, "availableReplicas", status.AvailableReplicas, "observedGeneration", status.ObservedGeneration,
		"collisionCount", status.CollisionCount)
	c.notAbove(p, "readyReplicas", status.ReadyReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "currentReplicas", status.CurrentReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "updatedReplicas", status.UpdatedReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.ReadyReplicas, "status.readyReplicas")
	c.neverLess(p, status.CollisionCount, old.CollisionCount)
}

func (c statusChecker) daemonSet(status, old *appsv1.DaemonSetStatus) {
	p := field.NewPath("status")
	c.counts(p, "currentNumberScheduled", status.CurrentNumberScheduled, "numberMisscheduled", status.NumberMisscheduled,
		"desiredNumberScheduled", status.DesiredNumberScheduled, "numberReady", status.NumberReady, "observedGeneration", status.ObservedGeneration,
		"updatedNumberScheduled", status.UpdatedNumberScheduled, "numberAvailable", status.NumberAvailable,
		"numberUnavailable", status.NumberUnavailable, "collisionCount", status.CollisionCount)
	c.neverLess(p, status.CollisionCount, old.CollisionCount)
}

func (c statusChecker) replicationController(status *corev1.ReplicationControllerStatus) {
	p := field.NewPath("status")
	c.counts(p, "replicas", status.Replicas, "fullyLabeledReplicas", status.FullyLabeledReplicas, "readyReplicas", status.ReadyReplicas,
		"availableReplicas", status.AvailableReplicas, "observedGeneration", status.ObservedGeneration)
	c.notAbove(p, "fullyLabeledReplicas", status.FullyLabeledReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "readyReplicas", status.ReadyReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.Replicas, "status.replicas")
	c.notAbove(p, "availableReplicas", status.AvailableReplicas, status.ReadyReplicas, "readyReplicas")
}

func (c statusChecker) disruptionBudget(status *policyv1.PodDisruptionBudgetStatus) {
	p := field.NewPath("status")
	c.Add(selectorvalidation.ValidateConditions(status.Conditions, p.Child("conditions"))...)
	c.counts(p, "disruptionsAllowed", status.DisruptionsAllowed, "currentHealthy", status.CurrentHealthy, "desiredHealthy", status.DesiredHealthy,
		"expectedPods", status.ExpectedPods)
}

// namespace: the phase follows from whether the namespace is being deleted.
func (c statusChecker) namespace(namespace *corev1.Namespace) {
	want, when := corev1.NamespaceActive, "empty"
	if !namespace.DeletionTimestamp.IsZero() {
		want, when = corev1.NamespaceTerminating, "not empty"
	}
	if namespace.Status.Phase != want {
		c.Invalid(field.NewPath("status", "Phase"), "", namespace.Status.Phase, fmt.Sprintf("may only be '%s' if `deletionTimestamp` is %s", want, when))
	}
}

var resizeStatuses = []string{"ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible", "NodeResizePending"}

func (c statusChecker) claim(status *corev1.PersistentVolumeClaimStatus) {
	p := field.NewPath("status")
	c.sizes(p.Child("capacity"), status.Capacity, nil)
	for _, name := range sortedKeys(status.AllocatedResourceStatuses) {
		c.claimResource(p.Child("allocatedResourceStatuses"), string(name))
		if !slices.Contains(resizeStatuses, string(status.AllocatedResourceStatuses[name])) {
			c.Unsupported(p, "allocatedResourceStatuses", string(name), slices.Sorted(slices.Values(resizeStatuses)))
		}
	}
	c.sizes(p.Child("allocatedResources"), status.AllocatedResources, c.claimResource)
}

func (c statusChecker) sizes(p *field.Path, sizes corev1.ResourceList, name func(*field.Path, string) bool) {
	for _, resource := range sortedKeys(sizes) {
		if name != nil && !name(p, string(resource)) {
			continue
		}
		if size := sizes[resource]; size.Value() < 0 {
			c.Invalid(p.Key(string(resource)), "", size.Value(), "must be a valid resource quantity")
		}
	}
}

// claimResource is for what a claim can have: storage, or something of someone else's.
func (c statusChecker) claimResource(p *field.Path, name string) bool {
	before := len(c.Errs)
	c.Words(p, "", name, isQualifiedName)
	if len(c.Errs) == before && isNative(name) && name != string(corev1.ResourceStorage) {
		c.Unsupported(p, "", name, []string{string(corev1.ResourceStorage)})
	}
	return len(c.Errs) == before
}

// ---- jobs ----

// A jobStatus is a Job's status beside the one it follows. What was wrong already may stay: most rules ask only after what they look at
// has changed.
type jobStatus struct {
	statusChecker
	job, old *batchv1.Job
	p        *field.Path
}

func (c statusChecker) job(job, old *batchv1.Job) {
	j := jobStatus{c, job, old, field.NewPath("status")}
	status := &job.Status
	c.counts(j.p, "active", status.Active, "succeeded", status.Succeeded, "failed", status.Failed, "ready", status.Ready, "terminating", status.Terminating)
	if status.UncountedTerminatedPods != nil {
		j.uncounted(status.UncountedTerminatedPods)
	}
	j.outcome()
	j.finished()
	j.indexes()
	j.podsOfJob()
	j.success()
	j.keeps()
}

func (j jobStatus) is(condition batchv1.JobConditionType) bool { return isJobTrue(j.job, condition) }

func (j jobStatus) was(condition batchv1.JobConditionType) bool { return isJobTrue(j.old, condition) }

// turned is whether one of the conditions became true, or ceased to be.
func (j jobStatus) turned(conditions ...batchv1.JobConditionType) bool {
	return slices.ContainsFunc(conditions, func(c batchv1.JobConditionType) bool { return j.is(c) != j.was(c) })
}

func (j jobStatus) isFinished() bool { return j.is(batchv1.JobComplete) || j.is(batchv1.JobFailed) }

func (j jobStatus) turnedFinished() bool {
	return j.isFinished() != (j.was(batchv1.JobComplete) || j.was(batchv1.JobFailed))
}

func (j jobStatus) conditions(wrong bool, detail string) {
	if wrong {
		j.Invalid(j.p, "conditions", field.OmitValueType{}, detail)
	}
}

func (j jobStatus) uncounted(pods *batchv1.UncountedTerminatedPods) {
	seen := set{}
	for _, list := range [...]struct {
		name string
		uids []types.UID
	}{{"succeeded", pods.Succeeded}, {"failed", pods.Failed}} {
		for i, uid := range list.uids {
			p := j.p.Child("uncountedTerminatedPods", list.name).Index(i)
			if uid == "" {
				j.Invalid(p, "", string(uid), "must not be empty")
				continue
			}
			j.unique(p, "", seen, string(uid))
		}
	}
}

// outcome is about the conditions that say how a Job went, and when.
func (j jobStatus) outcome() {
	status, old := &j.job.Status, &j.old.Status
	complete, failed := j.is(batchv1.JobComplete), j.is(batchv1.JobFailed)
	ended := !status.CompletionTime.Equal(old.CompletionTime)
	j.conditions(complete && failed && j.turned(batchv1.JobComplete, batchv1.JobFailed), "cannot set Complete=True and Failed=true conditions")
	j.conditions(complete && j.is(batchv1.JobFailureTarget) && j.turned(batchv1.JobComplete, batchv1.JobFailureTarget),
		"cannot set Complete=True and FailureTarget=true conditions")
	if ended || j.turned(batchv1.JobComplete) {
		if status.CompletionTime != nil && !complete {
			j.Invalid(j.p, "completionTime", status.CompletionTime, "cannot set completionTime when there is no Complete=True condition")
		}
		j.Need(j.p, "completionTime", !complete || status.CompletionTime != nil, "completionTime is required for Complete jobs")
	}
	if (ended || !status.StartTime.Equal(old.StartTime)) && status.StartTime != nil && status.CompletionTime.Before(status.StartTime) && status.CompletionTime != nil {
		j.Invalid(j.p, "completionTime", status.CompletionTime, "must be equal to or after `startTime`")
	}
	j.conditions(failed && !j.is(batchv1.JobFailureTarget) && (j.turned(batchv1.JobFailed) || j.failedIndexesChanged()),
		"cannot set Failed=True condition without the FailureTarget=true condition")
	j.conditions(complete && !j.is(batchv1.JobSuccessCriteriaMet) && j.turned(batchv1.JobComplete, batchv1.JobSuccessCriteriaMet),
		"cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
}

// finished is about what a Job that is over has no more of.
func (j jobStatus) finished() {
	if !j.isFinished() {
		return
	}
	status, old, turned := &j.job.Status, &j.old.Status, j.turnedFinished()
	if status.Active > 0 && (turned || status.Active != old.Active) {
		j.Invalid(j.p, "active", status.Active, "active>0 is invalid for finished job")
	}
	neverRan := j.job.Spec.Suspend != nil && *j.job.Spec.Suspend && j.job.Spec.Completions != nil && *j.job.Spec.Completions == 0
	j.Need(j.p, "startTime", status.StartTime != nil || neverRan || !turned && old.StartTime == nil, "startTime is required for finished job")
	uncounted := status.UncountedTerminatedPods
	if uncounted != nil && len(uncounted.Failed)+len(uncounted.Succeeded) > 0 && (turned || !equality.Semantic.DeepEqual(uncounted, old.UncountedTerminatedPods)) {
		j.Invalid(j.p, "uncountedTerminatedPods", uncounted, "must be empty for finished job")
	}
}

func (j jobStatus) failedIndexesChanged() bool {
	return !equality.Semantic.DeepEqual(j.job.Status.FailedIndexes, j.old.Status.FailedIndexes)
}

// indexes is about which of an indexed Job's pods are done.
func (j jobStatus) indexes() {
	spec, status := &j.job.Spec, &j.job.Status
	indexed := spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	completedChanged := status.CompletedIndexes != j.old.Status.CompletedIndexes
	if completedChanged && spec.Completions != nil {
		j.indexesOf("completedIndexes", status.CompletedIndexes, *spec.Completions)
	}
	failed := status.FailedIndexes
	if failed != nil && j.failedIndexesChanged() && spec.Completions != nil && spec.BackoffLimitPerIndex != nil {
		j.indexesOf("failedIndexes", *failed, *spec.Completions)
	}
	if completedChanged && status.CompletedIndexes != "" && !indexed {
		j.Invalid(j.p, "completedIndexes", status.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode")
	}
	if failed != nil && j.failedIndexesChanged() && spec.BackoffLimitPerIndex == nil {
		j.Invalid(j.p, "failedIndexes", *failed, "cannot set non-null failedIndexes when backoffLimitPerIndex is null")
	}
}

func (j jobStatus) indexesOf(name, expression string, completions int32) {
	if _, err := countIndexes(expression, completions); err != nil {
		j.Invalid(j.p, name, expression, fmt.Sprintf("error parsing %s: %v", name, err))
	}
}

// podsOfJob is about numbers that do not go together.
func (j jobStatus) podsOfJob() {
	status, old := &j.job.Status, &j.old.Status
	if t := status.Terminating; t != nil && *t > 0 && j.isFinished() && (j.turnedFinished() || !equality.Semantic.DeepEqual(t, old.Terminating)) {
		j.Invalid(j.p, "terminating", *t, "terminating>0 is invalid for finished job")
	}
	if ready := status.Ready; ready != nil && *ready > status.Active && (status.Active != old.Active || !equality.Semantic.DeepEqual(ready, old.Ready)) {
		j.Invalid(j.p, "ready", *ready, "cannot set more ready pods than active")
	}
}

// success is about the condition that comes before Complete.
func (j jobStatus) success() {
	met := j.is(batchv1.JobSuccessCriteriaMet)
	j.conditions(met && j.is(batchv1.JobFailed), "cannot set SuccessCriteriaMet=True and Failed=true conditions")
	j.conditions(met && j.is(batchv1.JobFailureTarget), "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	j.conditions(j.job.Spec.SuccessPolicy != nil && !met && j.is(batchv1.JobComplete), "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
}

// keeps is about what may not be taken back.
func (j jobStatus) keeps() {
	spec, status, old := &j.job.Spec, &j.job.Status, &j.old.Status
	for _, condition := range [...]batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobComplete, batchv1.JobFailureTarget} {
		j.conditions(j.was(condition) && !j.is(condition), fmt.Sprintf("cannot disable the terminal %s=True condition", condition))
	}
	if status.Failed < old.Failed {
		j.Invalid(j.p, "failed", status.Failed, "cannot decrease the failed counter")
	}
	indexed := spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	elastic := indexed && equality.Semantic.DeepEqual(spec.Completions, spec.Parallelism)
	if status.Succeeded < old.Succeeded && !elastic {
		j.Invalid(j.p, "succeeded", status.Succeeded, "cannot decrease the succeeded counter")
	}
	if status.CompletionTime != nil && old.CompletionTime != nil && !status.CompletionTime.Equal(old.CompletionTime) {
		j.Invalid(j.p, "completionTime", status.CompletionTime, "field is immutable")
	}
	suspended := spec.Suspend != nil && *spec.Suspend
	if old.StartTime != nil && !status.StartTime.Equal(old.StartTime) && !suspended && !j.resumes() {
		j.Invalid(j.p, "startTime", status.StartTime, "field is immutable for unsuspended job once set")
	}
	j.conditions(j.was(batchv1.JobSuccessCriteriaMet) && !j.is(batchv1.JobSuccessCriteriaMet), "cannot disable the SuccessCriteriaMet=True condition")
	j.conditions(j.was(batchv1.JobComplete) && !j.was(batchv1.JobSuccessCriteriaMet) && j.is(batchv1.JobSuccessCriteriaMet),
		"cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
}

// resumes is whether this status is the first after a suspension.
func (j jobStatus) resumes() bool {
	return j.was(batchv1.JobSuspended) && slices.ContainsFunc(j.job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobSuspended && c.Status == corev1.ConditionFalse
	})
}

// ---- pods ----

const notNegative = "must be a non-negative integer"

// pod looks at what a kubelet, or one who speaks for it, reports.
func (c statusChecker) pod(pod, old *corev1.Pod) {
	p, status := field.NewPath("status"), &pod.Status
	for i, condition := range status.Conditions {
		c.podCondition(p.Child("conditions").Index(i), &condition)
	}
	if name := status.NominatedNodeName; name != "" && name != old.Status.NominatedNodeName {
		c.Words(p, "nominatedNodeName", name, isSubdomain)
		c.Forbid(p, "nominatedNodeName", old.Spec.NodeName != "", "may not be set on pods that are already bound to a node")
	}
	if status.ObservedGeneration < 0 {
		c.Invalid(p, "observedGeneration", status.ObservedGeneration, notNegative)
	}
	c.Same(p, "qosClass", status.QOSClass, old.Status.QOSClass)
	c.containersStay(p.Child("containerStatuses"), status.ContainerStatuses, old.Status.ContainerStatuses, &old.Spec)
	c.containersStay(p.Child("initContainerStatuses"), status.InitContainerStatuses, old.Status.InitContainerStatuses, &old.Spec)
	addresses := make([]string, len(status.PodIPs))
	for i := range addresses {
		addresses[i] = status.PodIPs[i].IP
	}
	c.addresses(p.Child("podIPs"), addresses, status.PodIPs)
	if len(status.HostIPs) > 0 && status.HostIPs[0].IP != status.HostIP {
		c.Invalid(p.Child("hostIPs").Index(0), "ip", status.HostIPs[0].IP, "must be equal to `hostIP`")
	}
	addresses = make([]string, len(status.HostIPs))
	for i := range addresses {
		addresses[i] = status.HostIPs[i].IP
	}
	c.addresses(p.Child("hostIPs"), addresses, status.HostIPs)
}

func (c statusChecker) podCondition(p *field.Path, condition *corev1.PodCondition) {
	if condition.ObservedGeneration < 0 {
		c.Invalid(p, "observedGeneration", condition.ObservedGeneration, notNegative)
	}
	switch condition.Type {
	case corev1.PodScheduled, corev1.PodReady, corev1.PodInitialized:
	default:
		c.Words(p, "Type", string(condition.Type), isQualifiedName)
	}
}

// addresses are one of each family at most; list is what they come from.
func (c statusChecker) addresses(p *field.Path, addresses []string, list any) {
	for i, address := range addresses {
		c.ip(p.Index(i), "", address, nil)
	}
	if len(addresses) < 2 {
		return
	}
	wrong := slices.IndexFunc(addresses, func(address string) bool { return validation.IsValidIP(p, address) != nil })
	if wrong >= 0 {
		c.Add(field.InternalError(p, fmt.Errorf("failed to check for dual stack with error:invalid IP[%d]: %s", wrong, addresses[wrong])))
	}
	if wrong >= 0 || !dualStack(addresses) {
		c.Invalid(p, "", list, "may specify no more than one IP for each IP family")
	}
}

// containersStay refuses that a container which ended, and whose pod does not restart it, runs again.
func (c statusChecker) containersStay(p *field.Path, now, old []corev1.ContainerStatus, spec *corev1.PodSpec) {
	places := map[string]int{} // of the first of a name
	for i := range slices.Backward(now) {
		places[now[i].Name] = i
	}
	containers := map[string]*corev1.Container{}
	for _, list := range [...][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			containers[list[i].Name] = &list[i]
		}
	}
	whole := restartsAsAWhole(spec)
	for i, before := range old {
		j, found := places[before.Name]
		if before.State.Terminated == nil || !found || now[j].State.Terminated != nil {
			continue
		}
		again := whole || restarts(spec, containers[before.Name], before.State.Terminated.ExitCode)
		c.Forbid(p.Index(i), "state", !again, "may not be transitioned to non-terminated state")
	}
}

// restartsAsAWhole is whether the end of one container can restart all.
func restartsAsAWhole(spec *corev1.PodSpec) bool {
	return slices.ContainsFunc(slices.Concat(spec.InitContainers, spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(rule corev1.ContainerRestartRule) bool {
			return rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	})
}

// restarts is whether the kubelet starts a container again that ended with this code: by its rules, its policy or the pod's.
func restarts(spec *corev1.PodSpec, container *corev1.Container, code int32) bool {
	if container == nil {
		return false
	}
	policy := spec.RestartPolicy
	if own := container.RestartPolicy; own != nil {
		for _, rule := range container.RestartPolicyRules {
			if codes := rule.ExitCodes; codes != nil && slices.Contains(codes.Values, code) == (codes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
				return true
			}
		}
		policy = corev1.RestartPolicy(*own)
	}
	return policy == corev1.RestartPolicyAlways || policy == corev1.RestartPolicyOnFailure && code != 0
}

// ParseSigningRequest reads spec.request: a PEM block with a PKCS #10 request (RFC 2986) whose signature is good.
func ParseSigningRequest(request []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// checkCertificate says what keeps text from being PEM certificates. What stands around the blocks is nobody's business; none at all is
// a certificate that is still to come.
func checkCertificate(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	block, rest := pem.Decode(text)
	if block == nil {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	for ; block != nil; block, rest = pem.Decode(rest) {
		switch certs, err := x509.ParseCertificates(block.Bytes); {
		case block.Type != "CERTIFICATE":
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		case len(block.Headers) != 0:
			return errors.New("no PEM block headers are permitted")
		case err != nil:
			return err
		case len(certs) == 0:
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
	}
	return nil
}
