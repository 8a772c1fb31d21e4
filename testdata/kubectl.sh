#!/usr/bin/env bash
# Runs common kubectl commands with an apilet, and checks their output.
#
#   testdata/kubectl.sh KUBECTL SERVER_URL [MANIFEST_DIR...]
#
# Every command must end as expected within three minutes, which allows for busy machines. The
# manifests in MANIFEST_DIRs are also applied, read back and deleted. The exit code is 1 if a
# command failed.
set -u
kubectl=$1 server=$2
shift 2
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HOME=$work KUBECONFIG=$work/config KUBE_EDITOR="sed -i s/greeting:.*/greeting:\ edited/"
passed=0 failed=0

k() { timeout 180 "$kubectl" --cache-dir "$work/cache" --server "$server" -n "$ns" "$@"; }

# ok WANT COMMAND...: the command succeeds and its output matches the regular expression WANT.
ok() { check 0 "$@"; }
# no WANT COMMAND...: the command fails and its output matches WANT.
no() { check 1 "$@"; }
check() {
	local code=$1 want=$2 out rc
	shift 2
	out=$("$@" 2>&1 </dev/null)
	rc=$?
	if [ $((rc != 0)) = "$code" ] && grep -qE -- "$want" <<<"$out"; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		printf 'FAIL (exit %d, want /%s/): %s\n%s\n' "$rc" "$want" "${*:2}" "$(head -n 12 <<<"$out")"
	fi
}
pipe() { k "${@:2}" <"$1"; }
# says WANT COMMAND...: prints kubectl's output as soon as it contains WANT, for commands that do
# not end.
says() {
	local pid
	timeout 180 "$kubectl" --cache-dir "$work/cache" --server "$server" -n "$ns" "${@:2}" >"$work/said" 2>&1 &
	pid=$!
	while ! grep -qE -- "$1" "$work/said" && kill -0 $pid 2>/dev/null; do sleep 0.05; done
	kill $pid 2>/dev/null
	wait $pid 2>/dev/null
	cat "$work/said"
}
# watched: prints the event of a watch for a ConfigMap that is created after the watch has printed
# the existing ones.
watched() {
	rm -f "$work/said"
	(
		for _ in $(seq 3000); do
			if grep -q made "$work/said" 2>/dev/null; then break; fi
			sleep 0.05
		done
		k create configmap late >/dev/null
	) &
	says late get configmaps -w
	wait
}

ns=default
ok 'GitVersion|Server Version' k version
ok '^apps/v1$' k api-versions
ok 'deployments +deploy +apps/v1 +true +Deployment' k api-resources
ok 'namespace/kubectl-test created' k create namespace kubectl-test
ns=kubectl-test

