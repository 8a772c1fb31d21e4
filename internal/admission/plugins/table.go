// Package plugins contains the built-in admission plug-ins of kube-apiserver 1.37, with the same
// names, order and flags.
//
// This file contains the table of plug-ins. Each row specifies the writes handled by a plug-in.
// There is no cost for other writes. The functions are in the file named after the plug-in or its
// group. A row without functions is only needed because kube-apiserver's flags accept the name.
// Either there are no objects of the types that it checks, or there is nothing to check. The
// plug-ins in notImplemented are not implemented. Enabling one of them is an error, because the
// administrator would rely on it.
package plugins

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"apilet/internal/admission"
	"apilet/internal/request"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// Config contains the dependencies and settings of the plug-ins.
type Config struct {
	Store *store.Store     // for look-ups of other objects
	Types *scheme.Registry // resolves the kinds of owners
	// Authorize is the authorizer.
	Authorize func(u request.User, info request.Info) (allowed bool, reason string)
	Webhooks  *admission.Webhooks // implements the two webhook plug-ins
	Clock     func() time.Time    // used for rate limits; nil means time.Now

	// CreateNamespace creates a namespace on behalf of the server itself.
	CreateNamespace func(ctx context.Context, name string) error

	Configuration Configuration // from --admission-control-config-file

	Tolerations TolerationSeconds

	OnPodCheck func(PodCheck) // called with each result of PodSecurity; may be nil

	// A kube-controller-manager runs and removes finalizers.
	ControllerManager bool

	// Plug-ins implemented elsewhere. Only their functions are used; names, order and defaults are
	// defined by the table. A zero Plugin does nothing.
	ValidatingPolicy, MutatingPolicy admission.Plugin
}

// Configuration is a parsed AdmissionConfiguration. The zero value contains the defaults.
type Configuration struct {
	podSecurity   podSecurityConfig
	nodeSelectors map[string]string // of PodNodeSelector, by namespace
	tolerations   podTolerations
	eventLimits   []eventLimit
}

var (
	creates = []string{admission.OpCreate}
	updates = []string{admission.OpUpdate}
	writes  = []string{admission.OpCreate, admission.OpUpdate}

	pods   = []string{"pods"}
	claims = []string{"persistentvolumeclaims"}
)

