package validation

// This file contains the rules of resources whose strategies are not imported because their
// packages also contain clients and storage. Each function calls the validation functions that the
// strategy in k8s.io/kubernetes/pkg/registry/GROUP/RESOURCE calls.

import (
	"context"
	"net/url"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationvalidation "k8s.io/kube-aggregator/pkg/apis/apiregistration/validation"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/certificates"
	certificatesvalidation "k8s.io/kubernetes/pkg/apis/certificates/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	corevalidation "k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/apis/discovery"
	discoveryvalidation "k8s.io/kubernetes/pkg/apis/discovery/validation"
	"k8s.io/kubernetes/pkg/apis/resource"
	resourcevalidation "k8s.io/kubernetes/pkg/apis/resource/validation"
	"k8s.io/kubernetes/pkg/features"
	volumevalidation "k8s.io/kubernetes/pkg/volume/validation"
	"k8s.io/utils/clock"

	"apilet/internal/apierror"
	"apilet/internal/scheme/internalversion"
)

// coreRules returns the rules of the core group.
func coreRules() map[reflect.Type]*rules {
	return map[reflect.Type]*rules{
		reflect.TypeFor[*core.ConfigMap]():      fromFuncs(corevalidation.ValidateConfigMap, corevalidation.ValidateConfigMapUpdate, nil),
		reflect.TypeFor[*core.Secret]():         fromFuncs(corevalidation.ValidateSecret, corevalidation.ValidateSecretUpdate, nil),
		reflect.TypeFor[*core.ServiceAccount](): fromFuncs(corevalidation.ValidateServiceAccount, corevalidation.ValidateServiceAccountUpdate, nil),
		reflect.TypeFor[*core.Endpoints]():      fromFuncs(corevalidation.ValidateEndpointsCreate, corevalidation.ValidateEndpointsUpdate, nil),
		reflect.TypeFor[*core.Event]():          eventRules(),
		reflect.TypeFor[*core.Namespace]():      namespaceRules(),
		reflect.TypeFor[*core.Node](): fromFuncs(corevalidation.ValidateNode, both(corevalidation.ValidateNode, corevalidation.ValidateNodeUpdate), corevalidation.ValidateNodeUpdate).
			declare(features.InPlacePodVerticalScalingSchedulerPreemption),
		reflect.TypeFor[*core.PersistentVolume]():      fromFuncs(validatePersistentVolume, validatePersistentVolumeUpdate, corevalidation.ValidatePersistentVolumeStatusUpdate),
		reflect.TypeFor[*core.PersistentVolumeClaim](): fromFuncs(validateClaim, validateClaimUpdate, validateClaimStatus),
		reflect.TypeFor[*core.Pod]():                   podRules(),
		reflect.TypeFor[*core.ReplicationController](): fromFuncs(validateReplicationController, validateReplicationControllerUpdate, corevalidation.ValidateReplicationControllerStatusUpdate),
		reflect.TypeFor[*core.Service]():               fromFuncs(corevalidation.ValidateServiceCreate, corevalidation.ValidateServiceUpdate, corevalidation.ValidateServiceStatusUpdate),
	}
}

// otherRules returns the rules of other groups.
func otherRules() map[reflect.Type]*rules {
	return map[reflect.Type]*rules{
		reflect.TypeFor[*batch.CronJob]():                          fromFuncs(validateCronJob, validateCronJobUpdate, noRules).declare(features.WorkloadWithJob),
		reflect.TypeFor[*apiregistration.APIService]():             apiServiceRules(),
		reflect.TypeFor[*apps.ReplicaSet]():                        fromFuncs(validateReplicaSet, validateReplicaSetUpdate, appsvalidation.ValidateReplicaSetStatusUpdate),
		reflect.TypeFor[*batch.Job]():                              jobRules(),
		reflect.TypeFor[*certificates.CertificateSigningRequest](): certificateRules(),
		reflect.TypeFor[*certificates.PodCertificateRequest]():     fromFuncs(certificatesvalidation.ValidatePodCertificateRequestCreate, certificatesvalidation.ValidatePodCertificateRequestUpdate, validatePodCertificateStatus),
		reflect.TypeFor[*discovery.EndpointSlice]():                fromFuncs(discoveryvalidation.ValidateEndpointSliceCreate, discoveryvalidation.ValidateEndpointSliceUpdate, nil),
		reflect.TypeFor[*resource.ResourceClaim](): fromFuncs(resourcevalidation.ValidateResourceClaim, resourcevalidation.ValidateResourceClaimUpdate, resourcevalidation.ValidateResourceClaimStatusUpdate).
			normalize(resourcevalidation.ResourceNormalizationRules).declare(),
		reflect.TypeFor[*resource.ResourceClaimTemplate](): fromFuncs(resourcevalidation.ValidateResourceClaimTemplate, both(resourcevalidation.ValidateResourceClaimTemplate, resourcevalidation.ValidateResourceClaimTemplateUpdate), nil).
			normalize(resourcevalidation.ResourceNormalizationRules).declare(),
		reflect.TypeFor[*resource.ResourceSlice](): fromFuncs(resourcevalidation.ValidateResourceSlice, resourcevalidation.ValidateResourceSliceUpdate, nil).
			normalize(resourcevalidation.ResourceNormalizationRules).declare(features.DRAPartitionableDevicesType),
	}
}

