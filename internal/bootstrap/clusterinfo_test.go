package bootstrap

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"apilet/internal/registry"
	"apilet/internal/scheme"
	"apilet/internal/store"
)

// TestClusterInfoIsKeptUpToDate until somebody else sets the kubeconfig. Signatures beside it stay.
func TestClusterInfoIsKeptUpToDate(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.wr.ManagedFields = true
	b.insert("", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-public"}})
	f := Initializer{Writer: b.wr, Types: b.reg}
	configMaps := b.reg.Lookup("", "v1", "configmaps")
	key := configMaps.Key("kube-public", "cluster-info")
	publish := func(server string) *corev1.ConfigMap {
		t.Helper()
		if err := f.ClusterInfo(t.Context(), server, []byte("authority")); err != nil {
			t.Fatal(err)
		}
		rec, err := b.st.Get(key)
		if err != nil {
			t.Fatal(err)
		}
		obj, err := b.wr.Read(configMaps, &rec)
		if err != nil {
			t.Fatal(err)
		}
		return obj.(*corev1.ConfigMap)
	}
	edit := func(key, value string) {
		t.Helper()
		target := registry.Target{Resource: configMaps, Namespace: "kube-public", Name: "cluster-info"}
		_, _, err := b.wr.Modify(t.Context(), target, registry.Options{Manager: "somebody"}, func(old scheme.Object, _ *store.Record) (scheme.Object, error) {
			info := old.DeepCopyObject().(*corev1.ConfigMap)
			info.Data[key] = value
			return info, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := publish("https://a:1").Data["kubeconfig"]; !strings.Contains(got, "server: https://a:1\n") || !strings.Contains(got, "certificate-authority-data: YXV0aG9yaXR5\n") {
		t.Errorf("published is %s", got)
	}
	revision := b.st.Revision()
	if publish("https://a:1"); b.st.Revision() != revision {
		t.Error("the same was written twice")
	}
	edit("jws-kubeconfig-abcdef", "signature")
	if got := publish("https://b:2").Data; !strings.Contains(got["kubeconfig"], "https://b:2") || got["jws-kubeconfig-abcdef"] != "signature" {
		t.Errorf("published is %v", got)
	}
	edit("kubeconfig", "theirs")
	if got := publish("https://c:3").Data["kubeconfig"]; got != "theirs" {
		t.Errorf("published is %v", got)
	}
}

func TestNodesAreSentToAnAddressOfTheirs(t *testing.T) {
	t.Parallel()
	all := netip.MustParseAddrPort("0.0.0.0:6443")
	for _, c := range []struct {
		own       string
		listening netip.AddrPort
		want      string
	}{
		{"https://127.0.0.1:6443", netip.MustParseAddrPort("127.0.0.1:6443"), "https://127.0.0.1:6443"},
		{"https://api.example.com:6443", all, "https://api.example.com:6443"},
		{"https://[fd00::7]:6443", netip.MustParseAddrPort("[::]:6443"), "https://[fd00::7]:6443"},
		{"https://127.0.0.1:6443", all, "https://" + reachable(all, false).String()},
	} {
		if got := URLForNodes(c.own, c.listening, false); got != c.want {
			t.Errorf("%s on %s: got %s, want %s", c.own, c.listening, got, c.want)
		}
	}
}
