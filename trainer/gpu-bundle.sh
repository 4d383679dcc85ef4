#!/usr/bin/env bash
# Packs what checks a machine with a GPU that has libtorch with CUDA and nothing of ours: the trainer, our kernels, and one
# script. Models are made there from seeds; libtorch is that machine's. What was packed is unpacked elsewhere and run
# without network, where that can be had, and without GPU: every check says that it is skipped.
#
#   gpu-bundle.sh PROFILE ARCHIVE   such as: gpu-bundle.sh release target/gpu-bundle.tar.gz
set -euo pipefail

MAX_MIB=60

cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=$1 archive=$2
target=${CARGO_TARGET_DIR:-target}
binaries=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
kernels=${RLT_KERNELS:-$target/kernels/rlt-kernels.fatbin}
libtorch=$(realpath "${LIBTORCH:-.libtorch/torch}/lib")

say() { echo "gpu-bundle: $*" >&2; }
fail() {
    say "$@"
    exit 1
}

[ -e "$kernels" ] || fail "$kernels is missing: \`make kernels\` compiles our kernels, without which nothing can be checked"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/gpu-bundle
mkdir "$bundle"
strip -o "$bundle/rlt-trainer" "$binaries/rlt-trainer"
# The newest symbols of glibc and libstdc++ that the binary needs: an older machine cannot start it. None are an error below.
newest() {
    readelf --wide --version-info "$bundle/rlt-trainer" | { grep --only-matching "\b$1_[0-9][0-9.]*" || true; } |
        sort --version-sort | tail -1
}
glibc=$(newest GLIBC) glibcxx=$(newest GLIBCXX)
[ -n "$glibc" ] && [ -n "$glibcxx" ] || fail "$bundle/rlt-trainer names no versions of GLIBC and GLIBCXX: is it linked otherwise?"
cp trainer/gpu-check.sh "$bundle/gpu-check"
chmod 0755 "$bundle/gpu-check"
cp "$kernels" "$bundle/rlt-kernels.fatbin"
# The machine with the GPU may have no repository, and its report names what was measured.
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
if [ "$commit" != unknown ] && ! git diff --quiet HEAD; then commit+=" with changes"; fi
echo "$commit" >"$bundle/commit"
mkdir -p "$(dirname "$archive")"
# One time and order, so that the same files make the same archive.
tar --directory "$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --create gpu-bundle |
    gzip --no-name -9 >"$archive"
bytes=$(stat --format %s "$archive")
size=$(awk "BEGIN { printf \"%.1f\", $bytes / 1048576 }")
[ "$bytes" -lt $((MAX_MIB * 1048576)) ] || fail "$archive has $size MiB, expected less than $MAX_MIB"

elsewhere=$work/elsewhere
mkdir "$elsewhere"
tar --directory "$elsewhere" --extract --file "$archive"
offline=()
if unshare --net --map-root-user true 2>/dev/null; then offline=(unshare --net --map-root-user); fi
lines=$(cd / && env -i PATH="$PATH" HOME="$elsewhere" CUDA_VISIBLE_DEVICES= "${offline[@]}" \
    "$elsewhere/gpu-bundle/gpu-check" --libtorch "$libtorch" --all) ||
    fail "what is packed does not run"
all=$(wc -l <<<"$lines")
skipped=$(grep -c '"status":"skipped"' <<<"$lines" || true)
[ "$all" -gt 0 ] && [ "$skipped" = "$all" ] || fail "without a GPU $skipped of $all checks say that they are skipped: $lines"
say "the binary needs $glibc and $glibcxx or newer"
say "$archive: $size MiB, less than $MAX_MIB; unpacked elsewhere, without GPU, all $all checks are skipped"
