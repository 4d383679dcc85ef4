#!/bin/sh
# Runs all tests of an executable in one process, as `cargo test` does, and shows them to nextest as one test.
#   one-process.sh EXECUTABLE --list ..   names that test
#   one-process.sh EXECUTABLE ..          runs all of them
program=$1
shift
case " $* " in
*" --list "*" --ignored "* | *" --ignored "*" --list "*) ;;
*" --list "*) echo "all_in_one_process: test" ;;
*) exec "$program" ;;
esac
