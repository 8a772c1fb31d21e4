package plugins

// This file is PodNodeSelector: the pods of a namespace run on the nodes that its annotation selects. Where it has none the configuration
// (--admission-control-config-file) may say which:
//
//	podNodeSelectorPluginConfig:
//	  clusterDefaultNodeSelector: pool=shared    what pods select in namespaces without annotation
//	  team: pool=team,disk=fast                  all that pods of namespace team may select

import (
	"context"
	"errors"
	"net/http"

	"github.com/tidwall/gjson"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/store"
)

const (
	defaultNodeSelector    = "clusterDefaultNodeSelector"
	nodeSelectorAnnotation = `metadata.annotations.scheduler\.alpha\.kubernetes\.io/node-selector`
)

// nodeSelectors are the configuration, and where namespaces are.
type nodeSelectors struct {
	store  *store.Store
	config map[string]string // by namespace, or defaultNodeSelector
}

// admit adds what the namespace selects.
func (n nodeSelectors) admit(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	wanted, err := n.wanted(a, pod)
	if err != nil {
		return err
	}
	pod.Spec.NodeSelector = labels.Merge(wanted, pod.Spec.NodeSelector)
	return n.validate(ctx, a)
}

// validate refuses what the namespace, or the configuration, does not let a pod select.
func (n nodeSelectors) validate(_ context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if _, err := n.wanted(a, pod); err != nil {
		return err
	}
	allowed, err := parseSelector(n.config[a.Namespace()])
	if err != nil {
		return err
	}
	for key, value := range pod.Spec.NodeSelector {
		if may, known := allowed[key]; len(allowed) > 0 && (!known || may != value) {
			return n.conflict(a, "pod node label selector labels conflict with its namespace whitelist")
		}
	}
	return nil
}

// wanted is what the namespace selects, unless the pod selects otherwise.
func (n nodeSelectors) wanted(a *admission.Attributes, pod *corev1.Pod) (labels.Set, error) {
	wanted, err := n.of(a.Namespace())
	if err == nil && labels.Conflicts(wanted, pod.Spec.NodeSelector) {
		err = n.conflict(a, "pod node label selector conflicts with its namespace node label selector")
	}
	return wanted, err
}

// conflict names the pod as it is by now: with the name that the server has made, if it has.
func (n nodeSelectors) conflict(a *admission.Attributes, text string) error {
	return apierrors.NewForbidden(a.Resource.GroupResource(), a.Object.GetName(), errors.New(text))
}

// of is what a namespace's pods select.
func (n nodeSelectors) of(namespace string) (labels.Set, error) {
	rec, err := n.store.Get("//namespaces//" + namespace)
	if err != nil && !errors.Is(err, store.ErrNotFound) { // NamespaceLifecycle, or the store, refuses a missing one
		return nil, err
	}
	if annotation := gjson.GetBytes(rec.JSON, nodeSelectorAnnotation); annotation.Exists() {
		return parseSelector(annotation.String())
	}
	return parseSelector(n.config[defaultNodeSelector])
}

func parseSelector(text string) (labels.Set, error) {
	set, err := labels.ConvertSelectorToLabelsMap(text)
	if err != nil {
		return nil, apierror.New(http.StatusInternalServerError, "", err.Error())
	}
	return set, nil
}
