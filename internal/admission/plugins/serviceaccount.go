package plugins

// This file implements ServiceAccount. Pods run as a service account in their namespace, which
// defaults to "default". The plug-in mounts the account's token, the server's CA certificate and
// the name of the namespace into each container, where client libraries look for them:
//
//	/var/run/secrets/kubernetes.io/serviceaccount/{token,ca.crt,namespace}     volume kube-api-access-XXXXX, projected
//
// If the account of a pod does not exist, the pod is rejected. If the account has the annotation
// kubernetes.io/enforce-mountable-secrets, the pod may only use the secrets that the account
// lists. Mirror pods represent the static pods of a kubelet and have neither an account nor
// secrets.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"apilet/internal/admission"
	"apilet/internal/apierror"
	"apilet/internal/store"
)

const (
	tokenMount  = "/var/run/secrets/kubernetes.io/serviceaccount"
	tokenVolume = "kube-api-access-"
	// If a kubelet requests this lifetime, it gets a token that is valid for a year. Clients that
	// do not reread the file get a warning.
	tokenSeconds     = 3607
	mountableSecrets = "kubernetes.io/enforce-mountable-secrets"
	defaultAccount   = "default"
	// How often to look for the default account, which a controller creates shortly after the
	// namespace.
	defaultAccountAttempts = 10
	// Minimum pause between attempts. The maximum is twice as long.
	defaultAccountPause = 100 * time.Millisecond
)

// accounts reads the stored service accounts.
type accounts struct{ store *store.Store }

// find returns the service account of a pod. The error may be a 403, an error returned by the
// store, or a timeout.
func (s accounts) find(ctx context.Context, a *admission.Attributes, name string) (*corev1.ServiceAccount, error) {
	account := &corev1.ServiceAccount{}
	pause := defaultAccountPause + rand.N(defaultAccountPause)
	for try := 1; ; try++ {
		rec, err := s.store.GetNewest(ctx, "//serviceaccounts/"+a.Namespace()+"/"+name)
		if err == nil {
			if err = json.Unmarshal(rec.JSON, account); err == nil {
				return account, nil
			}
			return nil, a.Forbidden(refusef("error looking up service account %s/%s: %v", a.Namespace(), name, err))
		}
		if !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		if name != defaultAccount || try == defaultAccountAttempts {
			missing := apierrors.NewNotFound(schema.GroupResource{Resource: "serviceaccount"}, name)
			return nil, a.Forbidden(fmt.Errorf("error looking up service account %s/%s: %w", a.Namespace(), name, missing))
		}
		select {
		case <-ctx.Done():
			return nil, apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
		case <-time.After(pause):
		}
	}
}

// admit sets the account of a new pod and mounts its token.
func (s accounts) admit(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if isMirror(pod) {
		return s.validate(ctx, a)
	}
	if pod.Spec.ServiceAccountName == "" {
		pod.Spec.ServiceAccountName = defaultAccount
	}
	pod.Spec.DeprecatedServiceAccount = pod.Spec.ServiceAccountName
	account, err := s.find(ctx, a, pod.Spec.ServiceAccountName)
	if err != nil {
		return err
	}
	if wantsToken(account, pod) {
		mountToken(&pod.Spec)
	}
	if len(pod.Spec.ImagePullSecrets) == 0 {
		pod.Spec.ImagePullSecrets = slices.Clone(account.ImagePullSecrets)
	}
	return checkSecrets(a, account, pod)
}

// validate checks the pod again after other plug-ins may have changed it.
func (s accounts) validate(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	if isMirror(pod) {
		return validateMirror(a, pod)
	}
	account, err := s.account(ctx, a, pod)
	if err != nil {
		return err
	}
	return checkSecrets(a, account, pod)
}

// account returns the account of the pod, which must exist.
func (s accounts) account(ctx context.Context, a *admission.Attributes, pod *corev1.Pod) (*corev1.ServiceAccount, error) {
	if pod.Spec.ServiceAccountName == "" {
		return nil, a.Forbidden(refusef("no service account specified for pod %s/%s", a.Namespace(), pod.Name))
	}
	return s.find(ctx, a, pod.Spec.ServiceAccountName)
}

// validateEphemeral checks the ephemeral containers that are added to a running pod.
func (s accounts) validateEphemeral(ctx context.Context, a *admission.Attributes) error {
	pod := a.Object.(*corev1.Pod)
	account, err := s.account(ctx, a, pod)
	if err != nil || !restrictsSecrets(account) {
		return err
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		if err := checkContainerSecrets("ephemeral container", &c, account); err != nil {
			// As in kube-apiserver, the error is not a 403.
			return apierror.New(http.StatusInternalServerError, "", err.Error())
		}
	}
	return nil
}

func isMirror(pod *corev1.Pod) bool {
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return mirror
}

