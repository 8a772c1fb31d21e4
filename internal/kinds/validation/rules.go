package validation

// This file: how a validation rule is written and read. A Checker collects what is wrong with one object; each of its methods is one kind of
// rule and says so in Kubernetes' words:
//
//	rule                          refuses                                         as
//	Required, Filled, Need        an empty value, an unmet need                   Required value
//	Words                         a string that is not in a format                Invalid value: ... a lowercase RFC 1123 label must ...
//	Name                          an empty string, or one not in a format         both of the above
//	OneOf, Known                  a value outside a list (Known: or empty)        Unsupported value: ... supported values: ...
//	nonNegative, positive, within a number outside its range                      Invalid value: -1: must be greater than ...
//	Forbid                        what may not be set here                        Forbidden
//	unique                        the second of two equal keys                    Duplicate value
//	Same                          a change                                        Invalid value: ... field is immutable
//
// A rule gets the path of the struct it looks at and the name of the field: p.Child(name) is built only when something is wrong. An
// empty name is the struct itself. So a struct's rules read as a table, in the order in which kube-apiserver reports them:
//
//	c.Name(p, "name", port.Name, isLabel)
//	c.port(p, "port", port.Port)
//	c.Known(p, "protocol", string(port.Protocol), protocols)
//
// Objects are checked after defaults: a field that a default fills is never empty here.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	quantities "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	selectorvalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"apilet/internal/apierror"
	"apilet/internal/kinds/defaults"
)

// A Format says what is wrong with a string; nothing when it is well formed.
type Format func(string) []string

// A Checker collects what is wrong with one object, in the order of the calls.
type Checker struct {
	Errs field.ErrorList // what was found, in the order of the rules
}

// was is the object before an update as what it is; nil for a new object.
func was[T any](old runtime.Object) *T {
	t, _ := any(old).(*T)
	return t
}

// at is the path of a field; the empty name is p itself.
func at(p *field.Path, name string) *field.Path {
	if name == "" {
		return p
	}
	return p.Child(name)
}

// mistakesKept is how many mistakes of one object are kept: ten times as many as an answer names, since some of these are said twice.
const mistakesKept = 10 * apierror.MaxErrors

// Add notes mistakes. Those beyond mistakesKept are counted only: each stands for the last one that is kept, and takes eight bytes instead of the
// two hundred of its text and its path.
func (c *Checker) Add(errs ...*field.Error) {
	for _, err := range errs {
		if len(c.Errs) >= mistakesKept {
			err = c.Errs[mistakesKept-1]
		}
		c.Errs = append(c.Errs, err)
	}
}

// Invalid notes a value that may not be: detail says what it must be.
func (c *Checker) Invalid(p *field.Path, name string, value any, detail string) {
	c.Add(field.Invalid(at(p, name), goForm(value), detail))
}

// Required notes the lack of a value.
func (c *Checker) Required(p *field.Path, name, detail string) {
	c.Add(field.Required(at(p, name), detail))
}

// Need refuses the lack of something: detail is why it is needed.
func (c *Checker) Need(p *field.Path, name string, ok bool, detail string) {
	if !ok {
		c.Required(p, name, detail)
	}
}

// Forbid refuses what is set where it may not be.
func (c *Checker) Forbid(p *field.Path, name string, set bool, detail string) {
	if set {
		c.Add(field.Forbidden(at(p, name), detail))
	}
}

// Filled takes pairs of a field's name and its value, none of which may be empty.
func (c *Checker) Filled(p *field.Path, pairs ...string) {
	for i := 0; i < len(pairs); i += 2 {
		c.Need(p, pairs[i], pairs[i+1] != "", "")
	}
}

// Words is for a value that has a format.
func (c *Checker) Words(p *field.Path, name, value string, f Format) {
	for _, message := range f(value) {
		c.Invalid(p, name, value, message)
	}
}

// Name is for a value that may not be empty and has a format.
func (c *Checker) Name(p *field.Path, name, value string, f Format) {
	if value == "" {
		c.Required(p, name, "")
		return
	}
	c.Words(p, name, value, f)
}

// Maybe is for a value that may be empty, or has a format.
func (c *Checker) Maybe(p *field.Path, name, value string, f Format) {
	if value != "" {
		c.Words(p, name, value, f)
	}
}

// maybeRef is for a pointer that may be nil; what it points at has a format.
func (c *Checker) maybeRef(p *field.Path, name string, value *string, f Format) {
	if value != nil {
		c.Words(p, name, *value, f)
	}
}

// Unsupported notes a value that is none of those allowed.
func (c *Checker) Unsupported(p *field.Path, name string, value any, allowed []string) {
	c.Add(field.NotSupported(at(p, name), goForm(value), allowed))
}

