#!/bin/bash
# release.sh [--allow-untagged] [--untried]: makes what a release hands out, in target/package: packages, what debuggers want of them,
# the wheel, a bill of materials (CycloneDX) and SHA256SUMS. Refuses a tree with changes, a version that CHANGELOG.md has no
# dated section of, and a commit without the tag vVERSION, which --allow-untagged allows. Package and tarball are tried in fresh
# roots by TRY_PACKAGES DEB TARBALL (default: scripts/fresh-packages.sh); --untried leaves that out. It publishes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release: $*" >&2; exit 1; }
say() { echo "release: $*" >&2; }

untagged='' untried=''
for word; do
    case $word in
    --allow-untagged) untagged=yes ;;
    --untried) untried=yes ;;
    *) fail "there is no option $word; there are --allow-untagged and --untried" ;;
    esac
done

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail "Cargo.toml has no semantic version, but '$version'"
[ -z "$(git status --porcelain)" ] || fail "the tree has changes that are not committed: git status"
grep -q -E "^## \[${version//./\\.}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}\$" CHANGELOG.md ||
    fail "CHANGELOG.md has no line '## [$version] - YYYY-MM-DD': what is new in it?"
if ! git tag --points-at HEAD | grep -q -x -F "v$version"; then
    [ -n "$untagged" ] || fail "the last commit has no tag v$version; --allow-untagged does without"
    say "the last commit has no tag v$version: these files are no release"
fi
try=${TRY_PACKAGES:-scripts/fresh-packages.sh}
[ -n "$untried" ] || [ -x "$try" ] || fail "there is no $try to try packages with in fresh roots; --untried does without"

# Nothing of an earlier version is handed out.
to=$PWD/target/package
rm -rf "$to"
mkdir -p "$to"
make deb tarball packages-debug wheel

# one NAME PATTERN: sets `found` to the one file that the pattern matches.
one() {
    local files
    mapfile -t files < <(compgen -G "$to/$2")
    [ "${#files[@]}" = 1 ] || fail "there has to be one $1, and ${#files[@]} files match $to/$2"
    found=${files[0]}
}
# dpkg writes 1.0.0~rc.1 for 1.0.0-rc.1, and Python 1.0.0rc1.
one "package for Debian" "vervain_${version/-/\~}_*.deb"
deb=$found
one "tarball" "vervain-$version-*-linux.tar.gz"
tarball=$found
[[ $version = *-* ]] || one "wheel" "vervain-$version-py3-none-manylinux*.whl"

platform=$(rustc -vV 2> /dev/null | sed -n 's/^host: //p')
metadata=$("${CARGO:-scripts/cargo.sh}" metadata --locked --format-version 1 \
    --filter-platform "${platform:-$(uname -m)-unknown-linux-gnu}")
scripts/sbom.py "$version" "$(git log -1 --format=%ct)" <<< "$metadata" > "$to/vervain-$version.cdx.json"

if [ -n "$untried" ]; then say "nothing was tried in a fresh root"; else "$try" "$deb" "$tarball"; fi

cd "$to"
files=(*)
sha256sum -- "${files[@]}" > SHA256SUMS
say "$version is in $to:"
cat SHA256SUMS
