#!/usr/bin/env bash
# Builds the images from binaries of this checkout, by docker, podman or buildah, whichever works here, and leaves each as
# an OCI archive. Without a registry the base is made by debootstrap; the Dockerfiles stay the same.
#
#   images.sh PROFILE TAG FOLDER NAME...   such as: images.sh release dev target/images rlt-operator rlt-trainer
#
# Two builds of the same binaries, libraries and base are one image, by digest: files have one time, one owner and one order.
# By docker that holds for the layers alone.
#
# The name rlt-trainer-cuda stands for the trainer's binary with all that libtorch's CUDA half loads: rlt-trainer:TAG-cuda.
set -euo pipefail

BASE=docker.io/library/debian:bookworm-slim
# What the trainer links to, of libtorch itself and of the two small libraries of CUDA.
LIBTORCH_LIBRARIES="libtorch_cpu.so libc10.so libgomp.so.1"
CUDA_LIBRARIES="libcudart.so.13 libcupti.so.13"
# What libtorch's CUDA half is linked to, and what it opens on demand: linear algebra, NVRTC, the parts of cuDNN. The
# driver is the node's, and our own kernels are there where `make kernels` has built them.
GPU_LIBRARIES="libtorch_cuda.so libtorch_cuda_linalg.so libtorch_nvshmem.so libc10_cuda.so libcaffe2_nvrtc.so \
    libcublas.so.13 libcublasLt.so.13 libcufft.so.12 libcufile.so.0 libcurand.so.10 libcusolver.so.12 \
    libcusparse.so.12 libcusparseLt.so.0 libnccl.so.2 libnvJitLink.so.13 libnvrtc.so.13 libnvrtc-builtins.so.13.0 \
    libnvshmem_host.so.3 libcudnn.so.9 libcudnn_adv.so.9 libcudnn_cnn.so.9 libcudnn_engines_precompiled.so.9 \
    libcudnn_engines_runtime_compiled.so.9 libcudnn_graph.so.9 libcudnn_heuristic.so.9 libcudnn_ops.so.9"
KERNELS=${RLT_KERNELS:-${CARGO_TARGET_DIR:-target}/kernels/rlt-kernels.fatbin}

cd "$(dirname "${BASH_SOURCE[0]}")/.."
profile=$1 tag=$2 folder=$3
shift 3
binaries=${CARGO_TARGET_DIR:-target}/$([ "$profile" = dev ] && echo debug || echo "$profile")
libtorch=${LIBTORCH:-.libtorch/torch}

say() { echo "images: $*" >&2; }
fail() {
    say "$*"
    exit 1
}

works() { # whether a tool is here and answers
    case $1 in
    docker) docker info >/dev/null 2>&1 && docker buildx version >/dev/null 2>&1 ;;
    podman) podman info >/dev/null 2>&1 ;;
    buildah) buildah info >/dev/null 2>&1 ;;
    esac
}

