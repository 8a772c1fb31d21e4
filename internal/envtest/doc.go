// Package envtest lets apilet replace kube-apiserver and etcd, the two programs that tests with a
// Kubernetes control plane start. If apilet is called by one of these names, it accepts the command
// line of that program.
//
//	switch envtest.ProgramName(os.Args[0]) {
//	case "kube-apiserver":
//		args, err = envtest.TranslateAPIServer(os.Args[1:], flags, os.Stderr) // then serve as usual
//	case "etcd":
//		err = envtest.ServeAsEtcd(ctx, os.Args[1:], os.Stdout, os.Stderr)
//	}
//
// The tests are written against sigs.k8s.io/controller-runtime/pkg/envtest and
// pkg/internal/testing/controlplane. The supported flags are defined in
// cmd/kube-apiserver/app/options of the Kubernetes version that this server implements.
//
// Flags that are unknown to kube-apiserver are rejected. Flags that are accepted without effect are
// logged. The package handles flags and processes, and imports no other package of apilet.
package envtest
