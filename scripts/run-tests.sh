#!/bin/bash
# run-tests.sh RECORDS PROGRAM ARGUMENT...: cargo's runner of a test program, for scripts/test.sh. A test that fails is run once more,
# alone; if it passes then, it counts as passed, and as flaky. A program that ends before its tests did is run once more as a whole.
# Adds lines to the file RECORDS, with tabs between:
#
#   program  NAME  SECONDS  PASSED    when all has run
#   failed   NAME::TEST
#   flaky    NAME::TEST
#
# Exit status: 0 if each test has passed in the end.
set -uo pipefail
records=$1 program=$2
shift 2
name=${program##*/}
# The tests of the documentation have no hash.
[ "$name" != rust_out ] || name=doc-tests
name=$(sed 's/-[0-9a-f]\{16\}$//' <<< "$name")
# More than four times what the slowest takes on two busy processors: what hangs must not hide the rest.
limit=1200
# Beside the records: the system's temporary folder may be read-only.
log=$(mktemp "$records.XXXXXX") || exit
trap 'rm -f "$log"' EXIT

note() {
    local IFS=$'\t'
    printf '%s\n' "$*" >> "$records"
}

run() { # ARGUMENT...: in the foreground, so that ^C arrives
    timeout --foreground --kill-after=10 "$limit" "$program" "$@" 2>&1 | tee "$log"
    return "${PIPESTATUS[0]}"
}

# The last line of the harness, as a word and what it counts: "FAILED 3 1".
result() {
    sed -n 's/^test result: \([a-zA-Z]*\)\. \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2 \3/p' "$log" | tail -n 1
}

# The last list of failures. What failed tests print stands before it, and may have lists of its own: those of tests that run in a
# process of their own.
failed_tests() {
    awk '/^failures:$/ { count = 0; listed = 1; next }
        listed && /^    [^ ]/ { names[count++] = substr($0, 5); next }
        count { listed = 0 }
        END { for (i = 0; i < count; i++) print names[i] }' "$log"
}

begin=$(date +%s%N)
run "$@"
status=$?
whole=
if [ "$status" != 0 ] && [ -z "$(result)" ] && [ "$status" != 124 ] && [ "$status" != 137 ]; then
    echo "run-tests: $name ended with status $status before its tests did; once more"
    whole=$name
    run "$@"
    status=$?
fi
read -r _ passed failed <<< "$(result)"
passed=${passed:-0} failed=${failed:-0}
if [ "$status" != 0 ]; then
    mapfile -t names < <(failed_tests)
    left=0
    if [ "${#names[@]}" = 0 ] || [ "${#names[@]}" != "$failed" ]; then
        note failed "$name: ended before its tests did, with status $status"
        left=1
    fi
    for test in "${names[@]}"; do
        echo "run-tests: $name::$test failed; once more, alone"
        # A whole program that fails is no luck.
        if [ "${#names[@]}" -le 5 ] && run "$@" --exact "$test" --test-threads=1 && [[ "$(result)" == "ok 1 "* ]]; then
            note flaky "$name::$test"
            passed=$((passed + 1))
        else
            note failed "$name::$test"
            left=1
        fi
    done
    status=$left
elif [ -n "$whole" ]; then
    note flaky "$whole"
fi
note program "$name" "$(awk -v ns=$(($(date +%s%N) - begin)) 'BEGIN { printf "%.1f", ns / 1e9 }')" "$passed"
exit "$status"