# Apply, get, edit.
ok 'deployment.apps/shop created' k apply -f "$here/manifests/shop.yaml"
ok 'configmap/shop unchanged' k apply -f "$here/manifests/shop.yaml"
ok '^shop +0/2 +0 +0 ' k get deployments
ok 'deployment.apps/shop +0/2' k get all
ok 'NAME.*DATA.*AGE' k get configmaps
ok '^shop +1 ' k get configmap shop
ok 'configmap/shop' k get configmap -o name -l app=shop
ok '"greeting": "hello"' k get configmap shop -o json
ok 'greeting: hello' k get configmap shop -o yaml
ok '^hello$' k get configmap shop -o 'jsonpath={.data.greeting}{"\n"}'
ok 'shop +hello' k get configmap shop -o custom-columns=N:.metadata.name,G:.data.greeting
ok 'kubectl-test +shop' k get deployments -A
ok 'shop' k get configmaps --field-selector metadata.name=shop
ok 'No resources found' k get configmaps -l app=nothing
ok 'shop' k get deployments --sort-by=.metadata.name
ok 'ledger.*created' k apply -f "$here/manifests/ledger.yaml"
ok 'ledger +0/3' k get statefulsets
ok 'service/ledger.*None' k get all
ok 'fast +disk.example/local' k get storageclasses
ok 'Name: +shop' k describe deployment shop
ok 'Name: +kubectl-test' k describe namespace kubectl-test
ok 'configmap/made created' k create configmap made --from-literal=a=1
ok 'secret/hush created' k create secret generic hush --from-literal=a=1
ok 'serviceaccount/robot created' k create serviceaccount robot
ok '^eyJ[^.]+\.[^.]+\.[^.]+$' k create token robot --duration=1h
ok 'role.rbac.authorization.k8s.io/reader created' k create role reader --verb=get --resource=pods
ok 'rolebinding.*created' k create rolebinding readers --role=reader --serviceaccount=kubectl-test:robot
ok 'job.batch/once created' k create job once --image=registry.example/job:1
ok 'cronjob.batch/often created' k create cronjob often --image=registry.example/job:1 --schedule='* * * * *'
ok 'deployment.apps/quick created' k create deployment quick --image=registry.example/quick:1
ok 'service/quick exposed' k expose deployment quick --port=80
ok 'pod/solo created' k run solo --image=registry.example/solo:1
ok 'solo +0/1 +Pending' k get pods
ok 'solo +0/1 +Pending' k get pods -o wide
ok 'ingress.*created' k create ingress front --rule=shop.example/=shop:80
ok 'poddisruptionbudget.*created' k create poddisruptionbudget calm --selector=app=shop --min-available=1
ok 'resourcequota/small created' k create quota small --hard=pods=10
ok 'configmap/made labeled' k label configmap made tier=test
ok 'configmap/made annotated' k annotate configmap made note=here
ok 'configmap/made patched' k patch configmap made -p '{"data":{"b":"2"}}'
ok 'configmap/made patched' k patch configmap made --type=merge -p '{"data":{"c":"3"}}'
ok 'configmap/made patched' k patch configmap made --type=json -p '[{"op":"add","path":"/data/d","value":"4"}]'
ok '^1234$' k get configmap made -o 'jsonpath={.data.a}{.data.b}{.data.c}{.data.d}{"\n"}'
ok 'configmap/shop edited' k edit configmap shop
ok '^edited$' k get configmap shop -o 'jsonpath={.data.greeting}{"\n"}'
ok 'deployment.apps/shop scaled' k scale deployment shop --replicas=5
ok '^shop +0/5' k get deployment shop
ok 'deployment.apps/shop image updated' k set image deployment/shop web=registry.example/shop:2.0
ok 'deployment.apps/shop env updated' k set env deployment/shop COLOUR=red
ok 'deployment.apps/shop restarted' k rollout restart deployment shop
ok 'autoscaled' k autoscale deployment shop --max=4
ok 'shop +Deployment/shop' k get hpa
k get configmap made -o yaml >"$work/made.yaml" 2>/dev/null
sed -i 's/a: "1"/a: "one"/' "$work/made.yaml"
ok 'configmap/made replaced' k replace -f "$work/made.yaml"
ok '^one$' k get configmap made -o 'jsonpath={.data.a}{"\n"}'
sed 's/hello/goodbye/' "$here/manifests/shop.yaml" >"$work/shop.yaml"
no '\+ *greeting: goodbye' k diff -f "$work/shop.yaml"
ok 'configmap/shop configured \(server dry run\)' k apply --dry-run=server -f "$work/shop.yaml"
ok '^edited$' k get configmap shop -o 'jsonpath={.data.greeting}{"\n"}'
ok 'configmap/shop configured' k apply -f "$work/shop.yaml"
ok 'serverside-applied' k apply --server-side --force-conflicts -f "$work/shop.yaml"
ok '"greeting": *"goodbye"' k apply view-last-applied configmap shop -o json
ok 'no changes required' k apply set-last-applied -f "$work/shop.yaml"

# From client-side to server-side apply, and fields of other managers.
printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: moved}\ndata: {a: "1"}\n' >"$work/moved.yaml"
sed 's/"1"/"2"/' "$work/moved.yaml" >"$work/moved2.yaml"
ok 'configmap/moved created' k apply -f "$work/moved.yaml"
ok 'configmap/moved serverside-applied' k apply --server-side -f "$work/moved.yaml"
ok '^kubectl Apply, kubectl-last-applied Apply, $' k get configmap moved -o 'jsonpath={range .metadata.managedFields[*]}{.manager} {.operation}, {end}{"\n"}'
ok '^$' k diff --server-side -f "$work/moved.yaml"
no '\+ *a: "2"' k diff --server-side -f "$work/moved2.yaml"
ok 'configmap/moved serverside-applied' k apply --server-side -f "$work/moved2.yaml"
no 'Apply failed with 1 conflict: conflict with "kubectl": .data.a' k apply --server-side --field-manager=other -f "$work/moved.yaml"
no 'conflict' k diff --server-side --field-manager=other -f "$work/moved.yaml"
ok 'configmap/moved serverside-applied' k apply --server-side --field-manager=other --force-conflicts -f "$work/moved.yaml"
ok 'configmap/moved configured' k apply -f "$work/moved2.yaml"
ok '^2$' k get configmap moved -o 'jsonpath={.data.a}{"\n"}'

