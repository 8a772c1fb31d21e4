package node

// This file returns the objects used by a pod or a volume. The rules are the same as in Kubernetes'
// pkg/api/v1/pod and pkg/api/v1/persistentvolume.

import (
	corev1 "k8s.io/api/core/v1"
)

// references is a list of keys, all in the same namespace.
type references struct {
	namespace string
	keys      []string
}

func (r *references) add(resource, name string) {
	if name != "" {
		r.keys = append(r.keys, keyOf("", resource, r.namespace, name))
	}
}

func (r *references) secret(ref *corev1.LocalObjectReference) {
	if ref != nil {
		r.add("secrets", ref.Name)
	}
}

// podRefers returns the keys of all objects used by the pod. It returns nil for mirror pods,
// because nodes create them.
func podRefers(pod *corev1.Pod) []string {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return nil
	}
	r := &references{namespace: pod.Namespace}
	spec := &pod.Spec
	r.add("serviceaccounts", spec.ServiceAccountName)
	for i := range spec.ImagePullSecrets {
		r.secret(&spec.ImagePullSecrets[i])
	}
	for _, list := range [...][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			r.environment(list[i].Env, list[i].EnvFrom)
		}
	}
	for i := range spec.EphemeralContainers {
		r.environment(spec.EphemeralContainers[i].Env, spec.EphemeralContainers[i].EnvFrom)
	}
	for i := range spec.Volumes {
		r.volume(pod, &spec.Volumes[i])
	}
	r.deviceClaims(pod)
	return r.keys
}

func (r *references) environment(env []corev1.EnvVar, from []corev1.EnvFromSource) {
	for i := range from {
		if ref := from[i].SecretRef; ref != nil {
			r.add("secrets", ref.Name)
		}
		if ref := from[i].ConfigMapRef; ref != nil {
			r.add("configmaps", ref.Name)
		}
	}
	for i := range env {
		if source := env[i].ValueFrom; source != nil && source.SecretKeyRef != nil {
			r.add("secrets", source.SecretKeyRef.Name)
		} else if source != nil && source.ConfigMapKeyRef != nil {
			r.add("configmaps", source.ConfigMapKeyRef.Name)
		}
	}
}

func (r *references) volume(pod *corev1.Pod, v *corev1.Volume) {
	switch {
	case v.PersistentVolumeClaim != nil:
		r.add("persistentvolumeclaims", v.PersistentVolumeClaim.ClaimName)
	case v.Ephemeral != nil:
		r.add("persistentvolumeclaims", pod.Name+"-"+v.Name)
	case v.ConfigMap != nil:
		r.add("configmaps", v.ConfigMap.Name)
	case v.Secret != nil:
		r.add("secrets", v.Secret.SecretName)
	case v.AzureFile != nil:
		r.add("secrets", v.AzureFile.SecretName)
	case v.CephFS != nil:
		r.secret(v.CephFS.SecretRef)
	case v.Cinder != nil:
		r.secret(v.Cinder.SecretRef)
	case v.FlexVolume != nil:
		r.secret(v.FlexVolume.SecretRef)
	case v.RBD != nil:
		r.secret(v.RBD.SecretRef)
	case v.ScaleIO != nil:
		r.secret(v.ScaleIO.SecretRef)
	case v.ISCSI != nil:
		r.secret(v.ISCSI.SecretRef)
	case v.StorageOS != nil:
		r.secret(v.StorageOS.SecretRef)
	case v.CSI != nil:
		r.secret(v.CSI.NodePublishSecretRef)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if source := v.Projected.Sources[i].Secret; source != nil {
				r.add("secrets", source.Name)
			}
			if source := v.Projected.Sources[i].ConfigMap; source != nil {
				r.add("configmaps", source.Name)
			}
		}
	}
}

// deviceClaims adds the ResourceClaims of the pod. They are named in the spec, created from
// templates, or used for extended resources.
func (r *references) deviceClaims(pod *corev1.Pod) {
	add := func(name string) {
		if name != "" {
			r.keys = append(r.keys, keyOf("resource.k8s.io", "resourceclaims", r.namespace, name))
		}
	}
	made := map[string]*string{}
	for i := range pod.Status.ResourceClaimStatuses {
		status := &pod.Status.ResourceClaimStatuses[i]
		if made[status.Name] == nil {
			made[status.Name] = status.ResourceClaimName
		}
	}
	for i := range pod.Spec.ResourceClaims {
		claim := &pod.Spec.ResourceClaims[i]
		name := claim.ResourceClaimName
		if name == nil && claim.ResourceClaimTemplateName != nil {
			name = made[claim.Name]
		}
		if name != nil {
			add(*name)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		add(status.ResourceClaimName)
	}
}

// volumeSecrets returns the keys of the Secrets that a node needs to mount a claimed volume. If the
// volume does not name a namespace, the Secret is in the namespace of the claim. Secrets that only
// controllers need are omitted.
func volumeSecrets(pv *corev1.PersistentVolume) []string {
	var keys []string
	source, claimed := &pv.Spec.PersistentVolumeSource, pv.Spec.ClaimRef.Namespace
	add := func(namespace, name string) {
		if name != "" {
			keys = append(keys, keyOf("", "secrets", namespace, name))
		}
	}
	secret := func(ref *corev1.SecretReference) {
		if ref != nil && ref.Namespace != "" {
			add(ref.Namespace, ref.Name)
		} else if ref != nil {
			add(claimed, ref.Name)
		}
	}
	switch {
	case source.AzureFile != nil:
		namespace := claimed
		if given := source.AzureFile.SecretNamespace; given != nil && *given != "" {
			namespace = *given
		}
		add(namespace, source.AzureFile.SecretName)
	case source.CephFS != nil:
		secret(source.CephFS.SecretRef)
	case source.Cinder != nil && source.Cinder.SecretRef != nil:
		add(source.Cinder.SecretRef.Namespace, source.Cinder.SecretRef.Name)
	case source.FlexVolume != nil:
		secret(source.FlexVolume.SecretRef)
	case source.RBD != nil:
		secret(source.RBD.SecretRef)
	case source.ScaleIO != nil:
		secret(source.ScaleIO.SecretRef)
	case source.ISCSI != nil:
		secret(source.ISCSI.SecretRef)
	case source.StorageOS != nil && source.StorageOS.SecretRef != nil:
		add(source.StorageOS.SecretRef.Namespace, source.StorageOS.SecretRef.Name)
	case source.CSI != nil:
		for _, ref := range [...]*corev1.SecretReference{source.CSI.NodePublishSecretRef, source.CSI.NodeStageSecretRef, source.CSI.NodeExpandSecretRef} {
			if ref != nil {
				add(ref.Namespace, ref.Name)
			}
		}
	}
	return keys
}

// keyOf returns the key of an object in the store. If an argument is not a valid name, no stored
// object has this key.
func keyOf(group, resource, namespace, name string) string {
	return "/" + group + "/" + resource + "/" + namespace + "/" + name
}
