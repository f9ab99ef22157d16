#!/bin/sh
# need-packages.sh PACKAGE...: installs the Debian packages that are missing, where this user may; else prints the line
# to type and succeeds, so that what is possible goes on.
set -eu
command -v dpkg-query >/dev/null || {
    echo "vervain: no dpkg here; these Debian packages, by whatever name, are needed: $*" >&2
    exit 0
}
missing=
for package in "$@"; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [ "$status" = "install ok installed" ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0
# shellcheck disable=SC2086 # a list of words
set -- $missing
if [ "$(id -u)" = 0 ]; then
    as_root="env"
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    as_root="sudo -n env"
else
    echo "vervain: missing, and this user may not install it. Type:  sudo apt-get install -y $*" >&2
    exit 0
fi
echo "vervain: installing $*"
install_all() {
    $as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}
# A fresh machine's package lists may be absent or stale.
install_all "$@" >/dev/null 2>&1 || { $as_root apt-get update -q >/dev/null && install_all "$@"; } || {
    echo "vervain: apt-get failed. Type:  sudo apt-get install -y $*" >&2
    exit 0
}
