#!/bin/sh
# strip.sh BUILD_DIR OUT_DIR: puts the command and the libraries of a build into OUT_DIR as they ship, without what only
# debuggers read, and that into OUT_DIR/debug, one NAME.debug for each file. The machine code stays what was tested. So
# do the names of functions, for backtraces, perf and valgrind: they are a fifth of what is left. objcopy comes with the
# linker, so where Rust links it is there; without it the files stay whole. What is up to date is left as it is, and
# files are renamed into place, so that this may run twice at once.
set -eu
umask 022
build=$1 out=$2
mkdir -p "$out/debug"
work=$(mktemp -d "$out/new.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
objcopy=${OBJCOPY:-objcopy}
command -v "$objcopy" > /dev/null ||
    echo "vervain: no objcopy here (package binutils): what is installed keeps its debugging information" >&2
newer() { [ -n "$(find "$1" -newer "$2" 2> /dev/null)" ]; }
for name in vervain libibverbs.so librdmacm.so libmlx5.so libmlx4.so libefa.so libhns.so libmana.so libionic.so \
    libvervain_preload.so librspreload.so libacp.so libpm.so; do
    if newer "$out/$name" "$build/$name" && newer "$out/debug/$name.debug" "$build/$name"; then continue; fi
    if command -v "$objcopy" > /dev/null; then
        "$objcopy" --only-keep-debug --compress-debug-sections "$build/$name" "$work/$name.debug"
        # A debugger knows the file by the name and the checksum that this adds, and by the build ID that both have.
        "$objcopy" --strip-debug --add-gnu-debuglink="$work/$name.debug" "$build/$name" "$work/$name"
        chmod 644 "$work/$name.debug"
        mv -f "$work/$name.debug" "$out/debug/$name.debug"
    else
        cp "$build/$name" "$work/$name"
    fi
    chmod 755 "$work/$name"
    mv -f "$work/$name" "$out/$name"
done
