package scheme

// This file is the codec. Clients send JSON, YAML or protobuf of the served version. The stored
// JSON is of the storage version. It does not contain kind and apiVersion, and the
// resourceVersion is empty.
//
//	Decode        reads a body and returns the errors of strict field validation, which become warnings or an error
//	EncodeStored  encodes an object and checks that it can be decoded again (vet)
//	DecodeStored  reads a stored document; returns ErrUnreadable if the document passed that check but is invalid
//	Served        converts a stored document to the served version; usually returns the same bytes
//
// The error messages are the same as in k8s.io/apimachinery/pkg/runtime/serializer (json,
// protobuf, versioning).

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/gjson"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"apilet/internal/apierror"
	"apilet/internal/bounded"
	"apilet/internal/scheme/protobuf"
)

// A ExpectedBody describes the required body of a request.
type ExpectedBody struct {
	Group, Version, Kind string       // the body must name these or omit them
	Wire                 reflect.Type // nil if the body is unstructured
	in                   func(Object) Object
	shape                func(*unstructured.Unstructured) ([]error, error) // for custom resources
}

// ExpectedBody returns the required body of a request to the resource or its subresource sub.
func (res *Resource) ExpectedBody(sub string) ExpectedBody {
	want := ExpectedBody{Group: res.Group, Version: res.Version, Kind: res.Kind, Wire: res.GoType}
	if s := res.Subresource(sub); s != nil && s.Kind != res.Kind {
		return ExpectedBody{Group: s.Group, Version: s.Version, Kind: s.Kind, Wire: SubresourceTypes[s.Kind]}
	}
	if res.Conversion != nil {
		want.Wire, want.in = res.Conversion.wire, res.Conversion.in
	}
	if res.Custom != nil {
		want.shape = res.Custom.Shape
	}
	return want
}

// APIVersion returns the group and version that the body must name.
func (b ExpectedBody) APIVersion() string { return GroupVersionString(b.Group, b.Version) }

// serves reports whether the body's kind and apiVersion match. Both may be omitted. An Eviction
// may also be of policy/v1beta1, which older clients use.
func (b ExpectedBody) serves(apiVersion, kind string) bool {
	if kind != "" && kind != b.Kind {
		return false
	}
	return apiVersion == "" || apiVersion == b.APIVersion() || b.Kind == "Eviction" && apiVersion == "policy/v1beta1"
}

// BodyFormat is the media type of a body.
type BodyFormat string

const (
	JSONFormat     BodyFormat = "application/json"
	YAMLFormat     BodyFormat = "application/yaml"
	ProtobufFormat BodyFormat = "application/vnd.kubernetes.protobuf"
)

// formatOf parses a Content-Type. It ignores parameters. A missing header means JSON.
func formatOf(contentType string) (BodyFormat, error) {
	if contentType == "" || contentType == string(JSONFormat) {
		return JSONFormat, nil
	}
	if contentType == string(ProtobufFormat) {
		return ProtobufFormat, nil
	}
	name, _, err := mime.ParseMediaType(contentType)
	if f := BodyFormat(name); err == nil && (f == JSONFormat || f == YAMLFormat || f == ProtobufFormat) {
		return f, nil
	}
	return "", unsupportedMediaType(JSONFormat, YAMLFormat, ProtobufFormat)
}

func unsupportedMediaType(accepted ...BodyFormat) error {
	return apierror.New(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+JoinFormats(accepted))
}

// JoinFormats returns the list of media types in the format of 406 and 415 responses.
func JoinFormats(formats []BodyFormat) string {
	names := make([]string, len(formats))
	for i, f := range formats {
		names[i] = string(f)
	}
	return strings.Join(names, ", ")
}

// Decode reads a request body (JSON, YAML or Kubernetes protobuf, by its Content-Type) into a new
// object of the storage version, or of the kind of the subresource sub. strictErrs are unknown
// and duplicate fields. err is a Status error: 400, 415, or 413 if a custom resource would be too
// large with its default values. If err is a MismatchError, strictErrs is also set.
func (res *Resource) Decode(data []byte, contentType, sub string) (obj Object, strictErrs []error, err error) {
	format, err := formatOf(contentType)
	if err != nil {
		return nil, nil, err
	}
	want := res.ExpectedBody(sub)
	switch {
	case format == ProtobufFormat && want.Wire == nil:
		return nil, nil, unsupportedMediaType(JSONFormat, YAMLFormat)
	case format == ProtobufFormat:
		obj, err = want.decodeProtobuf(data)
	case format == YAMLFormat:
		obj, strictErrs, err = want.decodeYAML(data)
	default:
		obj, strictErrs, err = want.decodeJSON(data, data)
	}
	if err != nil {
		return nil, strictErrs, err
	}
	if want.in != nil {
		obj = want.in(obj)
	}
	return obj, strictErrs, nil
}

