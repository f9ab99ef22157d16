#!/bin/bash
# package.sh KIND STRIPPED_DIR OUT_DIR: makes a file in OUT_DIR of what strip.sh has put into STRIPPED_DIR, and prints
# its path. KIND is
#   deb            vervain_VERSION_ARCHITECTURE.deb: all below /usr, without maintainer scripts, so that its removal leaves no trace
#   tarball        vervain-VERSION-MACHINE-linux.tar.gz: one directory that works wherever it is unpacked, with an installer
#   deb-debug      vervain-dbgsym_VERSION_ARCHITECTURE.deb: debugging information by build ID, where debuggers look
#   tarball-debug  vervain-VERSION-MACHINE-linux-debug.tar.gz: the same, to be unpacked over the tarball
# The same build gives the same bytes: names are sorted, everything belongs to root, and no time is later than that of
# the last commit (or SOURCE_DATE_EPOCH). The deb's maintainer is that of DEBFULLNAME and DEBEMAIL.
set -euo pipefail
export LC_ALL=C TZ=UTC
umask 022
kind=$1 stripped=$(cd "$2" && pwd) out=$3 source=$(cd "$(dirname "$0")/.." && pwd)

fail() { echo "vervain: $*" >&2; exit 1; }
need() { # TOOL PACKAGE
    command -v "$1" > /dev/null || fail "there is no $1 here; type, as root:  apt-get install -y $2"
}
need readelf binutils
[ -f "$stripped/debug/vervain.debug" ] || fail "$stripped has no files for debuggers: objcopy (package binutils) was missing"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$source/Cargo.toml")
# What comes before 1.0.0 is 1.0.0-rc.1 for Cargo and 1.0.0~rc.1 for dpkg.
debian_version=${version/-/\~}
# Of an unpacked source tree without git, the time of its list of crates.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$source" log -1 --format=%ct 2> /dev/null || stat -c %Y "$source/Cargo.lock")}
export SOURCE_DATE_EPOCH
# e_machine of the ELF header.
case $(od -An -tu2 -j18 -N2 "$stripped/vervain" | tr -d ' ') in
62) machine=x86_64 architecture=amd64 ;;
183) machine=aarch64 architecture=arm64 ;;
*) fail "$stripped/vervain is of a machine that no package is made for" ;;
esac

mkdir -p "$out"
out=$(cd "$out" && pwd)
work=$(mktemp -d "$out/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

# Programs and libraries below a directory; not the C compiler's inputs, which have such names too.
elf_files() { # DIRECTORY
    find "$1" -type f -print0 | sort -z | while IFS= read -r -d '' file; do
        if [ "$(head -c 4 "$file" | od -An -tx1 | tr -d ' \n')" = 7f454c46 ]; then printf '%s\n' "$file"; fi
    done
}

# The newest version of glibc that a symbol of these files is of.
newest_glibc() { # FILE...
    readelf --wide --version-info "$@" | grep -o 'Name: GLIBC_[0-9.]*' | sed 's/.*_//' | sort -V | tail -n 1
}

# The packages that have what these files are linked with, but for each other.
depends() { # FILE...
    local name depends
    depends="libc6 (>= $(newest_glibc "$@"))"
    while IFS= read -r name; do
        case $name in
        libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | librt.so.1 | ld-linux-*) ;;
        libgcc_s.so.1) depends="$depends, libgcc-s1" ;;
        *) [[ " ${*##*/} " = *" $name "* ]] || fail "no package is known that has $name" ;;
        esac
    done < <(readelf --wide --dynamic "$@" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u)
    echo "$depends"
}

# Everything with the time of the last commit.
set_times() { find "$1" -exec touch --no-dereference --date="@$SOURCE_DATE_EPOCH" {} +; }

# The directory DEBIAN of a package: control with the fields of standard input added, and the sums of its files.
control() { # ROOT PACKAGE SECTION
    local root=$1
    mkdir -p "$root/DEBIAN"
    (cd "$root" && find . -type f ! -path './DEBIAN/*' -printf '%P\0' | sort -z | xargs -0 md5sum > DEBIAN/md5sums)
    {
        printf 'Package: %s\nVersion: %s\nArchitecture: %s\nSection: %s\nPriority: optional\n' \
            "$2" "$debian_version" "$architecture" "$3"
        printf 'Maintainer: %s <%s>\n' "${DEBFULLNAME:-The Vervain Authors}" "${DEBEMAIL:-vervain@localhost}"
        # Directories and links count as 1 KiB, as dpkg-gencontrol(1) has it.
        printf 'Installed-Size: %s\n' "$(find "$root" -path "$root/DEBIAN" -prune -o -printf '%y %s\n' |
            awk '{ kib += $1 == "f" ? int(($2 + 1023) / 1024) : 1 } END { print kib }')"
        cat
    } > "$root/DEBIAN/control"
}

build_deb() { # ROOT PACKAGE
    local file=$2_${debian_version}_$architecture.deb
    set_times "$1"
    # Not by zstd, which dpkg has known since version 1.21.18 only, Ubuntu's excepted.
    dpkg-deb --root-owner-group -Zxz --build "$1" "$work/$file" > /dev/null
    mv -f "$work/$file" "$out/$file"
    echo "$out/$file"
}