// fromFuncs returns the rules of a type with the internal type *T. status may be nil.
func fromFuncs[T any](create func(*T) field.ErrorList, update, status func(obj, old *T) field.ErrorList) *rules {
	r := &rules{
		create:  func(_ context.Context, obj runtime.Object) field.ErrorList { return create(any(obj).(*T)) },
		updates: map[string]updateFunc{"": forUpdate(update)},
	}
	if status != nil {
		r.updates["status"] = forUpdate(status)
	}
	return r
}

func forUpdate[T any](f func(obj, old *T) field.ErrorList) updateFunc {
	return func(_ context.Context, obj, old runtime.Object) field.ErrorList {
		return f(any(obj).(*T), any(old).(*T))
	}
}

// both returns the update rules for a type whose updates are also validated like a new object.
func both[T any](create func(*T) field.ErrorList, update func(obj, old *T) field.ErrorList) func(obj, old *T) field.ErrorList {
	return func(obj, old *T) field.ErrorList { return append(create(obj), update(obj, old)...) }
}

// noRules accepts every status.
func noRules[T any](_, _ *T) field.ErrorList { return nil }

// eventRules validates Events based on the version of the request, since there are more rules for
// events.k8s.io/v1.
func eventRules() *rules {
	return &rules{
		create: func(ctx context.Context, obj runtime.Object) field.ErrorList {
			return corevalidation.ValidateEventCreate(obj.(*core.Event), requestVersion(ctx))
		},
		updates: map[string]updateFunc{"": func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
			return corevalidation.ValidateEventUpdate(obj.(*core.Event), old.(*core.Event), requestVersion(ctx))
		}},
	}
}

func requestVersion(ctx context.Context) schema.GroupVersion {
	info, _ := request.RequestInfoFrom(ctx)
	return schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
}

func namespaceRules() *rules {
	r := fromFuncs(corevalidation.ValidateNamespace, both(corevalidation.ValidateNamespace, corevalidation.ValidateNamespaceUpdate), corevalidation.ValidateNamespaceStatusUpdate)
	r.updates["finalize"] = forUpdate(corevalidation.ValidateNamespaceFinalizeUpdate)
	return r
}

func validatePersistentVolume(pv *core.PersistentVolume) field.ErrorList {
	return validateVolume(pv, corevalidation.ValidationOptionsForPersistentVolume(pv, nil))
}

func validateVolume(pv *core.PersistentVolume, opts corevalidation.PersistentVolumeSpecValidationOptions) field.ErrorList {
	return append(corevalidation.ValidatePersistentVolume(pv, opts), volumevalidation.ValidatePersistentVolume(pv)...)
}

func validatePersistentVolumeUpdate(pv, old *core.PersistentVolume) field.ErrorList {
	opts := corevalidation.ValidationOptionsForPersistentVolume(pv, old)
	return append(validateVolume(pv, opts), corevalidation.ValidatePersistentVolumeUpdate(pv, old, opts)...)
}

func validateClaim(pvc *core.PersistentVolumeClaim) field.ErrorList {
	return corevalidation.ValidatePersistentVolumeClaim(pvc, corevalidation.ValidationOptionsForPersistentVolumeClaim(pvc, nil))
}

func validateClaimUpdate(pvc, old *core.PersistentVolumeClaim) field.ErrorList {
	return corevalidation.ValidatePersistentVolumeClaimUpdate(pvc, old, corevalidation.ValidationOptionsForPersistentVolumeClaim(pvc, old))
}

func validateClaimStatus(pvc, old *core.PersistentVolumeClaim) field.ErrorList {
	return corevalidation.ValidatePersistentVolumeClaimStatusUpdate(pvc, old, corevalidation.ValidationOptionsForPersistentVolumeClaim(pvc, old))
}

