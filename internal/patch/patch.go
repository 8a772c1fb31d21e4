// Package patch applies the body of a PATCH to a JSON document. The Content-Type of the body
// selects one of these kinds:
//
//	kind             body                                       purpose
//	JSON patch       a program: six operations on paths         exact edits, with tests before them     RFC 6902
//	merge patch      the changed part of the document           any document; lists are replaced whole  RFC 7396
//	strategic merge  the changed part, lists merged by key      built-in types: a tag of the Go type    k8s.io/apimachinery strategicpatch
//	apply            the complete intent of one manager         package fieldmanager                    KEP-555
//
//	kind, err := patch.KindOf(r.Header.Get("Content-Type"), res.PatchSchema() != nil) // 415 for other types
//	result, strictErrs, err := patch.Apply(kind, current, body, res.PatchSchema())
//
// For example, the document {"spec":{"containers":[{"name":"a","image":"x:1"},{"name":"b"}]}} is
// patched by {"spec":{"containers":[{"name":"a","image":"x:2"}]}}. A merge patch removes
// container b, but a strategic merge patch keeps it.
//
// Invariants: The result only depends on the arguments. Numbers are not converted to float64,
// which would round an int64. No body causes a panic. Constants limit the work, which would
// otherwise be very large for some bodies of 3 MiB. The error messages are the same as in
// kube-apiserver (k8s.io/apiserver/pkg/endpoints/handlers/patch.go).
package patch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"apilet/internal/apierror"
	"apilet/internal/bounded"
	"apilet/internal/scheme"
)

// Kind is the media type of a PATCH body.
type Kind string

const (
	JSONPatch      Kind = "application/json-patch+json" // RFC 6902
	mergePatch     Kind = "application/merge-patch+json"
	strategicPatch Kind = "application/strategic-merge-patch+json"
	ApplyPatch     Kind = "application/apply-patch+yaml" // server-side apply, see package fieldmanager
)

const (
	maxPatchOperations = 10000   // maximum number of operations in one JSON patch
	maxPatchCopies     = 3 << 20 // maximum bytes that can be added by the copy operations of a JSON patch
	// maximum work for a patch, in bytes parsed and list elements moved; about a second
	maxPatchWork = 64 << 20
	// maximum lookups of list elements for a strategic merge patch; about a second
	maxPatchLookups = 4 << 20
)

// KindOf returns the kind of a PATCH with that Content-Type. strategic means that the resource
// has a Go type, which custom resources lack.
func KindOf(contentType string, strategic bool) (Kind, error) {
	accepted := []string{string(JSONPatch), string(mergePatch), string(strategicPatch), string(ApplyPatch)}
	if !strategic {
		accepted = slices.Delete(accepted, 2, 3)
	}
	sent, _, _ := strings.Cut(contentType, ";")
	if slices.Contains(accepted, sent) {
		return Kind(sent), nil
	}
	if strategic && !slices.Contains(accepted, strings.TrimSpace(sent)) {
		// kube-apiserver's router rejects these types before its PATCH handler can return a
		// better message.
		err := apierror.New(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType, "415: Unsupported Media Type")
		err.ErrStatus.Details = &metav1.StatusDetails{}
		return "", err
	}
	return "", apierror.New(http.StatusUnsupportedMediaType, metav1.StatusReasonUnsupportedMediaType,
		"the body of the request was in an unknown format - accepted media types include: "+strings.Join(accepted, ", "))
}

// CheckSyntax returns a Status error (400) for a body that is not JSON. It ignores the body of an
// apply, which may be YAML and which package fieldmanager decodes.
func CheckSyntax(kind Kind, body []byte) error {
	if kind != ApplyPatch && !json.Valid(body) {
		return apierrors.NewBadRequest("invalid JSON patch")
	}
	return nil
}

