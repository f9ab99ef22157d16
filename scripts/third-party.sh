#!/bin/bash
# third-party.sh: prints the licences of the crates whose code is in the command and the libraries, each text once with
# the crates that it is of, for packages to carry: most licences want that. Where a crate may be used under MIT that is
# the one taken. A crate whose sources have no text of it is named with the licence that its manifest names.
set -euo pipefail
export LC_ALL=C
tree=$(cd "$(dirname "$0")/.." && pwd)
cd "$tree"
cargo=${CARGO:-scripts/cargo.sh}
target=${CARGO_BUILD_TARGET:-$("$cargo" -vV | sed -n 's/^host: //p')}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Where cargo has the sources of each: in directories named after crate and version, or after the crate where they are
# vendored.
"$cargo" metadata --offline --locked --filter-platform "$target" --format-version 1 > "$work/metadata"
declare -A sources=()
while IFS= read -r manifest; do
    directory=$(dirname "$manifest")
    sources[${directory##*/}]=$directory
done < <(grep -o '"manifest_path":"[^"]*"' "$work/metadata" | cut -d'"' -f4)

# What is built for `make`, without what only runs at the build.
crates() {
    "$cargo" tree --offline --locked --workspace --exclude vervain-benches --exclude vervain-tests --exclude vervain-client-tests \
        --exclude vervain-model --exclude vervain-put-only --exclude vervain-seeds --exclude vervain-skip \
        --target "$target" --edges no-dev,no-build,no-proc-macro --prefix none --format '{p}|{l}' |
        sed -n -e '/ (/d' -e 's/ v\([^|]*\)|/-\1|/p' | sort -u
}

# texts DIRECTORY LICENCE: the files of it, by their names.
texts() {
    local found
    found=$(find "$1" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'notice*' \) | sort)
    if [[ $2 = *MIT* ]] && grep -qi 'licen[cs]e[-_.]mit' <<< "$found"; then
        found=$(grep -i -e 'licen[cs]e[-_.]mit' -e notice <<< "$found")
    fi
    echo "$found"
}

echo "Vervain's command and libraries have code of Rust's standard library (MIT OR Apache-2.0, The Rust Project contributors) and of"
echo "the crates below, under these licences."
crates > "$work/crates"
while IFS='|' read -r crate licence; do
    directory=${sources[$crate]:-${sources[${crate%-[0-9]*}]:-}}
    found=$([ -z "$directory" ] || texts "$directory" "$licence")
    if [ -z "$found" ]; then
        echo "$crate: $licence" >> "$work/named"
        continue
    fi
    while IFS= read -r file; do
        sum=$(sha256sum < "$file" | cut -d' ' -f1)
        cp "$file" "$work/$sum.text"
        echo "$crate: $licence" >> "$work/$sum.crates"
    done <<< "$found"
done < "$work/crates"
for list in "$work"/*.crates; do echo "$(head -n 1 "$list")|$list"; done | sort | while IFS='|' read -r _ list; do
    printf '\n%s\n' "----------------------------------------------------------------"
    cat "$list"
    echo
    cat "${list%.crates}.text"
done
if [ -s "$work/named" ]; then
    printf '\n%s\n' "---------------------------- without a text in their sources:"
    cat "$work/named"
fi