func podRules() *rules {
	r := fromFuncs(func(pod *core.Pod) field.ErrorList {
		opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, nil, &pod.ObjectMeta, nil)
		opts.ResourceIsPod = true
		return corevalidation.ValidatePodCreate(pod, opts)
	}, withPodOptions(corevalidation.ValidatePodUpdate), withPodOptions(corevalidation.ValidatePodStatusUpdate))
	r.updates["ephemeralcontainers"] = forUpdate(withPodOptions(corevalidation.ValidatePodEphemeralContainersUpdate))
	r.updates["resize"] = forUpdate(withPodOptions(corevalidation.ValidatePodResize))
	return r
}

// withPodOptions calls f with the options that follow from the fields which the two Pods use.
func withPodOptions(f func(pod, old *core.Pod, opts corevalidation.PodValidationOptions) field.ErrorList) func(pod, old *core.Pod) field.ErrorList {
	return func(pod, old *core.Pod) field.ErrorList {
		opts := podutil.GetValidationOptionsFromPodSpecAndMeta(&pod.Spec, &old.Spec, &pod.ObjectMeta, &old.ObjectMeta)
		opts.ResourceIsPod = true
		return f(pod, old, opts)
	}
}

func validateReplicationController(rc *core.ReplicationController) field.ErrorList {
	return corevalidation.ValidateReplicationController(rc, podutil.GetValidationOptionsFromPodTemplate(rc.Spec.Template, nil))
}

func validateReplicationControllerUpdate(rc, old *core.ReplicationController) field.ErrorList {
	return corevalidation.ValidateReplicationControllerUpdate(rc, old, podutil.GetValidationOptionsFromPodTemplate(rc.Spec.Template, old.Spec.Template))
}

func validateReplicaSet(rs *apps.ReplicaSet) field.ErrorList {
	return appsvalidation.ValidateReplicaSet(rs, podutil.GetValidationOptionsFromPodTemplate(&rs.Spec.Template, nil))
}

func validateReplicaSetUpdate(rs, old *apps.ReplicaSet) field.ErrorList {
	return appsvalidation.ValidateReplicaSetUpdate(rs, old, podutil.GetValidationOptionsFromPodTemplate(&rs.Spec.Template, &old.Spec.Template))
}

func certificateRules() *rules {
	r := fromFuncs(certificatesvalidation.ValidateCertificateSigningRequestCreate, certificatesvalidation.ValidateCertificateSigningRequestUpdate,
		certificatesvalidation.ValidateCertificateSigningRequestStatusUpdate)
	r.updates["approval"] = forUpdate(certificatesvalidation.ValidateCertificateSigningRequestApprovalUpdate)
	return r
}

func validatePodCertificateStatus(req, old *certificates.PodCertificateRequest) field.ErrorList {
	return certificatesvalidation.ValidatePodCertificateRequestStatusUpdate(req, old, clock.RealClock{})
}

func validateCronJob(job *batch.CronJob) field.ErrorList {
	return batchvalidation.ValidateCronJobCreate(readableCronJob(job), podutil.GetValidationOptionsFromPodTemplate(&job.Spec.JobTemplate.Spec.Template, nil))
}

func validateCronJobUpdate(job, old *batch.CronJob) field.ErrorList {
	opts := podutil.GetValidationOptionsFromPodTemplate(&job.Spec.JobTemplate.Spec.Template, &old.Spec.JobTemplate.Spec.Template)
	return batchvalidation.ValidateCronJobUpdate(readableCronJob(job), old, opts)
}

// apiServiceRules adapts the rules of APIServices, which take the context of the request.
func apiServiceRules() *rules {
	return &rules{
		handwritten: true,
		create: func(ctx context.Context, obj runtime.Object) field.ErrorList {
			return apiregistrationvalidation.ValidateAPIService(ctx, obj.(*apiregistration.APIService))
		},
		updates: map[string]updateFunc{
			"": func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
				return apiregistrationvalidation.ValidateAPIServiceUpdate(ctx, obj.(*apiregistration.APIService), old.(*apiregistration.APIService))
			},
			"status": func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
				return apiregistrationvalidation.ValidateAPIServiceStatusUpdate(ctx, obj.(*apiregistration.APIService), old.(*apiregistration.APIService))
			},
		},
	}
}

// PodLogOptions decodes the parameters of a request for the log of a Pod. The error is a 400 if
// the parameters cannot be decoded, and a 422 with all errors if they are invalid.
func PodLogOptions(pod string, query url.Values) (*corev1.PodLogOptions, error) {
	options := new(corev1.PodLogOptions)
	if err := internalversion.DecodeParameters(query, options); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	split := enabled(features.PodLogsQuerySplitStreams)
	if errs := corevalidation.ValidatePodLogOptions(internalversion.From(options).(*core.PodLogOptions), split); len(errs) > 0 {
		return nil, apierror.Invalid(schema.GroupKind{Kind: "PodLogOptions"}, pod, errs)
	}
	return options, nil
}
