#!/usr/bin/env bash
# Runs a whole control plane on apilet: the unmodified kube-controller-manager, kube-scheduler and
# kwok, which simulates kubelets. Each case checks the result of their work. Then kwok runs alone.
# docs/scale.md describes the setup.
#
#   testdata/plane.sh [APILET]
#
# If APILET is not given, it is built. The programs are kubectl, kube-controller-manager,
# kube-scheduler and kwok from PATH, or from the variables KUBECTL, KUBE_CONTROLLER_MANAGER,
# KUBE_SCHEDULER and KWOK. Cases whose programs are missing are skipped with a message. Each case
# has at most $PATIENCE seconds (240, for busy machines). The logs are written to $LOGS if it is
# set. The exit code is 1 if a case failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
logs=${LOGS:-$work/logs}
mkdir -p "$logs"
kubectl=${KUBECTL:-kubectl} manager=${KUBE_CONTROLLER_MANAGER:-kube-controller-manager} scheduler=${KUBE_SCHEDULER:-kube-scheduler} kwok=${KWOK:-kwok}
export HOME=$work KUBECONFIG=$work/kubeconfig
passed=0 failed=0
declare -A running=()
trap 'end_all; rm -rf "$work"' EXIT

# ---- Programs ----

have() {
	local program missing=
	for program; do command -v "$program" >/dev/null || missing+=" $program"; done
	[ -z "$missing" ] || { echo "left out, since there is no$missing"; return 1; }
}

# begin NAME COMMAND...: starts a program in the background, with a log; end NAME ends it.
begin() {
	"${@:2}" >>"$logs/$1.log" 2>&1 &
	running[$1]=$!
}
end() {
	[ -n "${running[$1]:-}" ] || return
	kill "-${2:-TERM}" "${running[$1]}" 2>/dev/null
	wait "${running[$1]}" 2>/dev/null
	unset "running[$1]"
}
end_all() { local name; for name in "${!running[@]}"; do end "$name" KILL; done; }

# begin_apilet FLAGS...: starts apilet on $port with the files in $data, and waits for its
# kubeconfig. If another process uses the port, it tries again. Without $port the server chooses a
# port.
begin_apilet() {
	local tries
	for tries in $(seq 100); do
		rm -f "$KUBECONFIG"
		begin apilet "$apilet" --listen "127.0.0.1:${port:-0}" --data "$data/apilet.db" --cert-dir "$data/certs" --kubeconfig "$KUBECONFIG" \
			--service-account-signing-key-file "$data/sa.key" --log-format json "$@"
		while kill -0 "${running[apilet]}" 2>/dev/null; do
			if [ -s "$KUBECONFIG" ]; then
				port=$(sed -n 's/.*"server": ".*:\([0-9]*\)".*/\1/p' "$KUBECONFIG")
				return
			fi
			sleep 0.05
		done
		end apilet
		tail -n 1 "$logs/apilet.log" | grep -q 'address already in use' || break
		sleep 1
	done
	echo "FAIL: the server does not start: $(tail -n 3 "$logs/apilet.log")"
	exit 1
}

# Long leases, because a stalled machine must not change the leader: a program that has lost its
# lease exits.
patiently=(--leader-elect-lease-duration 300s --leader-elect-renew-deadline 240s)

begin_manager() {
	begin kube-controller-manager "$manager" --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" --authorization-kubeconfig "$KUBECONFIG" \
		--secure-port 0 "${patiently[@]}" --use-service-account-credentials --root-ca-file "$data/certs/ca.crt" \
		--service-account-private-key-file "$data/sa.key" --cluster-signing-cert-file "$data/certs/ca.crt" --cluster-signing-key-file "$data/certs/ca.key" \
		--allocate-node-cidrs --cluster-cidr 10.244.0.0/16 --node-monitor-grace-period 20s
}

begin_scheduler() {
	begin kube-scheduler "$scheduler" --kubeconfig "$KUBECONFIG" --authentication-kubeconfig "$KUBECONFIG" --authorization-kubeconfig "$KUBECONFIG" \
		--secure-port 0 "${patiently[@]}"
}

begin_kwok() {
	begin kwok "$kwok" --kubeconfig "$KUBECONFIG" --manage-all-nodes --node-lease-duration-seconds 40 --config "$here/plane/kwok.yaml"
}