// OneOf refuses a value that is none of those allowed.
func (c *Checker) OneOf(p *field.Path, name, value string, allowed []string) {
	if !slices.Contains(allowed, value) {
		c.Unsupported(p, name, value, allowed)
	}
}

// Known is OneOf for a field that is required.
func (c *Checker) Known(p *field.Path, name, value string, allowed []string) {
	if value == "" {
		c.Required(p, name, "")
		return
	}
	c.OneOf(p, name, value, allowed)
}

// oneOfRef is OneOf for a pointer that may be nil.
func oneOfRef[T ~string](c *Checker, p *field.Path, name string, value *T, allowed []string) {
	if value != nil {
		c.OneOf(p, name, string(*value), allowed)
	}
}

func (c *Checker) nonNegative(p *field.Path, name string, value int64) {
	if value < 0 {
		c.Invalid(p, name, value, "must be greater than or equal to 0")
	}
}

// nonNegativeRef is nonNegative for a pointer that may be nil.
func nonNegativeRef[T int32 | int64](c *Checker, p *field.Path, name string, value *T) {
	if value != nil {
		c.nonNegative(p, name, int64(*value))
	}
}

func (c *Checker) positive(p *field.Path, name string, value int64) {
	if value <= 0 {
		c.Invalid(p, name, value, "must be greater than zero")
	}
}

// aboveZero is positive in the words that some kinds have for it.
func (c *Checker) aboveZero(p *field.Path, name string, value int64) {
	if value <= 0 {
		c.Invalid(p, name, value, "must be greater than 0")
	}
}

func (c *Checker) within(p *field.Path, name string, value, low, high int64) {
	if value < low || value > high {
		c.Invalid(p, name, value, validation.InclusiveRangeError(int(low), int(high)))
	}
}

func (c *Checker) port(p *field.Path, name string, value int32) {
	if value < 1 || value > 65535 {
		c.Invalid(p, name, value, validation.InclusiveRangeError(1, 65535))
	}
}

// portRef is for a port by number or name.
func (c *Checker) portRef(p *field.Path, name string, value intstr.IntOrString) {
	if value.Type == intstr.Int {
		if port := value.IntValue(); port < 1 || port > 65535 {
			c.Invalid(p, name, port, validation.InclusiveRangeError(1, 65535))
		}
		return
	}
	c.Words(p, name, value.StrVal, isPortName)
}

// amount is for a count or a percentage of at least 0.
func (c *Checker) amount(p *field.Path, name string, value intstr.IntOrString) {
	if value.Type == intstr.Int {
		c.nonNegative(p, name, int64(value.IntValue()))
		return
	}
	for _, message := range validation.IsValidPercent(value.StrVal) {
		c.Invalid(p, name, value, message)
	}
}

// atMostAll refuses more than 100 %.
func (c *Checker) atMostAll(p *field.Path, name string, value intstr.IntOrString) {
	if percent, ok := percentOf(value); ok && percent > 100 {
		c.Invalid(p, name, value, "must not be greater than 100%")
	}
}

func percentOf(value intstr.IntOrString) (percent int, ok bool) {
	if value.Type != intstr.String || len(validation.IsValidPercent(value.StrVal)) > 0 {
		return 0, false
	}
	fmt.Sscanf(value.StrVal, "%d", &percent)
	return percent, true
}

// amountOf is the number of a count or of a percentage.
func amountOf(value intstr.IntOrString) int {
	if percent, ok := percentOf(value); ok {
		return percent
	}
	return value.IntValue()
}

// ip refuses what is no address; what the old object had may stay as it is.
func (c *Checker) ip(p *field.Path, name, value string, old set) {
	c.Add(validation.IsValidIPForLegacyField(at(p, name), value, true, old.only(value))...)
}

func (c *Checker) cidr(p *field.Path, name, value string, old set) {
	c.Add(validation.IsValidCIDRForLegacyField(at(p, name), value, true, old.only(value))...)
}

// endpointIP refuses addresses that traffic cannot be sent to from elsewhere.
func (c *Checker) endpointIP(p *field.Path, name, value string) {
	ip, err := netip.ParseAddr(value)
	ip = ip.Unmap()
	switch {
	case err != nil:
		c.Invalid(p, name, value, "must be a valid IP address")
	case ip.IsUnspecified():
		c.Invalid(p, name, value, fmt.Sprintf("may not be unspecified (%v)", value))
	case ip.IsLoopback():
		c.Invalid(p, name, value, "may not be in the loopback range (127.0.0.0/8, ::1/128)")
	case ip.IsLinkLocalUnicast():
		c.Invalid(p, name, value, "may not be in the link-local range (169.254.0.0/16, fe80::/10)")
	case ip.IsLinkLocalMulticast():
		c.Invalid(p, name, value, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)")
	}
}

