package torture

// This file implements the workload, which simulates the actions of users while the controller is
// running. It is a file of YAML documents, played in order. If a document has a kind, it is an
// object that is applied using server-side apply with force. Otherwise, the document is a step:
//
//	quiet: true                                                       wait until the controller is quiet
//	wait: {apiVersion: v1, kind: ConfigMap, namespace: shop, name: web, until: "object.data.ready == 'true'"}
//	patch: {apiVersion: apps/v1, kind: Deployment, namespace: shop, name: web, subresource: status, with: {status: {readyReplicas: 1}}}
//	delete: {apiVersion: v1, kind: ConfigMap, namespace: shop, name: web}
//
// If the object of a step does not exist yet, the step is retried for some time, because a
// controller with injected faults is slower than usual.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/yaml"

	"apilet/internal/cel/celenv"
)

// A ref identifies an object.
type ref struct {
	APIVersion, Kind, Namespace, Name string
}

func (r ref) String() string {
	return strings.TrimSpace(r.Kind + " " + strings.TrimPrefix(r.Namespace+"/"+r.Name, "/"))
}

// A step is either an action by a user or a condition to wait for.
type step struct {
	object json.RawMessage // the object to apply
	ref    ref             // the object that the step is about

	Quiet bool
	Wait  *struct {
		ref   `json:",inline"`
		Until string // a CEL expression about object; if "", the step waits until the object exists
	}
	Patch *struct {
		ref         `json:",inline"`
		Subresource string
		With        json.RawMessage // a merge patch
	}
	Delete *ref

	until cel.Program
}

// String describes the step for error messages.
func (s *step) String() string {
	switch {
	case s.Quiet:
		return "quiet"
	case s.Wait != nil:
		return "wait for " + s.ref.String()
	case s.Patch != nil:
		return "patch " + s.ref.String()
	case s.Delete != nil:
		return "delete " + s.ref.String()
	}
	return "apply " + s.ref.String()
}

// readWorkload reads the steps of a file. An invalid document is an error.
func readWorkload(path string) ([]step, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var steps []step
	for docs, n := yaml.NewYAMLToJSONDecoder(file), 1; ; n++ {
		var raw json.RawMessage
		if err := docs.Decode(&raw); err != nil {
			if errors.Is(err, io.EOF) {
				return steps, nil
			}
			return nil, fmt.Errorf("%s, document %d: %w", path, n, err)
		}
		if len(raw) == 0 || string(raw) == "null" {
			continue
		}
		s, err := parseStep(raw)
		if err != nil {
			return nil, fmt.Errorf("%s, document %d: %w", path, n, err)
		}
		steps = append(steps, *s)
	}
}

func parseStep(raw json.RawMessage) (*step, error) {
	var head struct {
		APIVersion, Kind string
		Metadata         struct{ Name, Namespace string }
	}
	if err := json.Unmarshal(raw, &head); err != nil {
		return nil, err
	}
	if head.Kind != "" {
		if head.APIVersion == "" || head.Metadata.Name == "" {
			return nil, errors.New("an object needs apiVersion, kind and metadata.name")
		}
		return &step{object: raw, ref: ref{head.APIVersion, head.Kind, head.Metadata.Namespace, head.Metadata.Name}}, nil
	}
	s := &step{}
	strict := json.NewDecoder(bytes.NewReader(raw))
	strict.DisallowUnknownFields()
	if err := strict.Decode(s); err != nil {
		return nil, fmt.Errorf("neither an object nor a step (quiet, wait, patch, delete): %w", err)
	}
	said := 0
	if s.Quiet {
		said++
	}
	if s.Wait != nil {
		said++
		s.ref = s.Wait.ref
	}
	if s.Patch != nil {
		said++
		s.ref = s.Patch.ref
	}
	if s.Delete != nil {
		said++
		s.ref = *s.Delete
	}
	switch {
	case said != 1:
		return nil, errors.New("a step is one of quiet, wait, patch and delete")
	case !s.Quiet && (s.ref.APIVersion == "" || s.ref.Kind == "" || s.ref.Name == ""):
		return nil, errors.New("a step needs apiVersion, kind and name of its object")
	case s.Wait != nil && s.Wait.Until != "":
		var err error
		s.until, err = compile(s.Wait.Until)
		return s, err
	}
	return s, nil
}

// compile compiles an expression about object and oldObject.
func compile(expression string) (cel.Program, error) {
	env, err := celenv.Base().NewExpressionsEnv().Extend(cel.Variable("object", cel.DynType), cel.Variable("oldObject", cel.DynType))
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("%q: %w", expression, issues.Err())
	}
	return env.Program(ast, cel.CostLimit(10_000_000))
}

// holds reports whether the expression is true for the given versions of an object. If it cannot be
// evaluated, for example because a field is missing, holds returns false.
func holds(p cel.Program, old, object any) bool {
	value, _, err := p.Eval(map[string]any{"object": object, "oldObject": old})
	if err != nil {
		return false
	}
	is, _ := value.Value().(bool)
	return is
}

const retryEvery = 20 * time.Millisecond

// play executes a step. It returns an error after the time limit, or when nobody returns true
// because all controllers have ended.
func (s *step) play(ctx context.Context, to *server, most time.Duration, nobody func() bool) (err error) {
	for end := time.Now().Add(most); ; {
		done := false
		if done, err = s.try(ctx, to); done {
			return nil
		}
		if time.Now().After(end) || ctx.Err() != nil || nobody() {
			if err == nil {
				err = errors.New("it was not created")
			}
			return fmt.Errorf("%s: %w", s, err)
		}
		select {
		case <-time.After(retryEvery):
		case <-ctx.Done():
		}
	}
}

// try performs a single attempt to execute the step, and reports whether it was successful.
func (s *step) try(ctx context.Context, to *server) (done bool, err error) {
	k, err := to.findKind(ctx, s.ref.APIVersion, s.ref.Kind)
	if err != nil {
		return false, err
	}
	path := k.path(s.ref.Namespace, s.ref.Name)
	var a answer
	switch {
	case s.Wait != nil:
		a, err = to.send(ctx, "GET", path, "", nil)
		if err == nil && a.code == 200 && s.until != nil {
			var object map[string]any
			_ = json.Unmarshal(a.body, &object) // an invalid object cannot satisfy the condition
			return holds(s.until, nil, object), nil
		}
	case s.Patch != nil:
		if s.Patch.Subresource != "" {
			path += "/" + s.Patch.Subresource
		}
		a, err = to.send(ctx, "PATCH", path, "application/merge-patch+json", s.Patch.With)
	case s.Delete != nil:
		a, err = to.send(ctx, "DELETE", path, "", nil)
	default:
		a, err = to.send(ctx, "PATCH", path+"?fieldManager=workload&force=true", "application/apply-patch+yaml", s.object)
	}
	if err == nil {
		err = a.failure()
	}
	return err == nil, err
}