// Apply applies the body of a patch to a JSON document, which is an object with kind and
// apiVersion, and returns the result. schema is a zero value of the Go type for strategic merge
// patches, or nil for custom resources. strictErrs are duplicate fields, and also unknown fields
// if the result no longer contains them. The caller reports them as warnings or by Invalid. err
// is a Status error: 400, 413, 415 or 422.
func Apply(kind Kind, current, body []byte, schema any) (result []byte, strictErrs []error, err error) {
	if err := CheckSyntax(kind, body); err != nil {
		return nil, nil, err
	}
	switch {
	case kind == JSONPatch:
		return patchOperations(current, body)
	case kind == mergePatch:
		return patchMerge(current, body)
	case IsStrategic(kind, schema):
		typed, strictErrs, err := Strategic(current, body, schema)
		if err != nil {
			return nil, nil, err
		}
		result, err = json.Marshal(typed)
		return result, strictErrs, err
	}
	_, err = KindOf("", schema != nil)
	return nil, nil, err
}

// Invalid returns the error (422) if the result of a patch is not a valid object. If only strict
// decoding fails, cause is runtime.NewStrictDecodingError of the strictErrs. The message quotes
// the result, or the body of a strategic merge patch.
func Invalid(kind Kind, body, result []byte, cause error) error {
	quoted := string(result)
	if kind == strategicPatch {
		members := map[string]any{}
		_ = kjson.UnmarshalCaseSensitivePreserveInts(body, &members) // Apply has decoded it before
		quoted = fmt.Sprintf("%+v", members)
	}
	var undecodable *scheme.BodyError
	if errors.As(cause, &undecodable) {
		cause = undecodable.Cause
	}
	return apierror.Invalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), quoted, cause.Error())})
}

// patchFailed returns the error for a JSON patch that cannot be applied. As in kube-apiserver,
// the cause is not included.
func patchFailed() error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", "", 0, false)
}

func patchTooLarge() error {
	return apierrors.NewRequestEntityTooLargeError("the patch needs too much work, split it")
}

// ---- the document under the patch

// A JsonNode is a value in the document. It is parsed only along the paths of the patch. The rest
// remains raw, so that unmodified parts keep their bytes. nil is a JSON null.
type JsonNode struct {
	Raw  json.RawMessage      // as read; only the first byte is valid after parsing
	obj  map[string]*JsonNode // not nil if parsed as an object
	list []*JsonNode          // not nil if parsed as a list
}

// UnmarshalJSON stores a copy of raw without parsing it.
func (n *JsonNode) UnmarshalJSON(raw []byte) error {
	*n = JsonNode{Raw: slices.Clone(raw)} // the decoder reuses its buffer
	return nil
}

// Encode returns the JSON of a value. It limits the depth, because append is recursive and
// operations can create more levels than a single body can have.
func (n *JsonNode) Encode() ([]byte, error) {
	if !n.within(bounded.DecoderDepth) {
		return nil, bounded.ErrTooDeep
	}
	room := 64
	if n != nil {
		room += len(n.Raw)
	}
	return n.append(make([]byte, 0, room)), nil
}

// append appends the JSON of a value to out. Unparsed values keep their bytes. encoding/json
// would encode each level separately and copy it once for every level above.
func (n *JsonNode) append(out []byte) []byte {
	switch {
	case n == nil:
		return append(out, "null"...)
	case n.obj != nil:
		out = append(out, '{')
		for i, name := range slices.Sorted(maps.Keys(n.obj)) {
			if i > 0 {
				out = append(out, ',')
			}
			quoted, _ := json.Marshal(name) // a string can always be encoded
			out = append(append(out, quoted...), ':')
			out = n.obj[name].append(out)
		}
		return append(out, '}')
	case n.list != nil:
		out = append(out, '[')
		for i, element := range n.list {
			if i > 0 {
				out = append(out, ',')
			}
			out = element.append(out)
		}
		return append(out, ']')
	}
	return append(out, n.Raw...)
}

// within reports whether the depth of the parsed value is at most levels.
func (n *JsonNode) within(levels int) bool {
	if n == nil {
		return true
	}
	if levels == 0 {
		return false
	}
	for _, member := range n.obj {
		if !member.within(levels - 1) {
			return false
		}
	}
	return !slices.ContainsFunc(n.list, func(element *JsonNode) bool { return !element.within(levels - 1) })
}

