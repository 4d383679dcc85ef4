#!/usr/bin/env bash
# Runs the checks and tests of the project in stages, the cheapest first, and says at the end how long each took.
#   tests/suite.sh check        what a change needs before each commit: no libtorch, no cluster, no browser, no installation
#   tests/suite.sh all          everything
#   tests/suite.sh prepare      compiles, and makes what tests need and must not make themselves
#   tests/suite.sh group NAME   the tests of one group of .config/nextest.toml, compiled and prepared as for `all`
# Lints and tests come from one compilation: clippy stands in for the compiler of the workspace's own packages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=${CARGO_TARGET_DIR:-target}
export RUSTC_WORKSPACE_WRAPPER=clippy-driver
export CLIPPY_ARGS="-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__"
WORKSPACE=(--workspace --features rlt-api/kube --locked)
# Packages that link libtorch, or whose tests start programs that do.
WITH_LIBTORCH=(
    rlt-trainer rlt-data rlt-decoder rlt-engine rlt-parallel rlt-storage rlt-torch rlt-devices rlt-prepare rlt-tests
    rlt-cluster expert-iteration
)
WITHOUT_LIBTORCH=("${WORKSPACE[@]}" "${WITH_LIBTORCH[@]/#/--exclude=}" --exclude rlt-rules)
# Tests that need nothing prepared, of packages that need no libtorch, cluster or browser.
PURE="(package(/^rlt-(algorithms|api|channel|convert|core|files|hub|layout|models|mutations|objects|plan|template|terminal|traces)\$/) \
- (binary_id(rlt-template::jinja2) & test(/^trl::/)))"
durations=()

stage() { # NAME COMMAND..: ends the run if the command fails
    local name=$1 start=$SECONDS code=0
    shift
    echo "== $name"
    logged "$@" || code=$?
    durations+=("$(printf '%6d s  %s' $((SECONDS - start)) "$name")")
    [ "$code" = 0 ] || { echo "== $name failed" >&2; finish; failures; exit "$code"; }
}

# In continuous integration the output is kept as well: where only its end is shown, it must name what failed.
logged() {
    if [ -z "${CI:-}" ]; then
        "$@"
    else
        mkdir -p "$target"
        "$@" 2>&1 | tee "$target/suite.log"
    fi
}

finish() {
    if [ -e "$target/skipped-tests.txt" ]; then
        echo "SKIPPED $(wc -l <"$target/skipped-tests.txt") tests:"
        cat "$target/skipped-tests.txt"
    fi
    echo "stages:"
    printf '%s\n' "${durations[@]}"
}

failures() {
    echo "free on this disk: $(df -h --output=avail "$target" | tail -n 1 | tr -d ' ')"
    grep -aE '^error|No space left|^ +(FAIL|TIMEOUT|SIG[A-Z]+) \[|panicked at| \.\.\. FAILED$| has been running for over ' \
        "$target/suite.log" 2>/dev/null |
        sort -u | tail -n 30 || true
}

nextest() {
    "$target/tools/bin/cargo-nextest" nextest "$@"
}

# Makes a folder in memory for the files of trainings, each of which waits for the disk dozens of times; says nothing
# where memory has no room for them.
memory_folder() {
    [ "$(stat --file-system --format=%T /dev/shm 2>/dev/null)" = tmpfs ] || return 0
    [ "$(df --output=avail --block-size=1G /dev/shm | tail -n 1)" -ge 4 ] || return 0
    [ "$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)" -ge 8 ] || return 0
    mktemp --directory /dev/shm/rlt-tests.XXXXXX
}

# Clusters wait for half of their time, so one test more than there are cores runs.
run_prepared() ( # FILTER
    RLT_TESTS_IN_MEMORY=$(memory_folder)
    export RLT_TESTS_IN_MEMORY
    trap '[ -z "$RLT_TESTS_IN_MEMORY" ] || rm -rf "$RLT_TESTS_IN_MEMORY"' EXIT
    RLT_TESTS_PREPARED=1 nextest run "${WORKSPACE[@]}" --test-threads $(($(nproc) + 1)) -E "$1"
)

# With benchmarks, which are not run. Programs without tests have no test executable, which --all-targets would make.
compile() {
    cargo test "${WORKSPACE[@]}" --tests --benches --no-run --no-fail-fast --quiet
}

fetch_runner() {
    tests/fetch-nextest.sh "$target/tools/bin"
}

# The first check on a machine without network cannot fetch the runner. Cargo itself cannot tell which other tests than
# unit tests need no cluster.
check_without_runner() {
    stage "formatting" cargo fmt --all --check
    stage "rules of the repository" cargo test --package rlt-rules --locked
    stage "lints without libtorch" cargo test "${WITHOUT_LIBTORCH[@]}" --no-run
    stage "unit tests without libtorch" cargo test "${WITHOUT_LIBTORCH[@]}" --lib --bins
    echo "cargo-nextest cannot be fetched: tests other than unit tests and rules were not run"
}

cheap_stages() {
    stage "formatting" cargo fmt --all --check
    stage "test runner" fetch_runner
    stage "rules of the repository" nextest run --package rlt-rules --locked
}

usage() {
    echo "usage: tests/suite.sh check|all|prepare|group NAME" >&2
    exit 2
}

rm -f "$target/skipped-tests.txt"
case ${1:-} in
check)
    if fetch_runner; then
        cheap_stages
        stage "lints and tests without libtorch" nextest run "${WITHOUT_LIBTORCH[@]}" --profile check
    else
        check_without_runner
    fi
    ;;
all)
    cheap_stages
    stage "lints and compilation" compile
    # Seconds, so that a stale file is not named behind minutes of preparation; these tests run below too.
    stage "generated files and snapshots" nextest run "${WORKSPACE[@]}" --profile generated
    # Before the preparation as well: their failures need not wait for clusters and trainings.
    stage "tests that need nothing" nextest run "${WORKSPACE[@]}" -E "$PURE"
    stage "preparation" "$target/debug/rlt-prepare"
    stage "tests" run_prepared "not (package(rlt-rules) + $PURE)"
    stage "examples in documentation" cargo test --doc --workspace --features rlt-api/kube --locked --quiet
    stage "kernels" bash trainer/torch/build-kernels.sh --check-if-fetched
    ;;
prepare)
    stage "lints and compilation" compile
    stage "preparation" "$target/debug/rlt-prepare"
    ;;
group)
    [ $# = 2 ] || usage
    stage "test runner" fetch_runner
    stage "lints and compilation" compile
    stage "preparation" "$target/debug/rlt-prepare"
    stage "tests of the group $2" run_prepared "group($2)"
    ;;
*) usage ;;
esac
finish
