package plugins

// This file implements PodNodeSelector. A namespace can have an annotation that restricts its pods
// to certain nodes. The configuration (--admission-control-config-file) contains the default for
// namespaces without the annotation, and the labels that pods are allowed to select:
//
//	podNodeSelectorPluginConfig:
//	  clusterDefaultNodeSelector: pool=shared    added to pods in namespaces without the annotation
//	  team: pool=team,disk=fast                  the only labels that pods of namespace team may select

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

// nodeSelectors implements the plug-in.
type nodeSelectors struct {
	store  *store.Store
	config map[string]string // by namespace; also has defaultNodeSelector
}

// admit adds the node selector of the namespace.
func (n nodeSelectors) admit(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	wanted, err := n.selectorFor(a, pod)
	if err != nil {
		return err
	}
	pod.Spec.NodeSelector = labels.Merge(wanted, pod.Spec.NodeSelector)
	return n.validate(ctx, a)
}

// validate rejects a pod if its node selector conflicts with the namespace or is not in the
// whitelist.
func (n nodeSelectors) validate(_ context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if _, err := n.selectorFor(a, pod); err != nil {
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

// selectorFor returns the node selector of the namespace. It is an error if the pod's selector
// conflicts.
func (n nodeSelectors) selectorFor(a *admission.Attributes, pod *corev1.Pod) (labels.Set, error) {
	wanted, err := n.forNamespace(a.Namespace())
	if err == nil && labels.Conflicts(wanted, pod.Spec.NodeSelector) {
		err = n.conflict(a, "pod node label selector conflicts with its namespace node label selector")
	}
	return wanted, err
}

// conflict returns a 403 with the current name of the pod, which the server may have generated.
func (n nodeSelectors) conflict(a *admission.Attributes, text string) error {
	return apierrors.NewForbidden(a.Resource.GroupResource(), a.Object.GetName(), errors.New(text))
}

// forNamespace returns the node selector for the pods of a namespace.
func (n nodeSelectors) forNamespace(namespace string) (labels.Set, error) {
	rec, err := n.store.Get("//namespaces//" + namespace)
	// NamespaceLifecycle or the store rejects writes to a missing namespace.
	if err != nil && !errors.Is(err, store.ErrNotFound) {
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
