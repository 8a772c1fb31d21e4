package validation

// This file: the rules of APIServices (k8s.io/kube-aggregator, pkg/apis/apiregistration/validation/validation.go).

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/validate/content"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// An apiServiceChecker knows the rules of an APIService.
type apiServiceChecker struct{ *Checker }

func (c apiServiceChecker) apiService(o *apiregistrationv1.APIService) {
	p := field.NewPath("spec")
	c.named(field.NewPath("metadata"), "generateName", o.GenerateName, o)
	c.named(field.NewPath("metadata"), "name", o.Name, o)
	if o.Spec.Group == "" && o.Spec.Version != "v1" {
		c.Required(p, "group", "only v1 may have an empty group and it better be legacy kube")
	}
	c.Maybe(p, "group", o.Spec.Group, utilvalidation.IsDNS1123Subdomain)
	c.Words(p, "version", o.Spec.Version, utilvalidation.IsDNS1035Label)
	c.priority(p, "groupPriorityMinimum", o.Spec.GroupPriorityMinimum, 20000)
	c.priority(p, "versionPriority", o.Spec.VersionPriority, 1000)
	if o.Spec.Service == nil {
		c.local(p, &o.Spec)
		return
	}
	c.Filled(p.Child("service"), "namespace", o.Spec.Service.Namespace, "name", o.Spec.Service.Name)
	if port := *o.Spec.Service.Port; port < 1 || port > 65535 {
		c.Invalid(p, "service.port", port, "port is not valid: "+utilvalidation.InclusiveRangeError(1, 65535))
	}
	if o.Spec.InsecureSkipTLSVerify && len(o.Spec.CABundle) > 0 {
		c.Invalid(p, "insecureSkipTLSVerify", true, "may not be true if caBundle is present")
	}
}

// named leaves to the rule for all metadata what is no name at all.
func (c apiServiceChecker) named(p *field.Path, key, name string, o *apiregistrationv1.APIService) {
	wanted := o.Spec.Version + "." + o.Spec.Group
	if name != "" && name != wanted && len(content.IsPathSegmentName(name)) == 0 {
		c.Invalid(p, key, name, fmt.Sprintf("must be `spec.version+\".\"+spec.group`: %q", wanted))
	}
}

func (c apiServiceChecker) priority(p *field.Path, name string, value, most int32) {
	if value <= 0 || value > most {
		c.Invalid(p, name, value, fmt.Sprintf("must be positive and less than %d", most))
	}
}

// local is for one that is served here, and needs no credentials.
func (c apiServiceChecker) local(p *field.Path, spec *apiregistrationv1.APIServiceSpec) {
	if n := len(spec.CABundle); n > 0 {
		c.Invalid(p, "caBundle", fmt.Sprintf("%d bytes", n), "local APIServices may not have a caBundle")
	}
	if spec.InsecureSkipTLSVerify {
		c.Invalid(p, "insecureSkipTLSVerify", true, "local APIServices may not have insecureSkipTLSVerify")
	}
}

func (c apiServiceChecker) status(status *apiregistrationv1.APIServiceStatus) {
	for i, condition := range status.Conditions {
		c.OneOf(field.NewPath("status", "conditions").Index(i), "status", string(condition.Status), []string{"True", "False", "Unknown"})
	}
}
