package validation

// This file has the rules of resource.k8s.io: claims for devices, their templates, classes, and the slices in which drivers say what there is. The
// expressions of selectors are not compiled, and of what a slice says of a device's counters, taints and policies only the names are looked at.

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/validate/content"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	mostRequests     = 32       // of a claim, and of its constraints and configurations
	mostAlternatives = 8        // of a request
	mostReservations = 256      // of a claim's status
	mostOpaque       = 10 << 10 // bytes of a driver's own parameters
	mostExpression   = 10 << 10 // bytes of a selector
	mostDevices      = 128      // of a slice; half of them if they have taints, counters or lists
	mostAttributes   = 32       // of a device, with its capacities
)

var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*)(\.(0|[1-9]\d*|\d*[a-zA-Z-][0-9a-zA-Z-]*))*)?` +
	`(\+[0-9a-zA-Z-]+(\.[0-9a-zA-Z-]+)*)?$`)

type deviceChecker struct{ volumeChecker }

// devices is false when obj is none of these.
func (k kindChecker) devices(obj, old runtime.Object) bool {
	c, p := deviceChecker{volumeChecker{Checker: k.Checker}}, field.NewPath("spec")
	switch o := obj.(type) {
	case *resourcev1.ResourceClaim:
		if before := was[resourcev1.ResourceClaim](old); before != nil {
			c.Same(p, "", o.Spec, before.Spec)
		} else {
			c.claim(p.Child("devices"), &o.Spec.Devices)
		}
	case *resourcev1.ResourceClaimTemplate:
		c.labels(p, "metadata.labels", o.Spec.Labels)
		c.claim(p.Child("spec", "devices"), &o.Spec.Spec.Devices)
		if before := was[resourcev1.ResourceClaimTemplate](old); before != nil {
			c.Same(p, "", o.Spec, before.Spec)
		}
	case *resourcev1.DeviceClass:
		c.selectors(p.Child("selectors"), o.Spec.Selectors)
		if c.fewEnough(p.Child("config"), len(o.Spec.Config), mostRequests) {
			for i := range o.Spec.Config {
				c.opaque(p.Child("config").Index(i), o.Spec.Config[i].Opaque)
			}
		}
	case *resourcev1.ResourceSlice:
		c.slice(p, &o.Spec, was[resourcev1.ResourceSlice](old))
	default:
		return false
	}
	return true
}

// fewEnough says that a list may be looked through.
func (c deviceChecker) fewEnough(p *field.Path, n, most int) bool {
	if n > most {
		c.Add(field.TooMany(p, n, most))
	}
	return n <= most
}

// ---- Claims ----

func (c deviceChecker) claim(p *field.Path, claim *resourcev1.DeviceClaim) {
	names, seen := map[string]set{}, set{}
	if rp := p.Child("requests"); c.fewEnough(rp, len(claim.Requests), mostRequests) {
		for i := range claim.Requests {
			c.request(rp.Index(i), &claim.Requests[i])
			names[claim.Requests[i].Name] = alternatives(&claim.Requests[i])
		}
		for i := range claim.Requests {
			c.unique(rp.Index(i), "", seen, claim.Requests[i].Name)
		}
	}
	if cp := p.Child("constraints"); c.fewEnough(cp, len(claim.Constraints), mostRequests) {
		for i := range claim.Constraints {
			c.constraint(cp.Index(i), &claim.Constraints[i], names)
		}
	}
	if cp := p.Child("config"); c.fewEnough(cp, len(claim.Config), mostRequests) {
		for i := range claim.Config {
			c.requestNames(cp.Index(i).Child("requests"), claim.Config[i].Requests, names)
			c.opaque(cp.Index(i), claim.Config[i].Opaque)
		}
	}
}

func alternatives(request *resourcev1.DeviceRequest) set {
	names := set{}
	for i := range request.FirstAvailable {
		names[request.FirstAvailable[i].Name] = true
	}
	return names
}

func (c deviceChecker) request(p *field.Path, request *resourcev1.DeviceRequest) {
	c.Words(p, "name", request.Name, isLabel)
	switch exactly, first := request.Exactly, request.FirstAvailable; {
	case exactly == nil && len(first) == 0:
		c.Required(p, "", "exactly one of `exactly` or `firstAvailable` is required")
	case exactly != nil && len(first) > 0:
		c.Invalid(p, "", nil, "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set")
	case exactly != nil:
		c.wanted(p.Child("exactly"), exactly.DeviceClassName, exactly.Selectors, exactly.AllocationMode, exactly.Count)
	case c.fewEnough(p.Child("firstAvailable"), len(first), mostAlternatives):
		seen := set{}
		for i := range first {
			sub, sp := &first[i], p.Child("firstAvailable").Index(i)
			c.Words(sp, "name", sub.Name, isLabel)
			c.wanted(sp, sub.DeviceClassName, sub.Selectors, sub.AllocationMode, sub.Count)
		}
		for i := range first {
			c.unique(p.Child("firstAvailable").Index(i), "", seen, first[i].Name)
		}
	}
}

// wanted is what a request and an alternative of one have in common.
func (c deviceChecker) wanted(p *field.Path, class string, selectors []resourcev1.DeviceSelector, mode resourcev1.DeviceAllocationMode, count int64) {
	c.Name(p, "deviceClassName", class, isSubdomain)
	c.selectors(p.Child("selectors"), selectors)
	switch mode {
	case resourcev1.DeviceAllocationModeAll:
		if count != 0 {
			c.Invalid(p, "count", count, fmt.Sprintf("must not be specified when allocationMode is '%s'", mode))
		}
	case resourcev1.DeviceAllocationModeExactCount:
		if count <= 0 {
			c.Invalid(p, "count", count, "must be greater than zero")
		}
	default:
		c.Unsupported(p, "allocationMode", mode, []string{"All", "ExactCount"})
	}
}

func (c deviceChecker) selectors(p *field.Path, selectors []resourcev1.DeviceSelector) {
	if !c.fewEnough(p, len(selectors), mostRequests) {
		return
	}
	for i := range selectors {
		if cel := selectors[i].CEL; cel == nil {
			c.Required(p.Index(i), "cel", "")
		} else if len(cel.Expression) > mostExpression {
			c.Add(field.TooLong(p.Index(i).Child("cel", "expression"), "", mostExpression))
		}
	}
}

func (c deviceChecker) constraint(p *field.Path, constraint *resourcev1.DeviceConstraint, names map[string]set) {
	c.requestNames(p.Child("requests"), constraint.Requests, names)
	switch {
	case constraint.MatchAttribute != nil:
		c.fullName(p.Child("matchAttribute"), string(*constraint.MatchAttribute))
	case constraint.DistinctAttribute != nil:
		c.fullName(p.Child("distinctAttribute"), string(*constraint.DistinctAttribute))
	default:
		c.Required(p, "", `exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set`)
	}
}

// requestNames are those of requests of the claim, or request/alternative.
func (c deviceChecker) requestNames(p *field.Path, list []string, names map[string]set) {
	const must = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
	if !c.fewEnough(p, len(list), mostRequests) {
		return
	}
	for i, name := range list {
		parts := strings.Split(name, "/")
		if len(parts) > 2 {
			c.Invalid(p.Index(i), "", name, must)
			continue
		}
		for _, part := range parts {
			c.Words(p.Index(i), "", part, isLabel)
		}
		if subs, ok := names[parts[0]]; !ok || len(parts) == 2 && !subs[parts[1]] {
			c.Invalid(p.Index(i), "", name, must)
		}
	}
	seen := set{}
	for i, name := range list {
		c.unique(p.Index(i), "", seen, name)
	}
}

// opaque is what only the driver understands.
func (c deviceChecker) opaque(p *field.Path, config *resourcev1.OpaqueDeviceConfiguration) {
	if config == nil {
		c.Required(p, "opaque", "")
		return
	}
	op := p.Child("opaque")
	c.driverName(op, "driver", config.Driver)
	switch raw := config.Parameters.Raw; {
	case len(raw) == 0:
		c.Required(op, "parameters", "")
	case len(raw) > mostOpaque:
		c.Add(field.TooLong(op.Child("parameters"), "", mostOpaque))
	case raw[0] != '{':
		c.Invalid(op, "parameters", "<value omitted>", "parameters must be a valid JSON object")
	}
}

// ---- Slices ----

func (c deviceChecker) slice(p *field.Path, spec *resourcev1.ResourceSliceSpec, old *resourcev1.ResourceSlice) {
	c.driverName(p, "driver", spec.Driver)
	c.pool(p.Child("pool"), &spec.Pool)
	if old != nil {
		c.Same(p, "pool.name", spec.Pool.Name, old.Spec.Pool.Name)
		c.Same(p, "driver", spec.Driver, old.Spec.Driver)
		c.Same(p, "nodeName", spec.NodeName, old.Spec.NodeName)
	}
	where := c.place(p, spec)
	const one = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
	if len(where) == 0 {
		c.Required(p, "", one)
	} else if len(where) > 1 {
		c.Invalid(p, "", "{"+strings.Join(where, ", ")+"}", one+", but multiple fields are set")
	}
	if spec.SharedCounters != nil && spec.Devices != nil {
		c.Invalid(p, "", "", "only one of `sharedCounters` or `devices` is allowed")
	}
	if dp := p.Child("devices"); c.fewEnough(dp, len(spec.Devices), mostOf(spec.Devices)) {
		for i := range spec.Devices {
			c.device(dp.Index(i), &spec.Devices[i], spec.PerDeviceNodeSelection != nil && *spec.PerDeviceNodeSelection)
		}
		seen := set{}
		for i := range spec.Devices {
			c.unique(dp.Index(i), "", seen, spec.Devices[i].Name)
		}
	}
}

// place is for which nodes a slice speaks: the fields that say so.
func (c deviceChecker) place(p *field.Path, spec *resourcev1.ResourceSliceSpec) (where []string) {
	if name := spec.NodeName; name != nil && *name != "" {
		where = append(where, "`nodeName`")
		c.Words(p, "nodeName", *name, isSubdomain)
	} else if name != nil {
		c.Invalid(p, "nodeName", "", "must be either unset or set to a non-empty string")
	}
	if s := spec.NodeSelector; s != nil {
		where = append(where, "`nodeSelector`")
		placementChecker{c.Checker}.nodeSelector(p.Child("nodeSelector"), s)
		if len(s.NodeSelectorTerms) != 1 {
			c.Invalid(p, "nodeSelector.nodeSelectorTerms", s.NodeSelectorTerms, "must have exactly one node selector term")
		}
	}
	for _, f := range []struct {
		name  string
		value *bool
	}{{"allNodes", spec.AllNodes}, {"perDeviceNodeSelection", spec.PerDeviceNodeSelection}} {
		if f.value != nil && *f.value {
			where = append(where, "`"+f.name+"`")
		} else if f.value != nil {
			c.Invalid(p, f.name, false, "must be either unset or set to true")
		}
	}
	return where
}

func (c deviceChecker) pool(p *field.Path, pool *resourcev1.ResourcePool) {
	if pool.Name == "" {
		c.Required(p, "name", "")
	} else {
		if len(pool.Name) > 253 {
			c.Add(field.TooLong(p.Child("name"), "", 253))
		}
		for part := range strings.SplitSeq(pool.Name, "/") {
			c.Words(p, "name", part, isSubdomain)
		}
	}
	if pool.ResourceSliceCount <= 0 {
		c.Invalid(p, "resourceSliceCount", pool.ResourceSliceCount, "must be greater than zero")
	}
	if pool.Generation < 0 {
		c.Invalid(p, "generation", pool.Generation, "must be greater than or equal to zero")
	}
}

func mostOf(devices []resourcev1.Device) int {
	if slices.ContainsFunc(devices, func(d resourcev1.Device) bool { return len(d.Taints) > 0 || len(d.ConsumesCounters) > 0 }) {
		return mostDevices / 2
	}
	return mostDevices
}

func (c deviceChecker) device(p *field.Path, device *resourcev1.Device, placed bool) {
	c.Words(p, "name", device.Name, isLabel)
	if n := len(device.Attributes) + len(device.Capacity); n > mostAttributes {
		c.Invalid(p, "", n, fmt.Sprintf("the total number of attributes and capacities must not exceed %d", mostAttributes))
	}
	for _, name := range sortedKeys(device.Attributes) {
		ap := p.Child("attributes").Key(string(name))
		c.shortName(ap, string(name))
		value := device.Attributes[name]
		c.attribute(ap, &value)
	}
	for _, name := range sortedKeys(device.Capacity) {
		c.shortName(p.Child("capacity").Key(string(name)), string(name))
	}
	if !placed && (device.NodeName != nil || device.NodeSelector != nil || device.AllNodes != nil) {
		c.Invalid(p, "", nil, "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the ResourceSlice spec")
	}
}

func (c deviceChecker) attribute(p *field.Path, value *resourcev1.DeviceAttribute) {
	given := 0
	for _, there := range []bool{value.BoolValue != nil, value.IntValue != nil, value.StringValue != nil, value.VersionValue != nil} {
		if there {
			given++
		}
	}
	if s := value.StringValue; s != nil && len(*s) > 64 {
		c.Add(field.TooLong(p.Child("string"), "", 64))
	}
	if v := value.VersionValue; v != nil {
		if !semver.MatchString(*v) {
			c.Invalid(p, "version", *v, "must be a string compatible with semver.org spec 2.0.0")
		}
		if len(*v) > 64 {
			c.Add(field.TooLong(p.Child("version"), "", 64))
		}
	}
	if given == 0 {
		c.Invalid(p, "", "", "exactly one value must be specified")
	} else if given > 1 {
		c.Invalid(p, "", *value, "exactly one value must be specified")
	}
}

// shortName is a name, or a driver's domain and a name.
func (c deviceChecker) shortName(p *field.Path, name string) {
	domain, id, both := strings.Cut(name, "/")
	if !both {
		domain, id = "", name
	}
	switch {
	case both && domain == "":
		c.Invalid(p, "", "", "the domain must not be empty")
	case both:
		c.driverName(p, "", domain)
	}
	if both && id == "" {
		c.Invalid(p, "", "", "the name must not be empty")
		return
	}
	if len(id) > 32 {
		c.Add(field.TooLong(p, "", 32))
	}
	c.Words(p, "", id, content.IsCIdentifier)
}

func (c deviceChecker) fullName(p *field.Path, name string) {
	c.shortName(p, name)
	if !strings.Contains(name, "/") {
		c.Invalid(p, "", name, "a fully qualified name must be a domain and a name separated by a slash")
	}
}

// ---- Status ----

// allocation is a claim's status: whoever uses it is named only while there is something to use, which does not change once it is given.
func (c deviceChecker) allocation(claim, old *resourcev1.ResourceClaim) {
	p, status := field.NewPath("status"), &claim.Status
	if rp := p.Child("reservedFor"); c.fewEnough(rp, len(status.ReservedFor), mostReservations) {
		for i := range status.ReservedFor {
			ref := &status.ReservedFor[i]
			c.Filled(rp.Index(i), "resource", ref.Resource, "name", ref.Name, "uid", string(ref.UID))
		}
		seen := set{}
		for i := range status.ReservedFor {
			c.unique(rp.Index(i), "", seen, string(status.ReservedFor[i].UID))
		}
	}
	if len(status.ReservedFor) > 0 && status.Allocation == nil {
		c.Forbid(p, "reservedFor", true, "may not be specified when `allocated` is not set")
	} else if claim.DeletionTimestamp != nil && slices.ContainsFunc(status.ReservedFor, func(ref resourcev1.ResourceClaimConsumerReference) bool {
		return !slices.Contains(old.Status.ReservedFor, ref)
	}) {
		c.Forbid(p, "reservedFor", true, "new entries may not be added while `deallocationRequested` or `deletionTimestamp` are set")
	}
	if status.Allocation != nil && old.Status.Allocation != nil {
		c.Same(p, "allocation", status.Allocation, old.Status.Allocation)
	}
}
