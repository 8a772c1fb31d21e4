#!/usr/bin/env bash
# Runs a command whose apilets keep their objects in etcd, unchanged otherwise.
#
#   testdata/on-etcd.sh ETCD APILET COMMAND...
#
# ETCD is etcd's binary: (cd testdata/etcd && go build -o /tmp/etcd go.etcd.io/etcd/server/v3). One member is started, on free ports, and
# ended with the command. The command finds in $APILET a program that starts an apilet on it, under a prefix of its own for each data file (or
# each start, if it is --ephemeral), and in $ETCD_SERVERS the member's address, for tests that start servers in their own process:
#
#   testdata/on-etcd.sh /tmp/etcd ./apilet go test -C testdata/clients ./...
#   testdata/on-etcd.sh /tmp/etcd ./apilet go test -run Conversations .
set -euo pipefail
etcd=$(realpath "$1") apilet=$(realpath "$2")
shift 2
work=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || { kill -9 "$pid"; wait "$pid"; } 2>/dev/null || true; rm -rf "$work"' EXIT

for _ in 1 2 3 4 5; do
	port=$((12000 + RANDOM % 18000))
	if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then continue; fi
	url=http://127.0.0.1:$port peer=http://127.0.0.1:$((port + 1))
	"$etcd" --name on --data-dir "$work/$port" --listen-client-urls "$url" --advertise-client-urls "$url" --listen-peer-urls "$peer" \
		--initial-advertise-peer-urls "$peer" --initial-cluster "on=$peer" --log-level error --unsafe-no-fsync >"$work/log" 2>&1 &
	pid=$!
	for _ in $(seq 200); do
		if ! kill -0 "$pid" 2>/dev/null; then break; fi
		if (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; then break 2; fi
		sleep 0.05
	done
	kill -9 "$pid" 2>/dev/null || true
	pid=
done
[ -n "$pid" ] || { cat "$work/log" >&2; exit 1; }

cat >"$work/apilet" <<END
#!/usr/bin/env bash
case \${0##*/}\${1:--} in
apilet-*) ;;
apilet*) exec "$apilet" "\$@" ;; # a command of its own
*) exec -a "\$0" "$apilet" "\$@" ;; # standing in for kube-apiserver or etcd in envtest, which chooses for itself
esac
of=\$\$-\$RANDOM-\$RANDOM before=
for word; do
	case \$before in --data) of=\$(cksum <<<"\$word" | tr -d ' ') ;; esac
	case \$word in --data=*) of=\$(cksum <<<"\${word#--data=}" | tr -d ' ') ;; esac
	before=\$word
done
exec "$apilet" "\$@" --etcd-servers "$url" --etcd-prefix "/\$of"
END
chmod +x "$work/apilet"
APILET=$work/apilet ETCD=$etcd ETCD_SERVERS=$url "$@"
