package scheme

// This file holds the versions whose fields differ from those of the storage version, as pairs of functions between Go types:
//
//	events.k8s.io/v1 Event                                  core/v1 Event: other names for the same fields
//	autoscaling/v1 HorizontalPodAutoscaler                  autoscaling/v2: what v1 has no field for travels in annotations
//	policy/v1beta1 PodDisruptionBudget                      policy/v1: an empty selector matches nothing there, everything here
//	flowcontrol.apiserver.k8s.io/v1beta3 PriorityLevel...   v1: zero shares mean "default" there, zero here
//
// A client that reads in one version and writes back what it read loses nothing of what the other version holds.

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	flowcontrolv1beta3 "k8s.io/api/flowcontrol/v1beta3"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/bounded"
)

func eventFromV1(in *eventsv1.Event) *corev1.Event {
	return &corev1.Event{
		ObjectMeta: in.ObjectMeta, EventTime: in.EventTime, Series: seriesFromV1(in.Series),
		ReportingController: in.ReportingController, ReportingInstance: in.ReportingInstance,
		Action: in.Action, Reason: in.Reason, Message: in.Note, Type: in.Type,
		InvolvedObject: in.Regarding, Related: in.Related, Source: in.DeprecatedSource, Count: in.DeprecatedCount,
		FirstTimestamp: in.DeprecatedFirstTimestamp, LastTimestamp: in.DeprecatedLastTimestamp,
	}
}

func eventToV1(in *corev1.Event) *eventsv1.Event {
	out := &eventsv1.Event{
		ObjectMeta: in.ObjectMeta, EventTime: in.EventTime,
		ReportingController: in.ReportingController, ReportingInstance: in.ReportingInstance,
		Action: in.Action, Reason: in.Reason, Note: in.Message, Type: in.Type,
		Regarding: in.InvolvedObject, Related: in.Related, DeprecatedSource: in.Source, DeprecatedCount: in.Count,
		DeprecatedFirstTimestamp: in.FirstTimestamp, DeprecatedLastTimestamp: in.LastTimestamp,
	}
	if in.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: in.Series.Count, LastObservedTime: in.Series.LastObservedTime}
	}
	return out
}

func seriesFromV1(in *eventsv1.EventSeries) *corev1.EventSeries {
	if in == nil {
		return nil
	}
	return &corev1.EventSeries{Count: in.Count, LastObservedTime: in.LastObservedTime}
}

// budgetLabel is what a v1beta1 client sees in the selector of a budget that matches every pod, which v1beta1 cannot say otherwise.
const budgetLabel = "pdb.kubernetes.io/deprecated-v1beta1-empty-selector-match"

func budgetSelector(op metav1.LabelSelectorOperator) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: budgetLabel, Operator: op}}}
}

func budgetFromV1beta1(budget *policyv1.PodDisruptionBudget) {
	selector := budget.Spec.Selector
	switch {
	case selector == nil:
	case equality.Semantic.DeepEqual(selector, &metav1.LabelSelector{}):
		budget.Spec.Selector = budgetSelector(metav1.LabelSelectorOpExists)
	case equality.Semantic.DeepEqual(selector, budgetSelector(metav1.LabelSelectorOpDoesNotExist)):
		budget.Spec.Selector = &metav1.LabelSelector{}
	default:
		selector.MatchExpressions = slices.DeleteFunc(selector.MatchExpressions,
			func(e metav1.LabelSelectorRequirement) bool { return e.Key == budgetLabel })
	}
}

func budgetToV1beta1(budget *policyv1.PodDisruptionBudget) {
	selector := budget.Spec.Selector
	switch {
	case selector == nil:
	case equality.Semantic.DeepEqual(selector, budgetSelector(metav1.LabelSelectorOpExists)):
		budget.Spec.Selector = &metav1.LabelSelector{}
	case equality.Semantic.DeepEqual(selector, &metav1.LabelSelector{}):
		budget.Spec.Selector = budgetSelector(metav1.LabelSelectorOpDoesNotExist)
	}
}

const keepZeroShares = flowcontrolv1beta3.PriorityLevelPreserveZeroConcurrencySharesKey

