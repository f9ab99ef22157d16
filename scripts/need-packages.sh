#!/bin/sh
# need-packages.sh 'PACKAGE...': installs the Debian packages that are missing, where this user may; else prints the line to type
# and succeeds, so that what is possible goes on. ONE|OTHER is the first of them that the distribution has; without package lists
# the last, which should be the one that most releases have. If apt-get fails three times it prints the line too, and fails with
# VERVAIN_TESTS_STRICT=1, where each test that lacks a package would.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck disable=SC2086 # a list of words
set -- $*
command -v dpkg-query >/dev/null || {
    echo "vervain: no dpkg here; these Debian packages, by whatever name, are needed: $*" >&2
    exit 0
}
installed() { [ "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null || true)" = "install ok installed" ]; }
one_of() {
    for one in $(echo "$1" | tr '|' ' '); do
        if installed "$one"; then return 0; fi
    done
    return 1
}
missing=
for package in "$@"; do one_of "$package" || missing="$missing $package"; done
[ -n "$missing" ] || exit 0
command -v apt-get >/dev/null || {
    echo "vervain: missing, and there is no apt-get here to install them:$missing" >&2
    exit 0
}
if [ "$(id -u)" = 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
else
    as_root=
fi
# A fresh machine's package lists may be absent.
# What is installed is known without lists, but not whence.
lists() { apt-cache show libc6 2>/dev/null | grep -q ^Filename; }
[ -z "$as_root" ] || lists || $as_root apt-get update -q >/dev/null 2>&1 || true
if lists; then known=yes; else known=; fi
chosen=
for package in $missing; do
    found=
    # Without lists nobody knows: the last one is that which the most releases have.
    [ -n "$known" ] || found=${package##*|}
    for one in $(echo "$package" | tr '|' ' '); do
        if [ -z "$found" ] && [ -n "$(apt-cache show "$one" 2>/dev/null)" ]; then found=$one; fi
    done
    # One that this release does not have would keep apt-get from installing the others.
    if [ -n "$found" ]; then chosen="$chosen $found"; else echo "vervain: there is no package $package here" >&2; fi
done
[ -n "$chosen" ] || exit 0
# shellcheck disable=SC2086 # a list of words
set -- $chosen
if [ -z "$as_root" ]; then
    if command -v sudo >/dev/null; then type="Type: " as="sudo "; else type="Type, as root: " as=; fi
    if [ -n "$known" ]; then update=; else update="${as}apt-get update && "; fi
    echo "vervain: missing, and this user may not install it. $type $update${as}apt-get install -y $*" >&2
    exit 0
fi
echo "vervain: installing $*"
log=$(mktemp 2>/dev/null) || log=/dev/null
trap '[ "$log" = /dev/null ] || rm -f "$log"' EXIT
for try in 1 2 3; do
    : > "$log"
    # Nothing that is there is to go.
    # shellcheck disable=SC2086 # a list of words
    "$here/progress.sh" "$log" $as_root DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -q --no-install-recommends --no-remove "$@" && exit 0
    # The lists may be stale, or the server busy.
    $as_root apt-get update -q >/dev/null 2>&1 || true
    sleep "$((try * 2))"
done
grep -a '^E: ' "$log" | head -n 1 >&2
echo "vervain: apt-get failed three times. Type, as root:  apt-get install -y $*" >&2
[ "${VERVAIN_TESTS_STRICT:-0}" != 1 ]