// AcceptsTyped reports whether Typed may replace Decode because bodies are decoded into the
// resource's Go type.
func (res *Resource) AcceptsTyped() bool {
	return res.GoType != nil && res.ExpectedBody("").Wire == res.GoType
}

// Typed returns the object that Decode would return for the JSON of obj. obj must be a value of
// the resource's Go type that names its kind. Typed may modify obj.
func (res *Resource) Typed(obj Object) (Object, error) {
	if err := CheckDerivedAnnotations(obj); err != nil {
		return nil, err
	}
	*obj.GetObjectKind().(*metav1.TypeMeta) = metav1.TypeMeta{}
	if want := res.ExpectedBody(""); want.in != nil {
		obj = want.in(obj)
	}
	return obj, nil
}

// decodeYAML converts YAML to JSON first. As in Kubernetes, the result is determined by the
// lenient conversion, which uses the last value of a duplicate key. The strict conversion only
// adds an error to strictErrs.
func (b ExpectedBody) decodeYAML(data []byte) (Object, []error, error) {
	asJSON, strictErr := yaml.YAMLToJSONStrict(data)
	if strictErr != nil {
		var err error
		if asJSON, err = yaml.YAMLToJSON(data); err != nil {
			return nil, nil, b.unrecognized(err, data)
		}
	}
	obj, strictErrs, err := b.decodeJSON(asJSON, data)
	if strictErr != nil {
		strictErrs = append([]error{apierror.TruncateLines(strictErr)}, strictErrs...)
	}
	return obj, strictErrs, err
}

// decodeJSON reads JSON. original is the body as the client sent it, for error texts. A valid
// body is parsed only once: kind and apiVersion are checked afterwards. An invalid body is parsed
// again to find the matching error of Kubernetes.
func (b ExpectedBody) decodeJSON(data, original []byte) (Object, []error, error) {
	if b.Wire == nil {
		return b.decodeUnstructured(data, original)
	}
	obj := newOf(b.Wire)
	strictErrs, err := bounded.UnmarshalStrict(data, obj)
	err = cmp.Or(err, CheckDerivedAnnotations(obj))
	typeMeta := obj.GetObjectKind().(*metav1.TypeMeta)
	if err == nil && b.serves(typeMeta.APIVersion, typeMeta.Kind) {
		*typeMeta = metav1.TypeMeta{}
		return obj, strictErrs, nil
	}
	gvk, metaErr := InterpretKind(data)
	switch {
	case metaErr != nil:
		return nil, nil, b.unrecognized(metaErr, original)
	case bounded.IsTooLarge(err):
		return nil, nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	}
	gvk = b.withDefaults(gvk)
	// kube-apiserver decodes the body into the given kind
	if goType := wireOf(gvk); goType != nil && goType != b.Wire {
		strictErrs, err = bounded.UnmarshalStrict(data, newOf(goType))
	} else if gvk.Kind != b.Kind {
		err = nil
	}
	return nil, strictErrs, b.mismatch(gvk, err)
}

// withDefaults returns gvk with the wanted kind and version in place of omitted ones.
func (b ExpectedBody) withDefaults(gvk schema.GroupVersionKind) schema.GroupVersionKind {
	if gvk.Kind == "" {
		gvk.Kind = b.Kind
	}
	if gvk.Version == "" {
		gvk.Group, gvk.Version = b.Group, b.Version
	}
	return gvk
}

// wireOf returns the type that bodies of a built-in kind are decoded into. nil means that the kind is not served.
func wireOf(gvk schema.GroupVersionKind) reflect.Type {
	for _, res := range known {
		if res.GoType != nil && res.GroupVersionKind() == gvk {
			return res.ExpectedBody("").Wire
		}
	}
	return nil
}

// InterpretKind reads kind and apiVersion with the standard library, as Kubernetes does, because
// its error texts are part of the response.
func InterpretKind(data []byte) (gvk schema.GroupVersionKind, err error) {
	meta := struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
	}{}
	if err := json.Unmarshal(data, &meta); err != nil {
		return gvk, fmt.Errorf("couldn't get version/kind; json parse error: %v", err)
	}
	gv, err := schema.ParseGroupVersion(meta.APIVersion)
	return gv.WithKind(meta.Kind), err
}

