#!/usr/bin/env bash
# aggregated.sh runs unmodified Kubernetes extension servers behind apilet.
#
#   testdata/aggregated.sh sample      k8s.io/sample-apiserver: flunders with kubectl, deletion of a namespace that contains some
#   testdata/aggregated.sh metrics     sigs.k8s.io/metrics-server with kubelets that testdata/programs/kubelet simulates: kubectl top
#   testdata/aggregated.sh scale       the same, and a HorizontalPodAutoscaler of kube-controller-manager (KUBE_CONTROLLER_MANAGER=PATH)
#
# It requires kubectl, openssl, the Go module proxy, some minutes, and 2 GB for compiled programs
# (kept in AGGREGATED, by default a folder in the user's cache). sample also requires an etcd:
# ETCD=PATH. Everything listens on loopback. .ci/run does not run this script.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${AGGREGATED:-${XDG_CACHE_HOME:-$HOME/.cache}/apilet-aggregated}
dir=$(mktemp -d)
mkdir -p "$cache"
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$dir"' EXIT

# compile MODULE@VERSION PACKAGE PROGRAM
compile() {
	[ -x "$cache/$3" ] && return
	(cd "$dir" && printf 'module scratch\ngo 1.26.0\n' >go.mod && GOFLAGS=-mod=mod go get "$1" &&
		GOFLAGS=-mod=mod go build -trimpath -ldflags='-s -w' -o "$cache/$3" "$2" && rm go.mod go.sum)
}

