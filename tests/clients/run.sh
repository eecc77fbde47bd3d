#!/usr/bin/env bash
# The API description as its users meet it: clients are generated from it without a warning and tell the demo's story against a real
# server, and a fuzzer holds every answer of that server against it. Needs Python 3, Node.js and their package registries.
set -euo pipefail
cd "$(dirname "$0")/../.."
berth=${BERTH_BIN:-target/debug/berth}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$work"' EXIT

python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
cp tests/clients/package.json tests/clients/story.ts "$work"
npm install --prefix "$work" --no-package-lock --no-audit --no-fund --silent
export PATH="$work/venv/bin:$work/node_modules/.bin:$PATH"

# Links name operations too.
operations=$(python3 -c 'import json; print(sum("operationId" in o for p in json.load(open("openapi/berth.json"))["paths"].values() for o in p.values()))')
openapi-python-client generate --path openapi/berth.json --output-path "$work/python" --meta none 2>&1 | tee "$work/generated"
! grep -qi 'warning\|error' "$work/generated" || { echo "the Python client is not generated whole" >&2; exit 1; }
mv "$work/python" "$work/berth_client"
generated=$(find "$work/berth_client/api" -name '*.py' ! -name __init__.py | wc -l)
[ "$generated" = "$operations" ] || { echo "of $operations operations the Python client has $generated" >&2; exit 1; }
openapi-typescript openapi/berth.json --output "$work/berth.d.ts" >/dev/null
tsc --strict --target es2022 --module nodenext --skipLibCheck --typeRoots "$work/node_modules/@types" --types node --outDir "$work/out" "$work/story.ts"
cp "$work/package.json" "$work/out"
ln -s ../node_modules "$work/out/node_modules"

key=a-key-of-the-generated-clients-0123456789
serve() {
    mkdir "$work/$1"
    BERTH_DATA_DIR="$work/$1" BERTH_LISTEN=127.0.0.1:0 BERTH_METRICS_LISTEN=127.0.0.1:0 BERTH_BOOTSTRAP_KEY=$key BERTH_PROVIDERS=$2 \
        BERTH_LOG=error "$berth" serve >"$work/$1.out" &
    server=$!
    for _ in $(seq 100); do
        url=$(sed -n 's/^Berth listens on \(http:[^ ]*[0-9]\)\..*/\1/p' "$work/$1.out")
        [ -z "$url" ] || return 0
        sleep 0.1
    done
    echo "the server does not listen" >&2
    return 1
}
stop() { kill "$server"; wait "$server" || true; server=; }

serve story local
PYTHONPATH="$work" python3 tests/clients/story.py "$url" "$key" "$work/story"
node "$work/out/story.js" "$url" "$key" "$work/story"
stop

serve fuzz memory
description=$PWD/openapi/berth.json config=$PWD/tests/clients/schemathesis.toml
(cd "$work" && schemathesis --config-file "$config" run "$description" --url "$url" --max-time 90 -H "Authorization: Bearer $key")
stop
echo "the description and the service say the same"
