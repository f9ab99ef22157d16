#!/bin/bash
# release.sh [--allow-untagged] [--untried] [--native]: makes what a release hands out, in target/package: for x86-64 and, cross-compiled,
# AArch64, packages, what debuggers want of them, the wheel and a bill of materials (CycloneDX); and SHA256SUMS of all. Refuses a tree with
# changes, a version that CHANGELOG.md has no dated section of, and a commit without the tag vVERSION, which --allow-untagged allows.
# --native leaves out the other machine's. Package, tarball and wheel are tried in fresh roots by TRY_PACKAGES DEB TARBALL WHEEL
# (default: scripts/fresh-packages.sh); --untried leaves that out. What is for AArch64 is tried by an emulator; where that cannot be,
# a sentence says so and the release goes on. It publishes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."
fail() { echo "release: $*" >&2; exit 1; }
say() { echo "release: $*" >&2; }

untagged='' untried='' native=''
for word; do
    case $word in
    --allow-untagged) untagged=yes ;;
    --untried) untried=yes ;;
    --native) native=yes ;;
    *) fail "there is no option $word; there are --allow-untagged, --untried and --native" ;;
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
machine=$(uname -m)
machines=("$machine")
# There is no cross build for x86-64.
if [ "$machine" = x86_64 ] && [ -z "$native" ]; then machines+=(aarch64); fi
for target in "${machines[@]}"; do
    cross=()
    [ "$target" = "$machine" ] || cross=(scripts/cross.sh)
    "${cross[@]}" make deb tarball packages-debug wheel
done

# one NAME PATTERN: prints the one file that the pattern matches.
one() {
    local files
    mapfile -t files < <(compgen -G "$to/$2")
    [ "${#files[@]}" = 1 ] || fail "there has to be one $1, and ${#files[@]} files match $to/$2"
    echo "${files[0]}"
}
for target in "${machines[@]}"; do
    case $target in
    x86_64) architecture=amd64 ;;
    aarch64) architecture=arm64 ;;
    *) fail "there are no packages for $target" ;;
    esac
    # dpkg writes 1.0.0~rc.1 for 1.0.0-rc.1, and Python 1.0.0rc1.
    files=("$(one "package for Debian" "vervain_${version/-/\~}_$architecture.deb")")
    files+=("$(one "tarball" "vervain-$version-$target-linux.tar.gz")")
    [[ $version = *-* ]] || files+=("$(one "wheel" "vervain-$version-py3-none-manylinux*_$target.whl")")

    # Crates are of a platform: one that is linked on one processor may be absent on another.
    metadata=$("${CARGO:-scripts/cargo.sh}" metadata --locked --format-version 1 --filter-platform "$target-unknown-linux-gnu")
    scripts/sbom.py "$version" "$(git log -1 --format=%ct)" <<< "$metadata" > "$to/vervain-$version-$target-linux.cdx.json"

    if [ -n "$untried" ]; then
        say "nothing for $target was tried in a fresh root"
        continue
    fi
    status=0
    "$try" "${files[@]}" || status=$?
    # No emulator or no root of it; this machine's own packages have to be tried.
    if [ "$target" != "$machine" ] && { [ "$status" = 125 ] || [ "$status" = 75 ]; }; then
        say "nothing for $target was tried: the sentence above says why"
    elif [ "$status" != 0 ]; then
        fail "what is for $target failed in a fresh root"
    fi
done

# Names in the order of their bytes.
export LC_ALL=C
cd "$to"
files=(*)
sha256sum -- "${files[@]}" > SHA256SUMS
say "$version is in $to:"
cat SHA256SUMS