func levelFromV1beta3(level *flowcontrolv1.PriorityLevelConfiguration) {
	limited := level.Spec.Limited
	if _, keep := level.Annotations[keepZeroShares]; keep {
		delete(level.Annotations, keepZeroShares)
		if limited != nil && limited.NominalConcurrencyShares == nil {
			limited.NominalConcurrencyShares = new(int32)
		}
	} else if limited != nil && limited.NominalConcurrencyShares != nil && *limited.NominalConcurrencyShares == 0 {
		limited.NominalConcurrencyShares = nil // the default is filled in
	}
}

func levelToV1beta3(level *flowcontrolv1.PriorityLevelConfiguration) {
	limited := level.Spec.Limited
	if limited == nil || limited.NominalConcurrencyShares != nil && *limited.NominalConcurrencyShares != 0 {
		return
	}
	limited.NominalConcurrencyShares = new(int32)
	level.Annotations = withAnnotation(level.Annotations, keepZeroShares, "")
}

func withAnnotation(annotations map[string]string, key, value string) map[string]string {
	if annotations == nil {
		return map[string]string{key: value}
	}
	annotations[key] = value
	return annotations
}

// The annotations in which autoscaling/v1 carries what only v2 has fields for.
const (
	hpaMetrics        = "autoscaling.alpha.kubernetes.io/metrics"
	hpaCurrentMetrics = "autoscaling.alpha.kubernetes.io/current-metrics"
	hpaConditions     = "autoscaling.alpha.kubernetes.io/conditions"
	hpaBehavior       = "autoscaling.alpha.kubernetes.io/behavior"
)

func withoutHPAAnnotations(in map[string]string) map[string]string {
	out := maps.Clone(in)
	for _, key := range []string{hpaMetrics, hpaCurrentMetrics, hpaConditions, hpaBehavior,
		"autoscaling.alpha.kubernetes.io/scale-down-tolerance", "autoscaling.alpha.kubernetes.io/scale-up-tolerance"} {
		delete(out, key)
	}
	return out
}

// defaultCPU is the utilization that autoscaling/v1 means when it names none.
const defaultCPU int32 = 80

func hpaFromV1(in *autoscalingv1.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	out := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: in.ObjectMeta}
	out.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
		Metrics: mappedFrom(in.Annotations[hpaMetrics], metricFromV1), Behavior: behaviorFrom(in.Annotations[hpaBehavior]),
	}
	if target := in.Spec.TargetCPUUtilizationPercentage; target != nil {
		out.Spec.Metrics = append(out.Spec.Metrics, cpuMetric(*target))
	}
	if len(out.Spec.Metrics) == 0 {
		out.Spec.Metrics = []autoscalingv2.MetricSpec{cpuMetric(defaultCPU)}
	}
	out.Status = autoscalingv2.HorizontalPodAutoscalerStatus{
		ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
		CurrentMetrics: mappedFrom(in.Annotations[hpaCurrentMetrics], currentFromV1),
		Conditions:     mappedFrom(in.Annotations[hpaConditions], conditionFromV1),
	}
	if current := in.Status.CurrentCPUUtilizationPercentage; current != nil && out.Status.CurrentMetrics == nil {
		out.Status.CurrentMetrics = []autoscalingv2.MetricStatus{{Type: autoscalingv2.ResourceMetricSourceType,
			Resource: &autoscalingv2.ResourceMetricStatus{Name: corev1.ResourceCPU, Current: autoscalingv2.MetricValueStatus{AverageUtilization: current}}}}
	}
	out.Annotations = withoutHPAAnnotations(in.Annotations)
	return out
}

func cpuMetric(utilization int32) autoscalingv2.MetricSpec {
	target := autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &utilization}
	return autoscalingv2.MetricSpec{Type: autoscalingv2.ResourceMetricSourceType,
		Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU, Target: target}}
}

// mappedFrom reads a list that an annotation carries; what is not JSON is no list.
func mappedFrom[A, B any](annotation string, convert func(A) B) (out []B) {
	var in []A
	if annotation == "" || bounded.Unmarshal([]byte(annotation), &in) != nil {
		return nil
	}
	for _, item := range in {
		out = append(out, convert(item))
	}
	return out
}