# Explain, top, permissions.
ok 'KIND: +Deployment' k explain deployment
ok 'replicas.*<integer>' k explain deployment.spec
ok 'containerPort' k explain pod.spec.containers --recursive
ok 'containerPort.*-required-' k explain pod.spec.containers.ports
no 'field "nothing" does not exist' k explain deployment.nothing
ok '^deployments +deploy +apps/v1 +true +Deployment +create,delete,deletecollection,get,list,patch,update,watch +all' k api-resources --api-group=apps -o wide
ok '^nodes$' k api-resources --namespaced=false --verbs=list -o name
ok '^yes' k auth can-i create pods
ok '^yes' k auth can-i get pods/log
ok '\*\.\* +\[\] +\[\] +\[\*\]' k auth can-i --list
ok 'reconciled' k auth reconcile -f <(printf 'apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reader, namespace: kubectl-test}\nrules: [{apiGroups: [""], resources: [pods], verbs: [list]}]\n')
ok 'allowed: true' k create -o yaml -f <(printf 'apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\nspec: {resourceAttributes: {verb: get, resource: pods}}\n')
ok 'system:unsecured|Username' k auth whoami
ok 'jane' k auth whoami --as=jane
ok '"major": *"1"' k get --raw /version
ok '^ok$' k get --raw /readyz
ok 'readyz check passed' k get --raw '/readyz?verbose'
ok 'apiserver_request_total' k get --raw /metrics
ok 'running at' k cluster-info
ok 'No events|LAST SEEN' k events

# Watch and wait.
ok '^late ' watched
ok 'condition met' k wait --for=jsonpath='{.data.a}'=one configmap/made --timeout=150s
ok 'successfully rolled out|Waiting' says 'successfully rolled out|Waiting' rollout status deployment shop
ok 'deployment.apps/quick patched' k patch deployment quick --subresource=status --type=merge -p '{"status":{"observedGeneration":9,"replicas":1,"updatedReplicas":1,"availableReplicas":1,"readyReplicas":1,"conditions":[{"type":"Available","status":"True"}]}}'
ok 'condition met' k wait --for=condition=Available deployment/quick --timeout=150s
ok 'successfully rolled out' k rollout status deployment quick --timeout=150s
no 'timed out|deadline' k wait --for=condition=Ready pod/solo --timeout=1s # the text depends on whether it waits for the condition or the list
ok 'quick' k rollout history deployment quick
ok 'paused' k rollout pause deployment quick
ok 'resumed' k rollout resume deployment quick
no 'no rollout history' k rollout undo deployment quick
ok 'Defaulting debug container name' k debug solo --image=registry.example/debug:1 --profile=general
ok '^IfNotPresent$' k get pod solo -o 'jsonpath={.spec.ephemeralContainers[0].imagePullPolicy}{"\n"}'

# Errors.
no 'NotFound' k get configmap nothing
no "doesn't have a resource type" k get nothings
no 'already exists' k create configmap made
no 'not found' k create configmap x -n no-such-namespace
no 'unknown field|strict decoding' pipe <(printf 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: odd}\nbogus: 1\n') create -f -
no 'so no pods run' k exec solo -c solo -- ls
no 'so no pods run' k attach solo -c solo
no 'so no pods run' k cp solo:/etc/hosts "$work/hosts" -c solo
no 'not running' k port-forward pod/solo 8080:80
no 'Metrics API not available' k top pods
no 'Metrics API not available' k top nodes
no 'NotFound' k cordon no-such-node
no 'may not be deleted' k delete namespace default

# Chunks, and deletions.
ok 'made' k get configmaps --chunk-size=1
ok 'pod "solo" deleted' k delete pod solo
ok 'configmap "made" deleted' k delete configmap made
no 'NotFound' k get configmap made
ok 'deleted' k delete -f "$work/shop.yaml"
ok 'deleted' k delete deployments --all
ok 'deleted' k delete -f "$here/manifests/ledger.yaml"
ok 'namespace "kubectl-test" deleted' k delete namespace kubectl-test
ns=default
no 'NotFound' k get namespace kubectl-test

# Manifests of other projects.
ok 'created' k create namespace manifests
ns=manifests
for dir in "$@"; do
	for f in "$dir"/*.yaml; do
		ok 'created|configured|unchanged' k apply -f "$f"
		ok 'apiVersion' k get -f "$f" -o yaml
	done
	ok 'deleted' k delete -f "$dir" --ignore-not-found
done
ok 'deleted' k delete namespace manifests

printf '%d passed, %d failed\n' "$passed" "$failed"
[ "$failed" = 0 ]
