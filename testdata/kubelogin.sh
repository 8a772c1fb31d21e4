#!/usr/bin/env bash
# kubelogin.sh tests kubectl's sign-on to apilet with the unmodified plug-in kubelogin
# (int128/kubelogin), with testdata/programs/signon as the issuer: by a browser, by a device code,
# by name and password, and by a refresh after the token has expired.
#
# It requires kubectl, curl, the Go module proxy, a minute, and 200 MB for compiled programs (kept
# in KUBELOGIN, by default a folder in the user's cache). Everything listens on loopback. .ci/run
# does not run this script.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=${KUBELOGIN:-${XDG_CACHE_HOME:-$HOME/.cache}/apilet-kubelogin}
version=v1.28.0
dir=$(mktemp -d)
mkdir -p "$cache"
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$dir"' EXIT

[ -x "$cache/kubelogin" ] || (cd "$dir" && printf 'module scratch\ngo 1.26.0\nrequire github.com/int128/kubelogin %s\n' "$version" >go.mod &&
	go build -mod=mod -trimpath -ldflags='-s -w' -o "$cache/kubelogin" github.com/int128/kubelogin && rm go.mod go.sum)
go build -o "$dir/apilet" .
go build -o "$dir/signon" ./testdata/programs/signon
"$dir/signon" -dir "$dir/sso" -people 'jane=dev;eve=' -lasts 12s 2>"$dir/signon.log" &
until [ -s "$dir/sso/url" ]; do sleep 0.1; done
"$dir/apilet" --ephemeral --listen 127.0.0.1:0 --cert-dir "$dir/certs" --kubeconfig "$dir/kubeconfig" \
	--authentication-config "$dir/sso/authentication.yaml" --authorization-config "$dir/sso/authorization.yaml" >"$dir/apilet.log" 2>&1 &
until [ -s "$dir/kubeconfig" ]; do sleep 0.1; done
export KUBECONFIG=$dir/kubeconfig

# Simulates a browser and its user: it opens the given URL and submits the form that it is
# redirected to. The file opened counts the calls.
cat >"$dir/browser" <<B
#!/usr/bin/env bash
set -euo pipefail
echo "\$1" >>"$dir/opened"
at=\$(curl -sSL --cacert "$dir/sso/authority.pem" -o "$dir/form" -w '%{url_effective}' "\$1")
grep -q 'Who are you' "$dir/form"
curl -sSL --cacert "$dir/sso/authority.pem" -o "$dir/done" -d "name=\$(cat "$dir/name")&password=sesame" "\$at"
B
chmod +x "$dir/browser"
: >"$dir/opened"

# user NAME FLAG...: adds a kubectl user that signs on with these flags
user() {
	local name=$1 args=()
	shift
	for flag in get-token --oidc-issuer-url="$(cat "$dir/sso/url")" --oidc-client-id=apilet --certificate-authority="$dir/sso/authority.pem" \
		--token-cache-dir="$dir/tokens-$name" --authentication-timeout-sec=60 "$@"; do
		args+=("--exec-arg=$flag")
	done
	kubectl config set-credentials "$name" --exec-api-version=client.authentication.k8s.io/v1beta1 --exec-interactive-mode=IfAvailable \
		--exec-command="$cache/kubelogin" "${args[@]}" >/dev/null
}

# expect WHAT WANT COMMAND...: the command's output contains WANT
expect() {
	local what=$1 want=$2 got
	shift 2
	got=$("$@" 2>&1 </dev/null || true)
	case $got in
	*"$want"*) echo "ok: $what" ;;
	*) printf 'NOT: %s\n%s\n' "$what" "$got"; tail -n 5 "$dir"/*.log; exit 1 ;;
	esac
}
opened() { wc -l <"$dir/opened" | tr -d ' '; }

echo jane >"$dir/name"
user browser --grant-type=authcode --listen-address=127.0.0.1:0 --browser-command="$dir/browser"
user device --grant-type=device-code --browser-command="$dir/browser"
user typed --grant-type=password --username=jane --password=sesame
user wrong --grant-type=password --username=jane --password=open
for by in browser device typed; do
	expect "signed on by $by" 'sso:jane' kubectl --user "$by" auth whoami
	expect "$by: a developer may read" 'kube-root-ca.crt' kubectl --user "$by" get configmaps
	expect "$by: and no Secrets" "Secrets are nobody's business" kubectl --user "$by" get secrets
done
expect 'the browser was opened once for each who needs it' 2 opened
expect 'a wrong password' 'invalid_grant' kubectl --user wrong get configmaps
sleep 13
expect 'an old token is renewed' 'kube-root-ca.crt' kubectl --user browser get configmaps
expect 'by itself' 'jane has a token by refresh_token' cat "$dir/signon.log"
expect 'without a browser' 2 opened
echo eve >"$dir/name"
user other --grant-type=authcode --listen-address=127.0.0.1:0 --browser-command="$dir/browser"
expect 'somebody else is somebody else' 'User "sso:eve" cannot list resource "configmaps"' kubectl --user other get configmaps