func hpaToV1(in *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv1.HorizontalPodAutoscaler {
	out := &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: in.ObjectMeta}
	out.Annotations = withoutHPAAnnotations(in.Annotations)
	out.Spec = autoscalingv1.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv1.CrossVersionObjectReference(in.Spec.ScaleTargetRef),
		MinReplicas:    in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas,
	}
	var metrics []autoscalingv1.MetricSpec
	for _, m := range in.Spec.Metrics {
		if !isCPU(m) {
			metrics = append(metrics, metricToV1(m))
		} else if out.Spec.TargetCPUUtilizationPercentage == nil {
			out.Spec.TargetCPUUtilizationPercentage = m.Resource.Target.AverageUtilization
		}
	}
	out.Status = autoscalingv1.HorizontalPodAutoscalerStatus{
		ObservedGeneration: in.Status.ObservedGeneration, LastScaleTime: in.Status.LastScaleTime,
		CurrentReplicas: in.Status.CurrentReplicas, DesiredReplicas: in.Status.DesiredReplicas,
	}
	var current []autoscalingv1.MetricStatus
	for _, m := range in.Status.CurrentMetrics {
		current = append(current, currentToV1(m))
		if r := m.Resource; r != nil && r.Name == corev1.ResourceCPU && r.Current.AverageUtilization != nil {
			out.Status.CurrentCPUUtilizationPercentage = r.Current.AverageUtilization
		}
	}
	var conditions []autoscalingv1.HorizontalPodAutoscalerCondition
	for _, c := range in.Status.Conditions {
		conditions = append(conditions, conditionToV1(c))
	}
	annotate(out, hpaMetrics, metrics)
	annotate(out, hpaCurrentMetrics, current)
	annotate(out, hpaConditions, conditions)
	if in.Spec.Behavior != nil {
		annotate(out, hpaBehavior, behaviorTo(in.Spec.Behavior))
	}
	return out
}

// annotate leaves nothing for a nil value.
func annotate(out *autoscalingv1.HorizontalPodAutoscaler, key string, value any) {
	if text, err := json.Marshal(value); err == nil && string(text) != "null" {
		out.Annotations = withAnnotation(out.Annotations, key, string(text))
	}
}

func isCPU(m autoscalingv2.MetricSpec) bool {
	r := m.Resource
	return m.Type == autoscalingv2.ResourceMetricSourceType && r != nil && r.Name == corev1.ResourceCPU && r.Target.AverageUtilization != nil
}

func conditionFromV1(c autoscalingv1.HorizontalPodAutoscalerCondition) autoscalingv2.HorizontalPodAutoscalerCondition {
	return autoscalingv2.HorizontalPodAutoscalerCondition{Type: autoscalingv2.HorizontalPodAutoscalerConditionType(c.Type),
		Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message}
}

func conditionToV1(c autoscalingv2.HorizontalPodAutoscalerCondition) autoscalingv1.HorizontalPodAutoscalerCondition {
	return autoscalingv1.HorizontalPodAutoscalerCondition{Type: autoscalingv1.HorizontalPodAutoscalerConditionType(c.Type),
		Status: c.Status, LastTransitionTime: c.LastTransitionTime, Reason: c.Reason, Message: c.Message}
}

// behaviorV1 is v2's behavior as the annotation has it: under the Go names, since Kubernetes once marshalled a type without tags.
type behaviorV1 struct{ ScaleUp, ScaleDown *rulesV1 }

type rulesV1 struct {
	StabilizationWindowSeconds *int32
	SelectPolicy               *autoscalingv2.ScalingPolicySelect
	Policies                   []policyOfV1
	Tolerance                  *apiresource.Quantity
}

type policyOfV1 struct {
	Type                 autoscalingv2.HPAScalingPolicyType
	Value, PeriodSeconds int32
}

func behaviorFrom(annotation string) *autoscalingv2.HorizontalPodAutoscalerBehavior {
	var b behaviorV1
	if annotation == "" || json.Unmarshal([]byte(annotation), &b) != nil || b == (behaviorV1{}) {
		return nil
	}
	rules := func(in *rulesV1) *autoscalingv2.HPAScalingRules {
		if in == nil {
			return nil
		}
		out := &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: in.StabilizationWindowSeconds, SelectPolicy: in.SelectPolicy, Tolerance: in.Tolerance}
		for _, p := range in.Policies {
			out.Policies = append(out.Policies, autoscalingv2.HPAScalingPolicy(p))
		}
		return out
	}
	return &autoscalingv2.HorizontalPodAutoscalerBehavior{ScaleUp: rules(b.ScaleUp), ScaleDown: rules(b.ScaleDown)}
}

