package plugins

// This file implements PodTolerationRestriction. It adds default tolerations to the pods in a
// namespace and restricts the tolerations that they are allowed to have. Both are stored as JSON
// in annotations of the namespace. If an annotation is missing, the configuration
// (--admission-control-config-file) applies:
//
//	scheduler.alpha.kubernetes.io/defaultTolerations     default     added to each new pod
//	scheduler.alpha.kubernetes.io/tolerationsWhitelist   whitelist   must cover each toleration of a pod; an empty list allows all
//
// A pod with any requests or limits also gets a toleration for memory pressure. If a toleration is
// covered by another one, it is removed. The rules and messages match kube-apiserver's
// plugin/pkg/admission/podtolerationrestriction. A pod with more than maxTolerations is rejected,
// since each toleration must be compared with all others.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	"sigs.k8s.io/yaml"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/kinds/validation"
	"apilet/internal/store"
)

const (
	defaultTolerations = `metadata.annotations.scheduler\.alpha\.kubernetes\.io/defaultTolerations`
	allowedTolerations = `metadata.annotations.scheduler\.alpha\.kubernetes\.io/tolerationsWhitelist`

	maxTolerations = 1000
)

// podTolerations are the tolerations in the configuration.
type podTolerations struct {
	Default   []corev1.Toleration `json:"default"`
	Whitelist []corev1.Toleration `json:"whitelist"`
}

// readTolerations parses the configuration of the plug-in.
func readTolerations(text []byte) (podTolerations, error) {
	var file struct {
		metav1.TypeMeta `json:",inline"`
		podTolerations  `json:",inline"`
	}
	if err := yaml.UnmarshalStrict(text, &file); err != nil {
		return podTolerations{}, err
	}
	if want := "podtolerationrestriction.admission.k8s.io/v1alpha1"; file.Kind != "Configuration" || file.APIVersion != want {
		return podTolerations{}, fmt.Errorf("%s of %s is no Configuration of %s", file.Kind, file.APIVersion, want)
	}
	errs := append(validation.ValidateTolerations("podtolerationrestriction.default", file.Default), validation.ValidateTolerations("podtolerationrestriction.whitelist", file.Whitelist)...)
	if len(errs) > 0 {
		return podTolerations{}, fmt.Errorf("invalid config: %v", errs)
	}
	return file.podTolerations, nil
}

// tolerations implements the plug-in.
type tolerations struct {
	store  *store.Store
	config podTolerations
}

// admit adds the default tolerations of the namespace.
func (t tolerations) admit(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	var more []corev1.Toleration
	if a.Operation == admission.OpCreate {
		var err error
		if more, _, err = t.forNamespace(a.Namespace(), defaultTolerations, t.config.Default); err != nil {
			return err
		}
	}
	if qos.ComputePodQOS(pod) != corev1.PodQOSBestEffort {
		more = append(more[:len(more):len(more)], corev1.Toleration{Key: corev1.TaintNodeMemoryPressure, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule})
	}
	if n := len(pod.Spec.Tolerations) + len(more); n > maxTolerations {
		return a.Forbidden(fmt.Errorf("%d tolerations are more than the %d that are compared", n, maxTolerations))
	}
	if len(more) > 0 {
		pod.Spec.Tolerations = mergeTolerations(append(pod.Spec.Tolerations[:len(pod.Spec.Tolerations):len(pod.Spec.Tolerations)], more...))
	}
	return t.validate(ctx, a)
}

// validate returns an error if a toleration is not covered by the whitelist.
func (t tolerations) validate(_ context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, whose, err := t.forNamespace(a.Namespace(), allowedTolerations, t.config.Whitelist)
	if err != nil || len(allowed) == 0 {
		return err
	}
	if len(pod.Spec.Tolerations) > maxTolerations {
		return a.Forbidden(fmt.Errorf("%d tolerations are more than the %d that are compared", len(pod.Spec.Tolerations), maxTolerations))
	}
	for i := range pod.Spec.Tolerations {
		if !covered(&pod.Spec.Tolerations[i], allowed) {
			return plainError(fmt.Errorf("pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", whose))
		}
	}
	return nil
}

// forNamespace returns the tolerations in an annotation of the namespace, or otherwise if the
// annotation is missing. whose is "namespace" or "cluster", for messages.
func (t tolerations) forNamespace(namespace, annotation string, otherwise []corev1.Toleration) (list []corev1.Toleration, whose string, err error) {
	rec, err := t.store.Get("//namespaces//" + namespace)
	// NamespaceLifecycle or the store rejects writes to a missing namespace.
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, "", err
	}
	text := gjson.GetBytes(rec.JSON, annotation)
	switch {
	case !text.Exists():
		return otherwise, "cluster", nil
	case text.String() == "":
		return nil, "namespace", nil
	}
	if err := json.Unmarshal([]byte(text.String()), &list); err != nil {
		return nil, "", plainError(err)
	}
	return list, "namespace", nil
}

// plainError returns a 500, which kube-apiserver sends for errors that are not a Status.
func plainError(err error) error {
	return apierror.New(http.StatusInternalServerError, "", err.Error())
}

// mergeTolerations removes tolerations if they are covered by another one. It keeps the first of
// equal ones.
func mergeTolerations(all []corev1.Toleration) []corev1.Toleration {
	var merged []corev1.Toleration
	for i := range all {
		t := &all[i]
		redundant := covered(t, merged)
		for j := i + 1; j < len(all) && !redundant; j++ {
			redundant = !sameToleration(t, &all[j]) && covers(&all[j], t)
		}
		if !redundant {
			merged = append(merged, *t)
		}
	}
	return merged
}

func covered(t *corev1.Toleration, by []corev1.Toleration) bool {
	for i := range by {
		if covers(&by[i], t) {
			return true
		}
	}
	return false
}

// covers reports whether wide tolerates every taint that t tolerates.
func covers(wide, t *corev1.Toleration) bool {
	switch {
	case sameToleration(wide, t):
		return true
	case t.Key != wide.Key && (wide.Key != "" || wide.Operator != corev1.TolerationOpExists):
		return false
	case t.Effect != wide.Effect && wide.Effect != "":
		return false
	case wide.Effect == corev1.TaintEffectNoExecute && wide.TolerationSeconds != nil && (t.TolerationSeconds == nil || *t.TolerationSeconds > *wide.TolerationSeconds):
		return false
	case wide.Operator == corev1.TolerationOpEqual || wide.Operator == "":
		return t.Operator == corev1.TolerationOpEqual && t.Value == wide.Value
	}
	return wide.Operator == corev1.TolerationOpExists
}

func sameToleration(a, b *corev1.Toleration) bool {
	seconds := a.TolerationSeconds == b.TolerationSeconds || a.TolerationSeconds != nil && b.TolerationSeconds != nil && *a.TolerationSeconds == *b.TolerationSeconds
	return seconds && a.Key == b.Key && a.Operator == b.Operator && a.Value == b.Value && a.Effect == b.Effect
}
