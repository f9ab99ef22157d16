#!/bin/sh
# cross.sh COMMAND ARGUMENT...: runs a command that builds for AArch64 on a machine of another kind: `scripts/cross.sh make deb` puts the
# package for arm64 where `make deb` puts this machine's. Cargo and scripts get the cross compiler, its objcopy, and qemu-user for what
# of the build is run. What is missing is named; of Rust's libraries, rustup gets them.
#
#   TARGET_CC, QEMU    the cross compiler and the emulator, if they have other names
set -eu
triple=aarch64-unknown-linux-gnu

say() { echo "vervain: $*" >&2; }
find_tool() { for tool in "$@"; do command -v "$tool" && return; done; }

TARGET_CC=${TARGET_CC:-$(find_tool aarch64-linux-gnu-gcc aarch64-linux-gnu-gcc-14 aarch64-linux-gnu-gcc-12 || true)}
QEMU=${QEMU:-$(find_tool qemu-aarch64-static qemu-aarch64 || true)}
if [ -z "$TARGET_CC" ] || [ -z "$QEMU" ]; then
    say "there is no cross compiler, or no emulator; type, as root:  apt-get install -y gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
    exit 1
fi
# The folder in which the cross compiler has its C library, as lib/libc.so.6.
QEMU_LD_PREFIX=$(dirname "$(dirname "$(realpath "$("$TARGET_CC" -print-file-name=libc.so.6)")")")
if [ ! -e "$QEMU_LD_PREFIX/lib/ld-linux-aarch64.so.1" ]; then
    say "$TARGET_CC has no C library for AArch64 to run programs with; type, as root:  apt-get install -y libc6-dev-arm64-cross"
    exit 1
fi
if command -v rustup > /dev/null && [ ! -d "$(rustc --print target-libdir --target $triple)" ]; then
    rustup target add $triple
fi
export TARGET_CC QEMU QEMU_LD_PREFIX
OBJCOPY=$("$TARGET_CC" -print-prog-name=objcopy)
export OBJCOPY
# For cargo, and where its build lies, for make.
export CARGO_BUILD_TARGET=$triple CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$TARGET_CC"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$QEMU" PROFILE_DIR="target/$triple/release"
# For scripts that run the command that is built.
export CROSS_RUNNER="$QEMU"
exec "$@"
