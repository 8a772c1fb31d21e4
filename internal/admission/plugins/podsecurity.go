package plugins

// This file implements PodSecurity. It checks pods against the Pod Security Standards. The labels
// of the namespace specify the level for each of the three modes:
//
//	pod-security.kubernetes.io/enforce: baseline           a pod that violates the level gets a 403
//	pod-security.kubernetes.io/warn: restricted            a warning, also for objects with a pod template
//	pod-security.kubernetes.io/audit: restricted           an annotation in the audit log, also for objects with a pod template
//	pod-security.kubernetes.io/enforce-version: v1.30      the version of the standards; the default is latest
//
// The rules are in k8s.io/pod-security-admission/policy. A namespace with invalid labels enforces
// the strictest level, so the labels are validated when a namespace is written. A client that
// raises the enforced level gets warnings about the existing pods that violate it. It is possible
// to exempt namespaces, users and runtime classes, and to configure the levels for namespaces
// without labels (see config.go).

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	podsecurity "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"apilet/internal/admission"
	"apilet/internal/bounded"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	modeEnforce, modeAudit, modeWarn = "enforce", "audit", "warn"

	// Limits for checking the existing pods when the level of a namespace is raised.
	podsChecked   = 3000
	podCheckLimit = time.Second
)

var podTemplates = []string{"replicationcontrollers", "podtemplates", "replicasets.apps", "deployments.apps", "statefulsets.apps", "daemonsets.apps",
	"jobs.batch", "cronjobs.batch"}

// podStandards implements the plug-in.
type podStandards struct {
	store     *store.Store
	config    podSecurityConfig
	evaluator func() policy.Evaluator // built for the first Pod or template
	onCheck   func(PodCheck)
}

// A PodCheck is the result of checking a pod or a template against a level, for metrics. If Mode
// is "", the write is exempt.
type PodCheck struct {
	Mode   string // enforce, audit or warn
	Policy podsecurity.LevelVersion
	// Results with mode enforce are always reported. As in kube-apiserver, the other two modes
	// only report violations.
	Allowed                          bool
	Operation, Resource, Subresource string
}

func newPodStandards(st *store.Store, config podSecurityConfig, checked func(PodCheck)) *podStandards {
	if config.defaults.Enforce.Level == "" { // not configured
		config.defaults = privileged()
	}
	if checked == nil {
		checked = func(PodCheck) {}
	}
	return &podStandards{store: st, config: config, evaluator: sync.OnceValue(newEvaluator), onCheck: checked}
}

func newEvaluator() policy.Evaluator {
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		panic(err) // the rules of the library are inconsistent
	}
	return evaluator
}

// reportCheck reports the result of a check. The mode is "" if the write is exempt.
func (p *podStandards) reportCheck(a *admission.Attributes, mode string, level podsecurity.LevelVersion, allowed bool) {
	kind := "controller"
	if a.Resource.Plural == "pods" {
		kind = "pod"
	}
	p.onCheck(PodCheck{Mode: mode, Policy: level, Allowed: allowed, Operation: strings.ToLower(a.Operation), Resource: kind, Subresource: a.Subresource})
}

// annotate adds an audit annotation. There is no audit event for writes by the server itself.
func annotate(a *admission.Attributes, key, value string) {
	if a.Request != nil {
		a.Request.AnnotateOnce(podsecurity.AuditAnnotationPrefix+key, value)
	}
}

// ---- Pods and templates ----

// validatePod checks a pod against the levels configured for its namespace.
func (p *podStandards) validatePod(ctx context.Context, a *admission.Attributes) error {
	if p.exempt(a) {
		return nil
	}
	labels, err := p.labels(a.Namespace())
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", a.Namespace()))
	}
	levels, errs := podsecurity.PolicyToEvaluate(labels, p.config.defaults)
	if len(errs) == 0 && levels.FullyPrivileged() {
		p.reportCheck(a, modeEnforce, levels.Enforce, true)
		annotate(a, podsecurity.EnforcedPolicyAnnotationKey, "privileged:latest")
		return nil
	}
	pod := a.Object.(*corev1.Pod)
	if a.Operation == admission.OpUpdate && !hasImageChanges(&pod.Spec, &a.Old.(*corev1.Pod).Spec) {
		return nil
	}
	if p.exemptRuntime(a, pod.Spec.RuntimeClassName) {
		return nil
	}
	if err := errs.ToAggregate(); err != nil {
		annotate(a, "error", fmt.Sprintf("Failed to parse policy: %v", err))
	}
	annotate(a, podsecurity.EnforcedPolicyAnnotationKey, levels.Enforce.String())
	held := podFindings{standards: p, meta: &pod.ObjectMeta, spec: &pod.Spec}
	enforced := held.evaluate(levels.Enforce)
	p.reportCheck(a, modeEnforce, levels.Enforce, enforced.Allowed)
	p.audit(a, levels, &held)
	if !enforced.Allowed {
		why := fmt.Errorf("violates PodSecurity %q: %s", levels.Enforce.String(), enforced.ForbiddenDetail())
		return apierrors.NewForbidden(a.Resource.GroupResource(), a.Name(), why)
	}
	p.warn(ctx, a, levels, &held)
	return nil
}

