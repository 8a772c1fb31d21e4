// Controller is a small operator, written as in the kubebuilder book: it creates a Deployment for
// each Guestbook, reports the available replicas in the status, and uses a finalizer. It does not
// depend on the kind of server.
//
//	go run . --kubeconfig ~/.kube/config       # or KUBECONFIG=...; --leader-elect for more than one
package main

import (
	"context"
	"flag"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

const finalizer = "example.com/guestbook"

var groupVersion = schema.GroupVersion{Group: "example.com", Version: "v1"}

// ---- The type ----

type Guestbook struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              GuestbookSpec   `json:"spec"`
	Status            GuestbookStatus `json:"status,omitzero"`
}

type GuestbookSpec struct {
	Image string `json:"image,omitempty"`
	Size  int32  `json:"size,omitempty"`
}

type GuestbookStatus struct {
	Available int32  `json:"available"`
	Phase     string `json:"phase"`
}

type GuestbookList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []Guestbook `json:"items"`
}

func (g *Guestbook) DeepCopyObject() runtime.Object {
	out := *g
	g.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

func (l *GuestbookList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Guestbook))
	}
	return &out
}

// ---- The controller ----

type reconciler struct {
	client.Client
	events events.EventRecorder
}

func (r *reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var book Guestbook
	if err := r.Get(ctx, req.NamespacedName, &book); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	log := ctrl.LoggerFrom(ctx)
	if !book.DeletionTimestamp.IsZero() {
		if controllerutil.RemoveFinalizer(&book, finalizer) {
			log.Info("last words")
			return ctrl.Result{}, client.IgnoreNotFound(r.Update(ctx, &book))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(&book, finalizer) {
		return ctrl.Result{}, r.Update(ctx, &book)
	}
	deploy := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: book.Name, Namespace: book.Namespace}}
	done, err := controllerutil.CreateOrUpdate(ctx, r.Client, deploy, func() error { return r.shape(&book, deploy) })
	if err != nil {
		return ctrl.Result{}, err
	}
	if done != controllerutil.OperationResultNone {
		log.Info("deployment", "done", done, "replicas", book.Spec.Size)
		r.events.Eventf(&book, deploy, corev1.EventTypeNormal, "Deployed", "Reconcile", "deployment %s, %d replicas", done, book.Spec.Size)
	}
	status := GuestbookStatus{Available: deploy.Status.AvailableReplicas, Phase: "Pending"}
	if status.Available == book.Spec.Size {
		status.Phase = "Ready"
	}
	if status == book.Status {
		return ctrl.Result{}, nil
	}
	log.Info("status", "phase", status.Phase, "available", status.Available)
	book.Status = status
	return ctrl.Result{}, r.Status().Update(ctx, &book)
}

// shape sets a Deployment's fields according to its Guestbook.
func (r *reconciler) shape(book *Guestbook, deploy *appsv1.Deployment) error {
	labels := map[string]string{"guestbook": book.Name}
	deploy.Spec.Replicas = &book.Spec.Size
	deploy.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	deploy.Spec.Template.Labels = labels
	if len(deploy.Spec.Template.Spec.Containers) == 0 {
		deploy.Spec.Template.Spec.Containers = []corev1.Container{{Name: "web"}}
	}
	deploy.Spec.Template.Spec.Containers[0].Image = book.Spec.Image
	return controllerutil.SetControllerReference(book, deploy, r.Scheme())
}

func main() {
	elect := flag.Bool("leader-elect", false, "let one of several run")
	flag.Parse()
	ctrl.SetLogger(klog.Background())
	if err := run(ctrl.SetupSignalHandler(), *elect); err != nil {
		ctrl.Log.Error(err, "stopping")
		os.Exit(1)
	}
}

func run(ctx context.Context, elect bool) error {
	scheme := runtime.NewScheme()
	if err := clientscheme.AddToScheme(scheme); err != nil {
		return err
	}
	scheme.AddKnownTypes(groupVersion, &Guestbook{}, &GuestbookList{})
	metav1.AddToGroupVersion(scheme, groupVersion)
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		LeaderElection: elect, LeaderElectionID: "guestbook.example.com", LeaderElectionNamespace: "default"})
	if err != nil {
		return err
	}
	r := &reconciler{mgr.GetClient(), mgr.GetEventRecorder("guestbook")}
	if err := ctrl.NewControllerManagedBy(mgr).For(&Guestbook{}).Owns(&appsv1.Deployment{}).Complete(r); err != nil {
		return err
	}
	return mgr.Start(ctx)
}