# fresh NAME: prepares an empty data folder; the server will choose a port.
fresh() {
	data=$work/data-$1 port=
	mkdir -p "$data"
	openssl genrsa -out "$data/sa.key" 2048 2>/dev/null
}

# ---- Cases ----

ns=default
k() { timeout 60 "$kubectl" --cache-dir "$work/cache" -n "$ns" "$@"; }
apply() { k apply -f "$@" >/dev/null || echo "FAIL: apply $*"; }
field() { k get "${@:1:$#-1}" -o "jsonpath=${*: -1}"; } # KIND [NAME] PATH

# await WHAT WANT COMMAND...: within $PATIENCE seconds the output of the command matches the regular
# expression WANT. ^ is the start of the whole output. The command may fail.
await() {
	local what=$1 want=$2 out began=$SECONDS
	shift 2
	while :; do
		out=$("$@" 2>&1 </dev/null)
		if printf %s "$out" | grep -qzE -- "$want" || [ "$want$out" = '^$' ]; then
			passed=$((passed + 1))
			printf 'ok   %s (%d s)\n' "$what" $((SECONDS - began))
			return
		fi
		[ $((SECONDS - began)) -lt "${PATIENCE:-240}" ] || break
		sleep 0.3
	done
	failed=$((failed + 1))
	printf 'FAIL %s (want /%s/): %s\n%s\n' "$what" "$want" "$*" "$(head -n 12 <<<"$out")"
	return 1
}

count() { k get "$@" --no-headers 2>/dev/null | wc -l; } # prints the number of objects
gone() { [ -z "$(k get "$@" --no-headers --ignore-not-found 2>&1)" ] && echo gone; }

# ---- All programs together ----

nodes() {
	apply "$here/plane/nodes.yaml"
	await 'nodes become ready' 'node-0 +Ready.*node-1 +Ready' k get nodes
	await 'nodes lose the taint they were born with' '^  *$' field nodes '{.items[*].spec.taints} '
	await 'nodes get their range of pod IPs' '^10\.244\.[01]\.0/24 10\.244\.[01]\.0/24$' field nodes '{.items[*].spec.podCIDR}'
	ns=kube-node-lease await 'nodes renew their leases' 'node-0 +[^ ]+ +.*node-1 +[^ ]+ ' k get leases
	ns=kube-system await 'leaders are elected' 'kube-controller-manager.*kube-scheduler' k get leases
}

namespaces() {
	await 'kube-controller-manager makes the account default' 'default' k get serviceaccount default
	await 'and publishes the authority' 'BEGIN CERTIFICATE' field configmap kube-root-ca.crt '{.data}'
	k delete serviceaccount default >/dev/null
	await 'a deleted account comes back' 'default' k get serviceaccount default
	ns=kube-system await 'its controllers have accounts of their own' 'deployment-controller.*endpointslice-controller.*namespace-controller' k get serviceaccounts
	await 'it gathers the rules of aggregated roles' 'deployments' field clusterrole admin '{.rules[*].resources}'
}

deployments() {
	apply "$here/plane/web.yaml"
	await 'a deployment is available' '^web +3/3 +3 +3' k get deployment web --no-headers
	await 'its pods are scheduled, run, and have IPs' '^(web-[a-z0-9-]+ 10\.[0-9.]+ node-[01] Running True; ){3}$' \
		k get pods -l app=web -o 'jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.spec.nodeName} {.status.phase} {.status.conditions[?(@.type=="Ready")].status}; {end}'
	await 'its service has three endpoints' '([0-9.]+ ){2}[0-9.]+$' field endpoints web '{.subsets[*].addresses[*].ip}'
	await 'and they are in an endpoint slice' '^(true ){2}true$' k get endpointslices -l kubernetes.io/service-name=web -o 'jsonpath={.items[*].endpoints[*].conditions.ready}'
	await 'pods mount a token of their account' '^\{"expirationSeconds":3607,"path":"token"\}' field pods '{.items[0].spec.volumes[0].projected.sources[0].serviceAccountToken}'
	await 'the scheduler says what it did' 'Successfully assigned .*/web-' k get events --field-selector reason=Scheduled
	k set image deployment/web c=registry.example/web:2 >/dev/null
	await 'a rollout comes to its end' 'successfully rolled out' k rollout status deployment/web --timeout=50s
	await 'its history has two revisions' 'REVISION.*1 .*2 ' k rollout history deployment/web
	await 'the first replica set is empty' '^0 3$|^3 0$' k get replicasets -l app=web -o 'jsonpath={.items[*].spec.replicas}'
	k rollout undo deployment/web >/dev/null
	await 'a rollout is undone' '^registry.example/web:1( registry.example/web:1){2}$' k get pods -l app=web -o 'jsonpath={.items[*].spec.containers[0].image}'
	k scale deployment/web --replicas=5 >/dev/null
	await 'a deployment grows' '^web +5/5' k get deployment web --no-headers
	await 'and its service with it' '([0-9.]+ ){4}[0-9.]+$' field endpoints web '{.subsets[*].addresses[*].ip}'
}

