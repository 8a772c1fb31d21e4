// Package envtest lets apilet stand in for the two programs that a Kubernetes control plane is tested with: called as kube-apiserver or
// etcd, it takes their command lines.
//
//	switch envtest.ProgramName(os.Args[0]) {
//	case "kube-apiserver":
//		args, err = envtest.TranslateAPIServer(os.Args[1:], flags, os.Stderr) // then serve as ever
//	case "etcd":
//		err = envtest.ServeAsEtcd(ctx, os.Args[1:], os.Stdout, os.Stderr)
//	}
//
// What such a test expects is in sigs.k8s.io/controller-runtime/pkg/envtest and pkg/internal/testing/controlplane; the flags and what they
// mean are kube-apiserver's of the version that this server stands for (cmd/kube-apiserver/app/options).
//
// Invariants: a flag that kube-apiserver does not know is an error here, too; what is accepted and not followed is named in the log. The
// package knows flags and processes, and imports nothing of ours.
package envtest
