package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const privilegedPod = `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i","securityContext":{"privileged":true}}]}}`

func TestPodSecurityReadsItsDefaultsAndExemptions(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(file, []byte(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: PodSecurity
  configuration:
    apiVersion: pod-security.admission.config.k8s.io/v1
    kind: PodSecurityConfiguration
    defaults: {enforce: baseline, enforce-version: v1.30}
    exemptions: {namespaces: [free], runtimeClasses: [box]}
`), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startTest(t, "--admission-control-config-file="+file)
	s.namespace("free")
	s.want(201, "POST", "/api/v1/namespaces/free/pods", privilegedPod)
	if got := metricValue(s, `pod_security_exemptions_total{request_operation="create",resource="pod",subresource=""}`); got != 1 {
		t.Errorf("%v exempt pods are counted, want 1", got)
	}
	pods := strings.Replace(s.namespace("bound"), "configmaps", "pods", 1)
	a := s.want(403, "POST", pods, privilegedPod)
	if got := a.get("message").String(); !strings.Contains(got, `violates PodSecurity "baseline:v1.30": privileged`) {
		t.Error(got)
	}
	s.want(201, "POST", "/apis/node.k8s.io/v1/runtimeclasses", `{"metadata":{"name":"box"},"handler":"h"}`)
	s.want(201, "POST", pods, strings.Replace(privilegedPod, `"spec":{`, `"spec":{"runtimeClassName":"box",`, 1))
	a = s.want(201, "POST", "/api/v1/namespaces?dryRun=All", `{"metadata":{"name":"free2","labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	if len(a.header["Warning"]) > 0 {
		t.Error(a.header["Warning"])
	}
	a = s.want(200, "PUT", "/api/v1/namespaces/free", `{"metadata":{"name":"free","labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	if got := strings.Join(a.header["Warning"], "\n"); !strings.Contains(got, `namespace \"free\" is exempt from Pod Security, and the policy (enforce=restricted:v1.30) will be ignored`) {
		t.Error(got)
	}
}

func TestPluginsAreSwitchedOff(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--disable-admission-plugins=ServiceAccount,PodSecurity,DefaultTolerationSeconds,Priority,LimitRanger,TaintNodesByCondition")
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"off","labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	s.want(201, "POST", "/api/v1/namespaces/off/limitranges", `{"metadata":{"name":"l"},"spec":{"limits":[{"type":"Container","min":{"cpu":"1"}}]}}`)
	pod := s.want(201, "POST", "/api/v1/namespaces/off/pods", privilegedPod)
	for _, path := range []string{"spec.tolerations", "spec.priority", "spec.serviceAccountName", "spec.volumes", "metadata.annotations"} {
		if got := pod.get(path); got.Exists() {
			t.Errorf("%s is %s", path, got)
		}
	}
	if got := s.want(201, "POST", "/api/v1/nodes", `{"metadata":{"name":"n"}}`).get("spec.taints"); got.Exists() {
		t.Errorf("taints: %s", got)
	}
}

func TestSecondsOnLostNodesAreFlags(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--default-not-ready-toleration-seconds=0", "--default-unreachable-toleration-seconds=7")
	pod := s.want(201, "POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	if got := pod.get("spec.tolerations.#.tolerationSeconds").Raw; got != "[0,7]" {
		t.Error(got)
	}
}

// TestNodeGetsTokensThatItsPodsMount tests requests that NodeRestriction permits, which the
// recorded conversations cannot cover. It also checks that a node cannot make certain changes to a
// claim.
func TestNodeGetsTokensThatItsPodsMount(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--enable-admission-plugins=NodeRestriction", "--authorization-mode=RBAC")
	node := []string{"Impersonate-User: system:node:n1", "Impersonate-Group: system:nodes"}
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", `{"metadata":{"name":"kubelet"},"rules":[{"apiGroups":[""],"verbs":["create","patch"],
		"resources":["serviceaccounts/token","persistentvolumeclaims/status"]}]}`)
	s.want(201, "POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", `{"metadata":{"name":"kubelet"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"kubelet"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"system:nodes"}]}`)
	s.want(201, "POST", "/apis/storage.k8s.io/v1/csidrivers", `{"metadata":{"name":"disk.example"},"spec":{"tokenRequests":[{"audience":"cloud"}]}}`)
	pod := s.want(201, "POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"nodeName":"n1","serviceAccountName":"default",
		"containers":[{"name":"c","image":"i"}],"volumes":[{"name":"d","csi":{"driver":"disk.example"}},
		{"name":"t","projected":{"sources":[{"serviceAccountToken":{"path":"t"}},{"serviceAccountToken":{"path":"v","audience":"vault"}}]}}]}}`)
	ask := func(want int, audiences string) {
		t.Helper()
		s.want(want, "POST", "/api/v1/namespaces/default/serviceaccounts/default/token", `{"spec":{`+audiences+`"boundObjectRef":{"apiVersion":"v1","kind":"Pod",
			"name":"p","uid":"`+pod.get("metadata.uid").String()+`"}}}`, node...)
	}
	ask(201, "")
	ask(201, `"audiences":["vault"],`)
	ask(201, `"audiences":["cloud"],`)
	ask(403, `"audiences":["other"],`)

	const claims = "/api/v1/namespaces/default/persistentvolumeclaims"
	s.want(201, "POST", claims, `{"metadata":{"name":"c"},"spec":{"accessModes":["ReadWriteOnce"],"resources":{"requests":{"storage":"1Gi"}}}}`)
	s.want(200, "PATCH", claims+"/c/status", `{"status":{"capacity":{"storage":"1Gi"}}}`, append(node, asMergePatch)...)
	for _, change := range []string{`{"status":{"phase":"Bound"}}`, `{"metadata":{"labels":{"a":"b"}}}`} {
		a := s.want(403, "PATCH", claims+"/c/status", change, append(node, asMergePatch)...)
		if got := a.get("message").String(); !strings.Contains(got, `node "n1" is not allowed to update fields other than status.quantity and status.conditions`) {
			t.Error(got)
		}
	}
}

