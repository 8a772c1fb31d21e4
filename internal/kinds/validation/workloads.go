package validation

// This file: the rules of what runs pods: Deployments, ReplicaSets, StatefulSets, DaemonSets, ReplicationControllers, Jobs and CronJobs,
// what scales them and what protects them; and what may change in a Pod. In Kubernetes they are in
// pkg/apis/apps, batch, autoscaling and policy (in validation of each), and in pkg/apis/core/validation for
// ReplicationControllers and ValidatePodUpdate. old is nil when an object is created; a rule that compares stands beside the field's other
// rules, where Kubernetes has a second function.

import (
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	alwaysOnly           = []string{"Always"}
	jobRestarts          = []string{"OnFailure", "Never"}
	deploymentStrategies = []string{"Recreate", "RollingUpdate"}
	daemonStrategies     = []string{"RollingUpdate", "OnDelete"}
	retentionPolicies    = []string{"Retain", "Delete"}
	completionModes      = []string{"NonIndexed", "Indexed"}
	replacementPolicies  = []string{"Failed", "TerminatingOrFailed"}
	failureActions       = []string{"Count", "FailIndex", "FailJob", "Ignore"}
	conditionStatuses    = []string{"False", "True", "Unknown"}
	concurrencyPolicies  = []string{"Allow", "Forbid", "Replace"}
	evictionPolicies     = []string{"AlwaysAllow", "IfHealthyBudget"}
	selectPolicies       = []string{"Disabled", "Max", "Min"}
	scalingPolicies      = []string{"Percent", "Pods"}
	metricTypes          = []string{"ContainerResource", "External", "Object", "Pods", "Resource"}
)

// A workloadChecker checks one workload.
type workloadChecker struct{ *Checker }

const notSelected = "`selector` does not match template `labels`"

// runsForever refuses templates whose pods may end; kind is for the words.
func (c workloadChecker) runsForever(p *field.Path, spec *corev1.PodSpec, kind string) {
	c.OneOf(p, "spec.restartPolicy", string(spec.RestartPolicy), alwaysOnly)
	c.Forbid(p, "spec.activeDeadlineSeconds", spec.ActiveDeadlineSeconds != nil, "activeDeadlineSeconds in "+kind+" is not Supported")
}

// selects checks a required selector and that it selects the template's labels; kind is for the words. It is false when the selector is
// not well formed, and the template is not looked at then.
func (c workloadChecker) selects(p *field.Path, selector *metav1.LabelSelector, template *corev1.PodTemplateSpec, kind string) bool {
	if selector == nil {
		c.Required(p, "selector", "")
	} else {
		c.selector(p, "selector", selector)
		if len(selector.MatchLabels)+len(selector.MatchExpressions) == 0 {
			c.Invalid(p, "selector", selector, "empty selector is invalid for "+kind)
		}
	}
	match, ok := matches(selector, template.Labels)
	if empty := selector != nil && len(selector.MatchLabels)+len(selector.MatchExpressions) == 0; ok && !match && !empty {
		c.Invalid(p, "template.metadata.labels", template.Labels, notSelected)
	}
	return ok
}

func (c workloadChecker) deployment(d, old *appsv1.Deployment) {
	p, spec := field.NewPath("spec"), &d.Spec
	c.nonNegative(p, "replicas", int64(*spec.Replicas))
	if c.selects(p, spec.Selector, &spec.Template, "deployment") {
		podTemplate(c.Checker, p.Child("template"), &spec.Template)
		c.runsForever(p.Child("template"), &spec.Template.Spec, "ReplicaSet")
	} else {
		c.Invalid(p, "selector", spec.Selector, "invalid label selector")
	}
	c.deploymentStrategy(p.Child("strategy"), &spec.Strategy)
	c.nonNegative(p, "minReadySeconds", int64(spec.MinReadySeconds))
	nonNegativeRef(c.Checker, p, "revisionHistoryLimit", spec.RevisionHistoryLimit)
	if deadline := spec.ProgressDeadlineSeconds; deadline != nil {
		c.nonNegative(p, "progressDeadlineSeconds", int64(*deadline))
		if *deadline <= spec.MinReadySeconds {
			c.Invalid(p, "progressDeadlineSeconds", *deadline, "must be greater than minReadySeconds")
		}
	}
	if old != nil {
		c.Same(p, "selector", spec.Selector, old.Spec.Selector)
	}
}

func (c workloadChecker) deploymentStrategy(p *field.Path, strategy *appsv1.DeploymentStrategy) {
	switch rolling := strategy.RollingUpdate; strategy.Type {
	case appsv1.RecreateDeploymentStrategyType:
		c.Forbid(p, "rollingUpdate", rolling != nil, "may not be specified when strategy `type` is 'Recreate'")
	case appsv1.RollingUpdateDeploymentStrategyType:
		rp := p.Child("rollingUpdate")
		c.amount(rp, "maxUnavailable", *rolling.MaxUnavailable)
		c.amount(rp, "maxSurge", *rolling.MaxSurge)
		if amountOf(*rolling.MaxUnavailable) == 0 && amountOf(*rolling.MaxSurge) == 0 {
			c.Invalid(rp, "maxUnavailable", *rolling.MaxUnavailable, "may not be 0 when `maxSurge` is 0")
		}
		c.atMostAll(rp, "maxUnavailable", *rolling.MaxUnavailable)
	default:
		c.Unsupported(p, "", strategy, deploymentStrategies)
	}
}

func (c workloadChecker) replicaSet(rs, old *appsv1.ReplicaSet) {
	p, spec := field.NewPath("spec"), &rs.Spec
	c.nonNegative(p, "replicas", int64(*spec.Replicas))
	c.nonNegative(p, "minReadySeconds", int64(spec.MinReadySeconds))
	if c.selects(p, spec.Selector, &spec.Template, "deployment") {
		podTemplate(c.Checker, p.Child("template"), &spec.Template)
		c.runsForever(p.Child("template"), &spec.Template.Spec, "ReplicaSet")
	} else {
		c.Invalid(p, "selector", spec.Selector, "invalid label selector")
	}
	if old != nil {
		c.Same(p, "selector", spec.Selector, old.Spec.Selector)
	}
}

func (c workloadChecker) replicationController(rc *corev1.ReplicationController) {
	p, spec := field.NewPath("spec"), &rc.Spec
	c.nonNegative(p, "minReadySeconds", int64(spec.MinReadySeconds))
	c.Need(p, "selector", len(spec.Selector) > 0, "")
	c.nonNegative(p, "replicas", int64(*spec.Replicas))
	if spec.Template == nil {
		c.Required(p, "template", "")
		return
	}
	for key, value := range spec.Selector {
		if spec.Template.Labels[key] != value {
			c.Invalid(p, "template.metadata.labels", spec.Template.Labels, notSelected)
			break
		}
	}
	podTemplate(c.Checker, p.Child("template"), spec.Template)
	c.runsForever(p.Child("template"), &spec.Template.Spec, "ReplicationController")
}

