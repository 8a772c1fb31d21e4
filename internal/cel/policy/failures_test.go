package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/corrupt"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// stored opens a store for p that has some documents, by their keys.
func stored(t *testing.T, p *Policies, docs map[string]string) *store.Store {
	t.Helper()
	st, err := store.Open("", store.Options{Ephemeral: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	for key, doc := range docs {
		const field = `"resourceVersion":"`
		if _, err := st.Commit(t.Context(), store.Change{Op: store.OpCreate, Key: key, JSON: []byte(doc), RevAt: strings.Index(doc, field) + len(field)}); err != nil {
			t.Fatal(err)
		}
	}
	p.Store = st
	return st
}

const (
	meta      = `"metadata":{"name":"a","resourceVersion":""}`
	plainDoc  = `{` + meta + `}`
	brokenDoc = `{` + meta + `]`
)

var brokenSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Bad"}}}

// writeIn is podWrite in a namespace.
func writeIn(p *Policies, namespace string) *Write {
	w := podWrite(p)
	w.Namespace = namespace
	return w
}

// outcome is "" for a write that passes, or the code and the message of the refusal.
func outcome(err error) string {
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return ""
	case errors.As(err, &status):
		return fmt.Sprint(status.Status().Code, " ", status.Status().Message)
	}
	return err.Error()
}

// TestWhatCannotBeEvaluatedIsRefused, whatever the actions of the binding are, unless the policy
// has failurePolicy Ignore.
func TestWhatCannotBeEvaluatedIsRefused(t *testing.T) {
	t.Parallel()
	deny, allow := admissionv1.DenyAction, admissionv1.AllowAction
	configMaps := &admissionv1.ParamKind{APIVersion: "v1", Kind: "ConfigMap"}
	nodes := &admissionv1.ParamKind{APIVersion: "v1", Kind: "Node"}
	named := func(name, namespace string, missing admissionv1.ParameterNotFoundActionType) func(*policy) {
		return func(p *policy) {
			p.bindings[0].params = &admissionv1.ParamRef{Name: name, Namespace: namespace, ParameterNotFoundAction: &missing}
		}
	}
	selected := func(selector *metav1.LabelSelector) func(*policy) {
		return func(p *policy) {
			p.bindings[0].params = &admissionv1.ParamRef{Selector: selector, Namespace: "shop", ParameterNotFoundAction: &deny}
		}
	}
	warnOnly := func(p *policy) { p.bindings[0].actions = []admissionv1.ValidationAction{admissionv1.Warn} }
	for name, c := range map[string]struct {
		policy    policy
		change    func(*policy)
		namespace string
		want      string // in the refusal; "": it passes
		anyway    bool   // also with Ignore
	}{
		"does not compile":           {policy: *denies("p", "object.name("), want: "422 .*ValidatingAdmissionPolicy 'p' with binding 'p' denied request: compilation error"},
		"fails":                      {policy: *denies("p", "object.spec.none == 1"), want: "422 .*no such key"},
		"variable does not compile":  {policy: policy{name: "p", variables: []admissionv1.Variable{{Name: "v", Expression: "1 +"}}, validations: []admissionv1.Validation{{Expression: "variables.v == 1"}}}, want: "422 "},
		"constraints cannot be read": {policy: *denies("p", "true"), change: func(p *policy) { p.constraints.broken = errors.New("odd") }, want: "422 .*failed to configure policy: odd"},
		"binding cannot be read": {policy: *denies("p", "true"), change: func(p *policy) {
			p.bindings[0].matches = matcherOf(&admissionv1.MatchResources{ObjectSelector: brokenSelector})
		}, want: "422 .*failed to configure binding"},
		"params of an unknown type":       {policy: policy{name: "p", paramKind: &admissionv1.ParamKind{APIVersion: "g/v1", Kind: "Gone"}}, want: "422 .*failed to find resource referenced by paramKind"},
		"params are missing, Deny":        {policy: policy{name: "p", paramKind: configMaps}, change: named("none", "shop", deny), want: "422 .*no params found"},
		"params are missing, Allow":       {policy: policy{name: "p", paramKind: configMaps, validations: []admissionv1.Validation{{Expression: "false"}}}, change: named("none", "shop", allow)},
		"params cannot be read":           {policy: policy{name: "p", paramKind: configMaps}, change: named("broken", "shop", allow), want: "422 .*failed to configure binding"},
		"params in no namespace":          {policy: policy{name: "p", paramKind: configMaps}, change: named("a", "", allow), want: "422 .*cannot use namespaced paramRef"},
		"params in a namespace too many":  {policy: policy{name: "p", paramKind: nodes}, change: named("a", "shop", allow), want: "422 .*paramRef.namespace must not be provided"},
		"params by a broken selector":     {policy: policy{name: "p", paramKind: configMaps}, change: selected(brokenSelector), want: "422 .*failed to configure binding"},
		"one of several params is broken": {policy: policy{name: "p", paramKind: configMaps}, change: selected(&metav1.LabelSelector{}), want: "422 .*failed to configure binding"},
		"namespace is missing, selected": {policy: *denies("p", "true"), change: func(p *policy) {
			p.constraints = matcherOf(&admissionv1.MatchResources{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}})
		}, namespace: "gone", want: `422 .*namespaces "gone" not found`},
		"namespace is missing":      {policy: *denies("p", "true"), namespace: "gone", want: `404 namespaces "gone" not found`, anyway: true},
		"condition fails":           {policy: policy{name: "p", conditions: []admissionv1.MatchCondition{{Name: "c", Expression: "object.spec.none == 1"}}}, want: "422 .*no such key"},
		"condition is false, too":   {policy: policy{name: "p", conditions: []admissionv1.MatchCondition{{Name: "c", Expression: "object.spec.none == 1"}, {Name: "d", Expression: "false"}}, validations: []admissionv1.Validation{{Expression: "false"}}}},
		"annotation fails":          {policy: policy{name: "p", annotations: []admissionv1.AuditAnnotation{{Key: "k", ValueExpression: "string(object.spec.none)"}}}, change: warnOnly, want: "422 .*no such key"},
		"fails, is to be warned of": {policy: *denies("p", "object.spec.none == 1"), change: warnOnly},
	} {
		for _, ignore := range []bool{false, true} {
			one := c.policy
			one.failsOpen = ignore
			p := inForce(t, []*policy{&one}, nil)
			stored(t, p, map[string]string{"//configmaps/shop/a": plainDoc, "//configmaps/shop/broken": brokenDoc})
			if c.change != nil {
				c.change(&one)
			}
			want := c.want
			if ignore && !c.anyway {
				want = ""
			}
			got := outcome(p.Validate(t.Context(), writeIn(p, c.namespace)))
			code, text, _ := strings.Cut(want, ".*")
			if (got == "") != (want == "") || !strings.HasPrefix(got, code) || !strings.Contains(got, text) {
				t.Errorf("%s, Ignore %v: got %q, want %q", name, ignore, got, want)
			}
		}
	}
}