// dualStack allows one address, or one of each family.
func dualStack(addresses []string) bool {
	families := map[bool]int{}
	for _, address := range addresses {
		families[strings.Contains(address, ":")]++
	}
	return families[true] <= 1 && families[false] <= 1
}

func (c *Checker) labels(p *field.Path, name string, set map[string]string) {
	if len(set) > 0 {
		c.Add(selectorvalidation.ValidateLabels(set, at(p, name))...)
	}
}

func (c *Checker) labelName(p *field.Path, name, value string) {
	c.Words(p, name, value, isQualifiedName)
}

func (c *Checker) selector(p *field.Path, name string, selector *metav1.LabelSelector) {
	if selector != nil {
		c.Add(selectorvalidation.ValidateLabelSelector(selector, selectorvalidation.LabelSelectorValidationOptions{}, at(p, name))...)
	}
}

// matches is whether a selector is well formed and selects these labels; ok is false when it is not well formed.
func matches(selector *metav1.LabelSelector, set map[string]string) (match, ok bool) {
	if selector != nil && len(selector.MatchExpressions) == 0 {
		for key, value := range selector.MatchLabels {
			if len(isQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
				return false, false
			}
		}
		return labels.SelectorFromSet(selector.MatchLabels).Matches(labels.Set(set)), true
	}
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return false, false
	}
	return s.Matches(labels.Set(set)), true
}

// Same refuses a change.
func (c *Checker) Same(p *field.Path, name string, value, old any) {
	if !equality.Semantic.DeepEqual(old, value) {
		c.Invalid(p, name, value, metavalidation.FieldImmutableErrorMsg)
	}
}

// A set remembers keys to find the second of two equal ones.
type set map[string]bool

// only is key as a list, when the set has it.
func (s set) only(key string) []string {
	if s[key] {
		return []string{key}
	}
	return nil
}

func setOf(list []string) set {
	keys := make(set, len(list))
	for _, key := range list {
		keys[key] = true
	}
	return keys
}

// unique refuses a key that was seen, and remembers it.
func (c *Checker) unique(p *field.Path, name string, seen set, key string) {
	if seen[key] {
		c.Add(field.Duplicate(at(p, name), key))
	}
	seen[key] = true
}

// A choice allows one of several members, as in the sources of a volume.
type choice struct {
	*Checker
	p     *field.Path
	what  string // of which no more than one may be given
	count int
}

// first is true for the first member that is set; further ones are refused.
func (c *choice) first(name string) bool {
	c.count++
	c.Forbid(c.p, name, c.count > 1, "may not specify more than 1 "+c.what)
	return c.count == 1
}