func behaviorTo(b *autoscalingv2.HorizontalPodAutoscalerBehavior) *behaviorV1 {
	rules := func(in *autoscalingv2.HPAScalingRules) *rulesV1 {
		if in == nil {
			return nil
		}
		out := &rulesV1{StabilizationWindowSeconds: in.StabilizationWindowSeconds, SelectPolicy: in.SelectPolicy, Tolerance: in.Tolerance}
		for _, p := range in.Policies {
			out.Policies = append(out.Policies, policyOfV1(p))
		}
		return out
	}
	return &behaviorV1{ScaleUp: rules(b.ScaleUp), ScaleDown: rules(b.ScaleDown)}
}

// metricFromV1 gives each source of a metric its v2 shape: a metric, perhaps an object, and a target with a type.
func metricFromV1(m autoscalingv1.MetricSpec) autoscalingv2.MetricSpec {
	out := autoscalingv2.MetricSpec{Type: autoscalingv2.MetricSourceType(m.Type)}
	if s := m.Object; s != nil {
		target := autoscalingv2.MetricTarget{Type: autoscalingv2.ValueMetricType, Value: &s.TargetValue}
		if s.AverageValue != nil {
			target = averageOf(s.AverageValue, nil)
			if !s.TargetValue.IsZero() { // v1 cannot leave the value out
				target.Value = &s.TargetValue
			}
		}
		out.Object = &autoscalingv2.ObjectMetricSource{DescribedObject: autoscalingv2.CrossVersionObjectReference(s.Target),
			Target: target, Metric: metricNamed(s.MetricName, s.Selector)}
	}
	if s := m.Pods; s != nil {
		out.Pods = &autoscalingv2.PodsMetricSource{Metric: metricNamed(s.MetricName, s.Selector), Target: averageOf(&s.TargetAverageValue, nil)}
	}
	if s := m.Resource; s != nil {
		out.Resource = &autoscalingv2.ResourceMetricSource{Name: s.Name, Target: averageOf(s.TargetAverageValue, s.TargetAverageUtilization)}
	}
	if s := m.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricSource{Name: s.Name, Container: s.Container,
			Target: averageOf(s.TargetAverageValue, s.TargetAverageUtilization)}
	}
	if s := m.External; s != nil {
		target := averageOf(s.TargetAverageValue, nil)
		if s.TargetValue != nil {
			target.Type, target.Value = autoscalingv2.ValueMetricType, s.TargetValue
		}
		out.External = &autoscalingv2.ExternalMetricSource{Metric: metricNamed(s.MetricName, s.MetricSelector), Target: target}
	}
	return out
}

func metricNamed(name string, selector *metav1.LabelSelector) autoscalingv2.MetricIdentifier {
	return autoscalingv2.MetricIdentifier{Name: name, Selector: selector}
}

func averageOf(value *apiresource.Quantity, utilization *int32) autoscalingv2.MetricTarget {
	t := autoscalingv2.MetricTarget{Type: autoscalingv2.AverageValueMetricType, AverageValue: value, AverageUtilization: utilization}
	if utilization != nil {
		t.Type = autoscalingv2.UtilizationMetricType
	}
	return t
}

func metricToV1(m autoscalingv2.MetricSpec) autoscalingv1.MetricSpec {
	out := autoscalingv1.MetricSpec{Type: autoscalingv1.MetricSourceType(m.Type)}
	if s := m.Object; s != nil {
		out.Object = &autoscalingv1.ObjectMetricSource{Target: autoscalingv1.CrossVersionObjectReference(s.DescribedObject),
			MetricName: s.Metric.Name, Selector: s.Metric.Selector, TargetValue: orZero(s.Target.Value), AverageValue: s.Target.AverageValue}
	}
	if s := m.Pods; s != nil {
		out.Pods = &autoscalingv1.PodsMetricSource{MetricName: s.Metric.Name, Selector: s.Metric.Selector, TargetAverageValue: orZero(s.Target.AverageValue)}
	}
	if s := m.Resource; s != nil {
		out.Resource = &autoscalingv1.ResourceMetricSource{Name: s.Name,
			TargetAverageUtilization: s.Target.AverageUtilization, TargetAverageValue: s.Target.AverageValue}
	}
	if s := m.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricSource{Name: s.Name, Container: s.Container,
			TargetAverageUtilization: s.Target.AverageUtilization, TargetAverageValue: s.Target.AverageValue}
	}
	if s := m.External; s != nil {
		out.External = &autoscalingv1.ExternalMetricSource{MetricName: s.Metric.Name, MetricSelector: s.Metric.Selector,
			TargetValue: s.Target.Value, TargetAverageValue: s.Target.AverageValue}
	}
	return out
}

