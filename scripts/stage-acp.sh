#!/bin/sh
# stage-acp.sh BUILD_DIR ROOT PREFIX VERSION [LIB]: puts libacp, its header and what compilers find them by into ROOT,
# whose files will lie below PREFIX. It lies where the linker looks (LIB, or lib), so not beside Vervain's libibverbs,
# which would be found there in place of another.
set -eu
build=$1 root=$2 prefix=$3 version=$4 lib=${5:-lib} source=$(dirname "$0")/..
put() { # FILE NAME MODE
    install -m "$3" "$1" "$root/$2.new"
    mv -f "$root/$2.new" "$root/$2"
}
fill() { # TEMPLATE NAME MODE
    sed -e "s|@PREFIX@|$prefix|g" -e "s|@LIB@|$lib|g" -e "s|@VERSION@|$version|g" "$1" > "$root/$2.new"
    chmod "$3" "$root/$2.new"
    mv -f "$root/$2.new" "$root/$2"
}
mkdir -p "$root/bin" "$root/include" "$root/$lib/pkgconfig"
put "$build/libacp.so" "$lib/libacp.so.3" 755
ln -sfn libacp.so.3 "$root/$lib/libacp.so"
for layer in bl ml; do put "$source/packaging/libacp.ld" "$lib/libacp$layer.so" 644; done
put "$source/crates/acp/libacp/include/acp.h" include/acp.h 644
fill "$source/packaging/acp.pc.in" "$lib/pkgconfig/acp.pc" 644
fill "$source/packaging/acpcc.in" bin/acpcc 755
python=$("$source/scripts/python-directory.sh" "$prefix")
mkdir -p "$root/$python/vervain_acp"
for file in "$source"/python/vervain_acp/*.py; do put "$file" "$python/vervain_acp/${file##*/}" 644; done
