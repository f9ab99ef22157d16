#!/bin/sh
# check-toolchain.sh CARGO VERSION: one sentence where cargo is missing or rustc is older than VERSION.
set -eu
cargo=$1 wanted=$2
if [ -z "$cargo" ]; then
    echo "vervain: cargo is neither in PATH nor in ~/.cargo/bin: install Rust $wanted or later (https://rustup.rs)" >&2
    exit 1
fi
found=$(rustc --version 2>/dev/null | cut -d' ' -f2)
oldest=$(printf '%s\n%s\n' "$wanted" "${found%%-*}" | sort -V | head -n 1)
if [ "$oldest" != "$wanted" ]; then
    echo "vervain: Rust $wanted or later is needed and rustc is ${found:-missing}: run \`rustup update stable\`" >&2
    exit 1
fi