// A BodyError is returned (as a 400) if the body cannot be decoded. If the result of a patch
// cannot be decoded, the response only contains Cause.
type BodyError struct {
	*apierrors.StatusError
	Cause error
}

// Unwrap returns the Status.
func (e *BodyError) Unwrap() error { return e.StatusError }

// unrecognized returns the error (400) if the kind of the body is unknown.
func (b ExpectedBody) unrecognized(err error, data []byte) error {
	text := fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", b.Kind, err, bodySummary(data))
	return &BodyError{apierrors.NewBadRequest(text), err}
}

// bodySummary returns the first bytes of the body for an error message. They are encoded in
// hexadecimal unless the body looks like JSON.
func bodySummary(data []byte) string {
	const most = 30
	head, more := data, ""
	if len(data) > most {
		head, more = data[:most], " ..."
	}
	switch {
	case len(data) == 0:
		return "<empty>"
	case data[0] == '{':
		return string(head) + more
	}
	return hex.EncodeToString(head) + more
}

// mismatch returns the 400 for a body of another kind or version, or for a body of the right kind
// that failed to decode because of cause.
func (b ExpectedBody) mismatch(gvk schema.GroupVersionKind, cause error) error {
	gvk = b.withDefaults(gvk)
	apiVersion := gvk.GroupVersion().String()
	known := goName(gvk)
	switch {
	case b.serves(apiVersion, gvk.Kind):
	case known == "":
		cause = apierror.NotRegistered(gvk)
	case gvk.Kind != b.Kind && cause != nil:
	case gvk.Kind != b.Kind:
		cause = fmt.Errorf("converting (%s) to (%s): unknown conversion", known, apierror.InternalName(b.Group, b.Kind))
	default:
		return &MismatchError{StatusError: b.otherVersion(apiVersion), Body: gvk}
	}
	return b.unhandled(gvk, cause)
}

func (b ExpectedBody) otherVersion(apiVersion string) *apierrors.StatusError {
	return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)", apiVersion, b.APIVersion()))
}

func (b ExpectedBody) unhandled(gvk schema.GroupVersionKind, cause error) error {
	return &BodyError{apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, b.Kind, cause)), cause}
}

// goName returns the name of a built-in kind's Go type in Kubernetes' messages, as in v1.Secret,
// or "" for other kinds.
func goName(gvk schema.GroupVersionKind) string {
	for _, res := range known {
		if res.Group == gvk.Group && res.Version == gvk.Version && (res.Kind == gvk.Kind || res.ListKind == gvk.Kind) {
			return gvk.Version + "." + gvk.Kind
		}
	}
	if slices.Contains(strings.Fields(unservedKinds[gvk.GroupVersion().String()]), gvk.Kind) {
		return gvk.Version + "." + gvk.Kind
	}
	return ""
}

// unservedKinds contains kinds that are known to kube-apiserver but not served by default. These
// are the types of responses, and types in older or optional versions.
var unservedKinds = map[string]string{
	"admission.k8s.io/v1":                   "AdmissionReview",
	"admission.k8s.io/v1beta1":              "AdmissionReview",
	"admissionregistration.k8s.io/v1alpha1": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
	"admissionregistration.k8s.io/v1beta1": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration " +
		"ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
	"apiextensions.k8s.io/v1beta1":         "CustomResourceDefinition",
	"apiregistration.k8s.io/v1beta1":       "APIService",
	"apps/v1beta1":                         "ControllerRevision Deployment DeploymentRollback Scale StatefulSet",
	"apps/v1beta2":                         "ControllerRevision DaemonSet Deployment ReplicaSet Scale StatefulSet",
	"authentication.k8s.io/v1alpha1":       "SelfSubjectReview",
	"authentication.k8s.io/v1beta1":        "SelfSubjectReview TokenReview",
	"authorization.k8s.io/v1beta1":         "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
	"certificates.k8s.io/v1alpha1":         "ClusterTrustBundle",
	"certificates.k8s.io/v1beta1":          "CertificateSigningRequest ClusterTrustBundle PodCertificateRequest",
	"coordination.k8s.io/v1alpha2":         "LeaseCandidate",
	"coordination.k8s.io/v1beta1":          "Lease LeaseCandidate",
	"discovery.k8s.io/v1beta1":             "EndpointSlice",
	"events.k8s.io/v1beta1":                "Event",
	"extensions/v1beta1":                   "DaemonSet Deployment DeploymentRollback Ingress NetworkPolicy ReplicaSet Scale",
	"flowcontrol.apiserver.k8s.io/v1beta1": "FlowSchema PriorityLevelConfiguration",
	"flowcontrol.apiserver.k8s.io/v1beta2": "FlowSchema PriorityLevelConfiguration",
	"imagepolicy.k8s.io/v1alpha1":          "ImageReview",
	"internal.apiserver.k8s.io/v1alpha1":   "StorageVersion",
	"networking.k8s.io/v1beta1":            "IPAddress Ingress IngressClass ServiceCIDR",
	"node.k8s.io/v1alpha1":                 "RuntimeClass",
	"node.k8s.io/v1beta1":                  "RuntimeClass",
	"rbac.authorization.k8s.io/v1alpha1":   "ClusterRole ClusterRoleBinding Role RoleBinding",
	"rbac.authorization.k8s.io/v1beta1":    "ClusterRole ClusterRoleBinding Role RoleBinding",
	"resource.k8s.io/v1alpha3":             "DeviceTaintRule ResourcePoolStatusRequest",
	"resource.k8s.io/v1beta1":              "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice",
	"resource.k8s.io/v1beta2":              "DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate ResourceSlice",
	"scheduling.k8s.io/v1alpha2":           "PodGroup Workload",
	"scheduling.k8s.io/v1beta1":            "PriorityClass",
	"storage.k8s.io/v1alpha1":              "CSIStorageCapacity VolumeAttachment VolumeAttributesClass",
	"storage.k8s.io/v1beta1":               "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass",
	"storagemigration.k8s.io/v1beta1":      "StorageVersionMigration",
	"v1":                                   "Status APIVersions APIGroup APIGroupList APIResourceList",
}

