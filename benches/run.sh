#!/usr/bin/env bash
# Runs every benchmark in release mode and prints a table for the README; fails if one of them misses its must. With
# BERTH_TEST_POSTGRES=postgres://… it measures PostgreSQL too, and with BERTH_TEST_DOCKER=unix://… an engine with the tests' image.
set -euo pipefail
cd "$(dirname "$0")/.."

failed=0
lines=$(mktemp)
trap 'rm -f "$lines"' EXIT
for bench in start lease_read acquire_postgres acquire_sqlite renew reaper storm checkpoint restore docker; do
    cargo bench --locked --quiet --bench "$bench" | tee -a "$lines" || failed=1
done

value() { grep -o "\"$2\":\(\"[^\"]*\"\|[^,}]*\)" <<<"$1" | head -n 1 | cut -d : -f 2- | tr -d '"'; }

printf '\n| scenario | ratio (min to max) | must | target | ours | compared with | unit |\n|---|---|---|---|---|---|---|\n'
while IFS= read -r line; do
    printf '| %s | %s (%s to %s) | %s | %s | %s | %s | %s |\n' "$(value "$line" scenario)" "$(value "$line" ratio)" \
        "$(value "$line" min)" "$(value "$line" max)" "$(value "$line" must | sed 's/null/–/')" "$(value "$line" target)" \
        "$(value "$line" ours)" "$(value "$line" limit)" "$(value "$line" unit)"
done <"$lines"
exit "$failed"