func (c workloadChecker) daemonSet(ds, old *appsv1.DaemonSet) {
	p, spec := field.NewPath("spec"), &ds.Spec
	if old != nil {
		c.Same(p, "selector", spec.Selector, old.Spec.Selector)
	}
	c.selector(p, "selector", spec.Selector)
	if match, ok := matches(spec.Selector, spec.Template.Labels); ok && !match {
		c.Invalid(p, "template.metadata.labels", spec.Template.Labels, notSelected)
	}
	if spec.Selector != nil && len(spec.Selector.MatchLabels)+len(spec.Selector.MatchExpressions) == 0 {
		c.Invalid(p, "selector", spec.Selector, "empty selector is invalid for daemonset")
	}
	podTemplate(c.Checker, p.Child("template"), &spec.Template)
	c.runsForever(p.Child("template"), &spec.Template.Spec, "DaemonSet")
	c.nonNegative(p, "minReadySeconds", int64(spec.MinReadySeconds))
	c.daemonStrategy(p.Child("updateStrategy"), &spec.UpdateStrategy)
	nonNegativeRef(c.Checker, p, "revisionHistoryLimit", spec.RevisionHistoryLimit)
}

func (c workloadChecker) daemonStrategy(p *field.Path, strategy *appsv1.DaemonSetUpdateStrategy) {
	switch strategy.Type {
	case appsv1.OnDeleteDaemonSetStrategyType:
	case appsv1.RollingUpdateDaemonSetStrategyType:
		rolling, rp := strategy.RollingUpdate, p.Child("rollingUpdate")
		c.amount(rp, "maxUnavailable", *rolling.MaxUnavailable)
		c.amount(rp, "maxSurge", *rolling.MaxSurge)
		c.atMostAll(rp, "maxUnavailable", *rolling.MaxUnavailable)
		c.atMostAll(rp, "maxSurge", *rolling.MaxSurge)
		switch unavailable, surge := amountOf(*rolling.MaxUnavailable) != 0, amountOf(*rolling.MaxSurge) != 0; {
		case unavailable && surge:
			c.Invalid(rp, "maxSurge", *rolling.MaxSurge, "may not be set when maxUnavailable is non-zero")
		case !unavailable && !surge:
			c.Required(rp, "maxUnavailable", "cannot be 0 when maxSurge is 0")
		}
	default:
		c.Unsupported(p, "", strategy, daemonStrategies)
	}
}

func (c workloadChecker) statefulSet(ss, old *appsv1.StatefulSet) {
	p, spec := field.NewPath("spec"), &ss.Spec
	if policy := spec.PodManagementPolicy; policy != appsv1.OrderedReadyPodManagement && policy != appsv1.ParallelPodManagement {
		c.Invalid(p, "podManagementPolicy", policy, "must be 'OrderedReady' or 'Parallel'")
	}
	c.statefulStrategy(p.Child("updateStrategy"), &spec.UpdateStrategy)
	if retention := spec.PersistentVolumeClaimRetentionPolicy; retention != nil {
		c.OneOf(p, "persistentVolumeClaimRetentionPolicy.whenDeleted", string(retention.WhenDeleted), retentionPolicies)
		c.OneOf(p, "persistentVolumeClaimRetentionPolicy.whenScaled", string(retention.WhenScaled), retentionPolicies)
	}
	for i := range spec.VolumeClaimTemplates {
		if old == nil {
			volumeChecker{Checker: c.Checker}.claimSpec(p.Child("volumeClaimTemplates").Index(i).Child("spec"), &spec.VolumeClaimTemplates[i].Spec)
		}
	}
	c.nonNegative(p, "replicas", int64(*spec.Replicas))
	c.nonNegative(p, "minReadySeconds", int64(spec.MinReadySeconds))
	if spec.Ordinals != nil {
		c.nonNegative(p, "ordinals.start", int64(spec.Ordinals.Start))
	}
	if old == nil {
		c.Maybe(p, "serviceName", spec.ServiceName, isLabel)
	}
	if c.selects(p, spec.Selector, &spec.Template, "statefulset") {
		c.statefulTemplate(p.Child("template"), spec)
	} else {
		c.Invalid(p, "selector", spec.Selector, "")
	}
	c.runsForever(p.Child("template"), &spec.Template.Spec, "StatefulSet")
	if old != nil {
		c.statefulSetKeeps(p, spec, &old.Spec)
	}
}

func (c workloadChecker) statefulStrategy(p *field.Path, strategy *appsv1.StatefulSetUpdateStrategy) {
	rolling, rp := strategy.RollingUpdate, p.Child("rollingUpdate")
	switch strategy.Type {
	case appsv1.OnDeleteStatefulSetStrategyType:
		if rolling != nil {
			c.Invalid(rp, "", rolling, "only allowed for updateStrategy 'RollingUpdate'")
		}
	case appsv1.RollingUpdateStatefulSetStrategyType:
		if rolling == nil {
			return
		}
		nonNegativeRef(c.Checker, rp, "partition", rolling.Partition)
		if most := rolling.MaxUnavailable; most != nil {
			c.amount(rp, "maxUnavailable", *most)
			if amountOf(*most) == 0 {
				c.Invalid(rp, "maxUnavailable", *most, "cannot be 0")
			}
			c.atMostAll(rp, "maxUnavailable", *most)
		}
	default:
		c.Invalid(p, "", strategy, "must be 'RollingUpdate' or 'OnDelete'")
	}
}

// statefulTemplate sees the volumes that come from claims, and not the names that the controller will set. Labels and annotations are
// looked at twice, as in Kubernetes.
func (c workloadChecker) statefulTemplate(p *field.Path, spec *appsv1.StatefulSetSpec) {
	template := spec.Template
	template.Spec.Subdomain, template.Spec.Hostname = "", ""
	if len(spec.VolumeClaimTemplates) > 0 {
		var volumes []corev1.Volume
		names := set{}
		for i := range spec.VolumeClaimTemplates {
			name := spec.VolumeClaimTemplates[i].Name
			claim := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}
			if !names[name] {
				volumes = append(volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: claim}})
			}
			names[name] = true
		}
		for _, volume := range template.Spec.Volumes {
			if !names[volume.Name] {
				volumes = append(volumes, volume)
			}
		}
		template.Spec.Volumes = volumes
	}
	podTemplate(c.Checker, p, &template)
	c.labels(p, "labels", template.Labels)
	c.Add(metavalidation.ValidateAnnotations(template.Annotations, p.Child("annotations"))...)
	podAnnotations(c.Checker, p.Child("annotations"), template.Annotations, &template.Spec)
}