disruptions() {
	apply "$here/plane/budget.yaml"
	await 'a disruption budget knows its pods' '^5 1$' field pdb web '{.status.currentHealthy} {.status.disruptionsAllowed}'
	local pods
	read -ra pods < <(k get pods -l app=web -o 'jsonpath={.items[*].metadata.name}')
	await 'one pod may be evicted' 'Success' evict "${pods[0]}"
	k patch pdb web --type=merge -p '{"spec":{"minAvailable":5}}' >/dev/null
	await 'no other one may' "would violate the pod's disruption budget" evict "${pods[1]}"
	k patch pdb web --type=merge -p '{"spec":{"minAvailable":2}}' >/dev/null
	await 'a node is drained' 'node/node-0 drained' k drain node-0 --ignore-daemonsets --delete-emptydir-data --force --timeout=50s
	await 'its pods are elsewhere' '^(node-1 ){4}node-1$' k get pods -l app=web --field-selector status.phase=Running -o 'jsonpath={.items[*].spec.nodeName}'
	k uncordon node-0 >/dev/null
	k taint node node-1 out=of-order:NoExecute >/dev/null
	await 'a taint drives pods away' '^(node-0 ){4}node-0$' k get pods -l app=web --field-selector status.phase=Running -o 'jsonpath={.items[*].spec.nodeName}'
	k taint node node-1 out- >/dev/null
}

evict() {
	printf '{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"%s","namespace":"%s"}}' "$1" "$ns" >"$work/eviction"
	timeout 60 "$kubectl" create --raw "/api/v1/namespaces/$ns/pods/$1/eviction" -f "$work/eviction"
}

volumes() {
	apply "$here/plane/ledger.yaml"
	await 'a stateful set starts one pod after the other' '^ledger +2/2' k get statefulset ledger --no-headers
	await 'its claims are bound' '^Bound Bound$' field pvc '{.items[*].status.phase}'
	k delete pvc data-ledger-1 --wait=false >/dev/null
	await 'a claim in use stays' '^data-ledger-1 +(Terminating|Bound)' k get pvc data-ledger-1 --no-headers
	k scale statefulset ledger --replicas=1 >/dev/null
	await 'and goes with its pod' '^gone$' gone pvc data-ledger-1
	apply "$here/plane/scratch.yaml"
	await 'a pod brings a claim of its own' '^scratch +1/1 +Running' k get pod scratch --no-headers
	k delete pod scratch >/dev/null
	await 'which goes with it' '^gone$' gone pvc scratch-room
}

jobs_() {
	apply "$here/plane/jobs.yaml"
	await 'a job completes' '^once +Complete +3/3' k get job once --no-headers
	await 'an indexed one, too' '^0,1$|^0-1$' field job indexed '{.status.completedIndexes}'
	await 'a job goes when its time is over' '^gone$' gone job brief
	await 'a cron job makes jobs' '^often-[0-9]+ ' k get jobs -l from=often --no-headers
	apply "$here/plane/agents.yaml"
	await 'a daemon set is on every node' '^agent +2 +2 +2' k get daemonset agent --no-headers
	await 'a replication controller works' '^old +2 +2 +2' k get rc old --no-headers
}

