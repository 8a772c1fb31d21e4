package clients

// This file tests envtest without changes. The programs kube-apiserver and etcd are links to
// apilet. It starts the programs, installs definitions and webhooks, adds users with client
// certificates, and stops the programs.

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"apilet/apilettest"
)

// assets returns a directory for envtest with programs called kube-apiserver and etcd.
func assets(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, program := range []string{"kube-apiserver", "etcd"} {
		check(t, "link", os.Symlink(apilettest.Program(t), filepath.Join(dir, program)))
	}
	return dir
}

// begin starts an environment with long time limits for busy machines. It tries again if one of the
// free ports is already used by another process.
func begin(t testing.TB, with func() *envtest.Environment) (env *envtest.Environment, config *rest.Config, complaints *strings.Builder) {
	t.Helper()
	for try := 1; ; try++ {
		env, complaints = with(), &strings.Builder{}
		env.ControlPlaneStartTimeout, env.ControlPlaneStopTimeout = patience, patience
		env.CRDInstallOptions.MaxTime, env.WebhookInstallOptions.MaxTime = patience, patience
		// may only be read after the server has ended
		env.ControlPlane.GetAPIServer().Err = complaints
		config, err := env.Start()
		if err == nil {
			return env, config, complaints
		}
		_ = env.Stop()
		if try == 5 || !strings.Contains(complaints.String(), "address already in use") {
			t.Fatalf("start: %v\n%s", err, complaints)
		}
	}
}

func TestEnvtestStartsAndStops(t *testing.T) {
	t.Parallel()
	started := time.Now()
	env, config, complaints := begin(t, func() *envtest.Environment {
		env := &envtest.Environment{BinaryAssetsDirectory: assets(t), CRDDirectoryPaths: []string{filepath.Join("..", "crds")}, ErrorIfCRDPathMissing: true}
		env.ControlPlane.GetAPIServer().Configure().Append("feature-gates", "HPAScaleToZero=true").Append("max-requests-inflight", "100").
			Set("runtime-config", "batch/v2alpha1=true").Append("disable-admission-plugins", "ServiceAccount", "NamespaceLifecycle")
		return env
	})
	took, stopped := time.Since(started), false
	t.Cleanup(func() {
		if !stopped {
			check(t, "stop", env.Stop())
		}
	})
	t.Run("definitions are installed", func(t *testing.T) { useDefinition(t, config) })
	t.Run("users are who their certificates say", func(t *testing.T) { useUsers(t, env) })
	t.Run("kubectl", func(t *testing.T) { useKubectl(t, env) })

	w, err := must(kubernetes.NewForConfig(config)).CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
	check(t, "watch", err)
	defer w.Stop()
	stopping, dir := time.Now(), env.ControlPlane.APIServer.CertDir
	stopped = true
	check(t, "stop", env.Stop())
	t.Logf("started in %v with %d definitions, stopped in %v", took.Round(time.Millisecond), len(env.CRDs), time.Since(stopping).Round(time.Millisecond))
	// an open watch must not delay the server's end
	if text := complaints.String(); strings.Contains(text, "deadline exceeded") {
		t.Errorf("the server does not end in peace:\n%s", text)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", dir, err)
	}
}

func useDefinition(t *testing.T, config *rest.Config) {
	c := must(client.New(config, client.Options{}))
	planet := &unstructured.Unstructured{Object: map[string]any{"moons": int64(1)}}
	planet.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v2", Kind: "Planet"})
	planet.SetName("earth")
	check(t, "create", c.Create(t.Context(), planet))
	if mass, _, _ := unstructured.NestedInt64(planet.Object, "mass"); mass != 7 {
		t.Errorf("mass %d, want the default, 7", mass)
	}
}

// useUsers adds an administrator and a user without any permissions.
func useUsers(t *testing.T, env *envtest.Environment) {
	ctx := t.Context()
	jane, err := env.AddUser(envtest.User{Name: "jane", Groups: []string{"readers"}}, nil)
	check(t, "add user", err)
	root, err := env.AddUser(envtest.User{Name: "root", Groups: []string{"system:masters"}}, &rest.Config{QPS: 100, Burst: 200})
	check(t, "add user", err)
	hers, all := must(kubernetes.NewForConfig(jane.Config())), must(kubernetes.NewForConfig(root.Config()))
	if _, err := hers.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("list without a role: %v, want Forbidden", err)
	}
	_, err = all.RbacV1().Roles(ns).Create(ctx, &rbacv1.Role{ObjectMeta: named("reader"),
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"list"}, APIGroups: []string{""}, Resources: []string{"pods"}}}}, metav1.CreateOptions{})
	check(t, "create role", err)
	_, err = all.RbacV1().RoleBindings(ns).Create(ctx, &rbacv1.RoleBinding{ObjectMeta: named("readers"),
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "readers"}}}, metav1.CreateOptions{})
	check(t, "bind", err)
	eventually(t, "jane may list pods", func() bool {
		_, err := hers.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err == nil
	})
	if _, err := hers.CoreV1().Pods(ns).Create(ctx, pod("p"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("create: %v, want Forbidden", err)
	}
	nobody := rest.AnonymousClientConfig(root.Config())
	if _, err := must(kubernetes.NewForConfig(nobody)).CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("anonymous list: %v, want Forbidden", err)
	}
}

// useKubectl uses the kubeconfig that envtest writes for a user.
func useKubectl(t *testing.T, env *envtest.Environment) {
	program, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("no kubectl on this machine")
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	check(t, "write", os.WriteFile(file, env.KubeConfig, 0o600))
	kubectl := exec.CommandContext(t.Context(), program, "--kubeconfig", file, "--cache-dir", t.TempDir(), "auth", "whoami")
	out, err := kubectl.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "admin") || !strings.Contains(string(out), "system:masters") {
		t.Errorf("kubectl auth whoami: %v\n%s", err, out)
	}
}

// TestEnvtestUsesAnExistingServer gives envtest the kubeconfig of a running apilet.
func TestEnvtestUsesAnExistingServer(t *testing.T) {
	t.Parallel()
	s := startEphemeral(t)
	env, config, _ := begin(t, func() *envtest.Environment {
		return &envtest.Environment{UseExistingCluster: new(true), Config: s.config(""), CRDDirectoryPaths: []string{filepath.Join("..", "crds")},
			CRDInstallOptions: envtest.CRDInstallOptions{CleanUpAfterUse: true}}
	})
	useDefinition(t, config)
	check(t, "stop", env.Stop())
	if _, err := s.typed().CoreV1().Namespaces().Get(t.Context(), corev1.NamespaceDefault, metav1.GetOptions{}); err != nil {
		t.Errorf("after stop: %v", err)
	}
}