# What Debian wants of every package.
documents() { # DIRECTORY
    mkdir -p "$1"
    {
        echo 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/'
        printf 'Upstream-Name: Vervain\n\nFiles: *\n%s\nLicense: MIT or Apache-2.0\n' \
            "$(sed -n 's/^Copyright (c)/Copyright:/p' "$source/LICENSE-MIT")"
        echo 'Comment: The licences of the crates whose code is in the programs are in third-party.gz beside this file.'
        # Lines of a field begin with a blank, and an empty one has a dot.
        printf '\nLicense: MIT\n'
        sed -e 1,/^Copyright/d "$source/LICENSE-MIT" | sed -e 1d -e 's/^$/./' -e 's/^/ /'
        printf '\nLicense: Apache-2.0\n On Debian systems its text is in /usr/share/common-licenses/Apache-2.0.\n'
    } > "$1/copyright"
    gzip -9n > "$1/changelog.gz" <<END
vervain ($debian_version) unstable; urgency=medium

  * Version $version. What has changed for users is in CHANGELOG.md of the source.

 -- ${DEBFULLNAME:-The Vervain Authors} <${DEBEMAIL:-vervain@localhost}>  $(date --date="@$SOURCE_DATE_EPOCH" --rfc-email)
END
    "$source/scripts/third-party.sh" | gzip -9n > "$1/third-party.gz"
    if [ -f "$source/CHANGELOG.md" ]; then gzip -9n < "$source/CHANGELOG.md" > "$1/CHANGELOG.md.gz"; fi
}

deb() {
    local root=$work/deb lib=lib/$machine-linux-gnu page files
    need dpkg-deb dpkg
    "$source/scripts/stage.sh" "$stripped" "$root/usr" /usr "$version" "$lib"
    # Python would leave its byte code there behind, without a maintainer script that removes it: pip installs that
    # package.
    rm -rf "$root/usr/lib/python3" "$root"/usr/lib/python3.*
    # Where Debian's zsh looks, and not the administrator's.
    mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
    for page in "$root"/usr/share/man/man1/*; do gzip -9n "$page"; done
    # By Debian's policy libraries are not executable.
    find "$root/usr/lib" -type f -exec chmod 644 {} +
    # They are in `copyright`.
    rm "$root"/usr/share/doc/vervain/LICENSE-*
    documents "$root/usr/share/doc/vervain"
    install -D -m 644 "$source/packaging/lintian-overrides" "$root/usr/share/lintian/overrides/vervain"
    mapfile -t files < <(elf_files "$root")
    control "$root" vervain net <<END
Depends: $(depends "${files[@]}")
Recommends: ibverbs-utils
Suggests: perftest, libibverbs-dev, librdmacm-dev
Description: RDMA without RDMA hardware
 Vervain runs programs that use libibverbs or librdmacm where there is no RDMA
 card: on a laptop, in CI, in a container. It needs no kernel module, no root
 and no daemon: "vervain run -- PROGRAM" executes the program with a libibverbs
 that has a device in software, whose errors are those of a card. Processes of
 one host exchange data by memory, hosts by packets of RoCE v2.
 .
 The package has the command, the libraries, which lie where the system's linker
 does not look, and for parallel jobs the libraries ACP and PM.
END
    # libacp and libpm lie where the linker looks.
    printf 'lib%s vervain (>= %s)\n' "acp 3" "$debian_version" "pm 2" "$debian_version" > "$root/DEBIAN/shlibs"
    echo activate-noawait ldconfig > "$root/DEBIAN/triggers"
    build_deb "$root" vervain
}

deb_debug() {
    local root=$work/deb-debug file name id
    need dpkg-deb dpkg
    for file in "$stripped"/debug/*.debug; do
        name=$(basename "$file" .debug)
        id=$(readelf --notes "$stripped/$name" | sed -n 's/.*Build ID: //p')
        [ -n "$id" ] || fail "$name has no build ID: the C compiler that linked it gives none"
        install -D -m 644 "$file" "$root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
    done
    documents "$root/usr/share/doc/vervain-dbgsym"
    control "$root" vervain-dbgsym debug <<END
Depends: vervain (= $debian_version)
Description: debugging information of Vervain
 Line tables for gdb, valgrind, perf and backtraces, found by the build IDs of
 the files in the package vervain.
END
    build_deb "$root" vervain-dbgsym
}

archive() { # DIRECTORY NAME
    find "$1" -exec chmod u+w,go=rX {} +
    tar --create --format=gnu --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" \
        --directory "$(dirname "$1")" "$(basename "$1")" | gzip -9n > "$work/$2"
    mv -f "$work/$2" "$out/$2"
    echo "$out/$2"
}

tarball() {
    local name=vervain-$version-$machine-linux files
    local root=$work/$name
    # shellcheck disable=SC2016 # for pkg-config
    "$source/scripts/stage.sh" "$stripped" "$root" '${pcfiledir}/../..' "$version"
    "$source/scripts/third-party.sh" > "$root/share/doc/vervain/third-party.txt"
    mapfile -t files < <(elf_files "$root")
    sed -e "s|@MACHINE@|$machine|g" -e "s|@GLIBC@|$(newest_glibc "${files[@]}")|g" \
        "$source/packaging/install.sh.in" > "$root/install.sh"
    cp "$source/scripts/uninstall.sh" "$root/uninstall.sh"
    chmod 755 "$root/install.sh" "$root/uninstall.sh"
    archive "$root" "$name.tar.gz"
}

tarball_debug() {
    local name=vervain-$version-$machine-linux
    "$source/scripts/stage-debug.sh" "$stripped" "$work/$name"
    archive "$work/$name" "$name-debug.tar.gz"
}

case $kind in
deb) deb ;;
deb-debug) deb_debug ;;
tarball) tarball ;;
tarball-debug) tarball_debug ;;
*) fail "a package is deb, deb-debug, tarball or tarball-debug, not $kind" ;;
esac
