#!/usr/bin/env bash
# JobSet, tortured: jobset.sh APILET VERSION [FLAGS...]. It is built, unchanged, from the module proxy (some minutes, 1 GB of the build cache), and runs
# without its webhooks. jobset-fails.yaml with --replay lost-status.json shows what was found in v0.8.0 to v0.11.1; v0.12.0 has it mended:
#
#	jobset.sh apilet v0.11.1 --objects jobset-fails.yaml --replay lost-status.json
set -euo pipefail
apilet=$(realpath "$1") version=$2
shift 2
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cp -r "$(cd "$work" && go mod download -json "sigs.k8s.io/jobset@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')" "$work/source"
chmod -R u+w "$work/source"
(cd "$work/source" && go build -mod=mod -trimpath -o "$work/jobset" .)
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=localhost -days 1 -keyout "$work/tls.key" -out "$work/tls.crt" 2>"$work/openssl"
(
	cat "$work"/source/config/components/crd/bases/*.yaml
	echo "---"
	echo "wait: {apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, name: jobsets.jobset.x-k8s.io," \
		"until: \"object.status.conditions.exists(c, c.type == 'Established' && c.status == 'True')\"}"
) >"$work/setup.yaml"
cat >"$work/run" <<EOF
#!/bin/sh
cat >"$work/config\$3" <<END
apiVersion: config.jobset.x-k8s.io/v1alpha1
kind: Configuration
health: {healthProbeBindAddress: "127.0.0.1:\$2"}
metrics: {bindAddress: "0"}
leaderElection: {leaderElect: false}
webhook: {port: \$3, host: 127.0.0.1, certDir: "$work"}
internalCertManagement: {enable: false}
END
exec "$work/jobset" --config "$work/config\$3" --kubeconfig "\$1"
EOF
chmod +x "$work/run"
"$apilet" torture --setup "$work/setup.yaml" --objects jobset.yaml \
	--server-flag=--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection "$@" -- "$work/run" '{kubeconfig}' '{port}' '{port}'