func (c workloadChecker) statefulSetKeeps(p *field.Path, spec, old *appsv1.StatefulSetSpec) {
	kept := *spec
	kept.Replicas, kept.Template, kept.UpdateStrategy, kept.MinReadySeconds = old.Replicas, old.Template, old.UpdateStrategy, old.MinReadySeconds
	kept.Ordinals, kept.RevisionHistoryLimit = old.Ordinals, old.RevisionHistoryLimit
	kept.PersistentVolumeClaimRetentionPolicy = old.PersistentVolumeClaimRetentionPolicy
	c.Forbid(p, "", !equality.Semantic.DeepEqual(&kept, old), "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', "+
		"'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden")
}

func (c workloadChecker) controllerRevision(revision, old *appsv1.ControllerRevision) {
	c.nonNegative(field.NewPath("revision"), "", revision.Revision)
	p := field.NewPath("data")
	if old != nil {
		c.Same(p, "", revision.Data, old.Data)
		return
	}
	var data any
	if err := json.Unmarshal(revision.Data.Raw, &data); revision.Data.Raw != nil && err != nil {
		c.Invalid(p, "", "<value omitted>", "error parsing data: "+err.Error())
	} else if data == nil {
		c.Required(p, "", "data is mandatory")
	} else if _, ok := data.(map[string]any); !ok {
		c.Required(p, "", "data must be a valid JSON object")
	}
}

// ---- jobs ----

func (c workloadChecker) job(job, old *batchv1.Job) {
	p, spec := field.NewPath("spec"), &job.Spec
	c.generatedSelector(job)
	c.selectedJob(p, spec)
	if isIndexed(spec) && spec.Completions != nil && *spec.Completions > 0 {
		host := fmt.Sprintf("%s-%d", job.Name, *spec.Completions-1)
		if len(isLabel(host)) > 0 {
			c.Invalid(field.NewPath("metadata", "name"), "", job.Name, "will not able to create pod with invalid DNS label: "+host)
		}
	}
	if old != nil { // Kubernetes looks at the spec of an update twice
		c.selectedJob(p, spec)
		c.jobKeeps(p, spec, old)
	}
}

func (c workloadChecker) selectedJob(p *field.Path, spec *batchv1.JobSpec) {
	c.jobSpec(p, spec)
	if spec.Selector == nil {
		c.Required(p, "selector", "")
	} else {
		c.selector(p, "selector", spec.Selector)
	}
	if match, ok := matches(spec.Selector, spec.Template.Labels); ok && !match {
		c.Invalid(p, "template.metadata.labels", spec.Template.Labels, notSelected)
	}
}

func isIndexed(spec *batchv1.JobSpec) bool {
	return spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
}

// generatedSelector refuses labels that contradict those which strategy.PrepareForCreate gives a Job's pods.
func (c workloadChecker) generatedSelector(job *batchv1.Job) {
	spec := &job.Spec
	if spec.ManualSelector != nil && *spec.ManualSelector || spec.Selector == nil {
		return
	}
	p := field.NewPath("spec", "template", "metadata", "labels")
	expected := map[string]string{}
	for _, label := range [...][2]string{
		{"controller-uid", string(job.UID)}, {"job-name", job.Name}, {batchv1.ControllerUidLabel, string(job.UID)}, {batchv1.JobNameLabel, job.Name},
	} {
		expected[label[0]] = label[1]
		if value, ok := spec.Template.Labels[label[0]]; !ok {
			c.Required(p.Key(label[0]), "", "must be '"+label[1]+"'")
		} else if value != label[1] {
			c.Invalid(p.Key(label[0]), "", spec.Template.Labels, "must be '"+label[1]+"'")
		}
	}
	if match, ok := matches(spec.Selector, expected); ok && !match {
		c.Invalid(field.NewPath("spec", "selector"), "", spec.Selector, "`selector` not auto-generated")
	}
}

// jobSpec is what a Job and a CronJob's template share.
func (c workloadChecker) jobSpec(p *field.Path, spec *batchv1.JobSpec) {
	nonNegativeRef(c.Checker, p, "parallelism", spec.Parallelism)
	nonNegativeRef(c.Checker, p, "completions", spec.Completions)
	nonNegativeRef(c.Checker, p, "activeDeadlineSeconds", spec.ActiveDeadlineSeconds)
	nonNegativeRef(c.Checker, p, "backoffLimit", spec.BackoffLimit)
	nonNegativeRef(c.Checker, p, "ttlSecondsAfterFinished", spec.TTLSecondsAfterFinished)
	nonNegativeRef(c.Checker, p, "backoffLimitPerIndex", spec.BackoffLimitPerIndex)
	nonNegativeRef(c.Checker, p, "maxFailedIndexes", spec.MaxFailedIndexes)
	c.Need(p, "backoffLimitPerIndex", spec.MaxFailedIndexes == nil || spec.BackoffLimitPerIndex != nil, "when maxFailedIndexes is specified")
	if manager := spec.ManagedBy; manager != nil {
		c.Add(validation.IsDomainPrefixedPath(p.Child("managedBy"), *manager)...)
		if len(*manager) > 63 {
			c.Add(field.TooLong(p.Child("managedBy"), "", 63))
		}
	}
	oneOfRef(c.Checker, p, "completionMode", spec.CompletionMode, completionModes)
	c.indexedJob(p, spec)
	if spec.PodFailurePolicy != nil {
		c.failurePolicy(p.Child("podFailurePolicy", "rules"), spec)
	}
	if spec.SuccessPolicy != nil && isIndexed(spec) {
		c.successPolicy(p.Child("successPolicy", "rules"), spec)
	} else if spec.SuccessPolicy != nil {
		c.Invalid(p, "successPolicy", *spec.SuccessPolicy, "requires indexed completion mode")
	}
	if policy := spec.PodReplacementPolicy; policy != nil && spec.PodFailurePolicy != nil {
		c.OneOf(p, "podReplacementPolicy", string(*policy), replacementPolicies[:1])
	} else {
		oneOfRef(c.Checker, p, "podReplacementPolicy", policy, replacementPolicies)
	}
	podTemplate(c.Checker, p.Child("template"), &spec.Template)
	switch restart := spec.Template.Spec.RestartPolicy; {
	case restart == corev1.RestartPolicyAlways || restart == "":
		c.Required(p, "template.spec.restartPolicy", `valid values: "OnFailure", "Never"`)
	case !slices.Contains(jobRestarts, string(restart)):
		c.Unsupported(p, "template.spec.restartPolicy", restart, jobRestarts)
	case spec.PodFailurePolicy != nil && restart != corev1.RestartPolicyNever:
		c.Invalid(p, "template.spec.restartPolicy", restart, `only "Never" is supported when podFailurePolicy is specified`)
	}
}