// MarshalJSON calls append for encoding/json.
func (n *JsonNode) MarshalJSON() ([]byte, error) { return n.append(nil), nil }

var (
	errNoPath    = errors.New("the path leads nowhere")
	errPatchWork = errors.New("maxPatchWork is spent")
)

// A patchedDoc is a document with the remaining limits of its patch. To parse a level, all bytes
// of the nested values must be read. For a path with 10,000 steps into 3 MiB, this would be 30
// GiB. The same is true for repeated insertions at the start of a long list.
type patchedDoc struct {
	Root   *JsonNode
	work   int // the rest of maxPatchWork
	copies int // the rest of maxPatchCopies
}

// NewPatchedDoc returns a document for the operations of a JSON patch, with the full limits.
func NewPatchedDoc(current []byte) *patchedDoc {
	return &patchedDoc{Root: &JsonNode{Raw: bytes.TrimSpace(current)}, work: maxPatchWork, copies: maxPatchCopies}
}

func (doc *patchedDoc) spend(work int) error {
	if doc.work -= work; doc.work < 0 {
		return errPatchWork
	}
	return nil
}

// open parses one level of n. It returns an error if n is neither an object nor a list.
func (doc *patchedDoc) open(n *JsonNode) error {
	if n == nil || n.obj != nil || n.list != nil {
		return nil
	}
	if err := doc.spend(len(n.Raw)); err != nil {
		return err
	}
	if n.starts('[') {
		return json.Unmarshal(n.Raw, &n.list)
	}
	return json.Unmarshal(n.Raw, &n.obj)
}

// container returns the object or list that contains the last step of path, and the last step.
func (doc *patchedDoc) container(path string) (*JsonNode, string, error) {
	steps := strings.Split(path, "/")
	if len(steps) < 2 {
		return nil, "", errNoPath
	}
	n, last := doc.Root, len(steps)-1
	for i, step := range steps[1:] { // kube-apiserver also ignores the part before the first slash
		if n == nil {
			return nil, "", errNoPath
		}
		if err := doc.open(n); err != nil {
			return nil, "", err
		}
		step = stepUnescaper.Replace(step)
		if i+1 == last {
			return n, step, nil
		}
		var err error
		if n, err = n.get(step); err != nil {
			return nil, "", err
		}
	}
	return nil, "", errNoPath
}

var stepUnescaper = strings.NewReplacer("~1", "/", "~0", "~") // RFC 6901, section 4

// elementIndex returns the index for a step into a list of n values. Negative steps count from
// the end.
func elementIndex(step string, n int) (int, error) {
	i, err := strconv.Atoi(step)
	if i < 0 {
		i += n
	}
	if err != nil || i < 0 || i >= n {
		return 0, errNoPath
	}
	return i, nil
}

// get returns a member (nil if it does not exist) or an element.
func (n *JsonNode) get(step string) (*JsonNode, error) {
	if n.obj != nil {
		return n.obj[step], nil
	}
	i, err := elementIndex(step, len(n.list))
	if err != nil {
		return nil, err
	}
	return n.list[i], nil
}

// set sets a member of an object or an existing element of a list.
func (n *JsonNode) set(step string, value *JsonNode) error {
	if n.obj != nil {
		n.obj[step] = value
		return nil
	}
	i, err := elementIndex(step, len(n.list))
	if err == nil {
		n.list[i] = value
	}
	return err
}

// add sets a member or inserts an element. "-" is the end of a list.
func (n *JsonNode) add(step string, value *JsonNode) error {
	if n.obj != nil {
		n.obj[step] = value
		return nil
	}
	i, err := len(n.list), error(nil)
	if step != "-" {
		i, err = elementIndex(step, len(n.list)+1)
	}
	if err == nil {
		n.list = slices.Insert(n.list, i, value)
	}
	return err
}

func (n *JsonNode) remove(step string) error {
	if n.obj != nil {
		if _, found := n.obj[step]; !found {
			return errNoPath
		}
		delete(n.obj, step)
		return nil
	}
	i, err := elementIndex(step, len(n.list))
	if err == nil {
		n.list = slices.Delete(n.list, i, i+1)
	}
	return err
}

