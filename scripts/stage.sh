#!/bin/sh
# stage.sh BUILD_DIR ROOT PREFIX VERSION [LIB]: puts all that is installed into ROOT, whose files will lie below PREFIX:
# what `make install`, the package and the tarball have in common. LIB, below PREFIX, is where the linker looks: lib, or
# that of an architecture.
set -eu
umask 022
build=$1 root=$2 prefix=$3 version=$4 lib=${5:-lib} source=$(dirname "$0")/..
put() { # FILE NAME MODE
    install -m "$3" "$1" "$root/$2.new"
    mv -f "$root/$2.new" "$root/$2"
}
mkdir -p "$root/bin" "$root/include" "$root/lib/vervain" "$root/$lib/pkgconfig" "$root/share/doc/vervain"
put "$build/vervain" bin/vervain 755
"$source/scripts/stage-libs.sh" "$build" "$root/lib/vervain"
"$source/scripts/stage-acp.sh" "$build" "$root" "$prefix" "$version" "$lib"
"$source/scripts/stage-pm.sh" "$build" "$root" "$prefix" "$version" "$lib"
put "$source/crates/verbs/libibverbs/include/vervain.h" include/vervain.h 644
sed -e "s|@PREFIX@|$prefix|g" -e "s|@VERSION@|$version|g" "$source/packaging/vervain.pc.in" > "$root/$lib/pkgconfig/vervain.pc.new"
mv -f "$root/$lib/pkgconfig/vervain.pc.new" "$root/$lib/pkgconfig/vervain.pc"
${CROSS_RUNNER:-} "$build/vervain" man "$root/share/man/man1"
put "$source/packaging/acpcc.1" share/man/man1/acpcc.1 644
"$source/scripts/install-completions.sh" "$build/vervain" "$root/share"
for file in README.md LICENSE-MIT LICENSE-APACHE; do put "$source/$file" "share/doc/vervain/$file" 644; done
