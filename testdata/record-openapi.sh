#!/usr/bin/env bash
# Records the OpenAPI documents of a running kube-apiserver, for the tests of
# internal/discovery/recorded_test.go. The server must not have custom resources. jq and zstd must
# be in the PATH.
#   testdata/record-openapi.sh https://127.0.0.1:6443 TOKEN
#   go test ./internal/discovery -run TestDescriptions -update
set -euo pipefail
cd "$(dirname "$0")/.."
get() { curl -skf -H "Authorization: Bearer $token" "$url$1"; }
url=$1 token=$2
{
	get /openapi/v2 | jq -cS '{path: "openapi/v2", document: {definitions}}'
	get /openapi/v3 | jq -r '.paths | to_entries[] | [.key, .value.serverRelativeURL] | @tsv' | while read -r path at; do
		get "$at" | jq -cS --arg path "$path" '{$path, document: .}'
	done
} | zstd -q -19 --long=24 -f -o internal/discovery/testdata/kube-apiserver-1.37.jsonl.zst
