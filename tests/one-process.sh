#!/bin/sh
# Runs tests in one process, as `cargo test` does, and shows them to nextest as one test.
#   one-process.sh EXECUTABLE ..                 all tests of an executable: `all_in_one_process`
#   one-process.sh --modules A|B EXECUTABLE ..   those of each of these modules: `A::all_in_one_process`; every other test
#                                                of the executable stays a test of its own
# nextest appends `--list ..` for the names, and `--exact NAME ..` for a run.
set -eu
modules=
if [ "$1" = --modules ]; then
    modules=$2
    shift 2
fi
program=$1
shift

# Reads a list of tests, and writes one test for each of the modules that are in it.
join_modules() {
    awk -v modules="^($modules)::" '
        $0 !~ modules { print; next }
        { sub("::.*", "") }
        !written[$0]++ { print $0 "::all_in_one_process: test" }
    '
}

list() {
    listed=$("$program" "$@")
    case "${modules:+modules} $* " in
    # Ignored tests of a module are ignored inside its process.
    modules*" --ignored "*) echo "$listed" | sed -E "/^($modules)::|^\$/d" ;;
    modules*) echo "$listed" | join_modules ;;
    *" --ignored "*) ;;
    *) echo "all_in_one_process: test" ;;
    esac
}

run_module() { # MODULE
    listed=$("$program" --list --format terse)
    tests=$(echo "$listed" | sed -n "s/^\($1::.*\): test\$/\1/p")
    # Without a name it would run all tests.
    [ -n "$tests" ] || exit 1
    # shellcheck disable=SC2086 # Names have no spaces.
    exec "$program" --exact $tests
}

case " $* " in
*" --list "*) list "$@" ;;
*"::all_in_one_process "*) run_module "${2%%::*}" ;;
*) if [ -n "$modules" ]; then exec "$program" "$@"; else exec "$program"; fi ;;
esac
