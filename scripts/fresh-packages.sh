#!/bin/bash
# fresh-packages.sh DEB TARBALL [WHEEL] [SUITE...]: installs what `make deb`, `make tarball` and `make wheel` have made on machines that
# have nothing yet, and no network and no cargo: roots that mmdebstrap makes of each SUITE (bookworm, trixie, noble; all three if none is
# named), with ibverbs-utils, perftest, and pip if there is a wheel. root installs the package, another user runs doctor, a ping-pong and
# ib_write_bw, root removes it, and no file is left; the user does the same with the tarball, from where it is unpacked and from where it
# has installed itself, and with the wheel by pip. If DEB is for arm64 and this machine is not, the roots are of arm64 (bookworm and
# trixie), and all programs in them run by qemu-user, in which processes of one host alone reach each other. Needs root. Prints a line
# for each suite: passed, FAILED or skipped. Exit status: 1 if one failed, 75 if none could be tried. All roots are removed at the end.
set -euo pipefail
tree=$(cd "$(dirname "$0")/.." && pwd)
deb=$1 tarball=$2
shift 2
wheel=
if [[ ${1:-} = *.whl ]]; then wheel=$1 && shift; fi
suites=("$@") name=fresh-packages architecture=
if [[ $deb = *_arm64.deb ]] && [ "$(uname -m)" != aarch64 ]; then
    # In there, any user is root.
    [ "$(id -u)" = 0 ] || { echo "$name: making a root needs root" >&2; exit 1; }
    [ -n "${EMULATED:-}" ] ||
        EMULATED=yes exec "$tree/scripts/emulated.sh" "$0" "$deb" "$tarball" ${wheel:+"$wheel"} "${suites[@]}"
    # Ubuntu's mirrors have no arm64.
    architecture=arm64
    [ "${#suites[@]}" != 0 ] || suites=(bookworm trixie)
fi
[ "${#suites[@]}" != 0 ] || suites=(bookworm trixie noble)
# shellcheck source=scripts/roots.sh
. "$tree/scripts/roots.sh"
command -v ip > /dev/null || { say "there is no ip here; type, as root:  apt-get install -y iproute2"; exit 1; }

# All files of a root but for those that come with processes, and those by which dpkg and ldconfig take notes.
list() { # ROOT
    (cd "$1" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./host -o -path ./tmp -o -path ./home \
        -o -path ./var/lib/dpkg -o -path ./var/log -o -path ./var/cache/ldconfig \) -prune -o -print | sort)
}

# A line of the shell for the user: looks at the machine and has two pairs of programs exchange data by $vervain.
# An emulated responder answers later than an adapter's timers allow: an ACK timeout of 4.3 s (-u 20) in place of perftest's 67 ms, and,
# as the ping-pong's is fixed, fewer of its rounds.
# shellcheck disable=SC2016 # for the shell inside
works="pingpong='-g 0 -p 18515${architecture:+ -n 100}' perftest='-F -x 0 -p 18516${architecture:+ -u 20}'"'
    "$vervain" doctor > "$HOME/doctor" || { cat "$HOME/doctor"; exit 1; }
    head -n 1 "$HOME/doctor"
    "$vervain" devices
    # Until the server listens on TCP port $1: its client does not try twice.
    listens() { until grep -qi ":$(printf %04X "$1") .* 0A " /proc/net/tcp /proc/net/tcp6; do kill -0 $!; sleep 0.1; done; }
    "$vervain" run -- ibv_rc_pingpong $pingpong > "$HOME/server" 2>&1 &
    listens 18515
    # No pipe: it would hide that the client fails, whose server waits for ever.
    "$vervain" run -- ibv_rc_pingpong $pingpong 127.0.0.1 > "$HOME/client" || { cat "$HOME/client"; exit 1; }
    tail -n 1 "$HOME/client"
    wait $! || { cat "$HOME/server"; exit 1; }
    "$vervain" run -- ib_write_bw $perftest > "$HOME/server" 2>&1 &
    listens 18516
    "$vervain" run -- ib_write_bw $perftest 127.0.0.1 > "$HOME/client" || { cat "$HOME/client"; exit 1; }
    grep "^ 65536 " "$HOME/client"
    wait $! || { cat "$HOME/server"; exit 1; }'

# A line of the shell for the user: the wheel by pip, which asks for a word if the distribution's Python is not to be changed.
# shellcheck disable=SC2016 # for the shell inside
by_pip='
    python3 -m pip install --quiet --no-index --user --break-system-packages /var/tmp/vervain-*.whl ||
        python3 -m pip install --quiet --no-index --user /var/tmp/vervain-*.whl
    vervain=$HOME/.local/bin/vervain'
# shellcheck disable=SC2016 # for the shell inside
off_by_pip='
    python3 -m pip uninstall --quiet --yes --break-system-packages vervain || python3 -m pip uninstall --quiet --yes vervain'

# A line of the shell for the user: no file is left where tarball and wheel were installed.
# shellcheck disable=SC2016 # for the shell inside
left_nothing='
    find "$HOME/.local" ! -type d > "$HOME/left"
    if [ -s "$HOME/left" ]; then echo "what is left:" && cat "$HOME/left" && exit 1; fi'

try_in() { # ROOT
    local root=$1
    without_network=1
    list "$root" > "$work/before"
    inside "$root" root 'dpkg --install /var/tmp/package.deb' || return
    inside "$root" visitor "set -eu; vervain=vervain; $works" || return
    inside "$root" root 'dpkg --remove vervain' || return
    list "$root" > "$work/after"
    cmp -s "$work/before" "$work/after" || { diff "$work/before" "$work/after"; return 1; }
    inside "$root" visitor "set -eu
        tar -xf /var/tmp/package.tar.gz
        cd vervain-*
        ./install.sh
        vervain=\$PWD/bin/vervain; $works
        ./install.sh \"\$HOME/.local\"
        vervain=\$HOME/.local/bin/vervain; $works
        ./uninstall.sh \"\$HOME/.local\"
        $left_nothing" || return
    [ -z "$wheel" ] || inside "$root" visitor "set -eu; $by_pip; $works; $off_by_pip; $left_nothing"
}

failed=0 tried=0 rows=()
for suite in "${suites[@]}"; do
    root=$work/$suite
    say "$suite: making its root"
    without_network=
    if ! make_root "$suite" "$root" "ibverbs-utils,perftest${wheel:+,python3-pip}"; then
        rows+=("$suite: skipped: its packages cannot be had")
        continue
    fi
    chroot "$root" useradd --create-home --user-group --shell /bin/bash visitor
    cp "$deb" "$root/var/tmp/package.deb"
    cp "$tarball" "$root/var/tmp/package.tar.gz"
    # Its name has what it is for.
    [ -z "$wheel" ] || cp "$wheel" "$root/var/tmp/"
    result=passed tried=1
    try_in "$root" < /dev/null || result=FAILED failed=1
    rows+=("$suite: $result")
    rm -rf --one-file-system "$root"
done
printf 'fresh-packages: %s\n' "${rows[@]}"
[ "$tried" = 1 ] || exit 75
exit "$failed"