// TestReasonsHaveTheirCodes checks that a validation's reason decides the status code, and that the
// first refusal is the answer.
func TestReasonsHaveTheirCodes(t *testing.T) {
	t.Parallel()
	for reason, code := range map[metav1.StatusReason]int32{"": 422, metav1.StatusReasonInvalid: 422, metav1.StatusReasonForbidden: 403,
		metav1.StatusReasonUnauthorized: 401, metav1.StatusReasonRequestEntityTooLarge: 413} {
		first := denies("first", "false")
		if reason != "" {
			first.validations[0].Reason = &reason
		}
		p := inForce(t, []*policy{first, denies("second", "false")}, nil)
		var status apierrors.APIStatus
		if err := p.Validate(t.Context(), podWrite(p)); !errors.As(err, &status) || status.Status().Code != code || !strings.Contains(err.Error(), "'first'") {
			t.Errorf("%q: got %v, want %d", reason, err, code)
		}
	}
}

// TestNoPolicyIsAskedAfterTheRequestEnds: the first policy's expression ends the request, here by
// way of the authorizer. The others are not asked.
func TestNoPolicyIsAskedAfterTheRequestEnds(t *testing.T) {
	t.Parallel()
	const asks = "authorizer.path('/x').check('get').allowed()"
	for name, ask := range map[string]func(ctx context.Context, p *Policies) error{
		"validating": func(ctx context.Context, p *Policies) error { return p.Validate(ctx, podWrite(p)) },
		"mutating": func(ctx context.Context, p *Policies) error {
			_, err := p.Mutate(ctx, podWrite(p), &ReinvocationState{})
			return err
		},
	} {
		mutation := "Object{metadata: Object.metadata{labels: {'a': string(" + asks + ")}}}"
		p := inForce(t, []*policy{denies("a", asks), denies("b", asks)}, []*policy{mutates("a", "", mutation), mutates("b", "", mutation)})
		ctx, cancel := context.WithCancel(t.Context())
		asked := 0
		p.Authorize = func(request.User, request.Info) (bool, string) {
			asked++
			cancel()
			return true, ""
		}
		if err := ask(ctx, p); !errors.Is(err, context.Canceled) || asked != 1 {
			t.Errorf("%s: %d policies were asked, got %v", name, asked, err)
		}
	}
}