func (b ExpectedBody) decodeProtobuf(data []byte) (Object, error) {
	envelope, err := OpenEnvelope(data)
	if err != nil {
		return nil, b.unrecognized(err, data)
	}
	gvk := envelope.GroupVersionKind()
	if !b.serves(envelope.APIVersion, envelope.Kind) {
		return nil, b.mismatch(gvk, nil)
	}
	obj := newOf(b.Wire)
	if err := bounded.UnmarshalWire(obj.(bounded.WireMessage), envelope.Raw); bounded.IsTooLarge(err) {
		return nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	} else if err = cmp.Or(err, CheckDerivedAnnotations(obj)); err != nil {
		return nil, b.mismatch(gvk, err)
	}
	return obj, nil
}

// CheckDerivedAnnotations checks the annotations that replace fields of earlier versions. They must
// be valid because kube-apiserver decodes them into the internal type.
func CheckDerivedAnnotations(obj Object) error {
	switch o := obj.(type) {
	case *appsv1.DaemonSet:
		if value, ok := o.Annotations[appsv1.DeprecatedTemplateGeneration]; ok {
			_, err := strconv.ParseInt(value, 10, 64)
			return err
		}
	case *appsv1.Deployment:
		value := o.Annotations[appsv1.DeprecatedRollbackTo]
		if _, err := strconv.ParseInt(value, 10, 64); value != "" && err != nil {
			return fmt.Errorf("failed to parse annotation[%s]=%s as int64: %w", appsv1.DeprecatedRollbackTo, value, err)
		}
	}
	return nil
}

// OpenEnvelope decodes the envelope of a protobuf body. It returns an error if data is not such a
// body.
func OpenEnvelope(data []byte) (*runtime.Unknown, error) {
	raw, ok := bytes.CutPrefix(data, protobuf.ProtobufPrefix)
	switch {
	case len(data) == 0:
		return nil, fmt.Errorf("empty data")
	case !ok:
		return nil, fmt.Errorf("provided data does not appear to be a protobuf message, expected prefix %v", protobuf.ProtobufPrefix)
	case len(raw) == 0:
		return nil, fmt.Errorf("empty body")
	}
	envelope := &runtime.Unknown{}
	return envelope, bounded.UnmarshalWire(envelope, raw)
}