// equal compares two values. The order of members is ignored, strings are decoded, and numbers
// must have the same digits (1 is not equal to 1.0, as in kube-apiserver).
func (doc *patchedDoc) equal(a, b *JsonNode) (bool, error) {
	if a == nil || b == nil {
		return a == b, nil
	}
	if err := doc.spend(1); err != nil {
		return false, err
	}
	if a.leaf() || b.leaf() {
		return a.leaf() && b.leaf() && sameLeaf(a.Raw, b.Raw), nil
	}
	if err := errors.Join(doc.open(a), doc.open(b)); err != nil {
		return false, err
	}
	if len(a.obj) != len(b.obj) || len(a.list) != len(b.list) || (a.obj == nil) != (b.obj == nil) {
		return false, nil
	}
	for key, value := range a.obj {
		other, found := b.obj[key]
		if same, err := doc.equal(value, other); !found || !same || err != nil {
			return false, err
		}
	}
	for i, value := range a.list {
		if same, err := doc.equal(value, b.list[i]); !same || err != nil {
			return false, err
		}
	}
	return true, nil
}

func (n *JsonNode) leaf() bool {
	return n.obj == nil && n.list == nil && !n.starts('{') && !n.starts('[')
}

func (n *JsonNode) starts(c byte) bool { return len(n.Raw) > 0 && n.Raw[0] == c }

func sameLeaf(a, b json.RawMessage) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var one, other string
	return json.Unmarshal(a, &one) == nil && json.Unmarshal(b, &other) == nil && one == other
}

// ---- JSON patch (RFC 6902)
//
// kube-apiserver uses gopkg.in/evanphx/json-patch.v4, which can panic or run for minutes. The
// operations are therefore implemented here, with the library's deviations from the RFC: replace
// may name a missing member, remove may count from the end, and a test for null succeeds if the
// value is missing.

// A PatchStep is an operation of a JSON patch. Members that were not sent are nil.
type PatchStep struct {
	Op    string    `json:"op"`    // add, remove, replace, move, copy or test
	Path  *string   `json:"path"`  // a JSON pointer
	From  *string   `json:"from"`  // for move and copy
	Value *JsonNode `json:"value"` // for add, replace and test; nil is null
}

// A jsonPatchOp is a PatchStep for strict decoding. The type of its value is any, so that
// duplicate members in the value are also detected.
type jsonPatchOp struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func patchOperations(current, body []byte) ([]byte, []error, error) {
	var strict []jsonPatchOp
	strictErrs, err := kjson.UnmarshalStrict(body, &strict)
	if err != nil {
		// kube-apiserver's package
		text := strings.ReplaceAll(err.Error(), "patch.jsonPatchOp", "handlers.jsonPatchOp")
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + text)
	}
	for i, err := range strictErrs {
		strictErrs[i] = fmt.Errorf("json patch %w", err)
	}
	if len(strict) > maxPatchOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxPatchOperations, len(strict)))
	}
	var operations []PatchStep
	if err := kjson.UnmarshalCaseSensitivePreserveInts(body, &operations); err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	doc := NewPatchedDoc(current)
	for _, op := range operations {
		if err := doc.Apply(op); err != nil {
			return nil, nil, patchError(err)
		}
	}
	result, err := doc.Root.Encode()
	if err != nil {
		return nil, nil, patchFailed()
	}
	return result, strictErrs, nil
}

func patchError(err error) error {
	if errors.Is(err, errPatchWork) {
		return patchTooLarge()
	}
	return patchFailed()
}

func (doc *patchedDoc) Apply(op PatchStep) error {
	if op.Path == nil {
		return errNoPath
	}
	switch op.Op {
	case "add":
		return doc.add(*op.Path, op.Value)
	case "remove":
		_, err := doc.take(*op.Path)
		return err
	case "replace":
		return doc.replace(*op.Path, op.Value)
	case "test":
		return doc.test(*op.Path, op.Value)
	}
	if op.From == nil {
		return errNoPath
	}
	switch op.Op {
	case "move":
		value, err := doc.take(*op.From)
		if err != nil {
			return err
		}
		return doc.add(*op.Path, value)
	case "copy":
		return doc.copy(*op.From, *op.Path)
	}
	return fmt.Errorf("unknown operation %q", op.Op)
}

