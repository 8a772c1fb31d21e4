package strategy

// This file prepares ReplicationControllers, ReplicaSets, Jobs and DaemonSets. The functions that
// take an internal type do the work of the strategies in k8s.io/kubernetes/pkg/registry.

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	jobutil "k8s.io/kubernetes/pkg/api/job"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/batch"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/features"
)

func createReplicationController(rc *core.ReplicationController) {
	rc.Status = core.ReplicationControllerStatus{}
	rc.Generation = 1
	podutil.DropDisabledTemplateFields(rc.Spec.Template, nil)
}

func updateReplicationController(rc, old *core.ReplicationController) {
	rc.Status = old.Status
	podutil.DropDisabledTemplateFields(rc.Spec.Template, old.Spec.Template)
	if !equality.Semantic.DeepEqual(rc.Spec, old.Spec) {
		rc.Generation = old.Generation + 1
	}
}

func updateReplicationControllerStatus(rc, old *core.ReplicationController) { rc.Spec = old.Spec }

func createReplicaSet(rs *apps.ReplicaSet) {
	rs.Status = apps.ReplicaSetStatus{}
	rs.Generation = 1
	podutil.DropDisabledTemplateFields(&rs.Spec.Template, nil)
}

func updateReplicaSet(rs, old *apps.ReplicaSet) {
	rs.Status = old.Status
	podutil.DropDisabledTemplateFields(&rs.Spec.Template, &old.Spec.Template)
	if !equality.Semantic.DeepEqual(rs.Spec, old.Spec) {
		rs.Generation = old.Generation + 1
	}
}

func updateReplicaSetStatus(rs, old *apps.ReplicaSet) {
	rs.Spec = old.Spec
	if !enabled(features.DeploymentReplicaSetTerminatingReplicas) && old.Status.TerminatingReplicas == nil {
		rs.Status.TerminatingReplicas = nil
	}
}

func createJob(job *batch.Job) {
	if !*job.Spec.ManualSelector {
		generateSelector(job)
	}
	job.Status = batch.JobStatus{}
	job.Generation = 1
	jobutil.DropDisabledFields(&job.Spec, nil)
	podutil.DropDisabledTemplateFields(&job.Spec.Template, nil)
}

// generateSelector selects the Pods of a Job by its uid. Validation refuses contradicting labels.
func generateSelector(job *batch.Job) {
	if job.Spec.Template.Labels == nil {
		job.Spec.Template.Labels = map[string]string{}
	}
	if job.Spec.Selector == nil {
		job.Spec.Selector = &metav1.LabelSelector{}
	}
	if job.Spec.Selector.MatchLabels == nil {
		job.Spec.Selector.MatchLabels = map[string]string{}
	}
	setLabel := func(labels map[string]string, key, value string) {
		if _, found := labels[key]; !found {
			labels[key] = value
		}
	}
	setLabel(job.Spec.Template.Labels, batch.LegacyJobNameLabel, job.Name)
	setLabel(job.Spec.Template.Labels, batch.JobNameLabel, job.Name)
	setLabel(job.Spec.Template.Labels, batch.LegacyControllerUidLabel, string(job.UID))
	setLabel(job.Spec.Template.Labels, batch.ControllerUidLabel, string(job.UID))
	setLabel(job.Spec.Selector.MatchLabels, batch.ControllerUidLabel, string(job.UID))
}

func updateJob(job, old *batch.Job) {
	job.Status = old.Status
	jobutil.DropDisabledFields(&job.Spec, &old.Spec)
	podutil.DropDisabledTemplateFields(&job.Spec.Template, &old.Spec.Template)
	if !equality.Semantic.DeepEqual(job.Spec, old.Spec) {
		job.Generation = old.Generation + 1
	}
}

func updateJobStatus(job, old *batch.Job) { job.Spec = old.Spec }

// renameJob replaces the name in the labels of a Job and its Pods.
func renameJob(obj runtime.Object, before string) {
	job := obj.(*batchv1.Job)
	for _, labels := range [...]map[string]string{job.Labels, job.Spec.Template.Labels} {
		for _, label := range [...]string{"job-name", batchv1.JobNameLabel} {
			if value, ok := labels[label]; ok && value == before {
				labels[label] = job.Name
			}
		}
	}
}

// labelJob copies the labels of the Pods to a Job without labels. kube-apiserver does so when it
// reads the stored object.
func labelJob(job *batchv1.Job) {
	if len(job.Labels) == 0 {
		job.Labels = job.Spec.Template.Labels
	}
}

// SetDerivedAnnotations adds the annotation that kube-apiserver derives from a field of its
// internal type. As a result, a client that omits the annotation still becomes its owner.
func SetDerivedAnnotations(obj runtime.Object) {
	ds, ok := obj.(*appsv1.DaemonSet)
	if !ok || ds.Annotations[appsv1.DeprecatedTemplateGeneration] != "" {
		return
	}
	if ds.Annotations == nil {
		ds.Annotations = map[string]string{}
	}
	ds.Annotations[appsv1.DeprecatedTemplateGeneration] = "0"
}