func (c workloadChecker) indexedJob(p *field.Path, spec *batchv1.JobSpec) {
	const most = 100_000
	failed, completions, parallelism := spec.MaxFailedIndexes, spec.Completions, spec.Parallelism
	if !isIndexed(spec) {
		if spec.CompletionMode == nil || *spec.CompletionMode == batchv1.NonIndexedCompletion {
			c.indexedOnly(p, "backoffLimitPerIndex", spec.BackoffLimitPerIndex)
			c.indexedOnly(p, "maxFailedIndexes", failed)
		}
		return
	}
	c.Need(p, "completions", completions != nil, "when completion mode is Indexed")
	c.atMost(p.Child("parallelism"), parallelism, most, " when completion mode is Indexed")
	if completions != nil && failed != nil && *failed > *completions {
		c.Invalid(p, "maxFailedIndexes", *failed, "must be less than or equal to completions")
	}
	c.atMost(p.Child("maxFailedIndexes"), failed, most, "")
	if completions != nil && *completions > most && spec.BackoffLimitPerIndex != nil {
		const so = " when completions are above 100000 and used with backoff limit per index"
		c.Need(p, "maxFailedIndexes", failed != nil, "must be specified when completions is above 100000")
		c.atMost(p.Child("parallelism"), parallelism, 10_000, so)
		c.atMost(p.Child("maxFailedIndexes"), failed, 10_000, so)
	}
}

func (c workloadChecker) indexedOnly(p *field.Path, name string, value *int32) {
	if value != nil {
		c.Invalid(p, name, *value, "requires indexed completion mode")
	}
}

func (c workloadChecker) atMost(p *field.Path, value *int32, most int32, when string) {
	if value != nil && *value > most {
		c.Invalid(p, "", *value, fmt.Sprintf("must be less than or equal to %d%s", most, when))
	}
}

func (c workloadChecker) failurePolicy(p *field.Path, spec *batchv1.JobSpec) {
	rules := spec.PodFailurePolicy.Rules
	if len(rules) > 20 {
		c.Add(field.TooMany(p, len(rules), 20))
	}
	containers := set{}
	for _, list := range [...][]corev1.Container{spec.Template.Spec.Containers, spec.Template.Spec.InitContainers} {
		for i := range list {
			containers[list[i].Name] = true
		}
	}
	for i, rule := range rules {
		rp := p.Index(i)
		switch {
		case rule.Action == "":
			c.Required(rp, "action", fmt.Sprintf("valid values: %q", failureActions))
		case rule.Action != batchv1.PodFailurePolicyActionFailIndex:
			c.OneOf(rp, "action", string(rule.Action), failureActions)
		case spec.BackoffLimitPerIndex == nil:
			c.Invalid(rp, "action", rule.Action, "requires the backoffLimitPerIndex to be set")
		}
		if rule.OnExitCodes != nil {
			c.exitCodes(rp.Child("onExitCodes"), rule.OnExitCodes, containers)
		}
		c.conditionPatterns(rp.Child("onPodConditions"), rule.OnPodConditions)
		switch codes, conditions := rule.OnExitCodes != nil, len(rule.OnPodConditions) > 0; {
		case codes && conditions:
			c.Invalid(rp, "", field.OmitValueType{}, "specifying both OnExitCodes and OnPodConditions is not supported")
		case !codes && !conditions:
			c.Invalid(rp, "", field.OmitValueType{}, "specifying one of OnExitCodes and OnPodConditions is required")
		}
	}
}

func (c workloadChecker) conditionPatterns(p *field.Path, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) {
	if len(patterns) > 20 {
		c.Add(field.TooMany(p, len(patterns), 20))
	}
	for i, pattern := range patterns {
		c.Words(p.Index(i), "type", string(pattern.Type), isQualifiedName)
		c.OneOf(p.Index(i), "status", string(pattern.Status), conditionStatuses)
	}
}

func (c workloadChecker) exitCodes(p *field.Path, codes *batchv1.PodFailurePolicyOnExitCodesRequirement, containers set) {
	if codes.Operator == "" {
		c.Required(p, "operator", fmt.Sprintf("valid values: %q", setOperators))
	} else {
		c.OneOf(p, "operator", string(codes.Operator), setOperators)
	}
	if name := codes.ContainerName; name != nil && !containers[*name] {
		c.Invalid(p, "containerName", *name, "must be one of the container or initContainer names in the pod template")
	}
	if len(codes.Values) == 0 {
		c.Invalid(p, "values", codes.Values, "at least one value is required")
	} else if len(codes.Values) > 255 {
		c.Add(field.TooMany(p.Child("values"), len(codes.Values), 255))
	}
	seen := map[int32]bool{}
	for i, value := range codes.Values {
		if value == 0 && codes.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn {
			c.Invalid(p.Child("values").Index(i), "", value, "must not be 0 for the In operator")
		}
		if seen[value] {
			c.Add(field.Duplicate(p.Child("values").Index(i), value))
		}
		seen[value] = true
	}
	if !slices.IsSorted(codes.Values) {
		c.Invalid(p, "values", codes.Values, "must be ordered")
	}
}

func (c workloadChecker) successPolicy(p *field.Path, spec *batchv1.JobSpec) {
	rules := spec.SuccessPolicy.Rules
	c.Need(p, "", len(rules) > 0, "at least one rules must be specified when the successPolicy is specified")
	if len(rules) > 20 {
		c.Add(field.TooMany(p, len(rules), 20))
	}
	if spec.Completions == nil {
		return // refused already
	}
	for i, rule := range rules {
		rp, total := p.Index(i), int32(0)
		c.Need(rp, "", rule.SucceededCount != nil || rule.SucceededIndexes != nil, "at least one of succeededCount or succeededIndexes must be specified")
		if indexes := rule.SucceededIndexes; indexes != nil {
			if len(*indexes) > 64<<10 {
				c.Add(field.TooLong(rp.Child("succeededIndexes"), "", 64<<10))
			}
			var err error
			if total, err = countIndexes(*indexes, *spec.Completions); err != nil {
				c.Invalid(rp, "succeededIndexes", *indexes, "error parsing succeededIndexes: "+err.Error())
			}
		}
		nonNegativeRef(c.Checker, rp, "succeededCount", rule.SucceededCount)
		c.atMost(rp.Child("succeededCount"), rule.SucceededCount, *spec.Completions, " (the number of specified completions)")
		if rule.SucceededIndexes != nil {
			c.atMost(rp.Child("succeededCount"), rule.SucceededCount, total, " (the number of indexes in the specified succeededIndexes field)")
		}
	}
}

// countIndexes counts the indexes of an expression such as "1,3-5".
func countIndexes(expression string, completions int32) (total int32, err error) {
	if expression == "" {
		return 0, nil
	}
	last := -1
	for _, interval := range strings.Split(expression, ",") {
		parts := strings.Split(interval, "-")
		if len(parts) > 2 {
			return 0, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", interval)
		}
		var ends [2]int
		for i, part := range parts {
			if ends[i], err = strconv.Atoi(part); err != nil {
				return 0, fmt.Errorf("cannot convert string to integer for index: %q", part)
			}
			if ends[i] >= int(completions) {
				return 0, fmt.Errorf("too large index: %q", part)
			}
		}
		if len(parts) == 1 {
			ends[1] = ends[0]
		} else if ends[0] >= ends[1] {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", ends[0], ends[1])
		}
		if last >= ends[0] {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, ends[0])
		}
		last = ends[1]
		total += int32(ends[1] - ends[0] + 1)
	}
	return total, nil
}

