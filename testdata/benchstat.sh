#!/usr/bin/env bash
# benchstat.sh [BENCHMARKS [PACKAGE]]: compares benchmarks of the commit of CHANGELOG's last entry
# with those of this tree. It runs them in turn, so that other load of the machine affects both.
# benchstat prints the differences and their significance. TURNS=10 gives more precise results.
set -euo pipefail
cd "$(dirname "$0")/.."
benchmarks=${1:-'HTTP|Watch'} package=${2:-.} turns=${TURNS:-6}
last=$(git log -1 --format=%h -G'^## ' -- CHANGELOG.md)
work=$(mktemp -d)
trap 'git worktree remove --force "$work/tree" || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/tree" "$last"
go test -c -o "$work/new" "$package"
(cd "$work/tree" && go test -c -o "$work/old" "$package")
for turn in $(seq "$turns"); do
	for state in old new; do
		root=$PWD
		[ $state = new ] || root=$work/tree
		(cd "$root/$package" && "$work/$state" -test.run '^$' -test.bench "$benchmarks" -test.benchmem) >>"$work/$state.txt"
	done
	echo "turn $turn of $turns" >&2
done
go run golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da "$last=$work/old.txt" "here=$work/new.txt"
