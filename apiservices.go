package main

// This file keeps the list of served group versions that Kubernetes has as objects, APIServices of apiregistration.k8s.io:
//
//	NAME                 SERVICE       AVAILABLE
//	v1.                  Local         True                     the core group
//	v1.apps              Local         True
//	v1.example.com       Local         True                     as long as a definition serves it
//	v1beta1.metrics.k8s  infra/proxy   False (NoAggregation)    somebody's wish
//
// In kube-apiserver such an object makes the routes: those that name a Service are proxied to it. Here it only tells. They are stored
// like other objects, so that all that works on objects works on them, and the label kube-aggregator.kubernetes.io/automanaged says
// which of them the server looks after: "onstart" are the built-in versions, put right at each start, "true" those of definitions, put
// right all the time. What has no label is its author's.
//
// One that names a Service is accepted, since charts bring them; its condition, and a warning, say that nothing comes of it.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"apilet/internal/scheme"
	"apilet/internal/store"
)

const (
	automanaged      = "kube-aggregator.kubernetes.io/automanaged"
	onstart, managed = "onstart", "true"

	// registrationPause is between two rounds: a chart brings dozens of definitions at once.
	registrationPause = 100 * time.Millisecond
)

// groupPriorities are kube-apiserver's groupPriorityMinimum for the built-in groups.
var groupPriorities = map[string]int32{
	"": 18000, "apps": 17800, "events.k8s.io": 17750, "authentication.k8s.io": 17700, "authorization.k8s.io": 17600, "autoscaling": 17500,
	"batch": 17400, "certificates.k8s.io": 17300, "networking.k8s.io": 17200, "policy": 17100, "rbac.authorization.k8s.io": 17000,
	"storage.k8s.io": 16800, "admissionregistration.k8s.io": 16700, "apiextensions.k8s.io": 16700, "scheduling.k8s.io": 16600,
	"coordination.k8s.io": 16500, "node.k8s.io": 16300, "discovery.k8s.io": 16200, "resource.k8s.io": 16200, "flowcontrol.apiserver.k8s.io": 16100,
}

// versionPriorities are those of the built-in versions that are not 15.
var versionPriorities = map[string]int32{
	"/v1": 1, "autoscaling/v2": 30, "batch/v1beta1": 9, "policy/v1beta1": 9, "resource.k8s.io/v1": 21, "flowcontrol.apiserver.k8s.io/v1": 21,
	"flowcontrol.apiserver.k8s.io/v1beta3": 18,
}

// ---- Keeping them ----

// A registrar keeps the stored APIServices of the served group versions.
type registrar struct {
	keeper
	reg *scheme.Registry
}

func newRegistrar(st *store.Store, reg *scheme.Registry, wr *writes) *registrar {
	return &registrar{newKeeper(st, reg, wr, apiregistrationv1.GroupName, "apiservices"), reg}
}

// run puts the APIServices right when a version comes or goes, or somebody wrote one, until ctx ends.
func (k *registrar) run(ctx context.Context, report func(error)) {
	for ctx.Err() == nil {
		changed, wake := k.reg.Current.Load().Replaced, k.st.Wake(k.kinds[0].KeyPrefix(""))
		if err := k.reconcile(ctx, false); err != nil && ctx.Err() == nil {
			report(err)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-wake:
		}
		select {
		case <-ctx.Done():
		case <-time.After(registrationPause):
		}
	}
}

