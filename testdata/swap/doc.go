// Package swap replaces a cluster's kube-apiserver by apilet on the same etcd, and back, ten times, while the cluster is worked on: nobody may
// tell, but by a connection that is cut. It starts both servers with the same certificates, keys and ranges behind one address, Kubernetes' own
// kube-controller-manager and kube-scheduler, kwok in the kubelets' place, an operator, webhooks, and clients of its own (world_test.go). Who works
// there keeps books, which have to be right at the end (work_test.go, cluster_test.go, informers_test.go).
//
//	export KUBE_APISERVER=… ETCD=… KUBE_CONTROLLER_MANAGER=… KUBE_SCHEDULER=… KWOK=…    # programs of Kubernetes 1.37, etcd 3.6, kwok 0.8
//	go test -count=1 -v -timeout 40m -run Swap .             # five minutes; APILET and CONTROLLER are built if they name nothing
//	SWAP=30 go test -count=1 -v -timeout 90m -run Swap .     # thirty moves
//	REST=10m go test -count=1 -v -timeout 40m -run Rest .    # both servers for ten minutes, and nobody else: what do they write?
//	BASELINE=1 go test … -run Swap .                         # a kube-apiserver in apilet's place, too: what is Kubernetes' own
//
// It is a module of its own, since it knows Kubernetes' client.
package swap
