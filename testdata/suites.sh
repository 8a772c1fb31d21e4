#!/usr/bin/env bash
# Runs the tests that controller-runtime has of itself, and client-go's examples, with an apilet in the place of their control plane, and
# prints how many cases passed.
#
#   testdata/suites.sh [APILET [PACKAGE...]]
#
# APILET is built when none is given. PACKAGEs are controller-runtime's, as pkg/client; by default all whose tests start a control plane.
# Each runs twice: over TLS, where envtest starts kube-apiserver and etcd (links to apilet) with certificates of its own, and on the plain
# port of an apilet that runs already (USE_EXISTING_CLUSTER). A package that takes longer than five minutes is ended. Go fetches the modules;
# nothing but the module and build caches is left behind. Exit 1 if a case failed; the ends of such cases are printed, the logs are in $LOGS
# if that names a folder.
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

# Left out: what downloads Kubernetes 1.28 to see how discovery was then, and over plain HTTP what counts the requests of a TLS client.
skip_tls='.*/aggregatedDiscovery=false' skip_plain=TestLazyRestMapperProvider

# fetch MODULE VERSION: a copy of a module that can be written to.
fetch() {
	local from
	from=$(cd "$work" && GOFLAGS=-mod=mod go mod download -json "$1@$2" | sed -n 's/^\t"Dir": "\(.*\)",\?$/\1/p')
	[ -d "$from" ] || { echo "no module $1@$2" >&2; exit 1; }
	cp -r "$from" "$work/${1##*/}" && chmod -R u+w "$work/${1##*/}"
}

# start FLAGS...: a server that keeps nothing; stop ends it.
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

# tally LOG CODE: passed/ran. A case is one of Ginkgo's, or a Go test that is not the one which runs Ginkgo's.
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

# run MODE PACKAGE BINARY: one package in one mode; its tally goes to the variable result.
run() {
	local log=$logs/${2//\//-}-$1.log code
	if [ "$1" = plain ]; then
		start --namespace-defaults=false --disable-admission-plugins=ServiceAccount # as envtest starts a kube-apiserver, by which these tests count
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

# client-go's own tests ask fakes; what it has for a server are examples that make, change, list and delete, a line of input between.
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