// TestMutationsThatCannotBeMadeAreRefused, and leave the object as it was. With Ignore the write
// continues without them, unless what they made is no object of its type: then the write is refused
// in any case.
func TestMutationsThatCannotBeMadeAreRefused(t *testing.T) {
	t.Parallel()
	patch := func(steps string) policy { return *mutates("p", "JSONPatch", "["+steps+"]") }
	apply := func(text string) policy { return *mutates("p", "", text) }
	for name, c := range map[string]struct {
		policy policy
		change func(*policy)
		want   string
		anyway bool
	}{
		"does not compile":          {policy: apply("Object{"), want: "403 policy 'p' with binding 'p' denied request: "},
		"fails":                     {policy: apply("Object{metadata: Object.metadata{name: object.spec.none}}"), want: "403 .*no such key"},
		"no object":                 {policy: apply("object"), want: "403 "},
		"a field of another object": {policy: apply("Object{metadata: Object.spec{}}"), want: "403 .*type mismatch"},
		"not a list of steps":       {policy: *mutates("p", "JSONPatch", "object"), want: "403 "},
		"another object in a step":  {policy: patch("JSONPatch{op: 'add', path: '/spec', value: Object.metadata{labels: Object.spec{}}}"), want: "403 .*type mismatch"},
		"no JSON in a step":         {policy: patch("JSONPatch{op: 'add', path: '/metadata/labels/x', value: type(1)}"), want: "403 .*could not marshal to JSON"},
		"add, no such place":        {policy: patch("JSONPatch{op: 'add', path: '/a/b', value: 1}"), want: `403 .*add operation does not apply: doc is missing path: "/a/b"`},
		"remove, no such place":     {policy: patch("JSONPatch{op: 'remove', path: '/a'}"), want: `403 .*remove operation does not apply: doc is missing path: "/a"`},
		"replace, no such element":  {policy: patch("JSONPatch{op: 'replace', path: '/spec/containers/9', value: 1}"), want: `403 .*replace operation does not apply: doc is missing key: /spec/containers/9`},
		"move, no such place":       {policy: patch("JSONPatch{op: 'move', from: '/a', path: '/b'}"), want: `403 .*move operation does not apply: doc is missing from path: /a`},
		"copy, from nowhere":        {policy: patch("JSONPatch{op: 'copy', path: '/b'}"), want: `403 .*copy operation does not apply`},
		"unknown operation":         {policy: patch("JSONPatch{op: 'steal', path: '/metadata'}"), want: `403 .*Unexpected kind: steal`},
		"a later step fails":        {policy: patch("JSONPatch{op: 'replace', path: '/metadata/name', value: 'b'}, JSONPatch{op: 'remove', path: '/a'}"), want: "403 "},
		"unknown field":             {policy: patch("JSONPatch{op: 'add', path: '/spec/unknown', value: 1}"), want: "500 .*unknown field", anyway: true},
		"a field of another type":   {policy: patch("JSONPatch{op: 'replace', path: '/spec', value: 'x'}"), want: "500 ", anyway: true},
		"another kind":              {policy: patch("JSONPatch{op: 'replace', path: '/kind', value: 'Secret'}"), want: "500 ", anyway: true},
		"not an object":             {policy: patch("JSONPatch{op: 'replace', path: '', value: 'x'}"), want: "403 "},
		"a test that fails":         {policy: patch("JSONPatch{op: 'replace', path: '/metadata/name', value: 'b'}, JSONPatch{op: 'test', path: '/metadata/name', value: 'c'}")},
		"constraints cannot be read": {policy: apply("Object{}"), change: func(p *policy) { p.constraints.broken = errors.New("odd") },
			want: `403 policy "p" denied request: failed to configure policy: odd`},
		"params of an unknown type": {policy: policy{name: "p", paramKind: &admissionv1.ParamKind{APIVersion: "g/v1", Kind: "Gone"}}, want: "403 .*failed to configure policy"},
		"params are missing": {policy: policy{name: "p", paramKind: &admissionv1.ParamKind{APIVersion: "v1", Kind: "Node"}}, change: func(p *policy) {
			deny := admissionv1.DenyAction
			p.bindings[0].params = &admissionv1.ParamRef{Name: "none", ParameterNotFoundAction: &deny}
		}, want: "403 .*failed to configure binding: no params found"},
		"condition fails": {policy: policy{name: "p", conditions: []admissionv1.MatchCondition{{Name: "c", Expression: "object.spec.none == 1"}}}, want: "403 .*no such key"},
	} {
		for _, ignore := range []bool{false, true} {
			one := c.policy
			one.failsOpen = ignore
			p := inForce(t, nil, []*policy{&one})
			stored(t, p, nil)
			if c.change != nil {
				c.change(&one)
			}
			want := c.want
			if ignore && !c.anyway {
				want = ""
			}
			w := podWrite(p)
			before, _ := json.Marshal(w.Object)
			changed, err := p.Mutate(t.Context(), w, &ReinvocationState{})
			got := outcome(err)
			code, text, _ := strings.Cut(want, ".*")
			if changed || (got == "") != (want == "") || !strings.HasPrefix(got, code) || !strings.Contains(got, text) {
				t.Errorf("%s, Ignore %v: got %q, want %q, changed %v", name, ignore, got, want, changed)
			}
			if after, _ := json.Marshal(w.Object); !bytes.Equal(before, after) {
				t.Errorf("%s, Ignore %v: the object has become %s", name, ignore, after)
			}
		}
	}
}

