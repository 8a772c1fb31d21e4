#!/usr/bin/env bash
# Runs controller-runtime's own tests and client-go's examples with an apilet instead of their
# control plane, and prints the number of passed cases.
#
#   testdata/suites.sh [APILET [PACKAGE...]]
#
# If APILET is not given, it is built. PACKAGEs are packages of controller-runtime, e.g. pkg/client.
# The default is all packages whose tests start a control plane. Each runs twice: over TLS, where
# envtest starts kube-apiserver and etcd (links to apilet) with its own certificates, and on the
# plain port of a running apilet (USE_EXISTING_CLUSTER). A package is stopped after five minutes. Go
# downloads the modules; only the module and build caches remain. The exit code is 1 if a case
# failed. The last lines of failed cases are printed, and the logs are written to $LOGS if it is
# set.
set -u
controller_runtime=${CONTROLLER_RUNTIME:-v0.24.1} client_go=${CLIENT_GO:-v0.36.0}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server=
trap 'stop; rm -rf "$work"' EXIT
logs=${LOGS:-$work/logs}
export GINKGO_NO_COLOR=1
mkdir -p "$logs" "$work/bin"
logs=$(cd "$logs" && pwd)
failures=0

apilet=${1:-}
shift $(($# > 0))
if [ -z "$apilet" ]; then
	apilet=$work/apilet
	(cd "$here/.." && CGO_ENABLED=0 go build -o "$apilet" .) || exit
fi
apilet=$(cd "$(dirname "$apilet")" && pwd)/$(basename "$apilet")
eval "$("$apilet" envtest-assets "$work/assets")"

# Skipped tests: those that download Kubernetes 1.28 to test its discovery, and, over plain HTTP,
# those that count the requests of a TLS client.
skip_tls='.*/aggregatedDiscovery=false' skip_plain=TestLazyRestMapperProvider

# fetch MODULE VERSION: creates a writable copy of a module.
fetch() {
	local from
	from=$(cd "$work" && GOFLAGS=-mod=mod go mod download -json "$1@$2" | sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p')
	[ -d "$from" ] || { echo "no module $1@$2" >&2; exit 1; }
	cp -r "$from" "$work/${1##*/}" && chmod -R u+w "$work/${1##*/}"
}

# start FLAGS...: starts a server without persistence; stop ends it.
start() {
	rm -f "$work/kubeconfig"
	"$apilet" --ephemeral --listen 127.0.0.1:0 --kubeconfig "$work/kubeconfig" "$@" 2>>"$logs/apilet.log" &
	server=$!
	until [ -s "$work/kubeconfig" ]; do kill -0 $server || exit; sleep 0.05; done
}
stop() {
	[ -z "$server" ] || { kill $server; wait $server; } 2>/dev/null
	server=
}

# tally LOG CODE: prints passed/run. A case is a Ginkgo case, or a Go test other than the one that
# runs the Ginkgo cases.
tally() {
	awk -v code="$2" '
		/^(SUCCESS|FAIL)! -- / {
			for (i = 1; i < NF; i++) { if ($(i+1) == "Passed") passed += $i; if ($(i+1) == "Failed") failed += $i }
			if ($1 == "SUCCESS!") passed--; else failed--
		}
		/^--- PASS: / { passed++ }
		/^--- FAIL: / { failed++ }
		END { printf "%d/%d%s\n", passed, passed + failed, (code != 0 && !failed) ? " (exit " code ")" : "" }' "$1"
}

# run MODE PACKAGE BINARY: runs one package in one mode, and sets the variable result to its tally.
run() {
	local log=$logs/${2//\//-}-$1.log code
	if [ "$1" = plain ]; then
		start --namespace-defaults=false --disable-admission-plugins=ServiceAccount # the flags of envtest's kube-apiserver, which these tests expect
		(cd "$work/controller-runtime/$2" && USE_EXISTING_CLUSTER=true KUBECONFIG=$work/kubeconfig timeout 300 "$3" -test.v -test.skip "$skip_plain" >"$log" 2>&1)
		code=$?
		stop
	else
		(cd "$work/controller-runtime/$2" && timeout 300 "$3" -test.v -test.skip "$skip_tls" >"$log" 2>&1)
		code=$?
	fi
	result=$(tally "$log" $code)
	[ $code = 0 ] && return
	failures=$((failures + 1))
	grep -aE '^ *\[(FAIL|PANICKED!|TIMEDOUT)\]|^ *--- FAIL' "$log" | sort -u | sed 's/^ */    /'
}

fetch sigs.k8s.io/controller-runtime "$controller_runtime"
cd "$work/controller-runtime" || exit
if [ $# = 0 ]; then
	set -- $( (grep -rl 'envtest\.Environment' --include='*_test.go' pkg | xargs -n1 dirname; echo pkg/envtest) | sort -u)
fi
printf 'controller-runtime %s\n%-34s %12s %12s\n' "$controller_runtime" package TLS plain
for package; do
	binary=$work/bin/${package//\//-}
	if ! go test -c -o "$binary" "./$package" || [ ! -x "$binary" ]; then
		failures=$((failures + 1))
		continue
	fi
	run tls "$package" "$binary"
	tls=$result
	run plain "$package" "$binary"
	printf '%-34s %12s %12s\n' "$package" "$tls" "$result"
	rm -f "$binary"
done

# client-go's own tests use fakes. It has examples for a server that create, update, list and delete
# objects, and wait for a line of input in between.
fetch k8s.io/client-go "$client_go"
cd "$work/client-go" || exit
printf 'client-go %s\n' "$client_go"
for example in create-update-delete-deployment dynamic-create-update-delete-deployment; do
	go build -o "$work/bin/$example" "./examples/$example" || { failures=$((failures + 1)); continue; }
	for mode in tls plain; do
		if [ $mode = tls ]; then start --cert-dir "$work/certs"; else start; fi
		if yes '' 2>/dev/null | timeout 60 "$work/bin/$example" --kubeconfig "$work/kubeconfig" >"$logs/$example-$mode.log" 2>&1; then
			eval "$mode=1/1"
		else
			eval "$mode=0/1"
			failures=$((failures + 1))
			tail -n 3 "$logs/$example-$mode.log" | sed 's/^/    /'
		fi
		stop
	done
	printf '%-42s %4s %12s\n' "$example" "$tls" "$plain"
done
[ $failures = 0 ]