// validateTemplate warns about a pod template. The enforced level is only checked when the pods
// are created.
func (p *podStandards) validateTemplate(ctx context.Context, a *admission.Attributes) error {
	if p.exempt(a) {
		return nil
	}
	labels, err := p.labels(a.Namespace())
	if err != nil {
		annotate(a, "error", fmt.Sprintf("failed to lookup namespace %q: %v", a.Namespace(), err))
		return nil
	}
	levels, errs := podsecurity.PolicyToEvaluate(labels, p.config.defaults)
	if len(errs) == 0 && levels.Warn.Level == podsecurity.LevelPrivileged && levels.Audit.Level == podsecurity.LevelPrivileged {
		return nil
	}
	template := podTemplate(a.Object)
	if template == nil {
		return nil
	}
	if p.exemptRuntime(a, template.Spec.RuntimeClassName) {
		return nil
	}
	if err := errs.ToAggregate(); err != nil {
		annotate(a, "error", fmt.Sprintf("Failed to parse policy: %v", err))
	}
	held := podFindings{standards: p, meta: &template.ObjectMeta, spec: &template.Spec}
	p.audit(a, levels, &held)
	p.warn(ctx, a, levels, &held)
	return nil
}

func (p *podStandards) evaluate(level podsecurity.LevelVersion, meta *metav1.ObjectMeta, spec *corev1.PodSpec) policy.AggregateCheckResult {
	return policy.AggregateCheckResults(p.evaluator().EvaluatePod(level, meta, spec))
}

// podFindings caches the results of checking one pod, because a namespace usually has the same
// level for all three modes.
type podFindings struct {
	standards *podStandards
	meta      *metav1.ObjectMeta
	spec      *corev1.PodSpec
	known     []podFinding
}

type podFinding struct {
	level  podsecurity.LevelVersion
	result policy.AggregateCheckResult
}

func (f *podFindings) evaluate(level podsecurity.LevelVersion) policy.AggregateCheckResult {
	for _, k := range f.known {
		if k.level == level {
			return k.result
		}
	}
	result := f.standards.evaluate(level, f.meta, f.spec)
	f.known = append(f.known, podFinding{level, result})
	return result
}

func (p *podStandards) audit(a *admission.Attributes, levels podsecurity.Policy, held *podFindings) {
	if a.Request == nil {
		return
	}
	if result := held.evaluate(levels.Audit); !result.Allowed {
		p.reportCheck(a, modeAudit, levels.Audit, false)
		annotate(a, podsecurity.AuditViolationsAnnotationKey, fmt.Sprintf("would violate PodSecurity %q: %s", levels.Audit.String(), result.ForbiddenDetail()))
	}
}

func (p *podStandards) warn(ctx context.Context, a *admission.Attributes, levels podsecurity.Policy, held *podFindings) {
	if result := held.evaluate(levels.Warn); !result.Allowed {
		p.reportCheck(a, modeWarn, levels.Warn, false)
		warning.AddWarning(ctx, "", fmt.Sprintf("would violate PodSecurity %q: %s", levels.Warn.String(), result.ForbiddenDetail()))
	}
}

// hasImageChanges reports whether the images of a pod have changed. Other fields that are checked
// cannot change.
func hasImageChanges(pod, old *corev1.PodSpec) bool {
	sameImages := func(a, b []corev1.Container) bool {
		return slices.EqualFunc(a, b, func(a, b corev1.Container) bool { return a.Image == b.Image })
	}
	if !sameImages(pod.Containers, old.Containers) || !sameImages(pod.InitContainers, old.InitContainers) {
		return true
	}
	return slices.ContainsFunc(pod.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return !slices.ContainsFunc(old.EphemeralContainers, func(before corev1.EphemeralContainer) bool {
			return before.Name == c.Name && before.Image == c.Image
		})
	})
}

// exempt reports whether the namespace or the user of a write is exempt.
func (p *podStandards) exempt(a *admission.Attributes) bool {
	why := ""
	switch {
	case slices.Contains(p.config.namespaces, a.Namespace()):
		why = "namespace"
	case a.Request != nil && slices.Contains(p.config.usernames, a.Request.User.Name):
		why = "user"
	default:
		return false
	}
	p.reportCheck(a, "", podsecurity.LevelVersion{}, true)
	annotate(a, podsecurity.ExemptionReasonAnnotationKey, why)
	return true
}

