package plugins

import (
	"slices"
	"strings"
	"testing"

	"apilet/internal/admission"
)

// kubeOrder is kube-apiserver 1.37's AllOrderedPlugins; a star is on by default there.
const kubeOrder = `AlwaysAdmit NamespaceAutoProvision NamespaceLifecycle* NamespaceExists LimitPodHardAntiAffinityTopology LimitRanger* ServiceAccount*
	NodeRestriction TaintNodesByCondition* AlwaysPullImages ImagePolicyWebhook PodSecurity* PodNodeSelector Priority* DefaultTolerationSeconds*
	PodTolerationRestriction EventRateLimit ExtendedResourceToleration DefaultStorageClass* StorageObjectInUseProtection* PodGroupProtection*
	OwnerReferencesPermissionEnforcement PersistentVolumeClaimResize* RuntimeClass* CertificateApproval* CertificateSigning*
	ClusterTrustBundleAttest* CertificateSubjectRestriction* DefaultIngressClass* DenyServiceExternalIPs PodTopologyLabels*
	NodeDeclaredFeatureValidator* PodResizeValidator* MutatingAdmissionPolicy* MutatingAdmissionWebhook*
	ValidatingAdmissionPolicy* ValidatingAdmissionWebhook* ResourceQuota* AlwaysDeny`

func TestPluginsAreInKubernetesOrder(t *testing.T) {
	var got []string
	for _, p := range Table(Config{}) {
		name := p.Name
		if p.EnabledByDefault || name == "StorageObjectInUseProtection" { // off here: only kube-controller-manager takes its finalizers away
			name += "*"
		}
		if !slices.Contains(got, name) {
			got = append(got, name)
		}
	}
	if want := strings.Fields(kubeOrder); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestFlagsChoosePlugins(t *testing.T) {
	table := Table(Config{})
	for _, c := range []struct{ enable, disable, on, off, err string }{
		{"", "", "LimitRanger Priority", "StorageObjectInUseProtection AlwaysDeny", ""},
		{"StorageObjectInUseProtection,LimitRanger", "ServiceAccount", "StorageObjectInUseProtection LimitRanger", "ServiceAccount", ""},
		{"AlwaysAdmit", "NodeRestriction", "AlwaysAdmit", "NodeRestriction", ""},
		{"Nope", "", "", "", `enable-admission-plugins plugin "Nope" is unknown`},
		{"", "limitranger", "", "", `disable-admission-plugins plugin "limitranger" is unknown`},
		{"Nope", "Neither", "", "", `disable-admission-plugins plugin "Neither" is unknown`},
		{"Priority,LimitRanger", "LimitRanger,Priority", "", "", `[LimitRanger Priority] in enable-admission-plugins and disable-admission-plugins overlapped`},
		{"EventRateLimit,AlwaysDeny,PodTolerationRestriction", "", "EventRateLimit AlwaysDeny PodTolerationRestriction", "", ""},
		{"ImagePolicyWebhook", "", "", "", `enable-admission-plugins plugin "ImagePolicyWebhook" is one that apilet does not have`},
	} {
		names := func(list string) []string { return strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) }
		on, err := Select(table, names(c.enable), names(c.disable))
		if c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("enable %q disable %q: %v, want %s", c.enable, c.disable, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("enable %q disable %q: %v", c.enable, c.disable, err)
		}
		for _, name := range strings.Fields(c.on) {
			if !on[name] {
				t.Errorf("enable %q disable %q: %s is off", c.enable, c.disable, name)
			}
		}
		for _, name := range strings.Fields(c.off) {
			if on[name] {
				t.Errorf("enable %q disable %q: %s is on", c.enable, c.disable, name)
			}
		}
	}
}

// Rows that concern different writes are walked in the order of the table, and only where they are wanted; what is off unless asked for may
// concern all.
func TestTableWantsOnlyWhatItNames(t *testing.T) {
	for _, p := range Table(Config{Webhooks: &admission.Webhooks{}}) {
		if p.EnabledByDefault && (p.Admit != nil || p.Validate != nil) && len(p.Resources) == 0 && p.Idle == nil && !p.OnlyWithOthers {
			t.Errorf("%s has something to say to every write", p.Name)
		}
	}
}
