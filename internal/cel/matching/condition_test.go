package matching

import (
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/cel/environment"
)

func TestConditionsHaveABudget(t *testing.T) {
	c, err := Compile("object.all(k, k != 'x')", (*environment.EnvSet).NewExpressionsEnv)
	if err != nil {
		t.Fatal(err)
	}
	variables := map[string]any{"object": map[string]any{"a": 1, "b": 2}}
	budget := int64(1000)
	if ok, err := c.eval(t.Context(), variables, &budget); !ok || err != nil || budget >= 1000 {
		t.Errorf("got %v, %v, and %d is left of 1000", ok, err, budget)
	}
	budget = 1
	if _, err := c.eval(t.Context(), variables, &budget); !errors.Is(err, errOutOfBudget) {
		t.Errorf("with a budget of 1: %v", err)
	}
}
