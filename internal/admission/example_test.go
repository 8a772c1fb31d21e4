package admission_test

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/admission"
	"apilet/internal/request"
	"apilet/internal/scheme"
)

// A plug-in is a row: whom it concerns, what it changes, what it refuses. The chain asks it about those writes alone.
func ExampleChain() {
	chain := admission.NewChain([]admission.Plugin{{
		Name: "Labels", Resources: []string{"configmaps"}, Operations: []string{admission.OpCreate},
		Admit: func(_ context.Context, a *admission.Attributes) error {
			a.Object.SetLabels(map[string]string{"by": a.Request.User.Name})
			return nil
		},
		Validate: func(_ context.Context, a *admission.Attributes) error {
			if a.Request.User.Name == "mallory" {
				return a.Forbidden(errors.New("not you"))
			}
			return nil
		},
	}}, map[string]bool{"Labels": true})
	for _, user := range []string{"alice", "mallory"} {
		ctx := context.Background()
		a := admission.Attributes{Resource: scheme.NewRegistry().Lookup("", "v1", "configmaps"), Operation: admission.OpCreate, Request: &request.Request{User: request.User{Name: user}},
			Object: &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "shop"}}}
		obj, err := chain.Admit(ctx, a)
		if err != nil {
			fmt.Println(err)
			continue
		}
		a.Object = obj
		fmt.Println(obj.GetLabels(), chain.Validate(ctx, a))
	}
	// Output:
	// map[by:alice] <nil>
	// map[by:mallory] configmaps "a" is forbidden: not you
}
