package plugins

// This file is PodTolerationRestriction: what the pods of a namespace tolerate, beside what they say, and what they may. Two annotations of
// the namespace hold tolerations in JSON; where one is missing, the configuration (--admission-control-config-file) stands for it:
//
//	scheduler.alpha.kubernetes.io/defaultTolerations     default     are added to each new pod
//	scheduler.alpha.kubernetes.io/tolerationsWhitelist   whitelist   cover all that a pod may tolerate; an empty list is none at all
//
// A pod with any requests or limits tolerates memory pressure besides. Of two tolerations of which one covers the other that one stays.
// Rules and words are those of kube-apiserver's plugin/pkg/admission/podtolerationrestriction. Each toleration is compared with each: beyond
// maxTolerations a pod is refused here.

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

// podTolerations are those of the configuration.
type podTolerations struct {
	Default   []corev1.Toleration `json:"default"`
	Whitelist []corev1.Toleration `json:"whitelist"`
}

// readTolerations reads its configuration.
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

// tolerations are the configuration, and where namespaces are.
type tolerations struct {
	store  *store.Store
	config podTolerations
}

// admit adds what the pods of the namespace tolerate.
func (t tolerations) admit(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	var more []corev1.Toleration
	if a.Operation == admission.OpCreate {
		var err error
		if more, _, err = t.of(a.Namespace(), defaultTolerations, t.config.Default); err != nil {
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

// validate refuses a toleration that nothing in the list of what may be covers.
func (t tolerations) validate(_ context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if len(pod.Spec.Tolerations) == 0 {
		return nil
	}
	allowed, whose, err := t.of(a.Namespace(), allowedTolerations, t.config.Whitelist)
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

// of is what an annotation of a namespace holds, or without it what the configuration says; whose it is.
func (t tolerations) of(namespace, annotation string, otherwise []corev1.Toleration) (list []corev1.Toleration, whose string, err error) {
	rec, err := t.store.Get("//namespaces//" + namespace)
	if err != nil && !errors.Is(err, store.ErrNotFound) { // NamespaceLifecycle, or the store, refuses a missing one
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

// plainError is kube-apiserver's answer for an error that is no Status.
func plainError(err error) error {
	return apierror.New(http.StatusInternalServerError, "", err.Error())
}

// mergeTolerations leaves out what another one covers. Of equal ones the first stays.
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

// covers says that whatever t tolerates wide does, too.
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
