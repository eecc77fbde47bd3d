#!/usr/bin/env bash
# Runs every test on SQLite, on a PostgreSQL and on a Docker engine of its own, on a bare Debian or Ubuntu machine with Rust. Installs
# what is missing, starts it on private ports and directories, stops what it started, and ends with a count.
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

# Tries an engine with these options; true once it answers.
try_engine() {
    local dir="$scratch/docker" pid
    rm -rf "$dir"
    mkdir -p "$dir"
    as_root setsid dockerd --data-root "$dir/data" --exec-root "$dir/exec" -H "unix://$dir/docker.sock" -p "$dir/pid" "$@" >"$dir/log" 2>&1 &
    for _ in $(seq 150); do
        if as_root docker -H "unix://$dir/docker.sock" version >/dev/null 2>&1; then
            pid=$(as_root cat "$dir/pid")
            # Its containers go first, or their mounts would outlive it.
            stop+=("remove_containers unix://$dir/docker.sock; as_root kill $pid; wait_gone $pid; as_root rm -rf $dir")
            as_root chmod 755 "$dir"
            as_root chmod 666 "$dir/docker.sock"
            return 0
        fi
        kill -0 $! 2>/dev/null || return 1
        sleep 0.2
    done
    as_root kill "$(as_root cat "$dir/pid")" 2>/dev/null || true
    return 1
}

remove_containers() {
    local container
    for container in $(as_root docker -H "$1" ps -aq); do as_root docker -H "$1" rm -f "$container"; done
}
wait_gone() { for _ in $(seq 100); do as_root kill -0 "$1" 2>/dev/null || return 0; sleep 0.2; done; }

start_docker() {
    command -v dockerd >/dev/null && command -v docker >/dev/null && [ -x /bin/busybox ] || install docker.io busybox-static || return 1
    command -v dockerd >/dev/null || return 1
    # No bridge: what the tests run needs no network, and not every machine lets one be made.
    try_engine --iptables=false --bridge=none --storage-driver=overlay2 || try_engine --iptables=false --bridge=none --storage-driver=vfs || return 1
    export BERTH_TEST_DOCKER="unix://$scratch/docker/docker.sock"
    local root="$scratch/image"
    mkdir -p "$root/bin" "$root/etc" "$root/tmp"
    chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/busybox"
    local applet
    for applet in $(/bin/busybox --list); do
        [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
    done
    echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
    tar -C "$root" -c . | docker -H "$BERTH_TEST_DOCKER" import - berth-test:1 >/dev/null
}

# An S3-compatible store of its own, from PyPI.
start_s3() {
    command -v python3 >/dev/null && command -v curl >/dev/null || return 1
    python3 -m venv "$scratch/venv" >/dev/null 2>&1 || return 1
    "$scratch/venv/bin/pip" install --quiet --disable-pip-version-check 'moto[server]' >/dev/null 2>&1 || return 1
    local port
    port=$(free_port)
    "$scratch/venv/bin/moto_server" -H 127.0.0.1 -p "$port" >"$scratch/moto.log" 2>&1 &
    stop+=("kill $!")
    for _ in $(seq 100); do
        curl -fsS -X PUT "http://127.0.0.1:$port/berth-test" >/dev/null 2>&1 && break
        sleep 0.2
    done
    curl -fsS "http://127.0.0.1:$port/berth-test" >/dev/null 2>&1 || return 1
    export BERTH_TEST_S3=s3://berth-test AWS_ENDPOINT="http://127.0.0.1:$port" AWS_ALLOW_HTTP=true AWS_REGION=us-east-1
    export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test
}

# Isolation of the provider local; some machines let nobody make namespaces.
find_bubblewrap() {
    command -v bwrap >/dev/null || install bubblewrap || return 1
    bwrap --unshare-pid --unshare-net --ro-bind / / --proc /proc true
}

skip=()
start_s3 || missing "the S3-compatible store (moto) could not be started"
if ! start_postgres; then
    missing "PostgreSQL could not be started"
    skip+=(postgres)
fi
if ! start_docker; then
    missing "a Docker engine could not be started"
    skip+=(^docker::)
fi

if ! find_bubblewrap; then
    missing "bubblewrap does not work here"
    skip+=(::bubblewrap::)
fi

filter=()
if cargo nextest --version >/dev/null 2>&1; then
    wanted="all()"
    for word in "${skip[@]}"; do wanted="$wanted - test(/$word/)"; done
    cargo nextest run --locked --features testing --no-fail-fast -E "$wanted" "$@"
else
    for word in "${skip[@]}"; do filter+=(--skip "${word#^}"); done
    cargo test --locked --features testing --no-fail-fast -- "${filter[@]}" "$@"
fi