// sortedKeys gives maps an order to be checked in. Kubernetes has none.
func sortedKeys[K ~string, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	keys := make([]K, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// goForm is a value as Kubernetes prints its internal types: every field of a type of k8s.io/api, by its Go name.
func goForm(v any) any {
	switch v.(type) {
	case nil, string, int, int32, int64, bool, field.OmitValueType:
		return v
	}
	return goValue{reflect.ValueOf(v)}
}

type goValue struct{ reflect.Value }

// MarshalJSON writes the fields of a struct in their order.
func (g goValue) MarshalJSON() ([]byte, error) {
	switch v := g.Value; {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return goValue{v.Elem()}.MarshalJSON()
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct && !v.IsNil():
		items := make([]goValue, v.Len())
		for i := range items {
			items[i] = goValue{v.Index(i)}
		}
		return json.Marshal(items)
	case v.Kind() != reflect.Struct || !strings.HasPrefix(v.Type().PkgPath(), "k8s.io/api/"):
		return json.Marshal(v.Interface())
	}
	members, err := g.members()
	return append(append([]byte{'{'}, bytes.Join(members, []byte{','})...), '}'), err
}

func (g goValue) members() (members [][]byte, err error) {
	for i := range g.NumField() {
		member, of := goValue{g.Field(i)}, g.Type().Field(i)
		text, err := member.MarshalJSON()
		if err != nil {
			return nil, err
		}
		if inline := of.Anonymous && member.Kind() == reflect.Struct; !inline {
			members = append(members, fmt.Appendf(nil, "%q:%s", of.Name, text))
		} else if text = text[1 : len(text)-1]; len(text) > 0 {
			members = append(members, text)
		}
	}
	return members, nil
}

// ---- formats ----
//
// The words are those of k8s.io/apimachinery; a look at the bytes comes first, since a regular expression costs a microsecond and a
// large Deployment has hundreds of names.

func isLabel(s string) []string {
	if isPlain(s, 63, false) {
		return nil
	}
	return validation.IsDNS1123Label(s)
}

func isSubdomain(s string) []string {
	if isPlain(s, 253, true) {
		return nil
	}
	return validation.IsDNS1123Subdomain(s)
}

// isPlain is whether s is made of lower-case letters, digits and inner dashes, in one label or several.
func isPlain(s string, longest int, dots bool) bool {
	if s == "" || len(s) > longest {
		return false
	}
	edge := true // the next byte begins a label
	for i := range len(s) {
		switch b := s[i]; {
		case b >= 'a' && b <= 'z', b >= '0' && b <= '9':
			edge = false
		case edge:
			return false
		case b == '.' && dots && s[i-1] != '-':
			edge = true
		case b != '-':
			return false
		}
	}
	return !edge && s[len(s)-1] != '-'
}

func isQualifiedName(s string) []string {
	if isPlain(s, 63, false) {
		return nil
	}
	return content.IsLabelKey(s)
}

func isPortName(s string) []string {
	if len(s) <= 15 && isPlain(s, 15, false) && !strings.Contains(s, "--") && strings.ContainsAny(s, "abcdefghijklmnopqrstuvwxyz") {
		return nil
	}
	return validation.IsValidPortName(s)
}

func isConfigKey(s string) []string {
	if isPlain(s, 253, true) {
		return nil
	}
	return validation.IsConfigMapKey(s)
}

func isPathSegment(s string) []string { return content.IsPathSegmentName(s) }

// ---- resources ----

var (
	containerResources = []string{"cpu", "ephemeral-storage", "memory"}
	quotaResources     = []string{
		"configmaps", "cpu", "ephemeral-storage", "limits.cpu", "limits.ephemeral-storage", "limits.memory", "memory", "persistentvolumeclaims",
		"pods", "replicationcontrollers", "requests.cpu", "requests.ephemeral-storage", "requests.memory", "requests.storage", "resourcequotas",
		"secrets", "services", "services.loadbalancers", "services.nodeports",
	}
	countedResources = []string{
		"configmaps", "persistentvolumeclaims", "pods", "replicationcontrollers", "resourcequotas", "secrets", "services",
		"services.loadbalancers", "services.nodeports",
	}
)

func isHugePages(name string) bool { return strings.HasPrefix(name, corev1.ResourceHugePagesPrefix) }

// isNative is whether a resource is Kubernetes' own.
func isNative(name string) bool {
	return !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
}

func mayOvercommit(name string) bool { return isNative(name) && !isHugePages(name) }

func isExtended(name string) bool {
	return !isNative(name) && !strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) &&
		len(isQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) == 0
}

func isQuotaResource(name string) bool {
	return slices.Contains(quotaResources, name) || isHugePages(name) || strings.HasPrefix(name, corev1.ResourceRequestsHugePagesPrefix)
}

// resourceName is for any resource; ok is whether it is well formed.
func (c *Checker) resourceName(p *field.Path, name string) (ok bool) {
	before := len(c.Errs)
	if slices.Contains(containerResources, name) {
		return true
	}
	c.Words(p, "", name, isQualifiedName)
	if len(c.Errs) > before {
		return false
	}
	if !strings.Contains(name, "/") && !isQuotaResource(name) && name != "storage" {
		c.Invalid(p, "", name, "must be a standard resource type or fully qualified")
	}
	return len(c.Errs) == before
}

// containerResource is for what a container can ask for.
func (c *Checker) containerResource(p *field.Path, name string) {
	c.resourceName(p, name)
	switch {
	case !strings.Contains(name, "/"):
		if !slices.Contains(containerResources, name) && !isHugePages(name) {
			c.Invalid(p, "", name, "must be a standard resource for containers")
		}
	case !isNative(name) && !isExtended(name):
		c.Invalid(p, "", name, "doesn't follow extended resource name standard")
	}
}

// podResource is for what a pod can ask for as a whole.
func (c *Checker) podResource(p *field.Path, name string) {
	if c.resourceName(p, name) && !defaults.IsPodLevelResource(corev1.ResourceName(name)) {
		c.Unsupported(p, "", name, []string{"cpu", "hugepages-", "memory"})
	}
}

// quotaResource is for what a quota can limit.
func (c *Checker) quotaResource(p *field.Path, name string) {
	c.resourceName(p, name)
	if !strings.Contains(name, "/") && !isQuotaResource(name) {
		c.Invalid(p, "", name, "must be a standard resource for quota")
	}
}

// quantity is for an amount of a resource: not negative, and whole where it counts things.
func (c *Checker) quantity(p *field.Path, name string, value quantities.Quantity) {
	if value.Sign() < 0 {
		c.Invalid(p, "", value.String(), "must be greater than or equal to 0")
	}
	if (slices.Contains(countedResources, name) || isExtended(name)) && value.MilliValue()%1000 != 0 {
		c.Invalid(p, "", value, "must be an integer")
	}
}