// jobKeeps is what may not change; a suspended Job whose pods are gone may get other resources and be scheduled elsewhere.
func (c workloadChecker) jobKeeps(p *field.Path, spec *batchv1.JobSpec, old *batchv1.Job) {
	before := &old.Spec
	if !isIndexed(spec) {
		c.Same(p, "completions", spec.Completions, before.Completions)
	} else if done := spec.Completions; done != nil && !equality.Semantic.DeepEqual(done, before.Completions) && *done != *spec.Parallelism {
		c.Invalid(p, "completions", *done, "can only be modified in tandem with spec.parallelism")
	}
	c.Same(p, "selector", spec.Selector, before.Selector)
	template, name := before.Template.DeepCopy(), "template"
	if resting := before.Suspend != nil && *before.Suspend && isJobTrue(old, batchv1.JobSuspended) && old.Status.Active == 0; resting {
		movable(template, &spec.Template)
		name = "template.spec"
		c.Same(p, name, spec.Template.Spec, template.Spec)
	} else if !equality.Semantic.DeepEqual(template, &spec.Template) {
		c.Invalid(p, name, spec.Template, "field is immutable")
	}
	c.Same(p, "completionMode", spec.CompletionMode, before.CompletionMode)
	c.Same(p, "podFailurePolicy", spec.PodFailurePolicy, before.PodFailurePolicy)
	c.Same(p, "backoffLimitPerIndex", spec.BackoffLimitPerIndex, before.BackoffLimitPerIndex)
	c.Same(p, "managedBy", spec.ManagedBy, before.ManagedBy)
	c.Same(p, "successPolicy", spec.SuccessPolicy, before.SuccessPolicy)
}

// movable makes template agree with now in what a resting Job may change.
func movable(template, now *corev1.PodTemplateSpec) {
	template.Annotations, template.Labels = now.Annotations, now.Labels
	to, from := &template.Spec, &now.Spec
	to.NodeSelector, to.Tolerations, to.SchedulingGates = from.NodeSelector, from.Tolerations, from.SchedulingGates
	if to.Affinity != nil || from.Affinity != nil {
		affinity := corev1.Affinity{}
		if to.Affinity != nil {
			affinity = *to.Affinity
		}
		affinity.NodeAffinity = nil
		if from.Affinity != nil {
			affinity.NodeAffinity = from.Affinity.NodeAffinity
		}
		if to.Affinity = &affinity; affinity == (corev1.Affinity{}) {
			to.Affinity = from.Affinity
		}
	}
	for _, pair := range [...][2][]corev1.Container{{to.Containers, from.Containers}, {to.InitContainers, from.InitContainers}} {
		for i := 0; i < len(pair[0]) && len(pair[0]) == len(pair[1]); i++ {
			if pair[0][i].Name == pair[1][i].Name {
				pair[0][i].Resources = pair[1][i].Resources
			}
		}
	}
}

func isJobTrue(job *batchv1.Job, condition batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == condition && c.Status == corev1.ConditionTrue
	})
}

func (c workloadChecker) cronJob(cron, old *batchv1.CronJob) {
	p, spec := field.NewPath("spec"), &cron.Spec
	if spec.Schedule == "" {
		c.Required(p, "schedule", "")
	} else {
		c.schedule(p, spec, old)
	}
	nonNegativeRef(c.Checker, p, "startingDeadlineSeconds", spec.StartingDeadlineSeconds)
	if old == nil || !equality.Semantic.DeepEqual(spec.TimeZone, old.Spec.TimeZone) {
		c.timeZone(p, spec.TimeZone)
	}
	c.Known(p, "concurrencyPolicy", string(spec.ConcurrencyPolicy), concurrencyPolicies)
	job := &spec.JobTemplate.Spec
	c.jobSpec(p.Child("jobTemplate", "spec"), job)
	if job.Selector != nil {
		c.Invalid(p, "jobTemplate.spec.selector", job.Selector, "`selector` will be auto-generated")
	}
	if job.ManualSelector != nil && *job.ManualSelector {
		c.Unsupported(p, "jobTemplate.spec.manualSelector", *job.ManualSelector, []string{"nil", "false"})
	}
	nonNegativeRef(c.Checker, p, "successfulJobsHistoryLimit", spec.SuccessfulJobsHistoryLimit)
	nonNegativeRef(c.Checker, p, "failedJobsHistoryLimit", spec.FailedJobsHistoryLimit)
	if old == nil && len(cron.Name) > 52 {
		c.Invalid(field.NewPath("metadata", "name"), "", cron.Name, "must be no more than 52 characters")
	}
}

