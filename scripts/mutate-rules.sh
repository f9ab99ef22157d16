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
