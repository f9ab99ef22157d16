# Breaks rules of Vervain's sources one by one; for scripts that have set `copy` (a copy of what is built), `sources` (below it, where
# the files are), `work` (a folder for the log) and `wanted` (names of rules, none for all), and whose functions
#   build        makes the test binary of the copy, its messages in $work/build.log, and prints its path
#   run BINARY   prints what sees the break, or **not seen**
# A rule that nothing sees, or that cannot be broken any more, sets `survived` to 1.

survived=0

# rule NAME FILE FROM TO: replaces FROM, which must be there, and runs the tests; prints a row of the table.
rule() {
    local name=$1 file=$sources/$2 binary found
    if [ ${#wanted[@]} -gt 0 ] && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
    cp "$file" "$work/original"
    if ! FROM=$3 TO=$4 perl -0777 -i -pe 's/\Q$ENV{FROM}\E/$ENV{TO}/ or exit 1' "$file"; then
        found="the line is not there any more"
        survived=1
    else
        binary=$(build || true)
        if [ -z "$binary" ]; then
            found="does not build: $(grep -m1 ^error "$work/build.log" || true)"
            survived=1
        else
            found=$(run "$binary")
            [ "$found" != "**not seen**" ] || survived=1
        fi
    fi
    echo "| $name | \`$2\` | $found |"
    mv "$work/original" "$file"
}

# test_binaries PACKAGE TEST: makes these test binaries of the copy, that of TEST and that of the unit tests; their paths.
test_binaries() {
    (cd "$copy" && cargo test --quiet --profile checked --package "$1" --lib --test "$2" --no-run \
        --message-format=json 2>"$work/build.log") |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | sort | paste -s -d ' '
}

# seeds BINARY: runs seeds; whether one sees the break, and what it says.
seeds() {
    local out status=0
    out=$(timeout "$limit" "$1" --nocapture every_seed 2>&1) || status=$?
    if [ $status = 124 ]; then
        echo "seeds: does not end"
    elif [ $status != 0 ]; then
        # What it says may be long: the writer of a pipe that is closed early fails.
        sed -n 's/^\(seed [0-9]*\) [^:]*: \(step [0-9]*: \)\?\(.*\) (crates.*/\1: \3/p' <<< "$out" | head -1 | tr '|' '/' | cut -c1-150 || true
    else
        return 1
    fi
}

# tests BINARY [FILTER]: runs other tests; whether one sees the break, and its name.
tests() {
    local out status=0
    out=$(timeout "$limit" "$1" ${2:+"$2"} 2>&1) || status=$?
    if [ $status = 124 ]; then
        echo "tests: do not end"
    elif [ $status != 0 ]; then
        sed -n 's/^test \(.*::\)\?\([a-z0-9_]*\) \.\.\. FAILED/`\2`/p' <<< "$out" | head -1 || true
    else
        return 1
    fi
}