func (doc *patchedDoc) add(path string, value *JsonNode) error {
	at, step, err := doc.container(path)
	if err != nil {
		return err
	}
	if err := doc.spend(len(at.list)); err != nil {
		return err
	}
	return at.add(step, value)
}

// take removes the value and returns it.
func (doc *patchedDoc) take(path string) (*JsonNode, error) {
	at, step, err := doc.container(path)
	if err != nil {
		return nil, err
	}
	if err := doc.spend(len(at.list)); err != nil {
		return nil, err
	}
	value, err := at.get(step)
	if err != nil {
		return nil, err
	}
	return value, at.remove(step)
}

func (doc *patchedDoc) replace(path string, value *JsonNode) error {
	if path == "" {
		if value == nil || value.leaf() {
			return errNoPath
		}
		doc.Root = value
		return nil
	}
	at, step, err := doc.container(path)
	if err != nil {
		return err
	}
	return at.set(step, value)
}

func (doc *patchedDoc) test(path string, value *JsonNode) error {
	found := doc.Root
	if path != "" {
		at, step, err := doc.container(path)
		if err != nil {
			return err
		}
		if found, err = at.get(step); err != nil {
			return err
		}
	}
	same, err := doc.equal(found, value)
	if err == nil && !same {
		err = errors.New("the test failed")
	}
	return err
}

func (doc *patchedDoc) copy(from, path string) error {
	at, step, err := doc.container(from)
	if err != nil {
		return err
	}
	value, err := at.get(step)
	if err != nil || value == nil {
		return errors.Join(err, doc.add(path, nil))
	}
	raw, err := value.Encode()
	if err != nil {
		return err
	}
	if doc.copies -= len(raw); doc.copies < 0 {
		return errors.New("maxPatchCopies is spent")
	}
	return errors.Join(doc.spend(len(raw)), doc.add(path, &JsonNode{Raw: raw}))
}

// ---- merge patch (RFC 7396)

func patchMerge(current, body []byte) ([]byte, []error, error) {
	members := map[string]any{}
	strictErrs, err := kjson.UnmarshalStrict(body, &members)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	if members == nil {
		return nil, nil, apierrors.NewBadRequest("Invalid JSON Patch")
	}
	// Decode again to keep the digits of numbers, which the strict decoder converts to int64 and
	// float64.
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	clear(members)
	if err := decoder.Decode(&members); err != nil {
		return nil, nil, apierrors.NewBadRequest("error decoding patch: " + err.Error())
	}
	doc := NewPatchedDoc(current)
	if err := doc.merge(doc.Root, members); err != nil {
		return nil, nil, patchError(err)
	}
	result, err := doc.Root.Encode()
	if err != nil {
		return nil, nil, patchFailed()
	}
	return result, strictErrs, nil
}

// merge merges members into the object n. A null deletes a member, an object is merged into an
// object, and any other value replaces the member.
func (doc *patchedDoc) merge(n *JsonNode, members map[string]any) error {
	if err := doc.open(n); err != nil || n.obj == nil {
		return errors.Join(err, errNoPath)
	}
	for key, value := range members {
		if value == nil {
			delete(n.obj, key)
			continue
		}
		old := n.obj[key]
		if inner, ok := value.(map[string]any); ok && old != nil && old.starts('{') {
			if err := doc.merge(old, inner); err != nil {
				return err
			}
			continue
		}
		raw, err := json.Marshal(withoutNulls(value))
		if err != nil {
			return err
		}
		n.obj[key] = &JsonNode{Raw: raw}
	}
	return nil
}

