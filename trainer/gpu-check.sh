#!/bin/sh
# Checks this machine's GPU with the trainer beside this script, and a libtorch with CUDA that is here: the folder that
# --libtorch names, LIBTORCH/lib, or that of Python's torch. Lines of JSON go to standard output.
#
#   gpu-check [--libtorch FOLDER] [--limit SECONDS] [CHECK ...]
#
# RLT_PEER_PYTHON names the Python whose transformers do the same GRPO steps; `python3` by default.
# Exit codes: 0 nothing failed (what could not be tried says `skipped`), 1 a check failed, 2 no libtorch, or a wrong
# command line.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
python=${RLT_PEER_PYTHON:-python3}

fail() {
    echo "gpu-check: $*" >&2
    exit 2
}

libraries=${LIBTORCH:+$LIBTORCH/lib}
if [ "${1:-}" = --libtorch ]; then
    [ $# -ge 2 ] || fail "--libtorch needs the folder with libtorch_cpu.so"
    libraries=$2
    shift 2
fi
if [ -z "$libraries" ]; then
    # Where torch lies, without the seconds that importing it takes.
    find_torch='import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] + "/lib") if s else exit(1)'
    libraries=$("$python" -c "$find_torch" 2>/dev/null) || fail "no libtorch: --libtorch was not given, LIBTORCH is not set," \
        "and $python has no torch. Expected libtorch 2.11 with CUDA, such as the torch/lib of torch 2.11.0"
fi
[ -e "$libraries/libtorch_cpu.so" ] || fail "$libraries holds no libtorch_cpu.so, which libtorch 2.11 has"
LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
# As `rlctl run` and jobs: waiting threads of OpenMP leave their cores to the threads that launch work.
if [ -z "${GOMP_SPINCOUNT:-}${OMP_WAIT_POLICY:-}" ]; then
    GOMP_SPINCOUNT=1000
    export GOMP_SPINCOUNT
fi
exec "$here/rlt-trainer" gpu-check "$@"
