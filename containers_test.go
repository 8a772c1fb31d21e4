package main

// The manifests of docs/containers, held against a server: they are what its own validation takes, in a namespace that takes only pods with the fewest
// rights, and their flags are apilet's.

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"apilet/internal/apitest"
)

const containersNamespace = `{"metadata":{"name":"apilet","labels":{"pod-security.kubernetes.io/enforce":"restricted",
	"pod-security.kubernetes.io/warn":"restricted"}}}`

func TestManifestsOfContainers(t *testing.T) {
	t.Parallel()
	s := startTest(t)
	s.want(201, "POST", "/api/v1/namespaces", containersNamespace)
	paths := map[string]string{"Pod": "/api/v1/namespaces/apilet/pods", "Service": "/api/v1/namespaces/apilet/services",
		"PersistentVolumeClaim": "/api/v1/namespaces/apilet/persistentvolumeclaims", "Deployment": "/apis/apps/v1/namespaces/apilet/deployments",
		"PodDisruptionBudget": "/apis/policy/v1/namespaces/apilet/poddisruptionbudgets"}
	for file, kinds := range map[string]string{"pod.yaml": "PersistentVolumeClaim Pod Service", "three.yaml": "Deployment PodDisruptionBudget Service"} {
		var got []string
		for _, document := range bytes.Split(apitest.ReadFile(t, "docs/containers/"+file), []byte("\n---\n")) {
			var kind metav1.TypeMeta
			if err := yaml.Unmarshal(document, &kind); err != nil {
				t.Fatal(file, err)
			}
			got = append(got, kind.Kind)
			a := s.want(201, "POST", paths[kind.Kind]+"?dryRun=All&fieldValidation=Strict", string(document), "Content-Type: application/yaml")
			if warnings := a.header["Warning"]; len(warnings) > 0 {
				t.Errorf("%s, %s: %q", file, kind.Kind, warnings)
			}
			checkManifest(t, file, kind.Kind, document)
		}
		if strings.Join(got, " ") != kinds {
			t.Errorf("%s has %q, want %s", file, got, kinds)
		}
	}
}

func TestKubectlTakesTheManifestsOfContainers(t *testing.T) {
	t.Parallel()
	s, dir := startTest(t), t.TempDir()
	s.want(201, "POST", "/api/v1/namespaces", containersNamespace)
	for _, kubectl := range apitest.Kubectls(t) {
		for _, file := range []string{"pod.yaml", "three.yaml"} {
			cmd := exec.Command(kubectl, "--server", s.url, "--cache-dir", dir, "-n", "apilet", "apply", "--dry-run=server", "--warnings-as-errors",
				"-f", "docs/containers/"+file)
			cmd.Env = append(os.Environ(), "KUBECONFIG=/dev/null", "HOME="+dir)
			if out, err := cmd.CombinedOutput(); err != nil || strings.Count(string(out), "created (server dry run)") != 3 {
				t.Errorf("%s %s: %v\n%s", path.Base(kubectl), file, err, out)
			}
		}
	}
}

// checkManifest looks at whom a Service selects, and at the container of a pod or a template: its flags are apilet's, what they name is mounted, it is given
// time to stop.
func checkManifest(t *testing.T, file, kind string, document []byte) {
	t.Helper()
	var err error
	var pod corev1.PodTemplateSpec
	switch kind {
	case "Pod":
		err = yaml.Unmarshal(document, &pod)
	case "Deployment":
		var d appsv1.Deployment
		err = yaml.Unmarshal(document, &d)
		pod = d.Spec.Template
	case "Service":
		var service corev1.Service
		if err := yaml.Unmarshal(document, &service); err != nil || service.Spec.Selector["app"] != "apilet" {
			t.Errorf("%s: %v, the Service selects %v", file, err, service.Spec.Selector)
		}
		return
	default:
		return
	}
	if err != nil || pod.Labels["app"] != "apilet" || len(pod.Spec.Containers) != 1 {
		t.Fatalf("%s: %v, %+v", file, err, pod)
	}
	container := pod.Spec.Containers[0]
	args := slices.Clone(container.Args)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "$(POD_IP)", "10.0.0.1")
	}
	c, flags := newConfig(io.Discard)
	if err := flags.Parse(args); err != nil || flags.NArg() > 0 {
		t.Fatal(file, err, flags.Args())
	}
	if err := c.Finish(); err != nil {
		t.Fatal(file, err)
	}
	for _, named := range []string{c.Data, c.TLSCert, c.TLSKey, c.Auth.TokenFile, c.Etcd.CAFile, c.Etcd.CertFile, c.Etcd.KeyFile} {
		if named != "" && !slices.ContainsFunc(container.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path.Dir(named) }) {
			t.Errorf("%s: nothing is mounted for %s", file, named)
		}
	}
	if (kind == "Deployment") != (len(c.Etcd.Servers) == 3) {
		t.Errorf("%s: etcd %q", file, c.Etcd.Servers)
	}
	if ready, lives := container.ReadinessProbe.HTTPGet.Path, container.LivenessProbe.HTTPGet.Path; ready != "/readyz" || lives != "/livez" {
		t.Errorf("%s: probes ask for %s and %s", file, ready, lives)
	}
	grace := int64((stopWithin + c.ShutdownDelay).Seconds())
	if *pod.Spec.TerminationGracePeriodSeconds <= grace || container.Ports[0].ContainerPort != 6443 || !strings.HasSuffix(c.Listen, ":6443") {
		t.Errorf("%s: it is killed after %d seconds, and stops within %d; it listens at %s", file, *pod.Spec.TerminationGracePeriodSeconds, grace, c.Listen)
	}
}