// DecodeDeleteOptions reads the body of a DELETE. As in Kubernetes, the apiVersion is not checked
// and unknown fields are ignored. err is a Status error (400 or 415).
func DecodeDeleteOptions(data []byte, contentType string) (*metav1.DeleteOptions, error) {
	format, err := formatOf(contentType)
	if err != nil {
		return nil, err
	}
	options := &metav1.DeleteOptions{}
	switch format {
	case ProtobufFormat:
		var sealed *runtime.Unknown
		if sealed, err = OpenEnvelope(data); err == nil {
			err = bounded.UnmarshalWire(options, sealed.Raw)
			options.APIVersion, options.Kind = sealed.APIVersion, sealed.Kind
		}
	case YAMLFormat:
		if data, err = yaml.YAMLToJSON(data); err == nil {
			err = unmarshalOptions(data, options)
		}
	default:
		err = unmarshalOptions(data, options)
	}
	if gvk := options.GroupVersionKind(); err == nil && gvk.Kind != "" && gvk.Kind != "DeleteOptions" {
		err = apierror.NotRegistered(gvk)
		if gvk == metav1.Unversioned.WithKind("Status") { // the scheme of options also has Status
			err = errors.New("converting (v1.Status) to (v1.DeleteOptions): unknown conversion")
		}
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	options.TypeMeta = metav1.TypeMeta{}
	return options, nil
}

func unmarshalOptions(data []byte, options *metav1.DeleteOptions) error {
	if _, err := InterpretKind(data); err != nil {
		return err
	}
	return kjson.UnmarshalCaseSensitivePreserveInts(data, options)
}

// decodeUnstructured reads a custom resource. The body must have a kind and valid metadata.
func (b ExpectedBody) decodeUnstructured(data, original []byte) (Object, []error, error) {
	gvk, err := InterpretKind(data)
	if err != nil {
		return nil, nil, b.unrecognized(err, original)
	}
	content := map[string]any{}
	strictErrs, err := kjson.UnmarshalStrict(data, &content)
	switch {
	case err != nil:
		return nil, nil, b.unhandled(gvk, err)
	case gvk.Kind == "", content["kind"] == nil: // InterpretKind also accepts "Kind" and "KIND"
		return nil, nil, b.unrecognized(runtime.NewMissingKindErr(string(original)), original)
	}
	u := &unstructured.Unstructured{Object: content}
	if err := bounded.CheckSteps(content); err != nil {
		return nil, nil, apierror.InvalidObject(gvk.GroupKind(), u.GetName(), err)
	}
	shape := b.shape
	if shape == nil {
		shape = coerceMetadata
	}
	unknown, err := shape(u)
	if apierrors.IsRequestEntityTooLargeError(err) {
		return nil, nil, err
	}
	if err != nil {
		return nil, nil, b.unhandled(gvk, err)
	}
	strictErrs = append(strictErrs, unknown...)
	if err := b.checkCustomKind(u, gvk); err != nil {
		return nil, strictErrs, &MismatchError{err, gvk, u}
	}
	return u, strictErrs, nil
}

// A MismatchError refuses a body that can be decoded, but has the wrong kind or apiVersion.
type MismatchError struct {
	*apierrors.StatusError
	Body   schema.GroupVersionKind    // named by the body
	Object *unstructured.Unstructured // the body of a custom resource, or nil
}

// Unwrap returns the Status.
func (e *MismatchError) Unwrap() error { return e.StatusError }

// StrictError returns the 400 for a client that requested strict field validation.
func (e *MismatchError) StrictError(strictErrs []error) error {
	switch {
	case e.Body.Version == "":
		return apierrors.NewBadRequest(runtime.NewMissingVersionErr("object has no apiVersion field").Error())
	case len(strictErrs) == 0:
		return e
	}
	return ExpectedBody{Kind: e.Body.Kind}.unhandled(e.Body, runtime.NewStrictDecodingError(apierror.Truncate(strictErrs)))
}

func (b ExpectedBody) checkCustomKind(u *unstructured.Unstructured, gvk schema.GroupVersionKind) *apierrors.StatusError {
	if apiVersion := gvk.GroupVersion().String(); apiVersion != b.APIVersion() {
		return b.otherVersion(apiVersion)
	}
	if gvk.Kind != b.Kind {
		return apierror.Invalid(gvk.GroupKind(), u.GetName(),
			field.ErrorList{field.Invalid(field.NewPath("kind"), gvk.Kind, "must be "+b.Kind)})
	}
	return nil
}

// coerceMetadata reduces the metadata of an unstructured object to the fields of ObjectMeta. It
// returns the unknown and duplicate fields.
func coerceMetadata(u *unstructured.Unstructured) ([]error, error) {
	content := u.Object
	given, ok := content["metadata"]
	if !ok || given == nil {
		content["metadata"] = map[string]any{}
		return nil, nil
	}
	asJSON, err := json.Marshal(given)
	if err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{}
	strictErrs, err := kjson.UnmarshalStrict(asJSON, &meta)
	if err != nil {
		return nil, err
	}
	for _, strictErr := range strictErrs {
		if fieldErr, ok := strictErr.(kjson.FieldError); ok {
			fieldErr.SetFieldPath("metadata." + fieldErr.FieldPath())
		}
	}
	content["metadata"], err = runtime.DefaultUnstructuredConverter.ToUnstructured(&meta)
	return strictErrs, err
}

// StrictError returns the 400 for unknown and duplicate fields under strict field validation.
func (res *Resource) StrictError(sub string, strictErrs []error) error {
	b := res.ExpectedBody(sub)
	return b.unhandled(schema.GroupVersionKind{Version: b.Version, Kind: b.Kind}, runtime.NewStrictDecodingError(apierror.Truncate(strictErrs)))
}

// ErrUnreadable means that a stored object cannot be decoded.
var ErrUnreadable = errors.New("the stored object cannot be read")

// StandInReason is set in a document that replaces an unreadable object. It contains the reason.
const StandInReason = "unreadable"

// unreadableError wraps ErrUnreadable with the reason in the stand-in, if stored is one, or else
// err.
func unreadableError(stored []byte, err error) error {
	if told := gjson.GetBytes(stored, StandInReason); told.Type == gjson.String {
		return fmt.Errorf("%w: %s", ErrUnreadable, told.Str)
	}
	return fmt.Errorf("%w: %w", ErrUnreadable, err)
}

// DecodeStored reads stored JSON. It returns ErrUnreadable if the document is invalid, and other
// errors if the type has just been removed.
func (res *Resource) DecodeStored(stored []byte) (Object, error) {
	obj := res.NewObject()
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		if err := bounded.Unmarshal(stored, obj); err != nil {
			return nil, unreadableError(stored, err)
		}
		return obj, nil
	}
	kind := maps.Clone(u.Object)
	if err := errors.Join(kjson.UnmarshalCaseSensitivePreserveInts(stored, &u.Object), checkMetadata(stored)); err != nil {
		return nil, unreadableError(stored, err)
	}
	maps.Copy(u.Object, kind)
	c := res.Custom
	if c == nil {
		return u, nil
	}
	if res.IsVerbatim() {
		version, _ := c.StoredVersion(stored)
		u.SetAPIVersion(GroupVersionString(res.Group, string(version)))
		return u, nil
	}
	settled, err := c.IsComplete(stored)
	if err != nil || settled {
		return u, err
	}
	return u, c.Complete(u)
}