func (c workloadChecker) schedule(p *field.Path, spec *batchv1.CronJobSpec, old *batchv1.CronJob) {
	if err := checkSchedule(spec.Schedule); err != nil {
		c.Invalid(p, "schedule", spec.Schedule, err.Error())
	}
	zoned := strings.Contains(spec.Schedule, "TZ")
	if before := old != nil && strings.Contains(old.Spec.Schedule, "TZ"); zoned && !before {
		c.Invalid(p, "schedule", spec.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead")
	} else if zoned && spec.TimeZone != nil {
		c.Invalid(p, "schedule", spec.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule")
	}
}

var zonePart = regexp.MustCompile(`^[A-Za-z\.\-_0-9+]{1,14}$`)

// timeZone: on a machine that knows no time zones at all, a small device perhaps, any well-formed name is taken.
func (c workloadChecker) timeZone(p *field.Path, zone *string) {
	if zone == nil {
		return
	}
	if *zone == "" {
		c.Invalid(p, "timeZone", *zone, "timeZone must be nil or non-empty string")
		return
	}
	for _, part := range strings.Split(*zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !zonePart.MatchString(part) {
			c.Invalid(p, "timeZone", *zone, "unknown time zone "+*zone)
			return
		}
	}
	if strings.EqualFold(*zone, "Local") {
		c.Invalid(p, "timeZone", *zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		if _, none := time.LoadLocation("Europe/Berlin"); none == nil {
			c.Invalid(p, "timeZone", *zone, err.Error())
		}
	}
}

// A cronField is one of a schedule's five.
type cronField struct {
	low, high int
	names     string // of low, low+1, ...
}

var cronFields = [...]cronField{{0, 59, ""}, {0, 23, ""}, {1, 31, ""}, {1, 12, "jan feb mar apr may jun jul aug sep oct nov dec"}, {0, 6, "sun mon tue wed thu fri sat"}}

// checkSchedule says what is wrong with a cron schedule, in the words of the parser that Kubernetes uses.
func checkSchedule(schedule string) error {
	if strings.HasPrefix(schedule, "TZ=") || strings.HasPrefix(schedule, "CRON_TZ=") {
		zone, rest, ok := strings.Cut(schedule, " ")
		if !ok {
			return fmt.Errorf("invalid schedule format: runtime error: slice bounds out of range [:-1]")
		}
		_, zone, _ = strings.Cut(zone, "=")
		if _, err := time.LoadLocation(zone); err != nil {
			return fmt.Errorf("provided bad location %s: %v", zone, err)
		}
		schedule = strings.TrimSpace(rest)
	}
	if every, ok := strings.CutPrefix(schedule, "@every "); ok {
		if _, err := time.ParseDuration(every); err != nil {
			return fmt.Errorf("failed to parse duration %s: %s", schedule, err)
		}
		return nil
	}
	if strings.HasPrefix(schedule, "@") {
		if slices.Contains([]string{"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"}, schedule) {
			return nil
		}
		return fmt.Errorf("unrecognized descriptor: %s", schedule)
	}
	fields := strings.Fields(schedule)
	if len(fields) != len(cronFields) {
		return fmt.Errorf("expected exactly %d fields, found %d: %s", len(cronFields), len(fields), fields)
	}
	for i, f := range fields {
		for _, expression := range strings.FieldsFunc(f, func(r rune) bool { return r == ',' }) {
			if err := cronFields[i].check(expression); err != nil {
				return err
			}
		}
	}
	return nil
}

// check looks at one range: *, 5, 5-10, each with an optional /step.
func (f cronField) check(expression string) (err error) {
	rangeAndStep := strings.Split(expression, "/")
	ends := strings.Split(rangeAndStep[0], "-")
	start, end, step := f.low, f.high, 1
	if ends[0] != "*" && ends[0] != "?" {
		if start, err = f.number(ends[0]); err != nil {
			return err
		}
		end = start
		if len(ends) > 2 {
			return fmt.Errorf("too many hyphens: %s", expression)
		}
		if len(ends) == 2 {
			if end, err = f.number(ends[1]); err != nil {
				return err
			}
		}
	}
	if len(rangeAndStep) > 2 {
		return fmt.Errorf("too many slashes: %s", expression)
	}
	if len(rangeAndStep) == 2 {
		if step, err = (cronField{}).number(rangeAndStep[1]); err != nil {
			return err
		}
		if len(ends) == 1 {
			end = f.high
		}
	}
	switch {
	case start < f.low:
		return fmt.Errorf("beginning of range (%d) below minimum (%d): %s", start, f.low, expression)
	case end > f.high:
		return fmt.Errorf("end of range (%d) above maximum (%d): %s", end, f.high, expression)
	case start > end:
		return fmt.Errorf("beginning of range (%d) beyond end of range (%d): %s", start, end, expression)
	case step == 0:
		return fmt.Errorf("step of range should be a positive number: %s", expression)
	}
	return nil
}

func (f cronField) number(expression string) (int, error) {
	if i := slices.Index(strings.Fields(f.names), strings.ToLower(expression)); i >= 0 {
		return f.low + i, nil
	}
	n, err := strconv.Atoi(expression)
	if err != nil {
		return 0, fmt.Errorf("failed to parse int from %s: %s", expression, err)
	}
	if n < 0 {
		return 0, fmt.Errorf("negative number (%d) not allowed: %s", n, expression)
	}
	return n, nil
}

// ---- scaling and protecting ----

func (c workloadChecker) disruptionBudget(pdb *policyv1.PodDisruptionBudget) {
	p, spec := field.NewPath("spec"), &pdb.Spec
	if spec.MinAvailable != nil && spec.MaxUnavailable != nil {
		c.Invalid(p, "", *spec, "minAvailable and maxUnavailable cannot be both set")
	}
	for _, amount := range [...]struct {
		name  string
		value *intstr.IntOrString
	}{{"minAvailable", spec.MinAvailable}, {"maxUnavailable", spec.MaxUnavailable}} {
		if amount.value != nil {
			c.amount(p, amount.name, *amount.value)
			c.atMostAll(p, amount.name, *amount.value)
		}
	}
	c.selector(p, "selector", spec.Selector)
	oneOfRef(c.Checker, p, "unhealthyPodEvictionPolicy", spec.UnhealthyPodEvictionPolicy, evictionPolicies)
}

// oldAutoscaler is v1, whose one metric is a percentage of CPU.
func (c workloadChecker) oldAutoscaler(hpa, old *autoscalingv1.HorizontalPodAutoscaler) {
	newer := func(o *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
		if o == nil {
			return nil
		}
		spec := autoscalingv2.HorizontalPodAutoscalerSpec{MinReplicas: o.Spec.MinReplicas, MaxReplicas: o.Spec.MaxReplicas}
		spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference(o.Spec.ScaleTargetRef)
		if percent := o.Spec.TargetCPUUtilizationPercentage; percent != nil {
			target := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: percent}
			source := &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: target}
			spec.Metrics = []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: source}}
		}
		return &autoscalingv2.HorizontalPodAutoscaler{Spec: spec}
	}
	c.autoscaler(newer(hpa), newer(old))
}

func (c workloadChecker) autoscaler(hpa, old *autoscalingv2.HorizontalPodAutoscaler) {
	p, spec := field.NewPath("spec"), &hpa.Spec
	if *spec.MinReplicas < 1 {
		c.Invalid(p, "minReplicas", *spec.MinReplicas, "must be greater than or equal to 1")
	}
	if spec.MaxReplicas == 0 {
		c.Required(p, "maxReplicas", "must be set and greater than 0")
	} else if spec.MaxReplicas < 0 {
		c.Invalid(p, "maxReplicas", spec.MaxReplicas, "must be greater than or equal to 1")
	}
	if spec.MaxReplicas < *spec.MinReplicas {
		c.Invalid(p, "maxReplicas", spec.MaxReplicas, "must be greater than or equal to `minReplicas`")
	}
	known := old != nil && old.Spec.ScaleTargetRef.APIVersion == spec.ScaleTargetRef.APIVersion && old.Spec.ScaleTargetRef.Kind == spec.ScaleTargetRef.Kind
	c.scaled(p.Child("scaleTargetRef"), &spec.ScaleTargetRef)
	if !known {
		c.scaledGroup(p.Child("scaleTargetRef"), &spec.ScaleTargetRef, spec.ScaleTargetRef.Kind == "ReplicationController")
	}
	outside := false
	for i := range spec.Metrics {
		c.metric(p.Child("metrics").Index(i), &spec.Metrics[i])
		outside = outside || spec.Metrics[i].Type == autoscalingv2.ObjectMetricSourceType || spec.Metrics[i].Type == autoscalingv2.ExternalMetricSourceType
	}
	c.Forbid(p, "metrics", *spec.MinReplicas == 0 && !outside, "must specify at least one Object or External metric to support scaling to zero replicas")
	if spec.Behavior != nil {
		c.scalingRules(p.Child("behavior", "scaleUp"), spec.Behavior.ScaleUp)
		c.scalingRules(p.Child("behavior", "scaleDown"), spec.Behavior.ScaleDown)
	}
}

