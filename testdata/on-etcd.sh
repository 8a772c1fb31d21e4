#!/usr/bin/env bash
# Runs a command with apilets that store their objects in etcd. They are otherwise unchanged.
#
#   testdata/on-etcd.sh ETCD APILET COMMAND...
#
# ETCD is etcd's binary: (cd testdata/etcd && go build -o /tmp/etcd go.etcd.io/etcd/server/v3).
# $APILET is a program for the command. It starts an apilet on an etcd with one member. The apilet
# gets its own prefix in a shared etcd, or a separate etcd if it has a data file, because a
# compaction affects all servers on an etcd. $ETCD_SERVERS is the shared etcd, for tests that start
# servers themselves. All etcds end with the command.
#
#   testdata/on-etcd.sh /tmp/etcd ./apilet go test -C testdata/clients ./...
#   testdata/on-etcd.sh /tmp/etcd ./apilet go test -run Conversations ./internal/e2e
set -euo pipefail
etcd=$(realpath "$1") apilet=$(realpath "$2")
shift 2
work=$(mktemp -d)
# stop kills all etcds and removes their files. It keeps the command's exit code.
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

# start DIR starts an etcd in DIR unless it runs. It uses two free ports that no other call has
# used. DIR/url contains its address and DIR/pid its process ID. Its log shows that it serves,
# because another process may have taken the port; the etcd then exits.
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
		disown # no message when it is killed
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
apilet*) exec "$apilet" "$@" ;; # a subcommand
*) exec -a "$0" "$apilet" "$@" ;; # a link in place of kube-apiserver or etcd for envtest, which uses its own flags
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