// withoutNulls removes null members, but not null elements of lists. Unlike the RFC, it also
// removes them from objects in lists.
func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		for key, inner := range value {
			if inner == nil {
				delete(value, key)
			} else {
				value[key] = withoutNulls(inner)
			}
		}
	case []any:
		for i, inner := range value {
			value[i] = withoutNulls(inner)
		}
	}
	return value
}

// ---- strategic merge patch

// IsStrategic reports whether Strategic handles this patch of an object of schema's type.
func IsStrategic(kind Kind, schema any) bool { return kind == strategicPatch && schema != nil }

// Strategic applies a strategic merge patch without encoding the result. typed points to a value
// of schema's type. The lenient decoding (1.0 is an int64) and the messages are specific to this
// kind of patch. The patchStrategy and patchMergeKey tags of the type determine how lists are
// merged.
func Strategic(current, body []byte, schema any) (typed any, strictErrs []error, err error) {
	members := map[string]any{}
	strictErrs, err = kjson.UnmarshalStrict(body, &members)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	document := map[string]any{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(current, &document); err != nil {
		return nil, nil, err
	}
	kind, apiVersion := document["kind"], document["apiVersion"]
	changes, longest := countElements(members)
	_, longestOld := countElements(document)
	// The library searches the list for each of the elements. The estimate includes lists that
	// are replaced and not merged.
	if changes*max(longest, longestOld) > maxPatchLookups {
		return nil, nil, patchTooLarge()
	}
	merged, err := mergeByTags(document, members, schema)
	if err != nil {
		return nil, nil, strategicError(err)
	}
	// a patch cannot change them
	for name, own := range map[string]any{"kind": kind, "apiVersion": apiVersion} {
		if err := notStringError(merged[name]); err != nil {
			return nil, nil, Invalid(strategicPatch, body, nil, err)
		}
		merged[name] = own
	}
	typed = reflect.New(reflect.TypeOf(schema)).Interface()
	err = bounded.FromUnstructured(merged, typed, true)
	if unknown, ok := runtime.AsStrictDecodingError(err); ok {
		strictErrs = append(strictErrs, unknown.Errors()...)
	} else if bounded.IsTooLarge(err) {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(err.Error())
	} else if err != nil {
		return nil, nil, Invalid(strategicPatch, body, nil, err)
	}
	return typed, strictErrs, nil
}

// notStringError returns the error of the library's converter for a value that must be a string.
func notStringError(value any) error {
	switch value.(type) {
	case nil, string:
		return nil
	case map[string]any, []any:
		return errors.New("unrecognized type: string")
	}
	return fmt.Errorf("cannot convert %T to string", value)
}

// mergeByTags recovers panics of the library, which compares merge keys with ==, although a key
// may be a list.
func mergeByTags(document, members map[string]any, schema any) (merged map[string]any, err error) {
	defer func() {
		if recover() != nil {
			err = mergepatch.ErrUnsupportedStrategicMergePatchFormat
		}
	}()
	return strategicpatch.StrategicMergeMapPatch(document, members, schema)
}

// countElements returns the number of elements of all lists in value and the length of the
// longest list.
func countElements(value any) (all, longest int) {
	var inner []any
	switch value := value.(type) {
	case []any:
		inner, all, longest = value, len(value), len(value)
	case map[string]any:
		for _, member := range value {
			inner = append(inner, member)
		}
	}
	for _, value := range inner {
		count, length := countElements(value)
		all, longest = all+count, max(longest, length)
	}
	return all, longest
}

func strategicError(err error) error {
	switch err {
	case mergepatch.ErrBadJSONDoc, mergepatch.ErrBadPatchFormatForPrimitiveList, mergepatch.ErrBadPatchFormatForRetainKeys,
		mergepatch.ErrBadPatchFormatForSetElementOrderList, mergepatch.ErrUnsupportedStrategicMergePatchFormat:
		return apierrors.NewBadRequest(err.Error())
	case mergepatch.ErrNoListOfLists, mergepatch.ErrPatchContentNotMatchRetainKeys:
		return patchFailed()
	}
	return apierror.New(http.StatusInternalServerError, "", err.Error()) // as in kube-apiserver
}