func (c workloadChecker) scaled(p *field.Path, ref *autoscalingv2.CrossVersionObjectReference) {
	c.Name(p, "kind", ref.Kind, isPathSegment)
	c.Name(p, "name", ref.Name, isPathSegment)
}

func (c workloadChecker) scaledGroup(p *field.Path, ref *autoscalingv2.CrossVersionObjectReference, coreToo bool) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		c.Invalid(p, "apiVersion", ref.APIVersion, err.Error())
	} else if gv.Group == "" && !coreToo {
		c.Invalid(p, "apiVersion", ref.APIVersion, "apiVersion must specify API group")
	}
}

func (c workloadChecker) scalingRules(p *field.Path, rules *autoscalingv2.HPAScalingRules) {
	if rules == nil {
		return
	}
	if window := rules.StabilizationWindowSeconds; window != nil && *window < 0 {
		c.Invalid(p, "stabilizationWindowSeconds", *window, "must be greater than or equal to zero")
	} else if window != nil && *window > 3600 {
		c.Invalid(p, "stabilizationWindowSeconds", *window, "must be less than or equal to 3600")
	}
	oneOfRef(c.Checker, p, "selectPolicy", rules.SelectPolicy, selectPolicies)
	c.Need(p, "policies", len(rules.Policies) > 0, "must specify at least one Policy")
	for i, policy := range rules.Policies {
		pp := p.Child("policies").Index(i)
		c.OneOf(pp, "type", string(policy.Type), scalingPolicies)
		if policy.Value <= 0 {
			c.Invalid(pp, "value", policy.Value, "must be greater than zero")
		}
		if policy.PeriodSeconds <= 0 {
			c.Invalid(pp, "periodSeconds", policy.PeriodSeconds, "must be greater than zero")
		} else if policy.PeriodSeconds > 1800 {
			c.Invalid(pp, "periodSeconds", policy.PeriodSeconds, "must be less than or equal to 1800")
		}
	}
	if rules.Tolerance != nil && rules.Tolerance.Sign() < 0 {
		c.Invalid(p, "tolerance", rules.Tolerance.String(), "must be greater than or equal to 0")
	}
}

// metric has one source, which its type names.
func (c workloadChecker) metric(p *field.Path, m *autoscalingv2.MetricSpec) {
	c.Need(p, "type", m.Type != "", "must specify a metric source type")
	c.OneOf(p, "type", string(m.Type), metricTypes)
	sources := [...]struct {
		name  string
		kind  autoscalingv2.MetricSourceType
		set   bool
		check func(*field.Path)
	}{
		{"object", autoscalingv2.ObjectMetricSourceType, m.Object != nil, func(p *field.Path) { c.objectMetric(p, m.Object) }},
		{"external", autoscalingv2.ExternalMetricSourceType, m.External != nil, func(p *field.Path) { c.externalMetric(p, m.External) }},
		{"pods", autoscalingv2.PodsMetricSourceType, m.Pods != nil, func(p *field.Path) { c.podsMetric(p, m.Pods) }},
		{"resource", autoscalingv2.ResourceMetricSourceType, m.Resource != nil, func(p *field.Path) { c.resourceMetric(p, m.Resource) }},
		{"containerResource", autoscalingv2.ContainerResourceMetricSourceType, m.ContainerResource != nil, func(p *field.Path) { c.containerMetric(p, m.ContainerResource) }},
	}
	count := 0
	for _, source := range sources {
		if source.set {
			if count++; count == 1 {
				source.check(p.Child(source.name))
			}
		}
	}
	for _, source := range sources {
		c.Need(p, source.name, source.kind != m.Type || source.set, "must populate information for the given metric source")
	}
	if !slices.Contains(metricTypes, string(m.Type)) {
		c.Unsupported(p, "type", m.Type, metricTypes)
	}
	for _, source := range sources {
		c.Forbid(p, source.name, count != 1 && source.set && source.kind != m.Type, "must populate the given metric source only")
	}
}

func (c workloadChecker) metricTarget(p *field.Path, target *autoscalingv2.MetricTarget) {
	c.Need(p, "type", target.Type != "", "must specify a metric target type")
	switch target.Type {
	case autoscalingv2.UtilizationMetricType, autoscalingv2.ValueMetricType, autoscalingv2.AverageValueMetricType:
	default:
		c.Invalid(p, "type", target.Type, "must be either Utilization, Value, or AverageValue")
	}
	if target.Value != nil && target.Value.Sign() <= 0 {
		c.Invalid(p, "value", target.Value, "must be positive")
	}
	if target.AverageValue != nil && target.AverageValue.Sign() <= 0 {
		c.Invalid(p, "averageValue", target.AverageValue, "must be positive")
	}
	if percent := target.AverageUtilization; percent != nil && *percent < 1 {
		c.Invalid(p, "averageUtilization", *percent, "must be greater than 0")
	}
}

func (c workloadChecker) metricName(p *field.Path, name string) {
	if name == "" {
		c.Required(p, "metric.name", "must specify a metric name")
	}
	c.Maybe(p, "metric.name", name, isPathSegment)
}

func (c workloadChecker) objectMetric(p *field.Path, source *autoscalingv2.ObjectMetricSource) {
	c.scaled(p.Child("describedObject"), &source.DescribedObject)
	c.scaledGroup(p.Child("describedObject"), &source.DescribedObject, true)
	c.metricName(p, source.Metric.Name)
	c.metricTarget(p.Child("target"), &source.Target)
	c.Need(p, "target.averageValue", source.Target.Value != nil || source.Target.AverageValue != nil, "must set either a target value or averageValue")
}

func (c workloadChecker) externalMetric(p *field.Path, source *autoscalingv2.ExternalMetricSource) {
	c.metricName(p, source.Metric.Name)
	c.metricTarget(p.Child("target"), &source.Target)
	value, average := source.Target.Value != nil, source.Target.AverageValue != nil
	c.Need(p, "target.averageValue", value || average, "must set either a target value for metric or a per-pod target")
	c.Forbid(p, "target.value", value && average, "may not set both a target value for metric and a per-pod target")
}

func (c workloadChecker) podsMetric(p *field.Path, source *autoscalingv2.PodsMetricSource) {
	c.metricName(p, source.Metric.Name)
	c.metricTarget(p.Child("target"), &source.Target)
	c.Need(p, "target.averageValue", source.Target.AverageValue != nil, "must specify a positive target averageValue")
}

