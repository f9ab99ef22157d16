#!/bin/sh
# stage-debug.sh STRIPPED_DIR ROOT: puts the debugging information that strip.sh has taken out beside what is installed
# in ROOT, in the directories .debug in which gdb, valgrind, perf and Rust's backtraces look of themselves, wherever
# ROOT lies.
set -eu
umask 022
from=$1/debug root=$2
put() { # DIRECTORY NAME...
    directory=$root/$1/.debug
    shift
    mkdir -p "$directory"
    for name; do
        install -m 644 "$from/$name.debug" "$directory/$name.debug.new"
        mv -f "$directory/$name.debug.new" "$directory/$name.debug"
    done
}
put bin vervain
put lib libacp.so libpm.so
put lib/vervain/rsocket librspreload.so
put lib/vervain libibverbs.so librdmacm.so libmlx5.so libmlx4.so libefa.so libhns.so libmana.so libionic.so libvervain_preload.so