scheduling() {
	k run huge --image=registry.example/huge:1 --overrides='{"spec":{"containers":[{"name":"c","image":"i","resources":{"requests":{"cpu":"64"}}}]}}' >/dev/null
	await 'what does not fit is not scheduled, and that is said' 'Insufficient cpu' k get events --field-selector reason=FailedScheduling,involvedObject.name=huge
	k delete pod huge >/dev/null
	apply "$here/plane/priorities.yaml"
	await 'a pod of high priority drives another out' '^important +1/1 +Running' k get pod important --no-headers
	await 'which was told' 'Preempted' k get events --field-selector involvedObject.name=filler
	k delete pod important >/dev/null
}

collection() {
	k delete deployment web >/dev/null
	await 'what a deployment owns goes with it' '^gone$' gone rs,pods -l app=web
	apply "$here/plane/web.yaml"
	await 'it comes back' '^web +3/3' k get deployment web --no-headers
	k delete deployment web --cascade=orphan >/dev/null
	await 'orphans stay' '^3$' count pods -l app=web --field-selector status.phase=Running
	await 'and have no owner' '^$' k get rs -l app=web -o 'jsonpath={.items[*].metadata.ownerReferences}'
	k delete rs -l app=web --cascade=foreground >/dev/null
	await 'foreground deletion takes dependents first' '^gone$' gone rs,pods -l app=web
	apply "$here/plane/tank.yaml"
	await 'a definition is served' 'condition met' k wait --for=condition=Established crd/tanks.plane.example
	await 'the owner of a custom resource' 'tank.plane.example/little created' owned_tank
	k delete configmap keeper >/dev/null
	await 'takes it along' '^gone$' gone tanks.plane.example
}

owned_tank() {
	k create configmap keeper >/dev/null 2>&1
	printf '{"apiVersion":"plane.example/v1","kind":"Tank","metadata":{"name":"little","ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"keeper","uid":"%s"}]}}' \
		"$(field configmap keeper '{.metadata.uid}')" >"$work/tank.json"
	k create -f "$work/tank.json"
}

quotas() {
	ns=tight
	k create namespace tight >/dev/null
	apply "$here/plane/quota.yaml"
	await 'a quota is written into its status' '^2 0$' field quota pods '{.status.hard.pods} {.status.used.pods}'
	k create deployment many --image=registry.example/many:1 --replicas=6 >/dev/null
	await 'a quota holds' '^many +2/6' k get deployment many --no-headers
	await 'it was refused in words' 'exceeded quota: pods, requested: pods=1, used: pods=2, limited: pods=2' k get events --field-selector reason=FailedCreate
	await 'what is used is right' '^2$' field quota pods '{.status.used.pods}'
	k delete pod "$(k get pods -o 'jsonpath={.items[0].metadata.name}')" >/dev/null
	await 'a place that is free is taken' '^many +2/6' k get deployment many --no-headers
	await 'and no more' '^2$' count pods
	k patch quota pods --type=merge -p '{"spec":{"hard":{"pods":"4"}}}' >/dev/null
	await 'a quota that grows lets more in' '^many +4/6' k get deployment many --no-headers
	k delete namespace tight --wait=false >/dev/null 2>&1
	await 'a namespace is emptied and goes' '^gone$' gone namespace tight
	ns=default
}

identities() {
	k create serviceaccount robot >/dev/null
	await 'tokens are made for accounts' '"username": *"system:serviceaccount:default:robot"' whoami
	apply "$here/plane/identities.yaml"
	await 'kube-controller-manager fills token Secrets' '^ZXlK' field secret robot-token '{.data.token}' # eyJ, in base64
	await 'and lets go of those of deleted accounts' '^gone$' without_account
	openssl req -new -newkey rsa:2048 -nodes -keyout "$work/jane.key" -subj /CN=jane/O=dev 2>/dev/null >"$work/jane.csr"
	sed "s/REQUEST/$(base64 -w0 <"$work/jane.csr")/" "$here/plane/jane.yaml" | k apply -f - >/dev/null
	k certificate approve jane >/dev/null
	await 'an approved request is signed' '^LS0t' field csr jane '{.status.certificate}'
	field csr jane '{.status.certificate}' | base64 -d >"$work/jane.crt"
	await 'and its certificate is somebody' '"username": *"jane"' curl -s --cacert "$data/certs/ca.crt" --cert "$work/jane.crt" --key "$work/jane.key" \
		-H 'Content-Type: application/json' -d '{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}' \
		"https://127.0.0.1:$port/apis/authentication.k8s.io/v1/selfsubjectreviews"
	await 'the types of a policy are checked' 'undefined field .nope.' field validatingadmissionpolicy typo '{.status.typeChecking}'
}