func orZero(q *apiresource.Quantity) apiresource.Quantity {
	if q == nil {
		return apiresource.Quantity{}
	}
	return *q
}

func currentFromV1(m autoscalingv1.MetricStatus) autoscalingv2.MetricStatus {
	out := autoscalingv2.MetricStatus{Type: autoscalingv2.MetricSourceType(m.Type)}
	if s := m.Object; s != nil {
		out.Object = &autoscalingv2.ObjectMetricStatus{DescribedObject: autoscalingv2.CrossVersionObjectReference(s.Target),
			Metric: metricNamed(s.MetricName, s.Selector), Current: autoscalingv2.MetricValueStatus{Value: &s.CurrentValue, AverageValue: s.AverageValue}}
	}
	if s := m.Pods; s != nil {
		out.Pods = &autoscalingv2.PodsMetricStatus{Metric: metricNamed(s.MetricName, s.Selector),
			Current: autoscalingv2.MetricValueStatus{AverageValue: &s.CurrentAverageValue}}
	}
	if s := m.Resource; s != nil {
		out.Resource = &autoscalingv2.ResourceMetricStatus{Name: s.Name,
			Current: autoscalingv2.MetricValueStatus{AverageValue: &s.CurrentAverageValue, AverageUtilization: s.CurrentAverageUtilization}}
	}
	if s := m.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv2.ContainerResourceMetricStatus{Name: s.Name, Container: s.Container,
			Current: autoscalingv2.MetricValueStatus{AverageValue: &s.CurrentAverageValue, AverageUtilization: s.CurrentAverageUtilization}}
	}
	if s := m.External; s != nil {
		out.External = &autoscalingv2.ExternalMetricStatus{Metric: metricNamed(s.MetricName, s.MetricSelector),
			Current: autoscalingv2.MetricValueStatus{Value: &s.CurrentValue, AverageValue: s.CurrentAverageValue}}
	}
	return out
}

func currentToV1(m autoscalingv2.MetricStatus) autoscalingv1.MetricStatus {
	out := autoscalingv1.MetricStatus{Type: autoscalingv1.MetricSourceType(m.Type)}
	if s := m.Object; s != nil {
		out.Object = &autoscalingv1.ObjectMetricStatus{Target: autoscalingv1.CrossVersionObjectReference(s.DescribedObject),
			MetricName: s.Metric.Name, Selector: s.Metric.Selector, CurrentValue: orZero(s.Current.Value), AverageValue: s.Current.AverageValue}
	}
	if s := m.Pods; s != nil {
		out.Pods = &autoscalingv1.PodsMetricStatus{MetricName: s.Metric.Name, Selector: s.Metric.Selector, CurrentAverageValue: orZero(s.Current.AverageValue)}
	}
	if s := m.Resource; s != nil {
		out.Resource = &autoscalingv1.ResourceMetricStatus{Name: s.Name,
			CurrentAverageUtilization: s.Current.AverageUtilization, CurrentAverageValue: orZero(s.Current.AverageValue)}
	}
	if s := m.ContainerResource; s != nil {
		out.ContainerResource = &autoscalingv1.ContainerResourceMetricStatus{Name: s.Name, Container: s.Container,
			CurrentAverageUtilization: s.Current.AverageUtilization, CurrentAverageValue: orZero(s.Current.AverageValue)}
	}
	if s := m.External; s != nil {
		out.External = &autoscalingv1.ExternalMetricStatus{MetricName: s.Metric.Name, MetricSelector: s.Metric.Selector,
			CurrentValue: orZero(s.Current.Value), CurrentAverageValue: s.Current.AverageValue}
	}
	return out
}

// NamespacedName returns the namespace and name of an object's key, /group/resource/namespace/name.
func NamespacedName(key string) (namespace, name string) {
	slash := strings.LastIndexByte(key, '/')
	rest := key[:slash]
	return rest[strings.LastIndexByte(rest, '/')+1:], key[slash+1:]
}