func (p *podStandards) exemptClass(class *string) bool {
	return class != nil && *class != "" && slices.Contains(p.config.runtimeClasses, *class)
}

// exemptRuntime reports whether the runtime class of the pod is exempt.
func (p *podStandards) exemptRuntime(a *admission.Attributes, class *string) bool {
	if !p.exemptClass(class) {
		return false
	}
	p.reportCheck(a, "", podsecurity.LevelVersion{}, true)
	annotate(a, podsecurity.ExemptionReasonAnnotationKey, "runtimeClass")
	return true
}

// labels returns the labels of a namespace that configure pod security.
func (p *podStandards) labels(namespace string) (map[string]string, error) {
	rec, err := p.store.Get("//namespaces//" + namespace)
	if err != nil || !bytes.Contains(rec.JSON, []byte(podsecurity.AuditAnnotationPrefix)) {
		return nil, err
	}
	labels := map[string]string{}
	gjson.GetBytes(rec.JSON, "metadata.labels").ForEach(func(key, value gjson.Result) bool {
		if strings.HasPrefix(key.String(), podsecurity.AuditAnnotationPrefix) {
			labels[key.String()] = value.String()
		}
		return true
	})
	return labels, nil
}

// ---- Namespaces ----

// validateNamespace validates the labels of a namespace if they changed, and checks its pods if
// the enforced level was raised.
func (p *podStandards) validateNamespace(ctx context.Context, a *admission.Attributes) error {
	namespace := a.Object.(*corev1.Namespace)
	levels, errs := podsecurity.PolicyToEvaluate(namespace.Labels, p.config.defaults)
	invalid := func() error { return apierrors.NewInvalid(a.Resource.GroupKind(), a.Name(), errs) }
	exempt := slices.Contains(p.config.namespaces, namespace.Name)
	if a.Operation == admission.OpCreate {
		if len(errs) > 0 {
			return invalid()
		}
		if exempt {
			p.warnExempt(ctx, namespace, levels)
		}
		return nil
	}
	before, oldErrs := podsecurity.PolicyToEvaluate(a.Old.(*corev1.Namespace).Labels, p.config.defaults)
	switch {
	case len(errs) > 0 && (len(oldErrs) == 0 || !reflect.DeepEqual(errs, oldErrs)):
		return invalid()
	case levels.Enforce == before.Enforce || levels.Enforce.Level == podsecurity.LevelPrivileged:
		return nil
	case levels.Enforce.Version == before.Enforce.Version && podsecurity.CompareLevels(levels.Enforce.Level, before.Enforce.Level) < 1:
		return nil
	case exempt:
		p.warnExempt(ctx, namespace, levels)
		return nil
	}
	for _, text := range p.warnViolations(ctx, namespace.Name, levels.Enforce) {
		warning.AddWarning(ctx, "", text)
	}
	return nil
}

// warnExempt warns that the labels of an exempt namespace have no effect.
func (p *podStandards) warnExempt(ctx context.Context, namespace *corev1.Namespace, levels podsecurity.Policy) {
	if levels.FullyPrivileged() || levels.Equivalent(&p.config.defaults) {
		return
	}
	var set []string
	for _, mode := range []struct {
		name, level, version string
		is                   podsecurity.LevelVersion
	}{
		{"enforce", podsecurity.EnforceLevelLabel, podsecurity.EnforceVersionLabel, levels.Enforce},
		{"audit", podsecurity.AuditLevelLabel, podsecurity.AuditVersionLabel, levels.Audit},
		{"warn", podsecurity.WarnLevelLabel, podsecurity.WarnVersionLabel, levels.Warn},
	} {
		_, level := namespace.Labels[mode.level]
		_, version := namespace.Labels[mode.version]
		if (level || version) && mode.is.Level != podsecurity.LevelPrivileged {
			set = append(set, mode.name+"="+mode.is.String())
		}
	}
	warning.AddWarning(ctx, "", fmt.Sprintf("namespace %q is exempt from Pod Security, and the policy (%s) will be ignored",
		namespace.Name, strings.Join(set, ", ")))
}

// A violation describes the pods of a namespace that violate the level for the same reason.
type violation struct {
	reason, first string // first is the name of the first pod
	pods          int
}