// versionMark is the start of a stored custom resource if the version is not equal to
// CustomStrategy.ImplicitVersion. The mark of converted objects names no version.
const (
	versionMark = `{"apiVersion":"`
	converted   = versionMark + `",`
)

// StoredVersion returns the version of stored JSON and the offset of its first member. If the
// object was converted, the version is "".
func (c *CustomStrategy) StoredVersion(stored []byte) (version string, at int) {
	if !bytes.HasPrefix(stored, []byte(versionMark)) {
		return c.ImplicitVersion, 1
	}
	version, _, _ = strings.Cut(string(stored[len(versionMark):min(len(stored), len(versionMark)+64)]), `"`)
	return version, len(versionMark) + len(version) + len(`",`)
}

// withoutMark returns stored JSON without the version.
func (c *CustomStrategy) withoutMark(stored []byte) []byte {
	if !bytes.HasPrefix(stored, []byte(versionMark)) {
		return stored
	}
	_, at := c.StoredVersion(stored)
	return append(append(make([]byte, 0, len(stored)-at+1), '{'), stored[at:]...)
}

// StoredDocument returns stored JSON with apiVersion and kind, and the version in which it is
// stored. If stored is empty, it returns nothing.
func (res *Resource) StoredDocument(stored []byte) (doc []byte, version string) {
	if len(stored) == 0 {
		return nil, ""
	}
	version, at := res.Version, 1
	if res.Custom != nil && res.GoType == nil {
		if version, at = res.Custom.StoredVersion(stored); version == "" {
			version = res.Custom.StorageVersion
		}
	}
	doc = append(make([]byte, 0, len(stored)+96), `{"apiVersion":"`...)
	if res.Group != "" {
		doc = append(append(doc, res.Group...), '/')
	}
	doc = append(append(doc, version...), `","kind":"`...)
	doc = append(append(doc, res.Kind...), `",`...)
	return append(doc, stored[at:]...), version
}

// EncodeConverted encodes a converted object. DecodeStored and Served accept the result.
func EncodeConverted(u *unstructured.Unstructured) ([]byte, error) {
	var buf bytes.Buffer
	_, err := encodeUnstructured(&buf, converted, u)
	return buf.Bytes(), err
}

