// Package kubeconfig writes and reads kubeconfigs: the one that says how to reach this server (--kubeconfig FILE), and the one that says
// which server to copy from (backup --kubeconfig FILE). The form is k8s.io/client-go/tools/clientcmd/api/v1's.
//
//	err := kubeconfig.CheckOwn("apilet.kubeconfig")             // before anything else: a file with somebody else's content is an error
//	err = kubeconfig.Write("apilet.kubeconfig", cluster, admin) // while it serves
//	err = kubeconfig.Clear("apilet.kubeconfig")                 // at the end: nobody is told of a server that is gone
//
// Invariants: what is not known here survives a rewrite; the file appears whole or not at all, mode 0600 (package atomicfile); a context of
// somebody else's is never removed, nor what it points to.
package kubeconfig
