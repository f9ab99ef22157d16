#!/bin/bash
# test.sh NAME ARGUMENT...: runs `cargo test ARGUMENT...`, and says in its last lines which tests failed or were skipped, and how
# many passed, failed and were skipped. Exit status: cargo's. With VERVAIN_TESTS_STRICT=1 a skip fails, unless it is listed
# in tests/skip/allowed.txt.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
name=$1
shift
log=target/tmp/$name.log
mkdir -p target/tmp
export VERVAIN_TESTS_SKIPPED=$PWD/target/tmp/$name.skipped
: > "$VERVAIN_TESTS_SKIPPED"

# The harness writes to standard output, cargo to standard error; the order of both says which program a test is in.
"${CARGO:-scripts/cargo.sh}" test --profile checked --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# What a failed test prints comes after the program's tests, under "failures:", and may look like results itself.
awk -v name="$name" -v seconds="$SECONDS" -v status="$status" -v skips="$VERVAIN_TESTS_SKIPPED" '
    function result(word,   i) {
        for (i = 2; i <= NF; i++) if ($i == word ";") return $(i - 1)
        return 0
    }
    function ends() {
        if (program == "") return
        if (last == "") failed_tests[++failures] = program ": ended before its tests did"
        $0 = last
        passed += result("passed")
        program = last = ""
    }
    function begins(as) {
        ends()
        program = as
        told = 0
    }
    /^ +Running .*\(.*\)$/ {
        file = $NF
        sub(/^.*\//, "", file)
        sub(/\)$/, "", file)
        sub(/-[0-9a-f]+$/, "", file)
        begins(file)
        next
    }
    /^ +Doc-tests / { begins($2); next }
    program == "" { next }
    /^failures:$/ { told = 1 }
    # Tests run beside each other, and what they print themselves may stand before the outcome.
    !told && /^test .* \.\.\. (.*)FAILED$/ {
        test = $0
        sub(/^test /, "", test)
        sub(/ \.\.\. (.*)FAILED$/, "", test)
        failed_tests[++failures] = program "::" test
        failed[program "::" test] = 1
    }
    /^test result: / { last = $0 }
    END {
        ends()
        while ((getline line < skips) > 0) {
            split(line, part, "\t")
            if (part[1] in failed || part[1] in seen) continue
            seen[part[1]] = 1
            skipped_tests[++skipped] = part[1] ": " part[2]
        }
        print ""
        for (i = 1; i <= skipped; i++) print "skipped  " skipped_tests[i]
        for (i = 1; i <= failures; i++) print "FAILED   " failed_tests[i]
        if (status != 0 && failures == 0) print "FAILED   cargo, with status " status ": see above"
        printf "make %s: %d passed, %d failed, %d skipped, in %d min %d s\n",
            name, passed - skipped, failures, skipped, seconds / 60, seconds % 60
    }' "$log"
exit "$status"