func TestMissingConfigurationOfPluginsEndsTheStart(t *testing.T) {
	t.Parallel()
	const eventLimits = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: EventRateLimit\n" +
		"  configuration:\n    apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n    limits: "
	for text, want := range map[string]string{
		`kind: Other`: "is no AdmissionConfiguration",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ImagePolicyWebhook\n  configuration: {a: b}\n": "plugin ImagePolicyWebhook: its configuration has no effect here",
		eventLimits + `[]`: "limits: Invalid value: null: must not be empty",
		eventLimits + `[{type: Server, qps: 1}, {type: Pod, qps: -1, burst: 1, cacheSize: -1}]`: `[limits[0].burst: Invalid value: 0: must be positive, ` +
			`limits[1].type: Unsupported value: "Pod": supported values: "Namespace", "Server", "SourceAndObject", "User", limits[1].qps: Invalid value: -1`,
		strings.Replace(eventLimits, "v1alpha1", "v1", 1) + `[]`: "Configuration of eventratelimit.admission.k8s.io/v1 is no Configuration of eventratelimit.admission.k8s.io/v1alpha1",
		strings.NewReplacer("EventRateLimit", "PodTolerationRestriction", "eventratelimit", "podtolerationrestriction", "limits", "default").Replace(eventLimits) +
			`[{operator: Equal}]`: "invalid config: [podtolerationrestriction.default[0].operator: Invalid value",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  path: missing.yaml\n":                                                                                                                           "no such file",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: strict}\n": `defaults.enforce: Invalid value: "strict": must be one of privileged, baseline, restricted`,
	} {
		file := filepath.Join(t.TempDir(), "admission.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if why := startFails(t, "--admission-control-config-file="+file); !strings.Contains(why, want) {
			t.Errorf("%s: %s, want %s", text, why, want)
		}
	}
}