whoami() {
	curl -s --cacert "$data/certs/ca.crt" -H "Authorization: Bearer $(k create token robot)" -H 'Content-Type: application/json' \
		-d '{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}' "https://127.0.0.1:$port/apis/authentication.k8s.io/v1/selfsubjectreviews"
}

without_account() {
	k delete serviceaccount robot --ignore-not-found >/dev/null
	gone secret robot-token
}

mishaps() {
	k create deployment after --image=registry.example/after:1 --replicas=2 >/dev/null
	await 'before the server is killed' '^after +2/2' k get deployment after --no-headers
	end apilet KILL
	begin_apilet --controllers=false
	k scale deployment after --replicas=4 >/dev/null
	await 'all go on when it is back' '^after +4/4' k get deployment after --no-headers
	end kwok
	await 'nodes that fall silent are noticed' 'node-0 +NotReady.*node-1 +NotReady' k get nodes
	begin_kwok
	await 'and when they come back' 'node-0 +Ready.*node-1 +Ready' k get nodes
	await 'a node goes' 'deleted' k delete node node-1
	await 'pods on it are collected' '^(node-0 ){3}node-0$' k get pods -l app=after --field-selector status.phase=Running -o 'jsonpath={.items[*].spec.nodeName}'
}

# complaints: prints errors in the logs of the server and its clients that do not occur in a healthy
# cluster.
complaints() {
	jq -r 'select(.level == "error") | "apilet: " + .message + ": " + .error' "$logs/apilet.log"
	grep -hE '^panic|Unhandled Error.*(failed to list|unable to (decode|sync))|no kind .* is registered|unable to decode' "$logs"/kube-*.log "$logs/kwok.log" |
		grep -vE 'connection refused|connection reset|EOF|connection lost|i/o timeout' # while the server was down
}

alone() {
	apply "$here/plane/nodes.yaml"
	await 'kwok alone: nodes become ready' 'node-0 +Ready.*node-1 +Ready' k get nodes
	k run bound --image=registry.example/bound:1 --overrides='{"spec":{"nodeName":"node-1"}}' >/dev/null
	await 'a pod that names its node runs' '^bound +1/1 +Running +0 +[0-9]+s +10\.[0-9.]+ +node-1' k get pod bound -o wide --no-headers
	k run loose --image=registry.example/loose:1 >/dev/null
	await 'one that does not waits' '^loose +0/1 +Pending' k get pod loose --no-headers
	k create --raw /api/v1/namespaces/default/bindings -f "$here/plane/binding.json" >/dev/null
	await 'until somebody binds it' '^loose +1/1 +Running' k get pod loose --no-headers
	apply "$here/plane/paused.yaml"
	sed "s/UID/$(field job paused '{.metadata.uid}')/" "$here/plane/errand.yaml" | k create -f - >/dev/null
	await 'a pod of a job completes' '^errand +0/1 +Completed' k get pod errand --no-headers
	k delete pod bound >/dev/null
	await 'a deleted pod ends' '^gone$' gone pod bound
	k delete node node-0 >/dev/null
	ns=kube-node-lease await 'a lease goes with its node' '^gone$' gone lease node-0
}

apilet=${1:-}
if [ -z "$apilet" ]; then
	apilet=$work/apilet
	(cd "$here/.." && HOME=~ CGO_ENABLED=0 go build -o "$apilet" .) || exit
fi
apilet=$(cd "$(dirname "$apilet")" && pwd)/$(basename "$apilet")

tools=(openssl jq curl)
if have "$kubectl" "$manager" "$scheduler" "$kwok" "${tools[@]}"; then
	fresh plane
	begin_apilet --controllers=false
	begin_manager
	begin_scheduler
	begin_kwok
	for part in ${PARTS:-nodes namespaces deployments disruptions volumes jobs_ scheduling collection quotas identities mishaps}; do $part; done
	await 'nobody complains' '^$' complaints
	end_all
fi
if have "$kubectl" "$kwok" "${tools[@]}"; then
	fresh kwok
	begin_apilet
	begin_kwok
	alone
	end_all
fi
echo "$passed of $((passed + failed)) cases"
[ $failed = 0 ]
