#!/bin/sh
# stage-pm.sh BUILD_DIR ROOT PREFIX VERSION [LIB]: puts libpm, its header and what compilers find them by into ROOT,
# whose files will lie below PREFIX. It lies where the linker looks (LIB, or lib), so not beside Vervain's libibverbs,
# which would be found there in place of another.
set -eu
build=$1 root=$2 prefix=$3 version=$4 lib=${5:-lib} source=$(dirname "$0")/..
put() { # FILE NAME MODE
    install -m "$3" "$1" "$root/$2.new"
    mv -f "$root/$2.new" "$root/$2"
}
mkdir -p "$root/include" "$root/$lib/pkgconfig"
put "$build/libpm.so" "$lib/libpm.so.2" 755
ln -sfn libpm.so.2 "$root/$lib/libpm.so"
put "$source/crates/pm/libpm/include/pm.h" include/pm.h 644
sed -e "s|@PREFIX@|$prefix|g" -e "s|@LIB@|$lib|g" -e "s|@VERSION@|$version|g" "$source/packaging/pm.pc.in" \
    > "$root/$lib/pkgconfig/pm.pc.new"
mv -f "$root/$lib/pkgconfig/pm.pc.new" "$root/$lib/pkgconfig/pm.pc"
