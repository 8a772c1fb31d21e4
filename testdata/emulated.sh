#!/usr/bin/env bash
# Runs an apilet for another processor in qemu's user emulation, and tests the features that devices
# rely on: kubectl's commands over TLS, acknowledged writes that survive a SIGKILL, the check of the
# file, and a clean stop.
#
#   testdata/emulated.sh PROCESSOR APILET [KUBECTL]
#
# PROCESSOR is qemu's name of the processor: arm, aarch64, riscv64. If KUBECTL is given, all
# commands of testdata/kubectl.sh run, too.
#
#   CGO_ENABLED=0 GOARCH=arm go build -tags noetcd -o /tmp/apilet.arm . && testdata/emulated.sh arm /tmp/apilet.arm
set -u
qemu=$(command -v "qemu-$1-static" || command -v "qemu-$1") || { echo "left out, since there is no qemu-$1"; exit 0; }
apilet=$(realpath "$2") kubectl=${3:-} here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
server='' passed=0 failed=0
trap 'kill -9 $(jobs -p) 2>/dev/null; wait 2>/dev/null; rm -rf "$work"' EXIT
cd "$work" || exit

check() { # WHAT COMMAND...: the command succeeds
	local what=$1
	shift
	if "$@" >out 2>&1; then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		printf 'FAIL: %s\n%s\n%s\n' "$what" "$(tail -n 12 out)" "$(tail -n 5 log)"
	fi
}

begin() { # FLAGS...: starts a server and waits until it serves at $url
	rm -f kubeconfig
	"$qemu" "$apilet" --data x.db --listen 127.0.0.1:0 --kubeconfig kubeconfig --log-format json "$@" >>log 2>&1 &
	server=$!
	for _ in $(seq 600); do
		if [ -s kubeconfig ] || ! kill -0 "$server" 2>/dev/null; then break; fi
		sleep 0.1
	done
	url=$(sed -n 's/.*"server": "\(.*\)".*/\1/p' kubeconfig) || { echo "FAIL: it does not start: $(tail -n 3 log)"; exit 1; }
}
end() { # SIGNAL
	kill "-$1" "$server" && { wait "$server" 2>/dev/null || [ "$1" = KILL ]; }
}

configmaps=/api/v1/namespaces/default/configmaps
write() { # WRITER: creates objects until the server is gone, and records the acknowledged ones
	local n=0 code
	while code=$(curl -s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/json' "$url$configmaps" \
		-d '{"metadata":{"name":"w-'"$1-$round-$n"'"},"data":{"k":"'"$(head -c 600 /dev/urandom | base64 -w 0)"'"}}'); do
		if [ "$code" = 201 ]; then echo "w-$1-$round-$n" >>"acknowledged.$1"; fi
		n=$((n + 1))
	done
}
allThere() {
	cat acknowledged.* | sort >acknowledged
	[ "$(wc -l <acknowledged)" -ge $((round * 40)) ] || { echo "only $(wc -l <acknowledged) writes"; return 1; }
	curl -sf "$url$configmaps" | grep -o '"name": *"w-[^"]*"' | cut -d '"' -f 4 | sort >there
	lost=$(comm -23 acknowledged there)
	[ -z "$lost" ] || { echo "acknowledged and not there: $lost"; return 1; }
}

begin
for round in 1 2 3; do # SIGKILL during writes of four clients
	writers=()
	for writer in 1 2 3 4; do
		write $writer &
		writers+=($!)
	done
	until [ "$(cat acknowledged.* 2>/dev/null | wc -l)" -ge $((round * 40)) ] || ! kill -0 "$server"; do sleep 0.1; done
	check "SIGKILL" end KILL
	wait "${writers[@]}"
	begin
	check "what was acknowledged is there" allThere
done
echo "$(wc -l <acknowledged) writes were acknowledged, three SIGKILLs"
check "a list in chunks" test "$(curl -sf "$url$configmaps?limit=7" | grep -c '"name": *"w-')" = 7
check "history" test "$(curl -sf "$url/debug/history?resource=configmaps&namespace=default&tail=5" | grep -c '"type":"ADDED"')" = 5
check "SIGTERM" end TERM
check "apilet check" "$qemu" "$apilet" check --data x.db

if [ -n "$kubectl" ]; then
	begin
	check "kubectl's commands" "$here/kubectl.sh" "$kubectl" "$url"
	check "SIGTERM" end TERM
fi
begin --cert-dir certs
check "over TLS, with its own certificates" curl -sf --cacert certs/ca.crt "$url/readyz"
if command -v kubectl >/dev/null; then check "kubectl over TLS" kubectl --kubeconfig kubeconfig get namespaces; fi
check "SIGTERM" end TERM
printf '%s: %d passed, %d failed\n' "$1" "$passed" "$failed"
[ "$failed" = 0 ]
