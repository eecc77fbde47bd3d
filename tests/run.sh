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

# Tries an engine of this name with its data there and these options; true once it answers.
try_engine() {
    local dir="$scratch/$1" data=$2 pid
    shift 2
    rm -rf "$dir"
    mkdir -p "$dir"
    as_root setsid dockerd --data-root "$data" --exec-root "$dir/exec" -H "unix://$dir/docker.sock" -p "$dir/pid" "$@" >"$dir/log" 2>&1 &
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
    local data="$scratch/docker/data"
    try_engine docker "$data" --iptables=false --bridge=none --storage-driver=overlay2 ||
        try_engine docker "$data" --iptables=false --bridge=none --storage-driver=vfs || return 1
    export BERTH_TEST_DOCKER="unix://$scratch/docker/docker.sock"
    import_image "$BERTH_TEST_DOCKER"
}

# Gives an engine the image that the tests run.
import_image() {
    local root="$scratch/image"
    mkdir -p "$root/bin" "$root/etc" "$root/tmp"
    chmod 1777 "$root/tmp"
    cp /bin/busybox "$root/bin/busybox"
    local applet
    for applet in $(/bin/busybox --list); do
        [ "$applet" = busybox ] || ln -sf busybox "$root/bin/$applet"
    done
    echo 'root:x:0:0::/:/bin/sh' >"$root/etc/passwd"
    tar -C "$root" -c . | docker -H "$1" import - berth-test:1 >/dev/null
}

# An engine that is reached over TLS, with certificates on both sides, and whose disk is small: 128 MiB of memory.
start_secured_docker() {
    command -v openssl >/dev/null || install openssl || return 1
    local certs="$scratch/certs" data="$scratch/small" port who
    mkdir "$certs" "$data"
    (
        cd "$certs"
        openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=berth-test -keyout ca-key.pem -out ca.pem
        printf 'subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n' >usage
        for who in server client; do
            openssl req -newkey rsa:2048 -nodes -subj "/CN=$who" -keyout "$who-key.pem" -out "$who.csr"
            openssl x509 -req -in "$who.csr" -CA ca.pem -CAkey ca-key.pem -CAcreateserial -days 2 -extfile usage -out "$who.pem"
        done
        mkdir client
        cp ca.pem client/ca.pem
        cp client.pem client/cert.pem
        cp client-key.pem client/key.pem
    ) >/dev/null 2>&1 || return 1
    port=$(free_port)
    as_root mount -t tmpfs -o size=128m,mode=711 berth-test "$data" || return 1
    try_engine secured "$data" --iptables=false --bridge=none --storage-driver=overlay2 -H "tcp://127.0.0.1:$port" --tlsverify \
        --tlscacert "$certs/ca.pem" --tlscert "$certs/server.pem" --tlskey "$certs/server-key.pem" || {
        as_root umount -l "$data"
        return 1
    }
    stop+=("as_root umount -l $data")
    import_image "unix://$scratch/secured/docker.sock"
    export BERTH_TEST_DOCKER_TLS="tcp://127.0.0.1:$port" BERTH_TEST_DOCKER_CERTS="$certs/client"
}

# Podman's service, with its own storage.
start_podman() {
    command -v podman >/dev/null && [ -e /usr/libexec/podman/catatonit ] || install podman catatonit || return 1
    local dir="$scratch/podman" pid
    mkdir "$dir"
    # Its own default asks for more than a machine may allow.
    printf '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' >"$dir/containers.conf"
    as_root env CONTAINERS_CONF="$dir/containers.conf" podman --root "$dir/storage" --runroot "$dir/run" \
        system service --time=0 "unix://$dir/podman.sock" >"$dir/log" 2>&1 &
    pid=$!
    stop+=("remove_containers unix://$dir/podman.sock; as_root kill $pid; as_root umount -l $dir/storage/overlay; as_root rm -rf $dir")
    for _ in $(seq 100); do
        as_root docker -H "unix://$dir/podman.sock" version >/dev/null 2>&1 && break
        sleep 0.2
    done
    as_root chmod 666 "$dir/podman.sock" || return 1
    rm -rf "$scratch/image"
    import_image "unix://$dir/podman.sock" || return 1
    export BERTH_TEST_PODMAN="unix://$dir/podman.sock"
    # Some machines run no container of Podman's, whatever the image.
    docker -H "$BERTH_TEST_PODMAN" run --rm --network none --init berth-test:1 true
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

# What lies to a server about the time of day.
find_faketime() {
    faketime_library() { ls /usr/lib/*/faketime/libfaketimeMT.so.1 2>/dev/null | head -n 1; }
    [ -n "$(faketime_library)" ] || install libfaketime || return 1
    BERTH_TEST_FAKETIME=$(faketime_library)
    [ -n "$BERTH_TEST_FAKETIME" ] && export BERTH_TEST_FAKETIME
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
elif ! start_secured_docker; then
    missing "a Docker engine behind TLS could not be started"
    skip+=(^docker::secured::)
fi

if ! start_podman >/dev/null 2>&1; then
    printf '\n*** SKIPPED: Podman runs no container here ***\n\n' >&2
    skip+=(^docker::podman::)
fi

if ! find_faketime; then
    missing "libfaketime is not here"
    skip+=(^replicas::three_replicas)
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
