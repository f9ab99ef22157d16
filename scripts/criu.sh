#!/bin/sh
# criu.sh [--offline] DIR: prints the path of a CRIU that checkpoints need (4.2 or later): the system's, if it is new enough, else
# Debian sid's, which is unpacked below DIR with the libraries that it depends on and started by their own dynamic linker. Nothing
# is installed (scripts/suite-packages.sh). Fails, with a sentence, where that cannot be had; with --offline, where it has not been got
# before.
set -eu
offline=
if [ "${1:-}" = --offline ]; then
    offline=yes
    shift
fi
dir=${1:?criu.sh [--offline] DIR}
fail() {
    echo "vervain: $*" >&2
    exit 1
}
# Whether the version that it prints is 4.2 or later.
is_new_enough() {
    version=$("$1" --version 2>/dev/null | sed -n 's/^Version: //p') || return 1
    # shellcheck disable=SC2046 # two numbers
    set -- $(echo "$version" | sed 's/^\([0-9]*\)\.\([0-9]*\).*/\1 \2/')
    [ "${1:-0}" -gt 4 ] || { [ "${1:-0}" -eq 4 ] && [ "${2:-0}" -ge 2 ]; }
}
PATH=$PATH:/usr/sbin:/sbin
if system=$(command -v criu) && is_new_enough "$system"; then
    echo "$system"
    exit 0
fi
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ -x "$dir/criu" ]; then
    echo "$dir/criu"
    exit 0
fi
[ -z "$offline" ] || fail "no CRIU of 4.2 or later; scripts/criu.sh $dir downloads one"

# Made aside: what is there is whole.
new=$(mktemp -d "$dir/new.XXXXXX")
trap 'rm -rf "$new"' EXIT
"$(dirname "$0")/suite-packages.sh" sid "$new/files" criu 2>"$new/log" ||
    fail "no CRIU of 4.2 or later: $(sed -n 's/^vervain: //p' "$new/log")"

rm -rf "$dir/files"
mv "$new/files" "$dir/files"
linker=$(find "$dir/files" -name 'ld-linux*' -type f | head -n 1)
program=$(find "$dir/files" -path '*/sbin/criu' -type f | head -n 1)
[ -n "$linker" ] && [ -n "$program" ] || fail "Debian's package of CRIU has no criu, or no dynamic linker comes with it"
libraries=$(dirname "$(find "$dir/files" -name 'libprotobuf-c.so.1' | head -n 1)")
# Begun in the folder, for it leads to its libraries from where it lies; the name comes last.
cat > "$dir/criu.new" <<END
#!/bin/sh
here=\$(dirname "\$(readlink -f "\$0")")
exec "\$here${linker#"$dir"}" --library-path "\$here${libraries#"$dir"}:\$here/files/lib/$(basename "$libraries")" \\
    "\$here${program#"$dir"}" "\$@"
END
chmod +x "$dir/criu.new"
is_new_enough "$dir/criu.new" || fail "Debian's CRIU does not run here"
mv "$dir/criu.new" "$dir/criu"
echo "$dir/criu"
