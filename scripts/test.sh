#!/bin/bash
# test.sh NAME ARGUMENT...: runs `cargo test ARGUMENT...`, and prints in its last lines which test programs took longest, which tests
# were skipped, passed only when they were run again (scripts/run-tests.sh), or failed, and how many. Exit status: cargo's; 1 if more
# than three tests were flaky. With VERVAIN_TESTS_STRICT=1 a skip fails, unless it is listed in tests/skip/allowed.txt.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
name=$1
shift
records=$PWD/target/tmp/$name.records
mkdir -p target/tmp
export VERVAIN_TESTS_SKIPPED=$PWD/target/tmp/$name.skipped
: > "$VERVAIN_TESTS_SKIPPED"
: > "$records"

"${CARGO:-scripts/cargo.sh}" test --config "target.'cfg(all())'.runner=['$PWD/scripts/run-tests.sh','$records']" \
    --profile checked --no-fail-fast "$@" 2>&1
status=$?

echo
grep -a '^program' "$records" | sort -t $'\t' -k 3,3 -n -r | head -n 10 | awk -F '\t' '{ printf "slowest  %6.1f s  %s\n", $3, $2 }'
awk -F '\t' -v name="$name" -v seconds="$SECONDS" -v status="$status" -v skips="$VERVAIN_TESTS_SKIPPED" '
    $1 == "program" { passed += $4 }
    $1 == "failed" { failed[++failures] = $2; is_failed[$2] = 1 }
    $1 == "flaky" { flaky[++flakes] = $2 }
    END {
        while ((getline line < skips) > 0) {
            split(line, part, "\t")
            if (part[1] in is_failed || part[1] in seen) continue
            seen[part[1]] = 1
            print "skipped  " part[1] ": " part[2]
            skipped++
        }
        for (i = 1; i <= flakes; i++) print "FLAKY    " flaky[i]
        for (i = 1; i <= failures; i++) print "FAILED   " failed[i]
        if (flakes > 3) print "FAILED   " flakes " tests are flaky, of which three at most may be"
        if (status != 0 && failures == 0) print "FAILED   cargo, with status " status ": see above"
        printf "make %s: %d passed, %d failed, %d skipped, in %d min %d s\n",
            name, passed - skipped, failures, skipped, seconds / 60, seconds % 60
        exit flakes > 3
    }' "$records" || status=$((status ? status : 1))
exit "$status"
