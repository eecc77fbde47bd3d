#!/usr/bin/env bash
# Runs every test on SQLite and on a PostgreSQL of its own, on a bare Debian or Ubuntu machine with Rust. Installs what is missing,
# starts it on private ports and directories, stops what it started, and ends with a count.
set -euo pipefail
cd "$(dirname "$0")/.."

scratch=$(mktemp -d)
chmod 755 "$scratch"
stop=()
cleanup() {
    for command in "${stop[@]:-}"; do
        [ -n "$command" ] && eval "$command" >/dev/null 2>&1 || true
    done
    rm -rf "$scratch"
}
trap cleanup EXIT

missing() {
    if [ "${CI:-}" = "true" ]; then
        echo "tests/run.sh: $1, and CI may skip nothing" >&2
        exit 1
    fi
    printf '\n*** SKIPPED: %s ***\n\n' "$1" >&2
}

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

install() {
    command -v apt-get >/dev/null || return 1
    as_root apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive as_root apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1
}

postgres_bin() { ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V | tail -n 1; }

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 20000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo "$port"; return; }
    done
}

# PostgreSQL refuses to run as root; its package brings a user for it.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then su postgres -s /bin/bash -c "$1"; else bash -c "$1"; fi
}

start_postgres() {
    [ -n "$(postgres_bin)" ] && [ -x "$(postgres_bin)/initdb" ] || install postgresql || return 1
    local bin port dir="$scratch/postgres"
    bin=$(postgres_bin)
    [ -n "$bin" ] || return 1
    port=$(free_port)
    mkdir "$dir"
    [ "$(id -u)" != 0 ] || chown postgres "$dir"
    as_postgres "$bin/initdb -D $dir/data -A trust -U postgres >$dir/initdb.log 2>&1" || return 1
    as_postgres "$bin/pg_ctl -D $dir/data -w -t 60 -l $dir/log -o '-p $port -k $dir -c listen_addresses=127.0.0.1 -c fsync=off -c max_connections=300' start >/dev/null" || return 1
    stop+=("as_postgres '$bin/pg_ctl -D $dir/data -m immediate stop'")
    export BERTH_TEST_POSTGRES="postgres://postgres@127.0.0.1:$port"
}

filter=()
if ! start_postgres; then
    missing "PostgreSQL could not be started"
    filter=(--skip postgres)
fi

if cargo nextest --version >/dev/null 2>&1; then
    [ ${#filter[@]} -eq 0 ] || filter=(-E 'not test(postgres)')
    cargo nextest run --locked --features testing --no-fail-fast "${filter[@]}" "$@"
else
    cargo test --locked --features testing --no-fail-fast -- "${filter[@]}" "$@"
fi
