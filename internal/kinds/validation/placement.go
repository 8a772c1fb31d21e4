package validation

// This file: where a pod may run: what pods, PersistentVolumes and RuntimeClasses say about nodes, and what nodes say in return. In
// k8s.io/kubernetes it is a part of pkg/apis/core/validation/validation.go (node selectors, affinity, taints and tolerations, spreading)
// and pkg/apis/node/validation. A term's rules are a table as everywhere; the paths say in which of the many places the term stands.

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var (
	taintEffects      = []string{"NoSchedule", "PreferNoSchedule", "NoExecute"}
	scheduleActions   = []string{"DoNotSchedule", "ScheduleAnyway"}
	inclusionPolicies = []string{"Honor", "Ignore"}
)

// A placementChecker checks affinity, constraints, tolerations and taints.
type placementChecker struct{ *Checker }

func (c placementChecker) affinity(p *field.Path, affinity *corev1.Affinity) {
	const must, should = "requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution"
	if node := affinity.NodeAffinity; node != nil {
		if node.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			c.nodeSelector(p.Child("nodeAffinity", must), node.RequiredDuringSchedulingIgnoredDuringExecution)
		}
		for i, term := range node.PreferredDuringSchedulingIgnoredDuringExecution {
			tp := p.Child("nodeAffinity", should).Index(i)
			c.weight(tp, term.Weight)
			c.nodeSelectorTerm(tp.Child("preference"), &term.Preference, false)
		}
	}
	if pod := affinity.PodAffinity; pod != nil {
		c.affinityTerms(p.Child("podAffinity", must), pod.RequiredDuringSchedulingIgnoredDuringExecution)
		c.weightedTerms(p.Child("podAffinity", should), pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if pod := affinity.PodAntiAffinity; pod != nil {
		c.affinityTerms(p.Child("podAntiAffinity", must), pod.RequiredDuringSchedulingIgnoredDuringExecution)
		c.weightedTerms(p.Child("podAntiAffinity", should), pod.PreferredDuringSchedulingIgnoredDuringExecution)
	}
}

func (c placementChecker) weight(p *field.Path, weight int32) {
	if weight < 1 || weight > 100 {
		c.Invalid(p, "weight", weight, "must be in the range 1-100")
	}
}

func (c placementChecker) weightedTerms(p *field.Path, terms []corev1.WeightedPodAffinityTerm) {
	for i := range terms {
		c.weight(p.Index(i), terms[i].Weight)
		c.affinityTerm(p.Index(i).Child("podAffinityTerm"), &terms[i].PodAffinityTerm)
	}
}

func (c placementChecker) affinityTerms(p *field.Path, terms []corev1.PodAffinityTerm) {
	for i := range terms {
		c.affinityTerm(p.Index(i), &terms[i])
	}
}

func (c placementChecker) affinityTerm(p *field.Path, term *corev1.PodAffinityTerm) {
	c.selector(p, "labelSelector", term.LabelSelector)
	c.selector(p, "namespaceSelector", term.NamespaceSelector)
	for _, namespace := range term.Namespaces {
		c.Words(p, "namespace", namespace, isLabel)
	}
	c.labelKeys(p, term.MatchLabelKeys, term.MismatchLabelKeys, term.LabelSelector)
	c.Need(p, "topologyKey", term.TopologyKey != "", "can not be empty")
	c.labelName(p, "topologyKey", term.TopologyKey)
}

// labelKeys are keys whose values come from the pod's own labels; the selector beside them may not name them too. strategy.PrepareForCreate has
// written those of a Pod into the selector, which is why matchLabels alone is compared.
func (c placementChecker) labelKeys(p *field.Path, match, mismatch []string, selector *metav1.LabelSelector) {
	for _, keys := range [...]struct {
		name string
		list []string
	}{{"matchLabelKeys", match}, {"mismatchLabelKeys", mismatch}} {
		if len(keys.list) > 0 && selector == nil {
			c.Forbid(p, keys.name, true, "must not be specified when labelSelector is not set")
			continue
		}
		for i, key := range keys.list {
			c.labelName(p.Child(keys.name).Index(i), "", key)
		}
	}
	if selector != nil {
		seen := set{}
		for key := range selector.MatchLabels {
			seen[key] = true
		}
		places := map[string]int{} // of the first of a key
		for i, key := range slices.Backward(match) {
			places[key] = i
		}
		for _, expression := range selector.MatchExpressions {
			if i, found := places[expression.Key]; found && seen[expression.Key] {
				c.Invalid(p.Index(i), "", expression.Key, "exists in both matchLabelKeys and labelSelector")
			}
			seen[expression.Key] = true
		}
	}
	mismatched := setOf(mismatch)
	for i, key := range match {
		if mismatched[key] {
			c.Invalid(p.Child("matchLabelKeys").Index(i), "", key, "exists in both matchLabelKeys and mismatchLabelKeys")
		}
	}
}

// A spread is what no two constraints may have in common.
type spread struct {
	topologyKey string
	action      corev1.UnsatisfiableConstraintAction
}

func (c placementChecker) spreadConstraints(p *field.Path, constraints []corev1.TopologySpreadConstraint) {
	left := map[spread]int{} // constraints still to come
	for _, constraint := range constraints {
		left[spread{constraint.TopologyKey, constraint.WhenUnsatisfiable}]++
	}
	for i := range constraints {
		of := spread{constraints[i].TopologyKey, constraints[i].WhenUnsatisfiable}
		left[of]--
		c.spreadConstraint(p.Index(i), &constraints[i], left[of] > 0)
	}
}

func (c placementChecker) spreadConstraint(p *field.Path, constraint *corev1.TopologySpreadConstraint, repeated bool) {
	c.positive(p, "maxSkew", int64(constraint.MaxSkew))
	c.Need(p, "topologyKey", constraint.TopologyKey != "", "can not be empty")
	c.OneOf(p, "whenUnsatisfiable", string(constraint.WhenUnsatisfiable), scheduleActions)
	if repeated {
		c.Add(field.Duplicate(p.Child("{topologyKey, whenUnsatisfiable}"), fmt.Sprintf("{%v, %v}", constraint.TopologyKey, constraint.WhenUnsatisfiable)))
	}
	if domains := constraint.MinDomains; domains != nil {
		c.positive(p, "minDomains", int64(*domains))
		if constraint.WhenUnsatisfiable != corev1.DoNotSchedule {
			c.Invalid(p, "minDomains", *domains, fmt.Sprintf("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not %s", constraint.WhenUnsatisfiable))
		}
	}
	oneOfRef(c.Checker, p, "nodeAffinityPolicy", constraint.NodeAffinityPolicy, inclusionPolicies)
	oneOfRef(c.Checker, p, "nodeTaintsPolicy", constraint.NodeTaintsPolicy, inclusionPolicies)
	c.labelKeys(p, constraint.MatchLabelKeys, nil, constraint.LabelSelector)
	c.selector(p, "labelSelector", constraint.LabelSelector)
}

func (c placementChecker) tolerations(p *field.Path, list []corev1.Toleration) {
	for i, toleration := range list {
		tp := p.Index(i)
		c.Maybe(tp, "key", toleration.Key, isQualifiedName)
		if toleration.Key == "" && toleration.Operator != corev1.TolerationOpExists {
			c.Invalid(tp, "operator", toleration.Operator, `operator must be Exists when `+"`key`"+` is empty, which means "match all values and all keys"`)
		}
		if toleration.TolerationSeconds != nil && toleration.Effect != corev1.TaintEffectNoExecute {
			c.Invalid(tp, "effect", toleration.Effect, "effect must be 'NoExecute' when `tolerationSeconds` is set")
		}
		switch toleration.Operator {
		case "", corev1.TolerationOpEqual:
			if messages := validation.IsValidLabelValue(toleration.Value); len(messages) > 0 {
				c.Invalid(tp, "operator", toleration.Value, strings.Join(messages, ";"))
			}
		case corev1.TolerationOpExists:
			if toleration.Value != "" {
				c.Invalid(tp, "operator", toleration.Value, "value must be empty when `operator` is 'Exists'")
			}
		case corev1.TolerationOpLt, corev1.TolerationOpGt:
			c.Unsupported(tp, "operator", toleration.Operator, []string{"Equal", "Exists", "Lt", "Gt"})
		default:
			c.Unsupported(tp, "operator", toleration.Operator, []string{"Equal", "Exists"})
		}
		if toleration.Effect != "" {
			c.OneOf(tp, "effect", string(toleration.Effect), taintEffects)
		}
	}
}

// Tolerations says what is wrong with tolerations that stand elsewhere than in a pod.
func Tolerations(name string, list []corev1.Toleration) field.ErrorList {
	c := placementChecker{&Checker{}}
	c.tolerations(field.NewPath(name), list)
	return c.Errs
}

func (c placementChecker) nodeSelector(p *field.Path, selector *corev1.NodeSelector) {
	c.Need(p, "nodeSelectorTerms", len(selector.NodeSelectorTerms) > 0, "must have at least one node selector term")
	for i := range selector.NodeSelectorTerms {
		c.nodeSelectorTerm(p.Child("nodeSelectorTerms").Index(i), &selector.NodeSelectorTerms[i], true)
	}
}

// nodeSelectorTerm: values of labels count only where the term is required.
func (c placementChecker) nodeSelectorTerm(p *field.Path, term *corev1.NodeSelectorTerm, required bool) {
	for i, requirement := range term.MatchExpressions {
		rp := p.Child("matchExpressions").Index(i)
		values := len(requirement.Values)
		switch requirement.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			c.Need(rp, "values", values > 0, "must be specified when `operator` is 'In' or 'NotIn'")
		case corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist:
			c.Forbid(rp, "values", values > 0, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			c.Need(rp, "values", values == 1, "must be specified single value when `operator` is 'Lt' or 'Gt'")
		default:
			c.Invalid(rp, "operator", requirement.Operator, "not a valid selector operator")
		}
		c.labelName(rp, "key", requirement.Key)
		for j := 0; j < values && required; j++ {
			c.Words(rp.Child("values").Index(j), "", requirement.Values[j], validation.IsValidLabelValue)
		}
	}
	for i, requirement := range term.MatchFields {
		rp := p.Child("matchFields").Index(i)
		switch requirement.Operator {
		case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
			c.Need(rp, "values", len(requirement.Values) == 1, "must be only one value when `operator` is 'In' or 'NotIn' for node field selector")
		default:
			c.Invalid(rp, "operator", requirement.Operator, "not a valid selector operator")
		}
		if requirement.Key != metav1.ObjectNameField {
			c.Invalid(rp, "key", requirement.Key, "not a valid field selector key")
			continue
		}
		for j, value := range requirement.Values {
			c.Words(rp.Child("values").Index(j), "", value, isSubdomain)
		}
	}
}

// taints are reported below metadata, as in Kubernetes.
func (c placementChecker) taints(p *field.Path, taints []corev1.Taint) {
	type key struct {
		name   string
		effect corev1.TaintEffect
	}
	seen := map[key]bool{}
	for i, taint := range taints {
		c.labelName(p.Index(i), "key", taint.Key)
		if messages := validation.IsValidLabelValue(taint.Value); len(messages) > 0 {
			c.Invalid(p.Index(i), "value", taint.Value, strings.Join(messages, ";"))
		}
		c.Known(p.Index(i), "effect", string(taint.Effect), taintEffects)
		if seen[key{taint.Key, taint.Effect}] {
			duplicate := field.Duplicate(p.Index(i), goForm(taint))
			duplicate.Detail = "taints must be unique by key and effect pair"
			c.Add(duplicate)
		}
		seen[key{taint.Key, taint.Effect}] = true
	}
}
