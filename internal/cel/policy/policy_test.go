package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/discovery"
	"apilet/internal/fieldmanager"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// inForce is what is in force with these policies, each bound once, to all that it matches.
func inForce(t testing.TB, validating, mutating []*policy) *Policies {
	t.Helper()
	p := &Policies{Types: scheme.NewRegistry(), Defaults: func(*scheme.Resource, scheme.Object) error { return nil },
		Authorize: func(request.User, request.Info) (bool, string) { return true, "" }}
	p.FieldManager = func(res *scheme.Resource) *fieldmanager.Manager {
		return &fieldmanager.Manager{Kind: res.GroupVersionKind(), GoType: res.GoType}
	}
	p.programs = map[string]*programs{}
	for i, one := range slices.Concat(validating, mutating) {
		one.programs = &programs{}
		one.constraints = matcherOf(&admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{"*"}, Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}})
		one.bindings = []*binding{{name: one.name, actions: []admissionv1.ValidationAction{admissionv1.Deny}}}
		p.programs[fmt.Sprint(i)] = one.programs
	}
	p.current.Store(&set{validating: validating, mutating: mutating})
	return p
}

func denies(name string, expressions ...string) *policy {
	p := &policy{name: name}
	for _, text := range expressions {
		p.validations = append(p.validations, admissionv1.Validation{Expression: text})
	}
	return p
}

func mutates(name, kind, text string) *policy {
	m := admissionv1.Mutation{PatchType: admissionv1.PatchTypeApplyConfiguration, ApplyConfiguration: &admissionv1.ApplyConfiguration{Expression: text}}
	if kind == "JSONPatch" {
		m = admissionv1.Mutation{PatchType: admissionv1.PatchTypeJSONPatch, JSONPatch: &admissionv1.JSONPatch{Expression: text}}
	}
	return &policy{name: name, mutations: []admissionv1.Mutation{m}, reinvocable: true}
}

// podWrite creates a pod of some size, in no namespace, so that no store is needed.
func podWrite(p *Policies) *Write {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "web"}}}
	for i := range 3 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i), Image: "registry.example.com/app:v1",
			Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}}, Ports: []corev1.ContainerPort{{ContainerPort: 80}}})
	}
	return &Write{Resource: p.Types.Lookup("", "v1", "pods"), Operation: "CREATE", Name: "a", Options: &metav1.CreateOptions{}, Object: pod, Request: &request.Request{}}
}

func TestProgramsAreLetGoWhenIdle(t *testing.T) {
	judge := denies("a", "object.metadata.name == 'a'")
	p := inForce(t, []*policy{judge}, nil)
	if judge.programs.ready != nil {
		t.Error("compiled before its first use")
	}
	if err := p.Validate(t.Context(), podWrite(p)); err != nil || judge.programs.ready == nil {
		t.Fatalf("got %v, programs %v", err, judge.programs.ready)
	}
	p.forget(time.Now())
	if judge.programs.ready == nil {
		t.Error("let go while in use")
	}
	p.forget(time.Now().Add(2 * programsIdle))
	if judge.programs.ready != nil {
		t.Error("kept while idle")
	}
	if err := p.Validate(t.Context(), podWrite(p)); err != nil {
		t.Error("compiled again:", err)
	}
}

