#!/bin/sh
# stage-libs.sh BUILD_DIR LIB_DIR: puts the built libraries into LIB_DIR under the names that programs ask for.
# Each is renamed into place: a program that runs keeps the file that it has mapped.
set -eu
build=$1 dir=$2 packaging=$(dirname "$0")/../packaging
put() { # FILE NAME
    cp "$1" "$dir/$2.new"
    mv -f "$dir/$2.new" "$dir/$2"
}
# Programs preload what lies in rsocket, as where rdma-core has it, by its path only.
mkdir -p "$dir/rsocket"
for name in ibverbs rdmacm mlx5 mlx4 efa hns mana ionic; do
    put "$build/lib$name.so" "lib$name.so.1"
    # NCCL opens the unversioned name first.
    ln -sfn "lib$name.so.1" "$dir/lib$name.so"
done
put "$build/libvervain_preload.so" libvervain_preload.so
put "$build/librspreload.so" rsocket/librspreload.so.1.0.0
ln -sfn librspreload.so.1.0.0 "$dir/rsocket/librspreload.so.1"
ln -sfn librspreload.so.1.0.0 "$dir/rsocket/librspreload.so"
# What `vervain run` names to valgrind and to ThreadSanitizer.
put "$packaging/valgrind.supp" valgrind.supp
put "$packaging/tsan.supp" tsan.supp
