#!/bin/sh
# suite-packages.sh [--alone] SUITE DIR PACKAGE...: unpacks packages of a suite of Debian into DIR, which is made, with all that they
# depend on unless --alone. Nothing is installed. They come from the mirror that apt is set up for here, and apt checks signatures and
# digests, as ever. Fails, with a sentence, where that cannot be had.
set -eu
alone=
if [ "${1:-}" = --alone ]; then
    alone=yes
    shift
fi
suite=${1:?suite-packages.sh [--alone] SUITE DIR PACKAGE...} dir=${2:?a folder}
shift 2
fail() {
    echo "vervain: $*" >&2
    exit 1
}
for tool in apt-get dpkg dpkg-deb; do command -v $tool >/dev/null || fail "there is no $tool to get Debian's packages by"; done
arch=$(dpkg --print-architecture)
# A mirror of Debian itself, rather than of its security updates or of somebody else.
mirror=$(apt-get indextargets --format '$(ORIGIN)|$(RELEASE)|$(REPO_URI)' 2>/dev/null |
    sed -n 's/^Debian|[^|]*|//p' | grep -v -e -security | head -n 1)
[ -n "$mirror" ] || mirror=$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep '/debian/*$' | head -n 1)
[ -n "$mirror" ] || fail "apt knows no mirror of Debian (apt-get update)"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
[ -e $keys ] || keys=/usr/share/keyrings/debian-archive-keyring.pgp
[ -e $keys ] || fail "there is no debian-archive-keyring to check Debian's packages by"

mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
# Beside the folder, so that the files stay on one file system.
new=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$new"' EXIT
mkdir -p "$new/lists/partial" "$new/cache/archives/partial" "$new/etc"
: > "$new/status"
echo "deb [signed-by=$keys arch=$arch] $mirror $suite main" > "$new/etc/sources.list"
# An apt of its own, to which no package is installed; so it takes each one that is depended on.
own_apt() {
    apt-get -o Dir::State="$new" -o Dir::State::Lists="$new/lists" -o Dir::State::status="$new/status" \
        -o Dir::Cache="$new/cache" -o Dir::Etc::SourceList="$new/etc/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null -o APT::Sandbox::User= \
        -o APT::Install-Recommends=false -o Acquire::Languages=none -o Acquire::Retries=2 -o Debug::NoLocking=1 \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false -o APT::Update::Post-Invoke-Success::= \
        -o APT::Update::Post-Invoke::= "$@"
}
download() {
    if [ -z "$alone" ]; then own_apt install -q -y --download-only "$@"; else (cd "$new/cache/archives" && own_apt download -q "$@"); fi
}
own_apt update -q >"$new/log" 2>&1 && download "$@" >>"$new/log" 2>&1 ||
    fail "$* of Debian's $suite cannot be got from $mirror: $(grep '^E:' "$new/log" | head -n 1)"
for deb in "$new"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$dir"; done