// WithoutManagedFields returns stored JSON with managedFields set to null.
func WithoutManagedFields(stored []byte) []byte {
	owners := gjson.GetBytes(stored, "metadata.managedFields")
	if !owners.Exists() {
		return stored
	}
	return slices.Concat(stored[:owners.Index], []byte("null"), stored[owners.Index+len(owners.Raw):])
}

// checkMetadata returns an error if the metadata of a custom resource does not decode into an
// ObjectMeta. apilet does not decode it, but clients do.
func checkMetadata(stored []byte) error {
	if bounded.Inspect(stored).InvalidTime == 0 {
		return nil
	}
	var meta metav1.ObjectMeta
	return kjson.UnmarshalCaseSensitivePreserveInts([]byte(gjson.GetBytes(stored, "metadata").Raw), &meta)
}

// CheckReadable returns an error if stored JSON cannot be decoded. It decodes only documents that
// look suspicious.
func (res *Resource) CheckReadable(stored []byte) error {
	return res.checkDecodes(stored, bounded.Inspect(stored))
}

func (res *Resource) checkDecodes(stored []byte, found bounded.Inspection) error {
	switch t := res.StoredType(); {
	// the store's checksum detects other damage
	case len(stored) < 2 || stored[0] != '{' || stored[len(stored)-1] != '}':
		return fmt.Errorf("%w: it is no JSON object", ErrUnreadable)
	case found.Depth > bounded.DecoderDepth:
		return fmt.Errorf("%w: %w", ErrUnreadable, bounded.ErrTooDeep)
	case found.InvalidTime == 0:
		return nil
	case t != nil:
		if err := bounded.Unmarshal(stored, newOf(t)); err != nil {
			return unreadableError(stored, err)
		}
	default:
		if err := checkMetadata(stored); err != nil {
			return unreadableError(stored, err)
		}
	}
	return nil
}

// checkStorable returns an error if an encoded object must not be stored because it could not be
// decoded again.
func (res *Resource) checkStorable(encoded []byte) *field.Error {
	found := bounded.Inspect(encoded)
	if found.Depth > bounded.StoredDepth {
		return field.Invalid(field.NewPath(bounded.PathAt(encoded, found.Deepest)), field.OmitValueType{},
			fmt.Sprintf("is nested %d levels deep, and a stored object at most %d", found.Depth, bounded.StoredDepth))
	}
	err := res.checkDecodes(encoded, found)
	if err == nil {
		return nil
	}
	at := field.NewPath("metadata")
	var odd *time.ParseError
	if !errors.As(err, &odd) {
		return field.Invalid(at, field.OmitValueType{}, err.Error())
	}
	if offset := bytes.Index(encoded, []byte(strconv.Quote(odd.Value))); offset >= 0 {
		at = field.NewPath(bounded.PathAt(encoded, offset))
	}
	return field.Invalid(at, odd.Value, "is a time in UTC whose year has not four digits")
}

// resourceVersionField is searched for in encoded objects to find the value set by EncodeStored.
var resourceVersionField = []byte(`"resourceVersion":"`)

// EncodeStored encodes an object for the store: without kind and apiVersion, and with an empty
// resourceVersion. The decimal revision belongs at offset revAt. EncodeStored modifies obj
// temporarily, so no other goroutine may read it.
func (res *Resource) EncodeStored(obj Object) (stored []byte, revAt int, err error) {
	before := obj.GetResourceVersion()
	obj.SetResourceVersion("0") // an empty one would be omitted
	defer obj.SetResourceVersion(before)
	buf := encodeBuffers.Get().(*bytes.Buffer)
	defer func() { buf.Reset(); encodeBuffers.Put(buf) }()

	if u, ok := obj.(*unstructured.Unstructured); ok {
		if c := res.Custom; c != nil && c.ToStorage != nil {
			if u, err = c.ToStorage(u); err != nil {
				return nil, 0, err
			}
		}
		revAt, err = encodeUnstructured(buf, res.markOf(u), u)
	} else {
		revAt, err = encodeTyped(buf, obj)
	}
	if err != nil {
		return nil, 0, apierror.InvalidObject(res.GroupKind(), obj.GetName(), err)
	}
	if problem := res.checkStorable(buf.Bytes()); problem != nil {
		return nil, 0, apierrors.NewInvalid(res.GroupKind(), obj.GetName(), field.ErrorList{problem})
	}
	encoded := buf.Bytes()
	stored = make([]byte, 0, len(encoded)-1)
	return append(append(stored, encoded[:revAt]...), encoded[revAt+1:]...), revAt, nil
}