# until_true WHAT COMMAND...: waits for PATIENCE seconds, a minute by default
until_true() {
	local what=$1 end=$((SECONDS + ${PATIENCE:-60}))
	shift
	until "$@" >/dev/null 2>&1; do
		[ $SECONDS -lt $end ] || { echo "NOT: $what"; tail -v -n 8 "$dir"/*.log; "$@"; exit 1; }
		sleep 0.2
	done
	echo "ok: $what"
}

# certify NAME: creates a self-signed certificate
certify() {
	openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -keyout "$dir/key.pem" -out "$dir/cert.pem" \
		-subj "/CN=$1" -addext "subjectAltName=DNS:$1,IP:127.0.0.1" 2>/dev/null
}

# register SERVICE NAMESPACE PORT GROUP VERSION PRIORITY
register() {
	kubectl apply -f - <<-Y
		apiVersion: v1
		kind: Service
		metadata: {name: $1, namespace: $2}
		spec: {type: ExternalName, externalName: localhost, ports: [{port: $3}]}
		---
		apiVersion: apiregistration.k8s.io/v1
		kind: APIService
		metadata: {name: $5.$4}
		spec: {group: $4, version: $5, groupPriorityMinimum: 1000, versionPriority: $6, service: {name: $1, namespace: $2, port: $3}, caBundle: $(base64 -w0 "$dir/cert.pem")}
	Y
}

start() {
	go build -o "$dir/apilet" .
	"$dir/apilet" --listen 127.0.0.1:0 --cert-dir "$dir/certs" --data "$dir/a.db" --kubeconfig "$dir/kubeconfig" >"$dir/apilet.log" 2>&1 &
	until_true 'apilet serves' test -s "$dir/kubeconfig"
	export KUBECONFIG=$dir/kubeconfig
	port=$((20000 + RANDOM % 10000))
	delegated=(--secure-port "$port" --bind-address 127.0.0.1 --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG"
		--authorization-kubeconfig "$KUBECONFIG" --tls-cert-file "$dir/cert.pem" --tls-private-key-file "$dir/key.pem")
}

sample() {
	compile k8s.io/sample-apiserver@v0.36.6 k8s.io/sample-apiserver sample-apiserver
	certify api.wardle.svc
	start
	"${ETCD:-etcd}" --data-dir "$dir/etcd" --listen-client-urls "http://127.0.0.1:$((port + 1))" --advertise-client-urls "http://127.0.0.1:$((port + 1))" \
		--listen-peer-urls "http://127.0.0.1:$((port + 2))" --log-level error >"$dir/etcd.log" 2>&1 &
	"$cache/sample-apiserver" "${delegated[@]}" --etcd-servers "http://127.0.0.1:$((port + 1))" >"$dir/sample.log" 2>&1 &
	kubectl create namespace wardle
	register api wardle "$port" wardle.example.com v1alpha1 15
	register api wardle "$port" wardle.example.com v1beta1 20
	kubectl wait --for=condition=Available --timeout=2m apiservice/v1alpha1.wardle.example.com apiservice/v1beta1.wardle.example.com
	until_true 'discovery knows flunders' kubectl get flunders --all-namespaces
	kubectl create namespace zoo
	kubectl get flunders -n zoo --watch -o name >"$dir/watch" 2>&1 &
	for verb in apply 'apply --server-side'; do
		# shellcheck disable=SC2086
		kubectl $verb -f - <<<"{\"apiVersion\": \"wardle.example.com/v1alpha1\", \"kind\": \"Flunder\", \"metadata\": {\"name\": \"f${#verb}\", \"namespace\": \"zoo\"}}"
	done
	until_true 'a watch saw both' eval "[ \$(sort -u $dir/watch | wc -l) = 2 ]"
	until_true 'explain' eval 'kubectl explain flunders.spec | grep -q fischerReference'
	kubectl get flunders -n zoo
	kubectl delete namespace zoo --timeout=1m
	[ -z "$(kubectl get flunders --all-namespaces -o name)" ] && echo 'ok: the namespace took its flunders along'
}

# metered KUBELET...: starts metrics-server and its kubelets
metered() {
	compile sigs.k8s.io/metrics-server@v0.9.0 sigs.k8s.io/metrics-server/cmd/metrics-server metrics-server
	certify metrics-server.kube-system.svc
	start
	go run ./testdata/programs/kubelet -cert "$dir/cert.pem" -key "$dir/key.pem" "$@" >"$dir/nodes.json" 2>"$dir/kubelet.log" &
	until_true 'kubelets are played' test -s "$dir/nodes.json"
	kubectl create -f "$dir/nodes.json"
	kubectl replace --subresource status -f "$dir/nodes.json" >/dev/null
	"$cache/metrics-server" "${delegated[@]}" --kubelet-insecure-tls --metric-resolution 11s --kubelet-request-timeout 5s --kubelet-preferred-address-types InternalIP --kubelet-use-node-status-port \
		>"$dir/metrics.log" 2>&1 &
	register metrics-server kube-system "$port" metrics.k8s.io v1beta1 100
	until_true 'metrics-server is available' eval 'kubectl get apiservice v1beta1.metrics.k8s.io | grep -q True'
}

metrics() {
	metered
	until_true 'kubectl top nodes' kubectl top nodes
	kubectl top nodes
	until_true 'kubectl top pods' kubectl top pods
	kubectl top pods
}

# run_pod NAME: does the work of a scheduler and a kubelet
run_pod() {
	kubectl create --raw "/api/v1/namespaces/default/pods/$1/binding" -f - <<<"{\"apiVersion\": \"v1\", \"kind\": \"Binding\", \"metadata\": {\"name\": \"$1\"}, \"target\": {\"kind\": \"Node\", \"name\": \"node-0\"}}" >/dev/null
	kubectl patch pod "$1" --subresource status --type merge -p "{\"status\": {\"phase\": \"Running\", \"startTime\": \"2026-01-01T00:00:00Z\",
		\"conditions\": [{\"type\": \"Ready\", \"status\": \"True\", \"lastTransitionTime\": \"2026-01-01T00:00:00Z\"}]}}"
}

scale() {
	metered -pods web-0,web-1,web-2,web-3
	"${KUBE_CONTROLLER_MANAGER:-kube-controller-manager}" --kubeconfig "$KUBECONFIG" --secure-port 0 --leader-elect=false \
		--controllers horizontal-pod-autoscaler-controller,statefulset-controller --horizontal-pod-autoscaler-sync-period 5s \
		--horizontal-pod-autoscaler-initial-readiness-delay 0s --horizontal-pod-autoscaler-cpu-initialization-period 0s >"$dir/manager.log" 2>&1 &
	kubectl create -f - <<-Y
		apiVersion: apps/v1
		kind: StatefulSet
		metadata: {name: web}
		spec:
		  podManagementPolicy: Parallel
		  selector: {matchLabels: {app: web}}
		  template:
		    metadata: {labels: {app: web}}
		    spec: {containers: [{name: web, image: nginx, resources: {requests: {cpu: 50m}}}]}
	Y
	kubectl autoscale statefulset web --cpu-percent=100 --min=1 --max=4
	until_true 'kube-controller-manager made a pod' kubectl get pod web-0
	run_pod web-0
	PATIENCE=180 until_true 'the autoscaler saw 200 % of what was asked for, and scaled to 2' eval '[ "$(kubectl get statefulset web -o jsonpath={.spec.replicas})" -ge 2 ]'
	until_true 'there is a second pod' kubectl get pod web-1
	run_pod web-1
	PATIENCE=180 until_true 'both use 200 %: it scaled to 4' eval '[ "$(kubectl get statefulset web -o jsonpath={.spec.replicas})" = 4 ]'
	kubectl get hpa web
}

"${1:?sample, metrics or scale}"