// warnViolations returns warnings about the pods of a namespace that violate the level. The pods
// are ordered such that one pod of each controller is checked first. It stops after a second or
// after half of the request's remaining time.
func (p *podStandards) warnViolations(ctx context.Context, namespace string, level podsecurity.LevelVersion) (texts []string) {
	limit := podCheckLimit
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline)/2)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pods, total, err := p.podsOf(ctx, namespace)
	if err != nil {
		return []string{"failed to list pods while checking new PodSecurity enforce level"}
	}
	checked := len(pods)
	found := map[string]*violation{}
	for i, pod := range pods {
		if result := p.evaluate(level, &pod.ObjectMeta, &pod.Spec); !result.Allowed {
			v := found[result.ForbiddenReason()]
			if v == nil {
				v = &violation{reason: result.ForbiddenReason(), first: pod.Name}
				found[v.reason] = v
			}
			v.first = min(v.first, pod.Name)
			v.pods++
		}
		if ctx.Err() != nil {
			checked = i + 1
			break
		}
	}
	if checked < total {
		texts = append(texts, fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods", checked, total))
	}
	if len(found) > 0 {
		texts = append(texts, fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q", namespace, level.String()))
	}
	var each []string
	for _, v := range found {
		each = append(each, v.String())
	}
	slices.Sort(each)
	return append(texts, each...)
}

func (v *violation) String() string {
	switch v.pods {
	case 1:
		return fmt.Sprintf("%s: %s", v.first, v.reason)
	case 2:
		return fmt.Sprintf("%s (and 1 other pod): %s", v.first, v.reason)
	}
	return fmt.Sprintf("%s (and %d other pods): %s", v.first, v.pods-1, v.reason)
}

// podsOf returns the first pods in a namespace, as well as the total number of pods. The result
// starts with one pod for each controller. To limit the memory, it keeps at most podsChecked pods
// in each group.
func (p *podStandards) podsOf(ctx context.Context, namespace string) (pods []*corev1.Pod, total int, err error) {
	var others []*corev1.Pod
	seen := map[types.UID]bool{}
	for rec, err := range p.store.All(store.Span{Prefix: "//pods/" + namespace + "/", SkipDamaged: true}) {
		if err := cmp.Or(ctx.Err(), err); errors.Is(err, context.DeadlineExceeded) {
			break
		} else if err != nil {
			return nil, 0, err
		}
		pod := &corev1.Pod{}
		if bounded.Unmarshal(rec.JSON, pod) != nil {
			continue // ignore the pod, since it cannot be written again either
		}
		if p.exemptClass(pod.Spec.RuntimeClassName) {
			continue
		}
		total++
		into, by := &pods, metav1.GetControllerOfNoCopy(pod)
		if by != nil && seen[by.UID] {
			into = &others
		} else if by != nil {
			seen[by.UID] = true
		}
		if len(*into) < podsChecked {
			*into = append(*into, pod)
		}
	}
	pods = append(pods, others...)
	return pods[:min(len(pods), podsChecked)], total, nil
}

// podSecurityConfig contains the exemptions and the default levels.
type podSecurityConfig struct {
	defaults                              podsecurity.Policy
	namespaces, usernames, runtimeClasses []string
}

func privileged() podsecurity.Policy {
	level := podsecurity.LevelVersion{Level: podsecurity.LevelPrivileged, Version: podsecurity.LatestVersion()}
	return podsecurity.Policy{Enforce: level, Audit: level, Warn: level}
}

// validate checks that the exempted names are valid and unique.
func (c *podSecurityConfig) validate() (errs field.ErrorList) {
	check := func(name string, list []string, wrong func(string) []string) {
		at := field.NewPath("exemptions", name)
		for i, text := range list {
			for _, why := range wrong(text) {
				errs = append(errs, field.Invalid(at.Index(i), text, why))
			}
			if slices.Contains(list[:i], text) {
				errs = append(errs, field.Duplicate(at.Index(i), text))
			}
		}
	}
	check("namespaces", c.namespaces, func(name string) []string { return validation.ValidateNamespaceName(name, false) })
	check("runtimeClasses", c.runtimeClasses, func(name string) []string { return validation.NameIsDNSSubdomain(name, false) })
	check("usernames", c.usernames, func(name string) []string {
		if name == "" {
			return []string{"username must not be empty"}
		}
		return nil
	})
	return errs
}

// podTemplate returns the template of the Pods that obj creates, or nil.
func podTemplate(obj scheme.Object) *corev1.PodTemplateSpec {
	switch o := obj.(type) {
	case *corev1.PodTemplate:
		return &o.Template
	case *corev1.ReplicationController:
		return o.Spec.Template
	case *appsv1.ReplicaSet:
		return &o.Spec.Template
	case *appsv1.Deployment:
		return &o.Spec.Template
	case *appsv1.DaemonSet:
		return &o.Spec.Template
	case *appsv1.StatefulSet:
		return &o.Spec.Template
	case *batchv1.Job:
		return &o.Spec.Template
	case *batchv1.CronJob:
		return &o.Spec.JobTemplate.Spec.Template
	}
	return nil
}
