#!/bin/bash
# fresh.sh [SUITE...] [-- COMMAND]: README's `make demo` and the gate (.ci/run, with `make test`) on machines that have nothing
# yet. Each SUITE (bookworm, trixie, noble; all three if none is named) gets a root by mmdebstrap, one copy for root and one for
# another user, with a clone of this tree's last commit. COMMAND, a line of the shell, takes the place of both commands. Needs
# root. A suite whose packages cannot be had is skipped with a sentence. Exit status: 1 if a command failed. All roots are removed
# at the end. Network, apt, pip and cargo are configured as on this machine, so that it works behind a mirror too.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
suites=()
while [ $# != 0 ] && [ "$1" != -- ]; do suites+=("$1"); shift; done
command=
if [ $# -ge 2 ]; then shift; command=$*; fi
[ "${#suites[@]}" != 0 ] || suites=(bookworm trixie noble)

name=fresh
# shellcheck source=scripts/roots.sh
. "$tree/scripts/roots.sh"
command -v git > /dev/null || { say "there is no git here; type, as root:  apt-get install -y git"; exit 1; }
[ -z "$(git -C "$tree" status --porcelain)" ] || say "the last commit is tried; what has changed since is not in it"

# What a user does: types the command, has root install what it names as missing, and types it again if it failed.
as_user() { # ROOT USER LINE
    local missing status=0
    inside "$@" 2>&1 < /dev/null | tee "$work/output" || status=$?
    missing=$(sed -n 's/.* this user may not install it\. Type, as root: *//p' "$work/output" | sed -n 1p)
    [ -n "$missing" ] || return "$status"
    say "as root, as it says: $missing"
    if ! inside "$1" root "export DEBIAN_FRONTEND=noninteractive; $missing" > "$work/output" 2>&1 < /dev/null; then
        tail -n 5 "$work/output"
        return 1
    fi
    [ "$status" = 0 ] || inside "$@" 2>&1 < /dev/null
}

# A function, which bash has read as a whole: this file may change in the hours that it takes.
main() {
    local suite user root home config gate lines line begin result rows=() failed=0
    for suite in "${suites[@]}"; do
        say "$suite: making its root"
        if ! make_root "$suite" "$work/$suite" ca-certificates,git,make; then
            rows+=("$suite: skipped")
            continue
        fi
        carry_in "$work/$suite"
        for user in visitor root; do
            root=$work/$suite-$user
            cp -a "$work/$suite" "$root"
            home=/root
            if [ "$user" != root ]; then
                chroot "$root" useradd --create-home --user-group --shell /bin/bash "$user"
                home=/home/$user
            fi
            git clone --quiet --no-hardlinks "$tree" "$root$home/vervain"
            # Cargo reads it from the folders above a tree, whichever cargo it is.
            for config in "${CARGO_HOME:-$HOME/.cargo}"/config.toml "${CARGO_HOME:-$HOME/.cargo}"/config; do
                [ ! -f "$config" ] || install -D -m 644 "$config" "$root$home/.cargo/${config##*/}"
            done
            chroot "$root" chown -R "$user:$user" "$home"
            # Some tests need root, and are skipped for another user.
            gate="VERVAIN_TESTS_STRICT=$([ "$user" = root ] && echo 1 || echo 0) .ci/run"
            lines=("make demo" "make packages-test" "$gate")
            [ -z "$command" ] || lines=("$command")
            for line in "${lines[@]}"; do
                say "$suite, as $user: $line"
                begin=$SECONDS result=passed
                as_user "$root" "$user" "cd vervain && $line" || result=FAILED failed=1
                rows+=("$suite, as $user: $line: $result in $(((SECONDS - begin) / 60)) min")
            done
            rm -rf --one-file-system "$root"
        done
        rm -rf --one-file-system "${work:?}/$suite"
    done
    printf 'fresh: %s\n' "${rows[@]}"
    exit "$failed"
}

main