func TestCostHasABound(t *testing.T) {
	nested := "true"
	for i := range 8 {
		nested = fmt.Sprintf("[1,2,3,4,5,6,7,8,9,10].all(x%d, %s)", i, nested)
	}
	for name, dear := range map[string]*policy{
		"an expression":       denies("dear", nested),
		"a variable":          {name: "dear", variables: []admissionv1.Variable{{Name: "v", Expression: nested}}, validations: []admissionv1.Validation{{Expression: "variables.v"}}},
		"a messageExpression": {name: "dear", validations: []admissionv1.Validation{{Expression: "false", MessageExpression: "string(" + nested + ")"}}},
		"a condition":         {name: "dear", conditions: []admissionv1.MatchCondition{{Name: "c", Expression: nested}}, validations: []admissionv1.Validation{{Expression: "true"}}},
	} {
		p := inForce(t, []*policy{dear}, nil)
		if err := p.Validate(t.Context(), podWrite(p)); !apierrors.IsInvalid(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAContextThatEndsEndsTheAsking(t *testing.T) {
	p := inForce(t, []*policy{denies("a", "true")}, []*policy{mutates("b", "", "Object{}")})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Validate(ctx, podWrite(p)); !errors.Is(err, context.Canceled) {
		t.Errorf("validating: %v", err)
	}
	if _, err := p.Mutate(ctx, podWrite(p), &ReinvocationState{}); !errors.Is(err, context.Canceled) {
		t.Errorf("mutating: %v", err)
	}
}

func TestMutationsAreAskedAgain(t *testing.T) {
	count := mutates("count", "JSONPatch", "[JSONPatch{op: 'add', path: '/metadata/labels/seen', value: object.metadata.labels['app']}]")
	p := inForce(t, nil, []*policy{count})
	w, rounds := podWrite(p), &ReinvocationState{}
	if changed, err := p.Mutate(t.Context(), w, rounds); err != nil || !changed || w.Object.GetLabels()["seen"] != "web" {
		t.Fatalf("first: %v, %v, %v", changed, err, w.Object.GetLabels())
	}
	if changed, err := p.Mutate(t.Context(), w, rounds); err != nil || changed {
		t.Errorf("nothing has changed since: %v, %v", changed, err)
	}
	labels := w.Object.GetLabels()
	labels["app"] = "other"
	w.Object.SetLabels(labels)
	again := &ReinvocationState{passes: 1, seen: rounds.seen, last: podWrite(p).Object}
	if changed, err := p.Mutate(t.Context(), w, again); err != nil || !changed || w.Object.GetLabels()["seen"] != "other" {
		t.Errorf("changed since: %v, %v, %v", changed, err, w.Object.GetLabels())
	}
}

func TestTypesAreChecked(t *testing.T) {
	c := &TypeChecker{Types: scheme.NewRegistry(), Schemas: discovery.KindSchemas}
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	policy.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
		Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments", "statefulsets", "*/scale"}}}}}}
	policy.Spec.Variables = []admissionv1.Variable{{Name: "n", Expression: "object.spec.replicas"}}
	for _, text := range []string{"object.spec.replicas > 1", "object.spec.replica > 1", "variables.n == 'a'", "object.spec.strategy.type == 'x'", "object.metadata.labels.all(k, k != '')"} {
		policy.Spec.Validations = append(policy.Spec.Validations, admissionv1.Validation{Expression: text})
	}
	var got []string
	for _, w := range c.check(policy) {
		for line := range strings.Lines(w.Warning) {
			if strings.Contains(line, "ERROR") {
				got = append(got, w.FieldRef+" "+strings.TrimSpace(line))
			}
		}
	}
	want := []string{
		"spec.validations[1].expression apps/v1, Kind=Deployment: ERROR: <input>:1:12: undefined field 'replica'",
		"spec.validations[1].expression apps/v1, Kind=StatefulSet: ERROR: <input>:1:12: undefined field 'replica'",
		"spec.validations[2].expression apps/v1, Kind=Deployment: ERROR: <input>:1:13: found no matching overload for '_==_' applied to '(int, string)'",
		"spec.validations[2].expression apps/v1, Kind=StatefulSet: ERROR: <input>:1:13: found no matching overload for '_==_' applied to '(int, string)'",
		"spec.validations[3].expression apps/v1, Kind=StatefulSet: ERROR: <input>:1:12: undefined field 'strategy'",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// BenchmarkTenPolicies: what judging costs a write; none is the atomic load that a write pays without any.
func BenchmarkTenPolicies(b *testing.B) {
	one := []string{"has(object.metadata.labels) && 'app' in object.metadata.labels"}
	three := append(one, "object.spec.containers.all(c, c.image.startsWith('registry.example.com/'))", "request.operation == 'CREATE'")
	for _, c := range []struct {
		policies    int
		expressions []string
	}{{0, nil}, {1, one}, {10, one}, {10, three}} {
		n := c.policies
		b.Run(fmt.Sprintf("%dx%d", n, len(c.expressions)), func(b *testing.B) {
			var judges []*policy
			for i := range n {
				judges = append(judges, denies(fmt.Sprint("p", i), c.expressions...))
			}
			p := inForce(b, judges, nil)
			if n == 0 {
				p.current.Store(nil)
			}
			w := podWrite(p)
			if err := p.Validate(b.Context(), w); n > 0 && err != nil { // compiles
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if p.HasValidating() {
					if err := p.Validate(b.Context(), w); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
