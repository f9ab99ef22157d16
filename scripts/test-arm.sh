#!/bin/sh
# test-arm.sh: tests for AArch64 on a machine of another kind, cross-compiled and run by qemu-user: unit tests of the
# crates that need no device, of the device model and of the windows; the device, opened, and two processes that use it
# by memory, through their owners, and through windows. docs/testing.md says what cannot run so.
# `scripts/cross.sh` names the tools that it takes.
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
cd "$tree"
cargo=${CARGO:-scripts/cargo.sh}
target=$tree/target/arm
passed=0 failed=0 skipped=0

# An emulated processor is some thirty times slower.
export PROPTEST_CASES="${PROPTEST_CASES:-16}" VERVAIN_SEEDS="${VERVAIN_SEEDS:-20}"

unit_tests() { # CRATES... -- ARGUMENTS OF THE TEST PROGRAMS
    packages=
    while [ $# -gt 0 ] && [ "$1" != -- ]; do packages="$packages -p vervain-$1" && shift; done
    [ $# -eq 0 ] || shift
    # shellcheck disable=SC2086 # a list of words
    if "$cargo" test --target-dir "$target" --no-fail-fast --lib $packages -- "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
}

unit_tests iba wire transport elf config counters request acp-channel
unit_tests window share
# What moves pages from private to shared memory needs userfaultfd, which qemu-user has not.
unit_tests hca -- --skip adopt::

built=$target/$CARGO_BUILD_TARGET/debug run=$target/run
"$cargo" build --target-dir "$target" -p vervain-libibverbs -p vervain-preload
rm -rf "$run"
mkdir -p "$run/lib" "$run/include"
cp "$built/libibverbs.so" "$run/lib/libibverbs.so.1"
ln -s libibverbs.so.1 "$run/lib/libibverbs.so"
cp "$built/libvervain_preload.so" "$run/lib/"
if [ ! -e /usr/include/infiniband/verbs.h ]; then
    echo "skipped  the device: this machine has no infiniband/verbs.h (libibverbs-dev)"
    skipped=$((skipped + 1))
else
    # Of the headers of this machine, which are another processor's, those of verbs alone.
    cp -r /usr/include/infiniband "$run/include/"
    (
        cd tests/c
        "$TARGET_CC" -std=gnu11 -O1 -g -Wall -Wextra -Werror -Wno-stringop-overflow "-I$run/include" "-L$run/lib" data.c vt*.c -o "$run/data" \
            -libverbs -lpthread -lm
    )
    memory=$(mktemp -d -p /dev/shm vervain-arm.XXXXXX)
    trap 'rm -rf "$memory"' EXIT
    device() { # VARIABLES...
        status=0
        # Timers of an adapter are too short for a processor that is emulated.
        timeout 600 scripts/emulated.sh env LD_LIBRARY_PATH="$run/lib" VT_TIMEOUT=20 "$@" "$run/data" || status=$?
        case $status in
        0) passed=$((passed + 1)) ;;
        125) echo "skipped  data, $*: the sentence above says why" && skipped=$((skipped + 1)) ;;
        *) echo "FAILED   data, $*" && failed=$((failed + 1)) ;;
        esac
    }
    # Private memory, which the owner copies: qemu-user has no process_vm calls.
    device VERVAIN_MEMORY=auto
    device VT_SHARED=1
    device "LD_PRELOAD=$run/lib/libvervain_preload.so"
    device "VERVAIN_LINK=window" "VERVAIN_WINDOW=$memory/file"
    device "VERVAIN_LINK=window" "VERVAIN_WINDOW=$memory/folder/"
fi
echo "make test-arm: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