library() { # NAME: where libtorch's folders hold it
    local place
    for place in "$libtorch/lib" "$libtorch"/../nvidia/*/lib; do
        [ -e "$place/$1" ] && echo "$place/$1" && return
    done
    return 1
}

# Files in a context have one time, so that the same binaries make the same layers.
stage() { # NAME CONTEXT
    local name=$1 context=$2 file path
    rm -rf "$context"
    mkdir -p "$context/bin"
    strip -o "$context/bin/${name%-cuda}" "$binaries/${name%-cuda}"
    if [ "${name%-cuda}" = rlt-trainer ]; then
        mkdir "$context/lib"
        for file in $LIBTORCH_LIBRARIES; do
            cp -L "$(library "$file" || fail "no $file in $libtorch/lib")" "$context/lib/"
        done
        # A libtorch built for CPUs alone has no need of these.
        for file in $CUDA_LIBRARIES; do
            if path=$(library "$file"); then cp -L "$path" "$context/lib/"; fi
        done
    fi
    if [ "$name" = rlt-trainer-cuda ]; then
        for file in $GPU_LIBRARIES; do
            path=$(library "$file") || fail "no $file beside $libtorch/lib; \`make libtorch CUDA=1\` fetches it"
            cp -L --reflink=auto "$path" "$context/lib/"
        done
        if [ -e "$KERNELS" ]; then
            cp -L "$KERNELS" "$context/lib/rlt-kernels.fatbin"
        else
            say "no $KERNELS: the image has none of our own kernels; \`make kernels\` builds them"
        fi
    fi
    find "$context" -exec touch --no-dereference --date=@0 {} +
}

have_base() {
    case $tool in
    buildah) buildah inspect --type image "$BASE" >/dev/null 2>&1 ;;
    *) "$tool" image inspect "$BASE" >/dev/null 2>&1 ;;
    esac
}

make_base() {
    [ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || fail "no registry answers, and making $BASE needs root and debootstrap"
    say "no registry answers: making $BASE by debootstrap"
    local root container
    root=$(mktemp -d)
    # shellcheck disable=SC2064 # the folder of now
    trap "rm -rf '$root'" EXIT
    SOURCE_DATE_EPOCH=0 debootstrap --variant=minbase --include=ca-certificates bookworm "$root" >/dev/null
    rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/apt "$root"/usr/share/{doc,man,locale,info}/*
    # What says when and where it was made, and what a program makes again by itself.
    rm -rf "$root"/var/cache/ldconfig/aux-cache "$root"/etc/machine-id "$root"/var/lib/dpkg/*-old
    find "$root/var/log" -type f -delete
    find "$root" -exec touch --no-dereference --date=@0 {} +
    case $tool in
    buildah)
        container=$(buildah from scratch)
        buildah add --quiet "$container" "$root" / >/dev/null
        buildah config --cmd bash "$container"
        buildah commit --quiet --timestamp 0 --rm "$container" "$BASE" >/dev/null
        ;;
    *) tar --directory "$root" --sort=name --numeric-owner --create . | "$tool" import --change 'CMD ["bash"]' - "$BASE" >/dev/null ;;
    esac
}

build() { # NAME IMAGE CONTEXT ARCHIVE
    local dockerfile=trainer/Dockerfile before
    before=$("$tool" images --quiet "$2" 2>/dev/null || true)
    [ "$1" = rlt-operator ] && dockerfile=operator/Dockerfile
    case $tool in
    docker)
        SOURCE_DATE_EPOCH=0 docker build --quiet --tag "$2" --file "$dockerfile" "$3" >/dev/null
        docker save --output "$4" "$2"
        ;;
    podman)
        podman build --quiet --pull=never --timestamp 0 --tag "$2" --file "$dockerfile" "$3" >/dev/null
        podman save --quiet --format oci-archive --output "$4" "$2"
        ;;
    buildah)
        buildah build --quiet --isolation chroot --pull-never --timestamp 0 --tag "$2" --file "$dockerfile" "$3" >/dev/null
        buildah push --quiet --compression-format gzip --compression-level 1 "$2" "oci-archive:$4:$2"
        ;;
    esac
    # What had this name before would stay behind without one.
    if [ -n "$before" ] && [ "$before" != "$("$tool" images --quiet "$2")" ]; then
        "$tool" rmi "$before" >/dev/null 2>&1 || true
    fi
}

digest() { # ARCHIVE: of the image's manifest
    tar --extract --to-stdout --occurrence=1 --file "$1" index.json 2>/dev/null | grep --only-matching --max-count=1 'sha256:[0-9a-f]*' || echo "of no known digest"
}

tool=
for candidate in docker podman buildah; do
    if works "$candidate"; then
        tool=$candidate
        break
    fi
done
[ -n "$tool" ] || fail "none of docker, podman and buildah works here"
mkdir -p "$folder"
# Builds of several checkouts share the names of images, so one runs at a time.
exec 9>"${XDG_RUNTIME_DIR:-/tmp}/rlt-images-$(id -u).lock"
if command -v flock >/dev/null; then flock 9; fi
for name; do
    archive=$folder/$name.tar
    context=$folder/context-$name
    # A build that was cut off leaves no archive.
    rm -f "$archive" "$archive.part"
    stage "$name" "$context"
    have_base || timeout 120 "$tool" pull --quiet "$BASE" >/dev/null 2>&1 || make_base
    image=rlt.local/$name:$tag
    [ "$name" = rlt-trainer-cuda ] && image=rlt.local/rlt-trainer:$tag-cuda
    build "$name" "$image" "$context" "$archive.part"
    rm -rf "$context"
    mv "$archive.part" "$archive"
    say "$image by $tool, in $archive ($(du -h "$archive" | cut -f1)), $(digest "$archive")"
done
