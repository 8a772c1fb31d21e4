package options

// This file sets the version of Kubernetes that the server emulates, and Kubernetes' feature gates.
// Kubernetes' packages read both. They belong to the process.

import (
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	basecompatibility "k8s.io/component-base/compatibility"
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

// SetFeatureGates sets the emulated version and the feature gates of the process from
// --emulated-version and --feature-gates. The caller must do so before anything reads them.
func (o *Options) SetFeatureGates() error {
	gates := FeatureGates()
	if err := setVersion(compatibility.DefaultComponentGlobalsRegistry, o.EmulatedVersion); err != nil {
		return err
	}
	return setGates(gates, o.FeatureGates)
}

// setVersion sets the version that the components emulate from elements of the form 1.36 or
// kube=1.36, and sets their feature gates to the defaults of that version. The errors are
// kube-apiserver's.
func setVersion(components basecompatibility.ComponentGlobalsRegistry, emulated []string) error {
	if len(emulated) == 0 {
		return nil
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	components.AddFlags(flags)
	err := flags.Set("emulated-version", strings.Join(emulated, ","))
	if err == nil {
		err = components.Set()
	}
	if err == nil {
		err = utilerrors.NewAggregate(components.Validate())
	}
	if err != nil {
		return fmt.Errorf("--emulated-version: %w", err)
	}
	return nil
}

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
