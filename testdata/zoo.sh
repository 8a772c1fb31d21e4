#!/usr/bin/env bash
# zoo.sh APILET [ROUNDS] [FLAGS...] runs apilet torture on the whole zoo. It must find each
# controller's bug and must not report a corrected twin. If a bug happens to occur in the baseline
# runs, they disagree, and the differences are not judged; therefore each bug has three attempts.
# TWINS=N limits the plans for each twin to N.
set -euo pipefail
apilet=$(realpath "$1") rounds=${2:-1}
shift; shift || true
cd "$(dirname "$0")/programs/zoo"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/zoo" .
failed=0
for round in $(seq "$rounds"); do
	while read -r name workload replicas; do
		for mended in false true; do
			begin=$SECONDS code=0 until=()
			[ $mended = true ] || until=(--fail-fast)
			[ $mended = false ] || [ -z "${TWINS-}" ] || until=(--plans "$TWINS")
			for try in 1 2 3; do
				"$apilet" torture --setup setup.yaml --objects "$workload.yaml" --replicas "$replicas" --patience 5s --seed "$((round * try))" \
					--server-flag=--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection --out "$work/$name-$mended-$round" "$@" ${until[@]+"${until[@]}"} \
					-- "$work/zoo" -server '{server}' -controller "$name" -mended="$mended" >"$work/log" 2>"$work/errors" || code=$?
				[ $mended = false ] && [ $code = 0 ] || break
			done
			sum=$(grep -E '^[0-9]+ plans' "$work/log" || tail -3 "$work/errors")
			verdict=right
			if [[ $mended = false && $code = 0 || $mended = true && $code != 0 ]]; then verdict=WRONG failed=1; fi
			printf '%s  %-10s mended=%-5s %3ds  %s\n' "$verdict" "$name" "$mended" $((SECONDS - begin)) "$sum"
			[ "$verdict" = right ] || { cat "$work/log" "$work/errors"; cat "$work/$name-$mended-$round"/*.md 2>/dev/null || true; }
		done
	done < <("$work/zoo" -list)
done
exit $failed
