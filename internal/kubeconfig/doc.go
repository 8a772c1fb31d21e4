// Package kubeconfig writes and reads kubeconfigs: the one with the address of this server
// (--kubeconfig FILE), and the one that selects the server to copy from (backup --kubeconfig FILE).
// The format is that of k8s.io/client-go/tools/clientcmd/api/v1.
//
//	err := kubeconfig.CheckOwnership("apilet.kubeconfig")       // first: a file with other content is an error
//	err = kubeconfig.Write("apilet.kubeconfig", cluster, admin) // while the server runs
//	err = kubeconfig.Clear("apilet.kubeconfig")                 // at the end: removes the address of the server
//
// Invariants: a rewrite keeps unknown fields. The file is replaced atomically, with mode 0600
// (package atomicfile). Contexts that were added by other programs are never removed, and neither
// are their clusters and users.
package kubeconfig
