#!/usr/bin/env bash
# Runs a command whose apilets keep their objects in etcd, unchanged otherwise.
#
#   testdata/on-etcd.sh ETCD APILET COMMAND...
#
# ETCD is etcd's binary: (cd testdata/etcd && go build -o /tmp/etcd go.etcd.io/etcd/server/v3). The command finds in $APILET a program that
# starts an apilet on an etcd of one member: a prefix of its own in the one of all, or, when it is given a data file, an etcd of its own for
# that file, since whoever compacts an etcd compacts it for all. $ETCD_SERVERS is the one of all, for tests that start servers
# themselves. With the command all etcds end.
#
#   testdata/on-etcd.sh /tmp/etcd ./apilet go test -C testdata/clients ./...
#   testdata/on-etcd.sh /tmp/etcd ./apilet go test -run Conversations ./internal/e2e
set -euo pipefail
etcd=$(realpath "$1") apilet=$(realpath "$2")
shift 2
work=$(mktemp -d)
# stop ends all etcds. What they leave is removed when they have ended, and what the command came to stays the last word.
stop() {
	local pid
	for pid in "$work"/*/pid; do
		if [ -s "$pid" ]; then kill -9 "$(cat "$pid")" 2>/dev/null || true; fi
	done
	for _ in $(seq 100); do
		if rm -rf "$work" 2>/dev/null; then return 0; fi
		sleep 0.1
	done
}
trap stop EXIT

# start DIR starts an etcd there, on two free ports that no other start has had, unless it runs; DIR/url tells its address, DIR/pid its process.
# That it serves it says itself: at its port there might be somebody who was quicker, and then it ends.
start() {
	local dir=$1 port url peer
	[ ! -s "$dir/url" ] || return 0
	mkdir -p "$dir"
	for _ in $(seq 20); do
		port=$((12000 + RANDOM % 9000 * 2))
		if ! mkdir "$work/port-$port" 2>/dev/null || (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
		url=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 1))
		"$etcd" --name on --data-dir "$dir/$port" --listen-client-urls "$url" --advertise-client-urls "$url" --listen-peer-urls "$peer" \
			--initial-advertise-peer-urls "$peer" --initial-cluster "on=$peer" --log-level info --unsafe-no-fsync </dev/null >"$dir/log" 2>&1 &
		echo $! >"$dir/pid"
		disown # it is killed without a word
		for _ in $(seq 2000); do
			if ! kill -0 "$(cat "$dir/pid")" 2>/dev/null; then break; fi
			if grep -q '"serving client traffic insecurely' "$dir/log"; then
				echo "$url" >"$dir/url"
				return 0
			fi
			sleep 0.05
		done
		kill -9 "$(cat "$dir/pid")" 2>/dev/null || true
	done
	cat "$dir/log" >&2
	return 1
}

start "$work/all"
{
	printf '#!/usr/bin/env bash\nset -eu\nwork=%q etcd=%q apilet=%q\n' "$work" "$etcd" "$apilet"
	declare -f start
	cat <<'END'
case ${0##*/}${1:--} in
apilet-*) ;;
apilet*) exec "$apilet" "$@" ;; # a command of its own
*) exec -a "$0" "$apilet" "$@" ;; # standing in for kube-apiserver or etcd in envtest, which chooses for itself
esac
file= before=
for word; do
	case $before in --data) file=$word ;; esac
	case $word in --data=*) file=${word#--data=} ;; esac
	before=$word
done
if [ -n "$file" ]; then
	dir=$work/$(cksum <<<"$file" | tr -d ' ')
	start "$dir"
	exec "$apilet" "$@" --etcd-servers "$(cat "$dir/url")"
fi
exec "$apilet" "$@" --etcd-servers "$(cat "$work/all/url")" --etcd-prefix "/$$-$RANDOM-$RANDOM"
END
} >"$work/apilet"
chmod +x "$work/apilet"
APILET=$work/apilet ETCD=$etcd ETCD_SERVERS=$(cat "$work/all/url") "$@"
