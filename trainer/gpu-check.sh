#!/bin/sh
# Checks this machine's GPU with the trainer beside this script, and a libtorch with CUDA that is here: the folder that
# --libtorch names, LIBTORCH, or that of Python's torch. A line of JSON for each check goes to standard output.
#
#   gpu-check [--libtorch FOLDER] [CHECK ...]
set -eu

here=$(cd "$(dirname "$0")" && pwd)
libraries=${LIBTORCH:+$LIBTORCH/lib}
if [ "${1:-}" = --libtorch ]; then
    libraries=${2:?gpu-check: --libtorch needs the folder with libtorch_cpu.so}
    shift 2
fi
if [ -z "$libraries" ]; then
    libraries=$(python3 -c 'import os, torch; print(os.path.join(os.path.dirname(torch.__file__), "lib"))') || {
        echo "gpu-check: no torch in python3; name the folder with libtorch_cpu.so by --libtorch" >&2
        exit 2
    }
fi
if [ ! -e "$libraries/libtorch_cpu.so" ]; then
    echo "gpu-check: $libraries holds no libtorch_cpu.so" >&2
    exit 2
fi
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
exec "$here/rlt-trainer" gpu-check "$@"
