package plugins

// This file implements the plug-ins that depend on the node of a pod. PodTopologyLabels copies
// topology labels of the node to the pod. PodResizeValidator rejects a resize that exceeds the
// node's capacity.

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/admission"
	"apilet/internal/bounded"
	"apilet/internal/store"
)

// nodes reads the stored nodes.
type nodes struct{ store *store.Store }

// find returns the newest version of a node, or store.ErrNotFound.
func (n nodes) find(ctx context.Context, name string) (*corev1.Node, error) {
	rec, err := n.store.GetNewest(ctx, "//nodes//"+name)
	if err != nil {
		return nil, err
	}
	node := &corev1.Node{}
	return node, bounded.Unmarshal(rec.JSON, node)
}

// topology returns the topology labels of the node, which are copied to its pods.
func (n nodes) topology(ctx context.Context, name string) (map[string]string, error) {
	node, err := n.find(ctx, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	place := map[string]string{}
	for _, key := range [...]string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if value, ok := node.Labels[key]; ok {
			place[key] = value
		}
	}
	return place, nil
}

// labelPod implements PodTopologyLabels for pods that are created with a node name.
func (n nodes) labelPod(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if pod.Spec.NodeName == "" {
		return nil
	}
	return n.label(ctx, &pod.ObjectMeta, pod.Spec.NodeName)
}

// labelBinding implements PodTopologyLabels for bindings. The pod receives the labels of its
// binding.
func (n nodes) labelBinding(ctx context.Context, a *admission.Attributes) error {
	binding := a.Object.(*corev1.Binding)
	if binding.Target.Kind != "Node" {
		return nil
	}
	return n.label(ctx, &binding.ObjectMeta, binding.Target.Name)
}

func (n nodes) label(ctx context.Context, meta *metav1.ObjectMeta, node string) error {
	place, err := n.topology(ctx, node)
	if len(place) > 0 && meta.Labels == nil {
		meta.Labels = map[string]string{}
	}
	for key, value := range place {
		meta.Labels[key] = value
	}
	return err
}

// validateResize implements PodResizeValidator.
func (n nodes) validateResize(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if pod.Spec.NodeName == "" || pod.Generation == a.Old.GetGeneration() {
		return nil
	}
	node, err := n.find(ctx, pod.Spec.NodeName)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return a.Forbidden(refusef("node %q not found", pod.Spec.NodeName))
	case err != nil:
		return a.Forbidden(refusef("failed to get node %q: %v", pod.Spec.NodeName, err))
	}
	if system, said := node.Labels[corev1.LabelOSStable]; said && system != "linux" {
		return refuseResize(a, "UnsupportedPlatform", fmt.Sprintf("pod resize is only supported on linux nodes, node %q is %q", node.Name, system))
	}
	var lacks []string
	requests := podResources(&pod.Spec).Requests
	if want, have := requests.Cpu(), node.Status.Allocatable.Cpu(); want.Cmp(*have) > 0 {
		lacks = append(lacks, fmt.Sprintf("cpu, requested: %d, allocatable: %d", want.MilliValue(), have.MilliValue()))
	}
	if want, have := requests.Memory(), node.Status.Allocatable.Memory(); want.Cmp(*have) > 0 {
		lacks = append(lacks, fmt.Sprintf("memory, requested: %d, allocatable: %d", want.Value(), have.Value()))
	}
	if len(lacks) > 0 {
		return refuseResize(a, "NodeCapacity", "node didn't have enough allocatable resources: "+strings.Join(lacks, "; "))
	}
	return nil
}

func refuseResize(a *admission.Attributes, cause metav1.CauseType, why string) error {
	err := a.Forbidden(refusal(why))
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		status.ErrStatus.Details.Causes = append(status.ErrStatus.Details.Causes, metav1.StatusCause{Type: cause})
	}
	return err
}
