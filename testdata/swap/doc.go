// Package swap replaces a cluster's kube-apiserver by apilet on the same etcd, and back, ten times,
// while the cluster is in use. Clients must not notice anything except for closed connections. The
// test starts both servers behind one address and with the same certificates, keys and ranges. It
// also starts kube-controller-manager, kube-scheduler, kwok, an operator, webhooks, and its own
// clients (world_test.go). kwok simulates the kubelets. All clients record their requests. The
// records are compared with the stored objects at the end (work_test.go, cluster_test.go,
// informers_test.go).
//
//	export KUBE_APISERVER=… ETCD=… KUBE_CONTROLLER_MANAGER=… KUBE_SCHEDULER=… KWOK=…    # programs of Kubernetes 1.37, etcd 3.6, kwok 0.8
//	go test -count=1 -v -timeout 40m -run Swap .             # five minutes; APILET and CONTROLLER are built if they name nothing
//	SWAP=30 go test -count=1 -v -timeout 90m -run Swap .     # thirty moves
//	REST=10m go test -count=1 -v -timeout 40m -run Rest .    # both servers idle for ten minutes: what do they write?
//	BASELINE=1 go test … -run Swap .                         # a second kube-apiserver instead of apilet, for comparison
//
// It is a separate module, because it depends on Kubernetes' client.
package swap
