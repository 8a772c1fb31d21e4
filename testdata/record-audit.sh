#!/usr/bin/env bash
# Records the audit events that kube-apiserver writes for internal/e2e/testdata/audit/requests.txt
# with each policy in that folder, for TestAuditEventsUnderPoliciesAreKubernetes. etcd and
# kube-apiserver 1.37 must be in the PATH (docs/changing.md says how to get them).
#   testdata/record-audit.sh [POLICY...]
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'kill -9 $(jobs -p) 2>/dev/null || true; rm -rf "$dir"' EXIT
openssl genrsa -out "$dir/sa.key" 2048 2>/dev/null
printf 'admin-token,admin,1,"system:masters"\nalice-token,alice,2,"dev"\nbob-token,bob,3\n' >"$dir/tokens.csv"
go test -c -o "$dir/e2e.test" ./internal/e2e
mkdir -p internal/e2e/testdata/audit/events
port=$((20000 + RANDOM % 10000)) url=
for policy in internal/e2e/testdata/audit/policies/*.yaml; do
	name=$(basename "$policy" .yaml)
	[ $# = 0 ] || [[ " $* " = *" $name "* ]] || continue
	port=$((port + 3))
	etcd --data-dir "$dir/etcd-$name" --listen-client-urls "http://127.0.0.1:$port" --advertise-client-urls "http://127.0.0.1:$port" \
		--listen-peer-urls "http://127.0.0.1:$((port + 1))" >"$dir/etcd.log" 2>&1 &
	etcd=$!
	kube-apiserver --etcd-servers "http://127.0.0.1:$port" --bind-address 127.0.0.1 --advertise-address 192.0.2.1 --secure-port $((port + 2)) \
		--cert-dir "$dir/certs" --token-auth-file "$dir/tokens.csv" --authorization-mode RBAC --service-cluster-ip-range 10.96.0.0/16 \
		--disable-admission-plugins ServiceAccount --service-account-issuer https://asked --service-account-key-file "$dir/sa.key" \
		--service-account-signing-key-file "$dir/sa.key" --audit-policy-file "$policy" --audit-log-path "$dir/$name.log" >"$dir/kube-apiserver.log" 2>&1 &
	server=$!
	url=https://127.0.0.1:$((port + 2))
	until [ "$(curl -sk -H 'Authorization: Bearer admin-token' "$url/readyz")" = ok ] &&
		curl -skf -o /dev/null -H 'Authorization: Bearer admin-token' "$url/api/v1/namespaces/default"; do
		kill -0 $server || { tail "$dir/kube-apiserver.log"; exit 1; }
		sleep 0.2
	done
	(cd internal/e2e && "$dir/e2e.test" -test.run "TestAuditEventsUnderPoliciesAreKubernetes/^$name\$" -oracle "$url" -token admin-token -update -audit-log "$dir/$name.log")
	kill -9 $server $etcd # after SIGTERM they would wait for each other
	wait $server $etcd 2>/dev/null || true
	rm -rf "$dir/etcd-$name" "$dir/$name.log"
done