func (c workloadChecker) resourceMetric(p *field.Path, source *autoscalingv2.ResourceMetricSource) {
	c.Need(p, "name", source.Name != "", "must specify a resource name")
	c.resourceTarget(p.Child("target"), &source.Target)
}

func (c workloadChecker) containerMetric(p *field.Path, source *autoscalingv2.ContainerResourceMetricSource) {
	if source.Name == "" {
		c.Required(p, "name", "must specify a resource name")
	} else {
		c.containerResource(p.Child("name"), string(source.Name))
	}
	if source.Container == "" {
		c.Required(p, "container", "must specify a container")
	}
	c.Maybe(p, "container", source.Container, isLabel)
	c.resourceTarget(p.Child("target"), &source.Target)
}

func (c workloadChecker) resourceTarget(p *field.Path, target *autoscalingv2.MetricTarget) {
	c.metricTarget(p, target)
	utilization, average := target.AverageUtilization != nil, target.AverageValue != nil
	c.Need(p, "averageUtilization", utilization || average, "must set either a target raw value or a target utilization")
	c.Forbid(p, "averageValue", utilization && average, "may not set both a target raw value and a target utilization")
}

// ---- what may change in a pod ----

func updatePod(c *Checker, pod, old *corev1.Pod) {
	p := field.NewPath("spec")
	checkPod(c, pod)
	keepPodAnnotations(c, pod, old)
	if !imagesOnly(c, p.Child("containers"), pod.Spec.Containers, old.Spec.Containers) ||
		!imagesOnly(c, p.Child("initContainers"), pod.Spec.InitContainers, old.Spec.InitContainers) ||
		!deadlineShrinks(c, p, pod.Spec.ActiveDeadlineSeconds, old.Spec.ActiveDeadlineSeconds) {
		return
	}
	tolerationsGrow(c, p.Child("tolerations"), pod.Spec.Tolerations, old.Spec.Tolerations)
	gates := set{}
	for _, gate := range old.Spec.SchedulingGates {
		gates[gate.Name] = true
	}
	for i, gate := range pod.Spec.SchedulingGates {
		if !gates[gate.Name] {
			c.Forbid(p.Child("schedulingGates").Index(i), "name", true, fmt.Sprintf("only deletion is allowed, but found new scheduling gate '%s'", gate.Name))
		}
	}
	munged := pod.Spec.DeepCopy()
	for i := range munged.Containers {
		munged.Containers[i].Image = old.Spec.Containers[i].Image
	}
	for i := range munged.InitContainers {
		munged.InitContainers[i].Image = old.Spec.InitContainers[i].Image
	}
	munged.ActiveDeadlineSeconds = old.Spec.ActiveDeadlineSeconds
	munged.SchedulingGates = old.Spec.SchedulingGates
	munged.Tolerations = old.Spec.Tolerations
	if len(old.Spec.SchedulingGates) > 0 {
		gatedPodNarrows(c, p, munged, &old.Spec)
	}
	if !equality.Semantic.DeepEqual(munged, &old.Spec) {
		c.Forbid(p, "", true, "pod updates may not change fields other than "+updatablePodFields+"\n"+DifferenceOf(old.Spec, *munged))
	}
}

// imagesOnly is false when containers were added or removed, which makes further comparison useless.
func imagesOnly(c *Checker, p *field.Path, now, old []corev1.Container) bool {
	if len(now) != len(old) {
		c.Forbid(p, "", true, "pod updates may not add or remove containers")
		return false
	}
	for i := range now {
		c.Need(p.Index(i), "image", now[i].Image != "", "")
	}
	imagesAreTrimmed(c, p, now)
	return true
}

func deadlineShrinks(c *Checker, p *field.Path, now, old *int64) bool {
	switch {
	case now == nil && old != nil:
		c.Invalid(p, "activeDeadlineSeconds", now, "must not update from a positive integer to nil value")
	case now != nil && (*now < 0 || *now > math.MaxInt32):
		c.within(p, "activeDeadlineSeconds", *now, 0, math.MaxInt32)
		return false
	case now != nil && old != nil && *old < *now:
		c.Invalid(p, "activeDeadlineSeconds", *now, "must be less than or equal to previous value")
		return false
	}
	return true
}

func tolerationsGrow(c *Checker, p *field.Path, now, old []corev1.Toleration) {
	kept := map[corev1.Toleration]bool{}
	for _, toleration := range now {
		kept[withoutSeconds(toleration)] = true
	}
	for _, toleration := range old {
		if !kept[withoutSeconds(toleration)] {
			c.Forbid(p, "", true, "existing toleration can not be modified except its tolerationSeconds")
			return
		}
	}
	placementChecker{c}.tolerations(p, now)
}

// gatedPodNarrows lets a pod that is not scheduled yet ask for fewer nodes; munged gets back what was checked here.
func gatedPodNarrows(c *Checker, p *field.Path, munged, old *corev1.PodSpec) {
	for key, value := range old.NodeSelector {
		if now, ok := munged.NodeSelector[key]; !ok || now != value {
			c.Invalid(p, "nodeSelector", munged.NodeSelector, "only additions to spec.nodeSelector are allowed (no mutations or deletions)")
			break
		}
	}
	munged.NodeSelector = old.NodeSelector
	now, before := requiredNodeTerms(munged), requiredNodeTerms(old)
	tp := p.Child("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
	if len(before) > 0 && len(before) != len(now) {
		c.Invalid(tp, "", now, "no additions/deletions to non-empty NodeSelectorTerms list are allowed")
	} else {
		for i := range before {
			if !termNarrows(&now[i], &before[i]) {
				c.Invalid(tp.Index(i), "", now[i], "only additions are allowed (no mutations or deletions)")
			}
		}
	}
	if munged.Affinity == nil {
		munged.Affinity = &corev1.Affinity{}
	}
	munged.Affinity.NodeAffinity = nil
	if old.Affinity != nil {
		munged.Affinity.NodeAffinity = old.Affinity.NodeAffinity
	}
	if *munged.Affinity == (corev1.Affinity{}) {
		munged.Affinity = old.Affinity
	}
}

func requiredNodeTerms(spec *corev1.PodSpec) []corev1.NodeSelectorTerm {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	return spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
}

func termNarrows(now, old *corev1.NodeSelectorTerm) bool {
	expressions, fields := len(old.MatchExpressions), len(old.MatchFields)
	if expressions+fields == 0 {
		return len(now.MatchExpressions)+len(now.MatchFields) == 0
	}
	return len(now.MatchExpressions) >= expressions && len(now.MatchFields) >= fields &&
		equality.Semantic.DeepEqual(now.MatchExpressions[:expressions], old.MatchExpressions) &&
		equality.Semantic.DeepEqual(now.MatchFields[:fields], old.MatchFields)
}

// withoutSeconds is what tells tolerations apart.
func withoutSeconds(t corev1.Toleration) corev1.Toleration {
	t.TolerationSeconds = nil
	return t
}
