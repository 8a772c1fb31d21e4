package clients

// This file tests the conversion of a type with two versions as it is used by kubebuilder. v1 is
// the hub, and v1beta1 is the spoke. The manager serves /convert, envtest adds its address to the
// definition, and the API server calls it for each conversion.

import (
	"context"
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/conversion"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

const rocketGroup = "fleet.example.com"

// A Rocket is the hub.
type Rocket struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              RocketSpec `json:"spec"`
}

// RocketSpec contains the number of engines.
type RocketSpec struct {
	Engines int    `json:"engines"`
	Fuel    string `json:"fuel,omitempty"`
}

// Hub marks the version to which the others convert.
func (*Rocket) Hub() {}

// DeepCopyObject returns a copy.
func (r *Rocket) DeepCopyObject() runtime.Object {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// A RocketList is a list of Rockets.
type RocketList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Rocket `json:"items"`
}

// DeepCopyObject returns a copy.
func (l *RocketList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Rocket))
	}
	return &out
}

// An OldRocket is the spoke. It has the thrust and no fuel.
type OldRocket struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Thrust            string `json:"thrust"`
}

// ConvertTo converts the spoke to the hub.
func (r *OldRocket) ConvertTo(hub conversion.Hub) error {
	out := hub.(*Rocket)
	out.ObjectMeta = r.ObjectMeta
	out.Spec.Fuel = out.Annotations["fuel"]
	delete(out.Annotations, "fuel")
	_, err := fmt.Sscanf(r.Thrust, "%dx", &out.Spec.Engines)
	return err
}

// ConvertFrom converts the hub to the spoke.
func (r *OldRocket) ConvertFrom(hub conversion.Hub) error {
	in := hub.(*Rocket)
	r.ObjectMeta, r.Thrust = in.ObjectMeta, fmt.Sprintf("%dx", in.Spec.Engines)
	if in.Spec.Fuel != "" {
		if r.Annotations == nil {
			r.Annotations = map[string]string{}
		}
		r.Annotations["fuel"] = in.Spec.Fuel
	}
	return nil
}

// DeepCopyObject returns a copy.
func (r *OldRocket) DeepCopyObject() runtime.Object {
	out := *r
	r.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	return &out
}

// An OldRocketList is a list of OldRockets.
type OldRocketList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []OldRocket `json:"items"`
}

// DeepCopyObject returns a copy.
func (l *OldRocketList) DeepCopyObject() runtime.Object {
	out := *l
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*OldRocket))
	}
	return &out
}

// rocketDefinition returns a definition that stores v1. envtest adds the conversion webhook.
func rocketDefinition() *apiextensionsv1.CustomResourceDefinition {
	version := func(name string, storage bool, member string, p apiextensionsv1.JSONSchemaProps) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{member: p}}}}
	}
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "rockets." + rocketGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{Group: rocketGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "rockets", Singular: "rocket", Kind: "Rocket", ListKind: "RocketList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				version("v1", true, "spec", apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
					"engines": {Type: "integer"}, "fuel": {Type: "string"}}}),
				version("v1beta1", false, "thrust", apiextensionsv1.JSONSchemaProps{Type: "string"})}}}
}

func TestManagerConvertsHubAndSpoke(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	check(t, "scheme", apiextensionsv1.AddToScheme(scheme))
	hub, spoke := schema.GroupVersion{Group: rocketGroup, Version: "v1"}, schema.GroupVersion{Group: rocketGroup, Version: "v1beta1"}
	scheme.AddKnownTypes(hub, &Rocket{}, &RocketList{})
	scheme.AddKnownTypeWithName(spoke.WithKind("Rocket"), &OldRocket{})
	scheme.AddKnownTypeWithName(spoke.WithKind("RocketList"), &OldRocketList{})
	metav1.AddToGroupVersion(scheme, hub)
	metav1.AddToGroupVersion(scheme, spoke)
	env, config, _ := begin(t, func() *envtest.Environment {
		return &envtest.Environment{BinaryAssetsDirectory: assets(t), Scheme: scheme,
			CRDInstallOptions: envtest.CRDInstallOptions{CRDs: []*apiextensionsv1.CustomResourceDefinition{rocketDefinition()}}}
	})
	t.Cleanup(func() { check(t, "stop", env.Stop()) })

	ctx, cancel := context.WithCancel(t.Context())
	options := env.WebhookInstallOptions
	mgr, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: metricsserver.Options{BindAddress: "0"},
		WebhookServer: webhook.NewServer(webhook.Options{Host: options.LocalServingHost, Port: options.LocalServingPort, CertDir: options.LocalServingCertDir})})
	check(t, "new manager", err)
	// serves /convert, because the type has a hub
	check(t, "webhook", ctrl.NewWebhookManagedBy(mgr, &Rocket{}).Complete())
	seen := make(chan string, 100)
	check(t, "controller", ctrl.NewControllerManagedBy(mgr).For(&OldRocket{}).
		WithOptions(controller.Options{SkipNameValidation: new(true)}).Complete(
		reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			var old OldRocket
			if err := mgr.GetClient().Get(ctx, r.NamespacedName, &old); err != nil {
				return reconcile.Result{}, client.IgnoreNotFound(err)
			}
			seen <- old.Name + " " + old.Thrust
			return reconcile.Result{}, nil
		})))
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		check(t, "manager", <-done)
	})
	eventually(t, "the webhook server has started", func() bool { return mgr.GetWebhookServer().StartedChecker()(nil) == nil })

	c := must(client.New(config, client.Options{Scheme: scheme}))
	check(t, "create the hub", c.Create(ctx, &Rocket{ObjectMeta: named("saturn"), Spec: RocketSpec{Engines: 5, Fuel: "kerosene"}}))
	if got := receive(t, "the controller sees the spoke", seen); got != "saturn 5x" {
		t.Errorf("the controller of the spoke saw %q", got)
	}
	var old OldRocket
	key := client.ObjectKey{Namespace: ns, Name: "saturn"}
	check(t, "get the spoke", c.Get(ctx, key, &old))
	if old.Thrust != "5x" || old.Annotations["fuel"] != "kerosene" {
		t.Errorf("the spoke is %q with %v", old.Thrust, old.Annotations)
	}
	old.Thrust = "6x"
	check(t, "update the spoke", c.Update(ctx, &old))
	var rocket Rocket
	check(t, "get the hub", c.Get(ctx, key, &rocket))
	if rocket.Spec != (RocketSpec{Engines: 6, Fuel: "kerosene"}) || rocket.Annotations["fuel"] != "" {
		t.Errorf("the hub is %+v with %v", rocket.Spec, rocket.Annotations)
	}
	got := receive(t, "the controller sees the change", seen)
	for got == "saturn 5x" { // a controller may be triggered twice
		got = receive(t, "the controller sees the change", seen)
	}
	if got != "saturn 6x" {
		t.Errorf("the controller of the spoke saw %q", got)
	}
	check(t, "create the spoke", c.Create(ctx, &OldRocket{ObjectMeta: named("vega"), Thrust: "1x"}))
	var rockets RocketList
	check(t, "list hubs", c.List(ctx, &rockets, client.InNamespace(ns)))
	if len(rockets.Items) != 2 || rockets.Items[1].Spec.Engines != 1 {
		t.Errorf("hubs: %+v", rockets.Items)
	}
	err = c.Create(ctx, &OldRocket{ObjectMeta: named("none"), Thrust: "much"})
	if err == nil {
		t.Error("what cannot be converted was created")
	}
}
