#!/bin/sh
# cargo.sh ARGUMENT...: runs cargo: the one that is there where it is new enough, else that of rust-toolchain.toml, which is set
# up in target/toolchain the first time, asking nothing and changing nothing elsewhere.
#
#   cargo.sh --set-up    does only that
#   cargo.sh --needs     prints the packages that it takes, for need-packages.sh; nothing where cargo is there
set -eu
tree=$(cd "$(dirname "$0")/.." && pwd)
own=$tree/target/toolchain
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$tree/Cargo.toml")
pinned=$(sed -n 's/^channel = "\(.*\)"/\1/p' "$tree/rust-toolchain.toml")
components=$(sed -n 's/^components = \[\(.*\)\]/\1/p' "$tree/rust-toolchain.toml" | tr -d '",')
host=$(uname -m)-unknown-linux-gnu
ready=$own/ready-$pinned
# Where rustup comes from; a mirror is named as to rustup itself, which takes Rust from RUSTUP_DIST_SERVER.
source=${RUSTUP_UPDATE_ROOT:-https://static.rust-lang.org/rustup}

say() { echo "vervain: $*" >&2; }

# The last thing that a program said, for a sentence.
last_line() { sed -n 's/^ *\(error: \)\?//; /./h; ${g;p;}' "$1"; }

# Whether the cargo of PATH and its rustc are there and new enough.
will_do() {
    command -v cargo >/dev/null && command -v rustc >/dev/null || return 1
    toolchains=${RUSTUP_HOME:-${HOME:-}/.rustup}/toolchains
    # rustup obeys rust-toolchain.toml, and would download what that names into the user's directory: where it is not there,
    # the user's own choice is asked for.
    if [ -z "${RUSTUP_TOOLCHAIN:-}" ] && command -v rustup >/dev/null && [ ! -d "$toolchains/$pinned-$host" ]; then
        [ -d "$toolchains" ] || return 1
        RUSTUP_TOOLCHAIN=$(cd / && rustup show active-toolchain 2>/dev/null | cut -d' ' -f1)
        [ -n "$RUSTUP_TOOLCHAIN" ] || { unset RUSTUP_TOOLCHAIN; return 1; }
        export RUSTUP_TOOLCHAIN
    fi
    found=$(cd "$tree" && rustc --version 2>/dev/null | cut -d' ' -f2)
    found=${found%%-*}
    [ -n "$found" ] && [ "$(printf '%s\n%s\n' "$wanted" "$found" | sort -V | head -n 1)" = "$wanted" ]
}

# The user's: in PATH, or installed and not in it: a fresh rustup, sudo, cron.
users() {
    will_do && return
    unset RUSTUP_TOOLCHAIN
    PATH=${HOME:-}/.cargo/bin:$PATH
    will_do && return
    unset RUSTUP_TOOLCHAIN
    PATH=${PATH#*:}
    return 1
}

get() { # URL FILE
    if command -v curl >/dev/null; then
        curl --silent --show-error --fail --location --retry 2 --connect-timeout 20 --output "$2" "$1"
    else
        wget --no-verbose --tries=3 --timeout=20 --output-document="$2" "$1"
    fi
}

progress() { "$tree/scripts/progress.sh" "$own/log" "$@"; }

# Its steps are joined by &&, for -e has no force in a condition.
install_own() {
    export RUSTUP_HOME="$own/rustup" CARGO_HOME="$own/cargo" RUSTUP_INIT_SKIP_PATH_CHECK=yes
    unset RUSTUP_TOOLCHAIN
    options="--profile minimal"
    for component in $components; do options="$options --component $component"; done
    # From a directory that no rust-toolchain.toml is above of.
    cd /
    # shellcheck disable=SC2086 # lists of words
    if command -v rustup >/dev/null; then
        progress rustup toolchain install "$pinned" $options --no-self-update
    else
        init=$own/rustup-init
        {
            get "$source/dist/$host/rustup-init" "$init" &&
                get "$source/dist/$host/rustup-init.sha256" "$init.sha256" &&
                echo "$(cut -d' ' -f1 "$init.sha256")  $init" | sha256sum --check --quiet
        } >> "$own/log" 2>&1 &&
            chmod +x "$init" &&
            progress "$init" -y --no-modify-path --default-toolchain "$pinned" $options
    fi
}

set_up() {
    [ ! -e "$ready" ] || return 0
    if ! command -v rustup >/dev/null && ! command -v curl >/dev/null && ! command -v wget >/dev/null; then
        say "there is no Rust $wanted or later here; type, as root:  apt-get install -y curl ca-certificates"
        exit 1
    fi
    say "there is no Rust $wanted or later here: setting up Rust $pinned in $own"
    mkdir -p "$own"
    : > "$own/log"
    if ! (install_own); then
        say "Rust $pinned cannot be had from ${source%/rustup} ($(last_line "$own/log")); where it can, type:  make toolchain"
        exit 1
    fi
    : > "$ready"
}

if [ "${1:-}" = --needs ]; then
    users && exit
    # Where the distribution's cargo is too old its rustup would take the place of that.
    if [ -e "$ready" ]; then :; elif command -v cargo >/dev/null; then echo "curl ca-certificates"; else echo "rustup|curl ca-certificates"; fi
    exit
fi
# Compilers, linkers and tests need a temporary folder.
if [ ! -w "${TMPDIR:-/tmp}" ]; then
    say "${TMPDIR:-/tmp} cannot be written to; temporary files are in $tree/target/tmp"
    export TMPDIR="$tree/target/tmp"
    mkdir -p "$TMPDIR"
fi
if ! users; then
    set_up
    PATH=$own/rustup/toolchains/$pinned-$host/bin:$PATH
    export CARGO_HOME="$own/cargo"
    # It is no rustup that is run: a RUSTUP_TOOLCHAIN would mean nothing.
fi
export PATH
case ${1:-} in
--set-up) exit ;;
build | test | run | clippy | doc)
    if ! command -v cc >/dev/null; then
        say "there is no C compiler, which Rust links with; type, as root:  apt-get install -y gcc libc6-dev"
        exit 1
    fi
    fetch="cargo fetch --quiet --target $host --manifest-path $tree/Cargo.toml"
    if ! $fetch --offline >/dev/null 2>&1; then
        mkdir -p "$tree/target"
        if ! $fetch 2> "$tree/target/fetch.log"; then
            say "crates cannot be had from crates.io ($(last_line "$tree/target/fetch.log")); where they can, type:  make"
            exit 1
        fi
    fi
    ;;
esac
exec cargo "$@"
