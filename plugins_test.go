package main

import (
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
	s := startTest(t, func(c *config) { c.admissionConfig = file })
	s.namespace("free")
	s.want(201, "POST", "/api/v1/namespaces/free/pods", privilegedPod)
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
	s := startTest(t, func(c *config) {
		c.disabledPlugins = []string{"ServiceAccount", "PodSecurity", "DefaultTolerationSeconds", "Priority", "LimitRanger", "TaintNodesByCondition"}
	})
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
	s := startTest(t, func(c *config) { c.tolerations.NotReady, c.tolerations.Unreachable = 0, 7 })
	pod := s.want(201, "POST", "/api/v1/namespaces/default/pods", `{"metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}]}}`)
	if got := pod.get("spec.tolerations.#.tolerationSeconds").Raw; got != "[0,7]" {
		t.Error(got)
	}
}

func TestMissingConfigurationOfPluginsEndsTheStart(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`kind: Other`: "is no AdmissionConfiguration",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ImagePolicyWebhook\n  configuration: {a: b}\n":                                                                                                                 "plugin ImagePolicyWebhook: its configuration has no effect here",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  path: missing.yaml\n":                                                                                                                           "no such file",
		"apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration:\n    apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: strict}\n": `defaults.enforce: Invalid value: "strict": must be one of privileged, baseline, restricted`,
	} {
		file := filepath.Join(t.TempDir(), "admission.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, _ := newConfig(&strings.Builder{})
		c.listen, c.ephemeral, c.admissionConfig = "127.0.0.1:0", true, file
		s, err := startServer(c)
		if err == nil {
			_ = s.stop()
			t.Errorf("%s: the server starts", text)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
