#!/bin/bash
# emulated.sh COMMAND ARGUMENT...: runs a command where the kernel executes programs for AArch64 by qemu-user, in a chroot too. The
# kernel learns of the emulator in a user namespace of the command's own (Linux 6.7), so nothing changes for other processes. root and
# all other users stay the same in there; a user without rights is root there, alone. Exit status 125: it cannot be done here, and a
# sentence says why; else the command's.
#
#   QEMU    the emulator, if it has another name
set -euo pipefail
fail() { echo "vervain: $*" >&2; exit 125; }

if [ "${1:-}" != --inside ]; then
    QEMU=${QEMU:-$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)}
    [ -n "$QEMU" ] || fail "there is no emulator of AArch64 here; type, as root:  apt-get install -y qemu-user-static"
    command -v "$QEMU" > /dev/null || fail "there is no emulator $QEMU"
    QEMU=$(command -v "$QEMU")
    export QEMU
    # root's namespace gets its users from outside, which the inside waits for: by a pipe.
    exec {go}<> <(:)
    map=()
    [ "$(id -u)" = 0 ] || map=(--map-root-user)
    unshare --user "${map[@]}" --mount --propagation private "$0" --inside "$go" "$@" <&0 &
    child=$!
    trap 'kill -KILL "$child" 2> /dev/null || true' EXIT
    trap 'exit 143' TERM INT HUP
    if [ "$(id -u)" = 0 ]; then
        own=$(readlink /proc/self/ns/user)
        until [ "$(readlink "/proc/$child/ns/user" || echo "$own")" != "$own" ]; do
            kill -0 "$child" 2> /dev/null || fail "no user namespace can be made here"
            sleep 0.01
        done
        for map in uid_map gid_map; do awk '{ print $1, $1, $3 }' "/proc/self/$map" > "/proc/$child/$map"; done
    fi
    echo >&"$go"
    exec {go}>&-
    status=0
    wait "$child" || status=$?
    trap - EXIT
    exit "$status"
fi

shift
if [ "$1" != --first ]; then
    go=$1
    shift
    read -r -u "$go" _
    exec {go}>&-
    # This shell began before the namespace had users, as nobody; what it executes now is root. All processes of the command end with it,
    # and with this one.
    exec unshare --pid --fork --kill-child --mount-proc "$0" --inside --first "$@"
fi
shift
table=/proc/sys/fs/binfmt_misc
mount -t binfmt_misc none "$table" 2> /dev/null ||
    fail "the kernel has no table of emulators for a user namespace (binfmt_misc, Linux 6.7)"
# The head of an ELF file of e_machine 183, executable or shared, and which bits of it count.
elf='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# F: the kernel opens the emulator now, so that it is there in a chroot.
printf '%s' ":qemu-aarch64:M::$elf:$mask:$QEMU:F" > "$table/register" || fail "the kernel refuses $QEMU as an emulator"
# Not by exec: to the first process of a namespace most signals do nothing.
status=0
"$@" || status=$?
exit "$status"