// markOf returns the start of a custom resource's stored JSON. If the name is empty, it is a
// bookmark and is not converted.
func (res *Resource) markOf(u *unstructured.Unstructured) string {
	c := res.Custom
	switch {
	case c == nil || c.ImplicitVersion == "":
		return "{"
	case u.GetName() == "" && c.Webhook != nil:
		return converted
	case u.GetName() == "":
		return "{"
	}
	version := c.StorageVersion
	if res.IsVerbatim() {
		version = u.GroupVersionKind().Version
	}
	if version == c.ImplicitVersion {
		return "{"
	}
	return versionMark + version + `",`
}

// encodeBuffers pools buffers for encoding. Results are copied out of them.
var encodeBuffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// encodeTyped relies on the order of the fields. The first member of every type is metadata, and
// the resourceVersion is encoded before all maps. The first match is therefore the
// resourceVersion of the object.
func encodeTyped(buf *bytes.Buffer, obj Object) (revAt int, err error) {
	typeMeta := obj.GetObjectKind().(*metav1.TypeMeta)
	before := *typeMeta
	*typeMeta = metav1.TypeMeta{}
	defer func() { *typeMeta = before }()
	if err := json.NewEncoder(buf).Encode(obj); err != nil {
		return 0, err
	}
	buf.Truncate(buf.Len() - 1) // remove the encoder's newline
	return bytes.Index(buf.Bytes(), resourceVersionField) + len(resourceVersionField), nil
}

// encodeUnstructured writes begin, metadata and then the other members. The last match in the
// metadata is the resourceVersion of the object, because it is only followed by selfLink and uid,
// which are strings.
func encodeUnstructured(buf *bytes.Buffer, begin string, u *unstructured.Unstructured) (revAt int, err error) {
	if err := encodeMember(buf, begin+`"metadata":`, u.Object["metadata"]); err != nil {
		return 0, err
	}
	revAt = bytes.LastIndex(buf.Bytes(), resourceVersionField) + len(resourceVersionField)
	for _, name := range slices.Sorted(maps.Keys(u.Object)) {
		if name == "metadata" || name == "kind" || name == "apiVersion" {
			continue
		}
		key, _ := json.Marshal(name)
		if err := encodeMember(buf, ","+string(key)+":", u.Object[name]); err != nil {
			return 0, err
		}
	}
	return revAt, buf.WriteByte('}')
}

func encodeMember(buf *bytes.Buffer, before string, value any) error {
	buf.WriteString(before)
	if err := json.NewEncoder(buf).Encode(value); err != nil {
		return err
	}
	buf.Truncate(buf.Len() - 1)
	return nil
}

// ConvertOut converts an object of the storage version to the served version. If both are the
// same, it returns obj.
func (res *Resource) ConvertOut(obj Object) Object {
	if res.Conversion == nil || res.Conversion.Out == nil {
		return obj
	}
	return res.Conversion.Out(obj)
}

// ConvertIn converts an object of the served version to the storage version.
func (res *Resource) ConvertIn(obj Object) Object {
	if res.Conversion == nil || res.Conversion.in == nil {
		return obj
	}
	return res.Conversion.in(obj)
}

// DecodeServed reads stored JSON into an object of the served version.
func (res *Resource) DecodeServed(stored []byte) (Object, error) {
	obj, err := res.DecodeStored(stored)
	if err != nil {
		return nil, err
	}
	return res.ConvertOut(obj), nil
}

// Served converts stored JSON to the served version, still without kind and apiVersion: the
// caller must write Prefix before it. Most rows return the stored JSON itself. If there is a
// conversion, or if a custom resource is older than the schema, the JSON is decoded and encoded
// again.
func (res *Resource) Served(stored []byte) ([]byte, error) {
	if c := res.Custom; c != nil && c.IsComplete != nil {
		settled, err := c.IsComplete(stored)
		if err != nil || settled {
			return c.withoutMark(stored), err
		}
		obj, err := res.DecodeStored(stored)
		if err != nil {
			return nil, err
		}
		var buf bytes.Buffer
		_, err = encodeUnstructured(&buf, "{", obj.(*unstructured.Unstructured))
		return buf.Bytes(), err
	}
	if res.Conversion == nil || res.Conversion.Out == nil {
		return stored, nil
	}
	obj, err := res.DecodeStored(stored)
	if err != nil {
		return nil, err
	}
	return json.Marshal(res.Conversion.Out(obj))
}

// MarshalAs returns the JSON of an object that is not stored (a review, a Scale, a Status) with
// the given apiVersion and kind. It sets both in obj.
func MarshalAs(obj runtime.Object, apiVersion, kind string) ([]byte, error) {
	obj.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	return json.Marshal(obj)
}
