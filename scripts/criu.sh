#!/bin/sh
# criu.sh [--offline] DIR: prints the path of a CRIU that checkpoints need (4.2 or later): the system's, if it is new enough, else
# Debian sid's, which is unpacked below DIR with the libraries that it depends on and started by their own dynamic linker. Nothing
# is installed. The packages come from the mirror that apt is set up for here, and apt checks signatures and digests, as ever.
# Fails, with a sentence, where that cannot be had; with --offline, where it has not been got before.
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
for tool in apt-get dpkg dpkg-deb; do command -v $tool >/dev/null || fail "no CRIU of 4.2 or later, and no $tool to get one by"; done
arch=$(dpkg --print-architecture)
# A mirror of Debian itself, rather than of its security updates or of somebody else.
mirror=$(apt-get indextargets --format '$(ORIGIN)|$(RELEASE)|$(REPO_URI)' 2>/dev/null |
    sed -n 's/^Debian|[^|]*|//p' | grep -v -e -security | head -n 1)
[ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep '/debian/*$' | head -n 1)
[ -n "$mirror" ] || fail "no CRIU of 4.2 or later, and apt knows no mirror of Debian to get one from (apt-get update)"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keys ] || keys=/usr/share/keyrings/debian-archive-keyring.pgp
[ -e $keys ] || fail "no CRIU of 4.2 or later, and no debian-archive-keyring to check one by"

# Made aside: what is there is whole.
new=$(mktemp -d "$dir/new.XXXXXX")
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/lists/partial" "$new/cache/archives/partial" "$new/etc" "$new/files" "$new/debs"
: > "$new/status"
echo "deb [signed-by=$keys arch=$arch] $mirror sid main" > "$new/etc/sources.list"
# An apt of its own, to which no package is installed; so it takes each one that is depended on.
own_apt() {
    what=$1
    shift
    "$what" -o Dir::State="$new" -o Dir::State::Lists="$new/lists" -o Dir::State::status="$new/status" \
        -o Dir::Cache="$new/cache" -o Dir::Etc::SourceList="$new/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o APT::Sandbox::User= \
        -o APT::Install-Recommends=false -o Acquire::Languages=none -o Acquire::Retries=2 -o Debug::NoLocking=1 \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Update::Post-Invoke-Success::= \
        -o APT::Update::Post-Invoke::= "$@"
}
own_apt apt-get update -q >"$new/log" 2>&1 || fail "CRIU cannot be got from $mirror: $(grep '^E:' "$new/log" | head -n 1)"
own_apt apt-get install -q -y --download-only criu >>"$new/log" 2>&1 ||
    fail "CRIU cannot be got from $mirror: $(grep '^E:' "$new/log" | head -n 1)"
for deb in "$new"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$new/files"; done

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