// TestReloadKeepsWhatIsInForce when the store cannot be read. A policy that cannot be decoded is
// left out and noted, and hides no other.
func TestReloadKeepsWhatIsInForce(t *testing.T) {
	t.Parallel()
	const base = "/admissionregistration.k8s.io/"
	doc := func(name, spec string) string {
		return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":""},"spec":%s}`, name, spec)
	}
	const rules = `"matchConstraints":{"resourceRules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["*"],"resources":["pods"]}]}`
	p := inForce(t, nil, nil)
	st := stored(t, p, map[string]string{
		base + "validatingadmissionpolicies//broken":        brokenDoc,
		base + "validatingadmissionpolicies//no":            doc("no", `{`+rules+`,"validations":[{"expression":"false"}]}`),
		base + "validatingadmissionpolicies//unbound":       doc("unbound", `{`+rules+`,"validations":[{"expression":"false"}]}`),
		base + "validatingadmissionpolicybindings//b":       doc("b", `{"policyName":"broken","validationActions":["Deny"]}`),
		base + "validatingadmissionpolicybindings//n":       doc("n", `{"policyName":"no","validationActions":["Deny"]}`),
		base + "validatingadmissionpolicybindings//x":       brokenDoc,
		base + "mutatingadmissionpolicies//label":           doc("label", `{`+rules+`,"mutations":[{"patchType":"ApplyConfiguration","applyConfiguration":{"expression":"Object{metadata: Object.metadata{labels: {'a': 'b'}}}"}}],"reinvocationPolicy":"Never"}`),
		base + "mutatingadmissionpolicybindings//l":         doc("l", `{"policyName":"label"}`),
		base + "mutatingadmissionpolicybindings//elsewhere": doc("elsewhere", `{"policyName":"gone"}`),
	})
	p.Corrupt = corrupt.NewObjects(st, zerolog.Nop())
	p.Types, p.programs = scheme.NewRegistry(), nil
	p.OnCommit(p.Types.Lookup("", "v1", "pods"))
	if set := p.current.Load(); len(set.validating)+len(set.mutating) != 0 {
		t.Error("a write to something else brought policies into force")
	}
	check := func(when string) {
		t.Helper()
		w := podWrite(p)
		if changed, err := p.Mutate(t.Context(), w, &ReinvocationState{}); err != nil || !changed || w.Object.(*corev1.Pod).Labels["a"] != "b" {
			t.Errorf("%s: mutating: %v, %v", when, changed, err)
		}
		if err := p.Validate(t.Context(), w); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'no' with binding 'n'") {
			t.Errorf("%s: validating: %v", when, err)
		}
	}
	p.Reload()
	check("after a reload")
	compiled := p.programs["validatingadmissionpolicies/no"].ready
	if p.Reload(); p.programs["validatingadmissionpolicies/no"].ready != compiled || compiled == nil {
		t.Error("a policy that has not changed was compiled anew")
	}
	if n := p.Corrupt.Count(); n != 2 {
		t.Errorf("%d objects are noted as unreadable, want 2", n)
	}
	st.Close()
	p.Reload()
	check("after a reload that failed")
	if p.programs["validatingadmissionpolicies/no"].ready != compiled {
		t.Error("the programs are lost after a reload that failed")
	}
}