// validateMirror checks that a mirror pod has no credentials of this server.
func validateMirror(a *admission.Attributes, pod *corev1.Pod) error {
	switch {
	case pod.Spec.ServiceAccountName != "":
		return a.Forbidden(refusal("a mirror pod may not reference service accounts"))
	case namesSecret(&pod.Spec):
		return a.Forbidden(refusal("a mirror pod may not reference secrets"))
	}
	for i := range pod.Spec.Volumes {
		if projected := pod.Spec.Volumes[i].Projected; projected != nil &&
			slices.ContainsFunc(projected.Sources, func(p corev1.VolumeProjection) bool { return p.ServiceAccountToken != nil }) {
			return a.Forbidden(refusal("a mirror pod may not use ServiceAccountToken volume projections"))
		}
	}
	return nil
}

// ---- Tokens ----

// wantsToken reports whether to mount a token. The pod's setting takes precedence over the
// account's; the default is true.
func wantsToken(account *corev1.ServiceAccount, pod *corev1.Pod) bool {
	switch {
	case pod.Spec.AutomountServiceAccountToken != nil:
		return *pod.Spec.AutomountServiceAccountToken
	case account.AutomountServiceAccountToken != nil:
		return *account.AutomountServiceAccountToken
	}
	return true
}

// mountToken mounts the token in all containers that have no other mount at that path. It reuses
// an existing token volume.
func mountToken(spec *corev1.PodSpec) {
	name := tokenVolume + utilrand.String(5)
	at := slices.IndexFunc(spec.Volumes, func(v corev1.Volume) bool { return strings.HasPrefix(v.Name, tokenVolume) })
	if at >= 0 {
		name = spec.Volumes[at].Name
	}
	mounted := false
	mount := func(c *corev1.Container) {
		taken := slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == tokenMount })
		if !taken {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, ReadOnly: true, MountPath: tokenMount})
			mounted = true
		}
	}
	for i := range spec.InitContainers {
		mount(&spec.InitContainers[i])
	}
	for i := range spec.Containers {
		mount(&spec.Containers[i])
	}
	if at < 0 && mounted {
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Projected: tokenSource()}})
	}
}

func tokenSource() *corev1.ProjectedVolumeSource {
	mode, seconds := corev1.ProjectedVolumeSourceDefaultMode, int64(tokenSeconds)
	return &corev1.ProjectedVolumeSource{DefaultMode: &mode, Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
		{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
			Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
	}}
}

// ---- Secrets ----

// restrictsSecrets reports whether the pods of an account may only use the secrets that the account
// lists.
func restrictsSecrets(account *corev1.ServiceAccount) bool {
	enforced, _ := strconv.ParseBool(account.Annotations[mountableSecrets])
	return enforced
}

// checkSecrets returns an error if the account restricts secrets and the pod uses a secret that it
// does not list.
func checkSecrets(a *admission.Attributes, account *corev1.ServiceAccount, pod *corev1.Pod) error {
	if !restrictsSecrets(account) {
		return nil
	}
	for i := range pod.Spec.Volumes {
		if secret := pod.Spec.Volumes[i].Secret; secret != nil && !allowsSecret(account, secret.SecretName) {
			return a.Forbidden(refusef("volume with secret.secretName=%q is not allowed because service account %s does not reference that secret",
				secret.SecretName, account.Name))
		}
	}
	for i := range pod.Spec.InitContainers {
		if err := checkContainerSecrets("init container", &pod.Spec.InitContainers[i], account); err != nil {
			return a.Forbidden(err)
		}
	}
	for i := range pod.Spec.Containers {
		if err := checkContainerSecrets("container", &pod.Spec.Containers[i], account); err != nil {
			return a.Forbidden(err)
		}
	}
	for i, secret := range pod.Spec.ImagePullSecrets {
		if !slices.Contains(account.ImagePullSecrets, secret) {
			return a.Forbidden(refusef("imagePullSecrets[%d].name=%q is not allowed because service account %s does not reference that imagePullSecret",
				i, secret.Name, account.Name))
		}
	}
	return nil
}

func allowsSecret(account *corev1.ServiceAccount, secret string) bool {
	return slices.ContainsFunc(account.Secrets, func(ref corev1.ObjectReference) bool { return ref.Name == secret })
}

// checkContainerSecrets returns an error if the environment of a container uses a secret that the
// account does not list.
func checkContainerSecrets(what string, c *corev1.Container, account *corev1.ServiceAccount) error {
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.SecretKeyRef != nil && !allowsSecret(account, from.SecretKeyRef.Name) {
			return fmt.Errorf("%s %s with envVar %s referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
				what, c.Name, c.Env[i].Name, from.SecretKeyRef.Name, account.Name)
		}
	}
	for i := range c.EnvFrom {
		if from := c.EnvFrom[i].SecretRef; from != nil && !allowsSecret(account, from.Name) {
			return fmt.Errorf("%s %s with envFrom referencing secret.secretName=%q is not allowed because service account %s does not reference that secret",
				what, c.Name, from.Name, account.Name)
		}
	}
	return nil
}

// namesSecret reports whether a pod refers to any secret. References without a name do not count.
func namesSecret(spec *corev1.PodSpec) bool {
	found := false // VisitPodSecretNames returns true even if a container stopped the visit
	podutil.VisitPodSecretNames(&corev1.Pod{Spec: *spec}, func(string) (continues bool) {
		found = true
		return false
	})
	return found
}
