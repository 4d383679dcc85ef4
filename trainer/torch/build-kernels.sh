#!/usr/bin/env bash
# Compiles our CUDA kernels into target/kernels/rlt-kernels.fatbin: machine code for each architecture of
# csrc/cuda/architectures.txt, and PTX of the last for newer ones. The compiler is fetched once as pinned wheels,
# verified, and needs no GPU. What ptxas says of each kernel goes into csrc/cuda/resources.md; with `--check` a difference
# from the committed table is a failure, as a spilled register always is. `--check-if-fetched` checks where the compiler is
# there, and says so where it is not. `--digest` prints the SHA-256 of the sources, which the table names: a test notices by
# it that kernels have changed since the table was written, without the compiler.
set -euo pipefail

VERSION=13.0.88
REQUIREMENTS="\
nvidia-cuda-nvcc==13.0.88 --hash=sha256:56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03
nvidia-cuda-crt==13.0.88 --hash=sha256:2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4
nvidia-nvvm==13.0.88 --hash=sha256:c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0
nvidia-cuda-cccl==13.0.85 --hash=sha256:e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548"

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
sources=$here/csrc/cuda
out=$here/../../target/kernels
table=$sources/resources.md
cache=${XDG_CACHE_HOME:-$HOME/.cache}/rlt
compiler=$cache/nvcc-$VERSION
nvcc=$compiler/nvidia/cu13/bin/nvcc

say() { echo "kernels: $*"; }
fail() {
    echo "kernels: $*" >&2
    exit 1
}

fetch() {
    [ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || fail "no pinned compiler for $(uname -s) on $(uname -m)"
    python3 -m pip --version >/dev/null 2>&1 || fail "python3 with pip is needed to fetch the compiler"
    local work
    mkdir -p "$cache"
    work=$(mktemp -d "$cache/.nvcc-$VERSION.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -rf '$work'" EXIT
    say "downloading nvcc $VERSION (190 MB, once)"
    echo "$REQUIREMENTS" >"$work/requirements.txt"
    python3 -m pip download --quiet --no-deps --require-hashes --only-binary=:all: --dest "$work/wheels" \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_12_x86_64 \
        --platform manylinux2010_x86_64 -r "$work/requirements.txt" ||
        fail "the download failed or did not match its sha256; nothing was kept"
    for wheel in "$work"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$work/unpacked"
    done
    # Wheels unpacked as archives lose the bits that make programs programs.
    chmod +x "$work"/unpacked/nvidia/cu13/bin/* "$work"/unpacked/nvidia/cu13/nvvm/bin/*
    mv -T "$work/unpacked" "$compiler" 2>/dev/null || [ -x "$nvcc" ] || fail "moving the compiler to $compiler failed"
}

compile() { # WORK: the fat binary and what ptxas says
    local targets=() arch last
    while read -r arch; do
        targets+=(-gencode "arch=compute_$arch,code=sm_$arch")
        last=$arch
    done <"$sources/architectures.txt"
    targets+=(-gencode "arch=compute_$last,code=compute_$last")
    "$nvcc" -std=c++17 -O3 -fatbin "${targets[@]}" -Xptxas -v -Werror all-warnings -o "$1/rlt-kernels.fatbin" \
        "$sources/kernels.cu" >"$1/ptxas.log" 2>&1 || { cat "$1/ptxas.log" >&2; fail "compiling failed"; }
}

# Bounds of each kernel from the sources, then one line for each kernel and architecture.
tabulate() { # LOG
    grep -hE '^RLT_KERNELS?\(' "$sources"/*.cu | tr -d ' ' | awk -v log_file="$1" '
        function blocks(registers, shared, threads, arch,    warps, by, most) {
            warps = threads / 32
            by = int(int(65536 / (int((registers * 32 + 255) / 256) * 256)) / warps)
            most = int(64 / warps); if (by < most) most = by
            by = int(((arch == 80 ? 164 : 228) * 1024) / (shared + 1024)); if (by < most) most = by
            return most > 32 ? 32 : most
        }
        { gsub(/RLT_KERNELS?\(|\)/, ""); split($0, part, ","); bound[part[1]] = part[4] }
        END {
            while ((getline line < log_file) > 0) {
                if (match(line, /Compiling entry function .[a-z0-9_]+. for .sm_[0-9]+/)) {
                    split(line, word, "\047"); name = word[2]; arch = substr(word[4], 4)
                } else if (line ~ /bytes stack frame/) {
                    split(line, word, " "); stack = word[1]; spilled = word[5] + word[9]
                } else if (line ~ /Used [0-9]+ registers/) {
                    match(line, /Used [0-9]+/); registers = substr(line, RSTART + 5, RLENGTH - 5)
                    shared = match(line, /[0-9]+ bytes smem/) ? substr(line, RSTART, RLENGTH - 11) : 0
                    family = name; sub(/_(f32|bf16|f16)$/, "", family)
                    threads = (name in bound) ? bound[name] : bound[family]
                    printf "| %s | sm_%s | %d | %d | %d | %d | %d | %d %% |\n", name, arch, threads, registers, shared, \
                        stack, spilled, blocks(registers, shared, threads, arch) * threads / 2048 * 100
                }
            }
        }' | sort -t'|' -k2,2 -k3,3V
}

# SHA-256 of all that decides what the compiler makes: its version, the architectures and the sources.
digest() {
    (cd "$sources" && export LC_ALL=C && { echo "$VERSION" && cat architectures.txt -- *.cu include/*.cuh; } | sha256sum | cut -d' ' -f1)
}

write_table() { # LOG
    echo "# What the kernels need"
    echo
    echo "As ptxas of CUDA $VERSION reports it; \`make kernels\` writes this file, \`make kernels-check\` holds it. Shared memory"
    echo "is the static part in bytes; occupancy is that of registers, threads and static shared memory. Attention asks for"
    echo "up to 75 KiB of dynamic shared memory, which leaves room for two blocks on sm_80 and three on the others."
    echo
    echo "SHA-256 of the sources: \`$(digest)\`"
    echo
    echo "| kernel | architecture | threads | registers | shared | stack | spilled bytes | occupancy |"
    echo "|---|---|---|---|---|---|---|---|"
    tabulate "$1"
}

if [ "${1:-}" = --digest ]; then
    digest
    exit 0
fi
if [ "${1:-}" = --check-if-fetched ] && [ ! -x "$nvcc" ]; then
    say "SKIPPED, nothing was checked: \`make kernels-check\` fetches the compiler"
    exit 0
fi
[ -x "$nvcc" ] || fetch
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
compile "$work"
write_table "$work/ptxas.log" >"$work/resources.md"
spilled=$(awk -F'|' '/^\| [a-z]+_.* sm_/ && $8 + 0 > 0 { print $2 $3 $8 }' "$work/resources.md")
[ -z "$spilled" ] || fail "registers are spilled by"$'\n'"$spilled"
if [ -n "${1:-}" ]; then
    diff "$table" "$work/resources.md" || fail "$table is not what ptxas reports: run \`make kernels\` and commit it"
else
    cp "$work/resources.md" "$table"
fi
mkdir -p "$out"
mv "$work/rlt-kernels.fatbin" "$out/"
say "$(grep -c '^| [a-z].* sm_' "$work/resources.md") kernels without spills, $(stat -c %s "$out/rlt-kernels.fatbin") bytes in $out/rlt-kernels.fatbin"
