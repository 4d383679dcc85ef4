#!/usr/bin/env bash
# Packs what checks a machine with a GPU that has libtorch with CUDA and nothing of ours: the trainer, our kernels where
# they are built, and one script. Models are made there from seeds.
#
#   gpu-bundle.sh PROFILE ARCHIVE   such as: gpu-bundle.sh release target/gpu-bundle.tar.gz
set -euo pipefail

MAX_MIB=60

cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=$1 archive=$2
target=${CARGO_TARGET_DIR:-target}
binaries=$target/$([ "$profile" = dev ] && echo debug || echo "$profile")
kernels=${RLT_KERNELS:-$target/kernels/rlt-kernels.fatbin}

say() { echo "gpu-bundle: $*" >&2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bundle=$work/gpu-bundle
mkdir "$bundle"
strip -o "$bundle/rlt-trainer" "$binaries/rlt-trainer"
cp trainer/gpu-check.sh "$bundle/gpu-check"
chmod 0755 "$bundle/gpu-check"
if [ -e "$kernels" ]; then
    cp "$kernels" "$bundle/rlt-kernels.fatbin"
else
    say "no $kernels: the bundle has none of our own kernels; \`make kernels\` builds them"
fi
mkdir -p "$(dirname "$archive")"
# One time and order, so that the same files make the same archive.
tar --directory "$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --create gpu-bundle |
    gzip --no-name >"$archive"
size=$(($(stat --format %s "$archive") / 1048576))
if [ "$size" -ge "$MAX_MIB" ]; then
    say "$archive has $size MiB, expected less than $MAX_MIB"
    exit 1
fi
say "$archive ($size MiB)"
