package options

// This file sets Kubernetes' feature gates, which Kubernetes' packages read. They belong to the process.

import (
	"fmt"
	"strings"
	"sync"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	managerfeatures "k8s.io/controller-manager/pkg/features"
	_ "k8s.io/kubernetes/pkg/features" // kube-apiserver's gates
)

// FeatureGates returns the feature gates of kube-apiserver.
var FeatureGates = sync.OnceValue(func() featuregate.MutableVersionedFeatureGate {
	gates := utilfeature.DefaultMutableFeatureGate
	utilruntime.Must(logsapi.AddFeatureGates(gates))
	utilruntime.Must(metricsfeatures.AddFeatureGates(gates))
	utilruntime.Must(managerfeatures.SetupCurrentKubernetesSpecificFeatureGates(gates))
	return gates
})

// SetFeatureGates sets the feature gates of the process from --feature-gates. The caller must do so
// before anything reads them.
func (o *Options) SetFeatureGates() error { return setGates(FeatureGates(), o.FeatureGates) }

// setGates sets gates from elements of the form GATE=true or kube:GATE=true.
func setGates(gates featuregate.MutableFeatureGate, flag []string) error {
	if len(flag) == 0 {
		return nil
	}
	values := make([]string, len(flag))
	for i, gate := range flag {
		component, value, found := strings.Cut(gate, ":")
		switch {
		case !found:
			value = gate
		case component != "kube":
			return fmt.Errorf("--feature-gates: component not registered: %s", component)
		}
		values[i] = value
	}
	if err := gates.Set(strings.Join(values, ",")); err != nil {
		return fmt.Errorf("--feature-gates: %w", err)
	}
	return nil
}
