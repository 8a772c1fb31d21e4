package validation

// This file contains the rules for Jobs. The strategy determines which rules apply, depending on
// the changes.

import (
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/batch"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/ptr"
)

func jobRules() *rules {
	return fromFuncs(func(job *batch.Job) field.ErrorList {
		return batchvalidation.ValidateJobCreate(readableJob(job), batchvalidation.JobValidationOptions{
			PodValidationOptions:  podutil.GetValidationOptionsFromPodTemplate(&job.Spec.Template, nil),
			RequirePrefixedLabels: true,
		})
	}, func(job, old *batch.Job) field.ErrorList {
		job = readableJob(job)
		return batchvalidation.ValidateJobUpdate(job, old, jobUpdateOptions(job, old))
	}, func(job, old *batch.Job) field.ErrorList {
		return batchvalidation.ValidateJobUpdateStatus(job, old, jobStatusOptions(job, old))
	}).declare(features.WorkloadWithJob)
}

// readable removes the success policy of an indexed Job without completions. Kubernetes' rules for
// it read spec.completions, although an earlier rule reports that it is missing.
func readable(spec batch.JobSpec) batch.JobSpec {
	if spec.Completions == nil && ptr.Deref(spec.CompletionMode, "") == batch.IndexedCompletion {
		spec.SuccessPolicy = nil
	}
	return spec
}

// readableJob returns a shallow copy of a Job with a readable spec.
func readableJob(job *batch.Job) *batch.Job {
	copied := *job
	copied.Spec = readable(job.Spec)
	return &copied
}

// readableCronJob returns a shallow copy of a CronJob with a readable template.
func readableCronJob(job *batch.CronJob) *batch.CronJob {
	copied := *job
	copied.Spec.JobTemplate.Spec = readable(job.Spec.JobTemplate.Spec)
	return &copied
}

// jobUpdateOptions allows changes to the Pod template of a Job that is suspended and runs no Pods.
func jobUpdateOptions(job, old *batch.Job) batchvalidation.JobValidationOptions {
	labels := old.Spec.Template.Labels
	_, hasName := labels[batch.JobNameLabel]
	_, hasUID := labels[batch.ControllerUidLabel]
	opts := batchvalidation.JobValidationOptions{
		PodValidationOptions:  podutil.GetValidationOptionsFromPodTemplate(&job.Spec.Template, &old.Spec.Template),
		RequirePrefixedLabels: hasName && hasUID,
	}
	if metav1validation.LabelSelectorHasInvalidLabelValue(old.Spec.Selector) {
		opts.AllowInvalidLabelValueInSelector = true
	}
	suspended := ptr.Deref(old.Spec.Suspend, false)
	notStarted := old.Status.StartTime == nil
	idle := suspended && old.Status.Active == 0 &&
		(notStarted || batchvalidation.IsConditionTrue(old.Status.Conditions, batch.JobSuspended))
	opts.AllowMutableSchedulingDirectives = suspended && notStarted
	if enabled(features.MutableSchedulingDirectivesForSuspendedJobs) {
		opts.AllowMutableSchedulingDirectives = idle
	}
	if enabled(features.MutablePodResourcesForSuspendedJobs) {
		opts.AllowMutablePodResources = idle
	}
	return opts
}

// jobStatusOptions returns the rules for a change of the status. A rule is only used if one of its
// fields has changed. As a result, it is possible to update a status that was already invalid. The
// Job controller may need several updates to follow a change of the spec.
func jobStatusOptions(job, old *batch.Job) batchvalidation.JobStatusValidationOptions {
	if !enabled(features.JobManagedBy) {
		return batchvalidation.JobStatusValidationOptions{}
	}
	now, before := &job.Status, &old.Status
	turned := func(condition batch.JobConditionType) bool {
		return batchvalidation.IsConditionTrue(now.Conditions, condition) != batchvalidation.IsConditionTrue(before.Conditions, condition)
	}
	finished := batchvalidation.IsJobFinished(old) != batchvalidation.IsJobFinished(job)
	completed := batchvalidation.IsJobComplete(old) != batchvalidation.IsJobComplete(job)
	failed := batchvalidation.IsJobFailed(old) != batchvalidation.IsJobFailed(job)
	completedIndexes := before.CompletedIndexes != now.CompletedIndexes
	failedIndexes := !ptr.Equal(before.FailedIndexes, now.FailedIndexes)
	active := before.Active != now.Active
	ready := !ptr.Equal(before.Ready, now.Ready)
	startTime := !ptr.Equal(before.StartTime, now.StartTime)
	completionTime := !ptr.Equal(before.CompletionTime, now.CompletionTime)
	uncounted := !apiequality.Semantic.DeepEqual(before.UncountedTerminatedPods, now.UncountedTerminatedPods)
	indexed := ptr.Deref(job.Spec.CompletionMode, batch.NonIndexedCompletion) == batch.IndexedCompletion
	neverStarted := ptr.Deref(job.Spec.Suspend, false) && ptr.Equal(job.Spec.Completions, ptr.To[int32](0))
	resumed := batchvalidation.IsConditionTrue(before.Conditions, batch.JobSuspended) &&
		batchvalidation.IsConditionFalse(now.Conditions, batch.JobSuspended)
	return batchvalidation.JobStatusValidationOptions{
		RejectDecreasingSucceededCounter:             !indexed || !ptr.Equal(job.Spec.Completions, job.Spec.Parallelism),
		RejectDecreasingFailedCounter:                true,
		RejectDisablingTerminalCondition:             true,
		RejectMutatingCompletionTime:                 true,
		RejectInvalidCompletedIndexes:                completedIndexes,
		RejectCompletedIndexesForNonIndexedJob:       completedIndexes,
		RejectInvalidFailedIndexes:                   failedIndexes,
		RejectFailedIndexesForNoBackoffLimitPerIndex: failedIndexes,
		RejectFailedIndexesOverlappingCompleted:      failedIndexes || completedIndexes,
		RejectFailedJobWithoutFailureTarget:          failed || failedIndexes,
		RejectCompleteJobWithoutSuccessCriteriaMet:   completed || turned(batch.JobSuccessCriteriaMet),
		RejectFinishedJobWithActivePods:              finished || active,
		RejectFinishedJobWithoutStartTime:            (finished || startTime) && !neverStarted,
		RejectFinishedJobWithUncountedTerminatedPods: finished || uncounted,
		RejectFinishedJobWithTerminatingPods:         finished || !ptr.Equal(before.Terminating, now.Terminating),
		RejectStartTimeUpdateForUnsuspendedJob:       startTime && !resumed,
		RejectCompletionTimeBeforeStartTime:          startTime || completionTime,
		RejectNotCompleteJobWithCompletionTime:       completed || completionTime,
		RejectCompleteJobWithoutCompletionTime:       completed || completionTime,
		RejectCompleteJobWithFailedCondition:         completed || failed,
		RejectCompleteJobWithFailureTargetCondition:  completed || turned(batch.JobFailureTarget),
		RejectMoreReadyThanActivePods:                ready || active,
	}
}

func enabled(gate featuregate.Feature) bool { return utilfeature.DefaultFeatureGate.Enabled(gate) }