// Table returns all plug-ins in the order of kube-apiserver.
func Table(c Config) []admission.Plugin {
	owners, provider := ownership{c.Authorize, c.Types}, namespaceProvisioner{c.Store, c.CreateNamespace}
	classes, signers, limits, accounts := classes{c.Store}, signers{c.Authorize}, limitRanger{c.Store}, accounts{c.Store}
	selectors := nodeSelectors{c.Store, c.Configuration.nodeSelectors}
	tolerated := tolerations{c.Store, c.Configuration.tolerations}
	nodes, standards := nodes{c.Store}, newPodStandards(c.Store, c.Configuration.podSecurity, c.OnPodCheck)
	return []admission.Plugin{
		{Name: "AlwaysAdmit"},
		{Name: "NamespaceAutoProvision", Operations: creates, Admit: provider.admit},
		{Name: "NamespaceLifecycle", EnabledByDefault: true, Operations: creates, Admit: namespaces{c.Store}.admit, OnlyWithOthers: true},
		{Name: "NamespaceExists"}, // the store rejects writes to missing namespaces
		{Name: "LimitPodHardAntiAffinityTopology", Resources: pods, Operations: writes, Validate: limitTopology},
		{Name: "LimitRanger", EnabledByDefault: true, Resources: pods, Operations: creates, Admit: limits.admit, Validate: limits.validatePod},
		{Name: "LimitRanger", EnabledByDefault: true, Resources: []string{"pods/resize"}, Operations: updates, Admit: limits.admit, Validate: limits.validatePod},
		{Name: "LimitRanger", EnabledByDefault: true, Resources: claims, Operations: writes, Validate: limits.validateClaim},
		{Name: "ServiceAccount", EnabledByDefault: true, Resources: pods, Operations: creates, Admit: accounts.admit, Validate: accounts.validate},
		{Name: "ServiceAccount", EnabledByDefault: true, Resources: []string{"pods/ephemeralcontainers"}, Operations: updates, Validate: accounts.validateEphemeral},
		{Name: "NodeRestriction", Resources: restrictedToNodes, Admit: restriction{c.Store, c.Authorize}.admit},
		{Name: "TaintNodesByCondition", EnabledByDefault: true, Resources: []string{"nodes"}, Operations: creates, Admit: taintNew},
		{Name: "AlwaysPullImages", Resources: pods, Operations: writes, Admit: pullAlways, Validate: validatePull},
		{Name: "ImagePolicyWebhook"},
		{Name: "PodSecurity", EnabledByDefault: true, Resources: []string{"pods", "pods/ephemeralcontainers", "pods/resize"}, Operations: writes, Validate: standards.validatePod},
		{Name: "PodSecurity", EnabledByDefault: true, Resources: podTemplates, Operations: writes, Validate: standards.validateTemplate},
		{Name: "PodSecurity", EnabledByDefault: true, Resources: []string{"namespaces"}, Operations: writes, Validate: standards.validateNamespace},
		{Name: "PodNodeSelector", Resources: pods, Operations: creates, Admit: selectors.admit, Validate: selectors.validate},
		{Name: "Priority", EnabledByDefault: true, Resources: pods, Operations: writes, Admit: classes.admitPriority},
		{Name: "Priority", EnabledByDefault: true, Resources: []string{"priorityclasses.scheduling.k8s.io"}, Operations: writes, Validate: classes.validatePriority},
		{Name: "DefaultTolerationSeconds", EnabledByDefault: true, Resources: pods, Operations: writes, Admit: c.Tolerations.admit},
		{Name: "PodTolerationRestriction", Resources: pods, Operations: writes, Admit: tolerated.admit, Validate: tolerated.validate},
		{Name: "EventRateLimit", Resources: []string{"events"}, Operations: writes, Validate: newEventLimiter(c.Configuration.eventLimits, c.Clock).validate},
		{Name: "ExtendedResourceToleration", Resources: pods, Operations: writes, Admit: tolerateExtended},
		{Name: "DefaultStorageClass", EnabledByDefault: true, Resources: claims, Operations: creates, Admit: classes.admitStorage},
		// In kube-apiserver, this plug-in is enabled by default.
		{Name: "StorageObjectInUseProtection", EnabledByDefault: c.ControllerManager, Resources: protectedResources, Operations: creates, Admit: protectInUse},
		{Name: "PodGroupProtection", EnabledByDefault: true},
		{Name: "OwnerReferencesPermissionEnforcement", Operations: writes, Validate: owners.validate},
		{Name: "PersistentVolumeClaimResize", EnabledByDefault: true, Resources: claims, Operations: updates, Validate: classes.validateResize},
		{Name: "RuntimeClass", EnabledByDefault: true, Resources: pods, Operations: creates, Admit: classes.admitRuntime, Validate: classes.validateRuntime},
		{Name: "CertificateApproval", EnabledByDefault: true, Resources: []string{"certificatesigningrequests.certificates.k8s.io/approval"}, Operations: updates, Validate: signers.approval},
		{Name: "CertificateSigning", EnabledByDefault: true, Resources: []string{"certificatesigningrequests.certificates.k8s.io/status"}, Operations: updates, Validate: signers.signing},
		{Name: "CertificateSigning", EnabledByDefault: true, Resources: []string{"podcertificaterequests.certificates.k8s.io/status"}, Operations: updates, Validate: signers.podSigning},
		{Name: "ClusterTrustBundleAttest", EnabledByDefault: true, Resources: []string{"clustertrustbundles.certificates.k8s.io"}, Operations: writes, Validate: signers.attest},
		{Name: "CertificateSubjectRestriction", EnabledByDefault: true, Resources: []string{"certificatesigningrequests.certificates.k8s.io"}, Operations: creates, Validate: restrictSubject},
		{Name: "DefaultIngressClass", EnabledByDefault: true, Resources: []string{"ingresses.networking.k8s.io"}, Operations: creates, Admit: classes.admitIngress},
		{Name: "DenyServiceExternalIPs", Resources: []string{"services"}, Operations: writes, Validate: denyExternalIPs},
		{Name: "PodTopologyLabels", EnabledByDefault: true, Resources: pods, Operations: creates, Admit: nodes.labelPod},
		{Name: "PodTopologyLabels", EnabledByDefault: true, Resources: []string{"pods/binding"}, Operations: creates, Admit: nodes.labelBinding},
		{Name: "NodeDeclaredFeatureValidator", EnabledByDefault: true},
		{Name: "PodResizeValidator", EnabledByDefault: true, Resources: []string{"pods/resize"}, Operations: updates, Validate: nodes.validateResize},

		{Name: "MutatingAdmissionPolicy", EnabledByDefault: true, Admit: c.MutatingPolicy.Admit, Idle: c.MutatingPolicy.Idle},
		{Name: "MutatingAdmissionWebhook", EnabledByDefault: true, Admit: c.Webhooks.Mutate, Idle: c.Webhooks.Idle},
		{Name: "ValidatingAdmissionPolicy", EnabledByDefault: true, Validate: c.ValidatingPolicy.Validate, Idle: c.ValidatingPolicy.Idle},
		{Name: "ValidatingAdmissionWebhook", EnabledByDefault: true, Validate: c.Webhooks.Validate, Idle: c.Webhooks.Idle},
		// This plug-in runs after the chain, because a charge must be released if the commit fails.
		{Name: "ResourceQuota", EnabledByDefault: true},
		{Name: "AlwaysDeny", Admit: denyAll, Validate: denyAll},
	}
}

// notImplemented lists plug-ins of kube-apiserver that are not implemented. They are off by default
// there.
var notImplemented = strings.Fields(`ImagePolicyWebhook`)

// Select returns the enabled plug-ins, given the defaults and the two flags. Its errors are those
// of kube-apiserver.
func Select(table []admission.Plugin, enable, disable []string) (on map[string]bool, err error) {
	on = map[string]bool{}
	known := map[string]bool{}
	for _, p := range table {
		known[p.Name], on[p.Name] = true, p.EnabledByDefault
	}
	for _, name := range disable {
		if !known[name] {
			err = cmp.Or(err, fmt.Errorf("disable-admission-plugins plugin %q is unknown", name))
		}
		on[name] = false
	}
	var both []string
	for _, name := range enable {
		switch {
		case !known[name]:
			err = cmp.Or(err, fmt.Errorf("enable-admission-plugins plugin %q is unknown", name))
		case slices.Contains(notImplemented, name):
			err = cmp.Or(err, fmt.Errorf("enable-admission-plugins plugin %q is one that apilet does not have", name))
		case slices.Contains(disable, name):
			both = append(both, name)
		}
		on[name] = true
	}
	if slices.Sort(both); len(both) > 0 {
		err = cmp.Or(err, fmt.Errorf("%v in enable-admission-plugins and disable-admission-plugins overlapped", slices.Compact(both)))
	}
	return on, err
}