// TestPodSecurityIsCounted checks that the metrics match kube-apiserver 1.36.
func TestPodSecurityIsCounted(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	const label = "pod-security.kubernetes.io/"
	s.want(201, "POST", "/api/v1/namespaces", `{"metadata":{"name":"strict","labels":{"`+label+`enforce":"baseline","`+label+`enforce-version":"v1.30","`+
		label+`warn":"restricted","`+label+`audit":"restricted","`+label+`warn-version":"v1.99"}}}`)
	pod := func(privileged bool) string {
		return fmt.Sprintf(`{"metadata":{"generateName":"p"},"spec":{"containers":[{"name":"c","image":"i","securityContext":{"privileged":%v}}]}}`, privileged)
	}
	const plain, strict = "/api/v1/namespaces/default/pods", "/api/v1/namespaces/strict/pods"
	s.want(201, "POST", plain, pod(true))
	s.want(201, "POST", strict, pod(false))
	s.want(403, "POST", strict, pod(true))
	s.want(201, "POST", "/apis/apps/v1/namespaces/strict/deployments", `{"metadata":{"name":"d"},"spec":{"selector":{"matchLabels":{"a":"b"}},`+
		`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)
	for series, want := range map[string]float64{
		`decision="allow",mode="enforce",policy_level="privileged",policy_version="latest",request_operation="create",resource="pod",subresource=""`:     1,
		`decision="allow",mode="enforce",policy_level="baseline",policy_version="v1.30",request_operation="create",resource="pod",subresource=""`:        1,
		`decision="deny",mode="enforce",policy_level="baseline",policy_version="v1.30",request_operation="create",resource="pod",subresource=""`:         1,
		`decision="deny",mode="warn",policy_level="restricted",policy_version="future",request_operation="create",resource="pod",subresource=""`:         1,
		`decision="deny",mode="audit",policy_level="restricted",policy_version="latest",request_operation="create",resource="pod",subresource=""`:        2,
		`decision="deny",mode="warn",policy_level="restricted",policy_version="future",request_operation="create",resource="controller",subresource=""`:  1,
		`decision="deny",mode="audit",policy_level="restricted",policy_version="latest",request_operation="create",resource="controller",subresource=""`: 1,
	} {
		if got := metricValue(s, "pod_security_evaluations_total{"+series+"}"); got != want {
			t.Errorf("%s: %v, want %v", series, got, want)
		}
	}
}

// TestAlwaysDenyDenies checks that all writes are denied except for the server's own, which it
// needs to start.
func TestAlwaysDenyDenies(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--enable-admission-plugins=AlwaysDeny")
	const denied = ` is forbidden: admission control is denying all modifications`
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/api/v1/namespaces", `{"metadata":{"name":"x"}}`, `namespaces "x"`},
		{"POST", "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"x"}}`, `configmaps "x"`},
		{"POST", "/api/v1/namespaces/default/configmaps?dryRun=All", `{"metadata":{"generateName":"x"}}`, `configmaps "x`},
		{"PATCH", "/api/v1/namespaces/default", `{"metadata":{"labels":{"a":"b"}}}`, `namespaces "default"`},
		{"DELETE", "/api/v1/namespaces/default/services/kubernetes", "", `services "kubernetes"`},
	} {
		headers := []string{asMergePatch}
		if c.method != "PATCH" {
			headers = nil
		}
		a := s.want(403, c.method, c.path, c.body, headers...)
		if got := a.get("message").String(); !strings.HasPrefix(got, c.want) || !strings.HasSuffix(got, denied) {
			t.Errorf("%s %s: %s", c.method, c.path, got)
		}
	}
	s.want(200, "GET", "/api/v1/namespaces/default", "")
}

// TestTolerationsThatAreComparedHaveABound checks a limit, because every toleration is compared
// with every other.
func TestTolerationsThatAreComparedHaveABound(t *testing.T) {
	t.Parallel()
	s := startTest(t, "--enable-admission-plugins=PodTolerationRestriction")
	pod := func(n int) string {
		var list []string
		for i := range n {
			list = append(list, fmt.Sprintf(`{"key":"k","operator":"Equal","value":"v%d"}`, i))
		}
		return `{"metadata":{"generateName":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"tolerations":[` + strings.Join(list, ",") + `]}}`
	}
	s.want(201, "POST", "/api/v1/namespaces/default/pods", pod(900))
	a := s.want(403, "POST", "/api/v1/namespaces/default/pods", pod(20_000))
	if got := a.get("message").String(); !strings.Contains(got, "tolerations are more than the 1000 that are compared") {
		t.Error(got)
	}
}
