package health

const startHook = "poststarthook/"

// StartHooks returns one check for each of kube-apiserver's start hooks. It omits hooks that the
// server does not run, or that it runs after the start. defaults returns the error of creating the
// default objects.
func StartHooks(rbac, flowControl bool, defaults func() error) []Check {
	checks := AlwaysHealthy(startHook+"start-apiserver-admission-initializer", startHook+"generic-apiserver-start-informers",
		startHook+"start-apiextensions-informers", startHook+"start-apiextensions-controllers", startHook+"crd-informer-synced",
		startHook+"start-system-namespaces-controller", startHook+"storage-readiness", startHook+"apiservice-registration-controller",
		startHook+"kube-apiserver-autoregistration", "autoregister-completion")
	if rbac {
		checks = append(checks, AlwaysHealthy(startHook+"rbac/bootstrap-roles")...)
	}
	if flowControl {
		checks = append(checks, AlwaysHealthy(startHook+"priority-and-fairness-config-consumer", startHook+"priority-and-fairness-config-producer",
			startHook+"priority-and-fairness-filter")...)
	}
	for _, name := range []string{"scheduling/bootstrap-system-priority-classes", "bootstrap-controller", "start-kubernetes-service-cidr-controller"} {
		checks = append(checks, Check{Name: startHook + name, Err: defaults, WarnOnly: true})
	}
	return checks
}
