#!/usr/bin/env bash
# coverage.sh [FOLDER [GO TEST FLAGS...]]: runs the test suite and prints the statement coverage of
# each package, from low to high. A statement counts as covered if any test of any package runs it,
# in the test's own process or in the program that internal/e2e builds and starts.
#
# FOLDER keeps the counters. The default is a new temporary folder. Several runs may share a folder.
# PACKAGES limits a run to some packages:
#
#	testdata/coverage.sh /tmp/coverage -short
#	PACKAGES=./internal/e2e testdata/coverage.sh /tmp/coverage -run TestBackup
#
# Processes that a test kills with SIGKILL write no counters. Their statements count only if another
# process runs them and ends normally. A test that fails is printed and does not stop the run,
# because coverage slows programs down and changes how often they allocate.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-$(mktemp -d)}
shift $(($# > 0))
mkdir -p "$folder"
export GOCOVERDIR # internal/e2e builds the program with -cover if this is set, and its processes inherit it
GOCOVERDIR=$(cd "$folder" && pwd)
read -ra packages <<<"${PACKAGES:-./...}"
# go test gives each test binary its own GOCOVERDIR and deletes it. -exec sets the folder again for
# the processes that tests start.
nice go test -count=1 -timeout=60m -coverpkg=./... -exec "env GOCOVERDIR=$GOCOVERDIR" "$@" "${packages[@]}" -args -test.gocoverdir="$GOCOVERDIR" |
	grep -vE '^(ok|PASS|\?|\s+\S+\s+coverage: )' || true
go tool covdata textfmt -i="$GOCOVERDIR" -o="$GOCOVERDIR/profile.txt"
echo "uncovered lines: go tool cover -html=$GOCOVERDIR/profile.txt"
go tool covdata percent -i="$GOCOVERDIR" | awk '/ of statements/ { print $3, $1 }' | sort -n