// reconcile is one round. Only the one at the start makes and unmakes the objects of built-in versions: whoever deletes one of those
// later does not see it again until the next start.
func (k *registrar) reconcile(ctx context.Context, starting bool) error {
	stored, err := k.load()
	if err != nil {
		return err
	}
	wanted := localAPIServices(k.reg.Current.Load())
	var create, update, remove []scheme.Object
	for _, obj := range stored {
		is := obj.(*apiregistrationv1.APIService)
		want := wanted[is.Name]
		delete(wanted, is.Name)
		kept := is.Labels[automanaged] == managed || is.Labels[automanaged] == onstart && starting
		switch {
		case !kept:
		case want == nil:
			remove = append(remove, is)
		case !equality.Semantic.DeepEqual(is.Spec, want.Spec):
			is.Spec = want.Spec
			update = append(update, is)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		if starting || wanted[name].Labels[automanaged] == managed {
			create = append(create, wanted[name])
		}
	}
	return k.write(ctx, create, update, remove)
}

// localAPIServices are the APIServices of all group versions that are served, by name. There is none of APIServices themselves.
func localAPIServices(c *scheme.Catalog) map[string]*apiregistrationv1.APIService {
	wanted := map[string]*apiregistrationv1.APIService{}
	for _, rows := range c.GroupVersions() {
		group, version := rows[0].Group, rows[0].Version
		if group == apiregistrationv1.GroupName {
			continue
		}
		service := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: version + "." + group, Labels: map[string]string{automanaged: managed}},
			Spec: apiregistrationv1.APIServiceSpec{Group: group, Version: version, GroupPriorityMinimum: 1000, VersionPriority: 100}}
		if slices.ContainsFunc(rows, func(res *scheme.Resource) bool { return res.GoType != nil }) {
			service.Labels[automanaged] = onstart
			service.Spec.GroupPriorityMinimum, service.Spec.VersionPriority = groupPriorities[group], 15
			if priority, ok := versionPriorities[group+"/"+version]; ok {
				service.Spec.VersionPriority = priority
			}
		}
		wanted[service.Name] = service
	}
	return wanted
}

// ---- One of them ----

// An apiServiceChecker knows the rules of an APIService.
type apiServiceChecker struct{ *checker }

func (c apiServiceChecker) apiService(o *apiregistrationv1.APIService) {
	p := field.NewPath("spec")
	c.named(field.NewPath("metadata"), "generateName", o.GenerateName, o)
	c.named(field.NewPath("metadata"), "name", o.Name, o)
	if o.Spec.Group == "" && o.Spec.Version != "v1" {
		c.required(p, "group", "only v1 may have an empty group and it better be legacy kube")
	}
	c.maybe(p, "group", o.Spec.Group, utilvalidation.IsDNS1123Subdomain)
	c.words(p, "version", o.Spec.Version, utilvalidation.IsDNS1035Label)
	c.priority(p, "groupPriorityMinimum", o.Spec.GroupPriorityMinimum, 20000)
	c.priority(p, "versionPriority", o.Spec.VersionPriority, 1000)
	if o.Spec.Service == nil {
		c.local(p, &o.Spec)
		return
	}
	c.filled(p.Child("service"), "namespace", o.Spec.Service.Namespace, "name", o.Spec.Service.Name)
	if port := *o.Spec.Service.Port; port < 1 || port > 65535 {
		c.invalid(p, "service.port", port, "port is not valid: "+utilvalidation.InclusiveRangeError(1, 65535))
	}
	if o.Spec.InsecureSkipTLSVerify && len(o.Spec.CABundle) > 0 {
		c.invalid(p, "insecureSkipTLSVerify", true, "may not be true if caBundle is present")
	}
}

// named leaves to the rule for all metadata what is no name at all.
func (c apiServiceChecker) named(p *field.Path, key, name string, o *apiregistrationv1.APIService) {
	wanted := o.Spec.Version + "." + o.Spec.Group
	if name != "" && name != wanted && len(content.IsPathSegmentName(name)) == 0 {
		c.invalid(p, key, name, fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", wanted))
	}
}

func (c apiServiceChecker) priority(p *field.Path, name string, value, most int32) {
	if value <= 0 || value > most {
		c.invalid(p, name, value, fmt.Sprintf("must be positive and less than %d", most))
	}
}

// local is for one that is served here, and needs no credentials.
func (c apiServiceChecker) local(p *field.Path, spec *apiregistrationv1.APIServiceSpec) {
	if n := len(spec.CABundle); n > 0 {
		c.invalid(p, "caBundle", fmt.Sprintf("%d bytes", n), "local APIServices may not have a caBundle")
	}
	if spec.InsecureSkipTLSVerify {
		c.invalid(p, "insecureSkipTLSVerify", true, "local APIServices may not have insecureSkipTLSVerify")
	}
}

func (c apiServiceChecker) status(status *apiregistrationv1.APIServiceStatus) {
	for i, condition := range status.Conditions {
		c.oneOf(field.NewPath("status", "conditions").Index(i), "status", string(condition.Status), []string{"True", "False", "Unknown"})
	}
}
