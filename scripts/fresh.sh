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

say() { echo "fresh: $*" >&2; }
[ "$(id -u)" = 0 ] || { say "making a root needs root: sudo make fresh"; exit 1; }
for tool in mmdebstrap git unshare pivot_root setpriv; do
    command -v "$tool" >/dev/null && continue
    say "there is no $tool here; type, as root:  apt-get install -y mmdebstrap git util-linux"
    exit 1
done
[ -z "$(git -C "$tree" status --porcelain)" ] || say "the last commit is tried; what has changed since is not in it"

# Not named after Vervain: tests look for such names in the temporary folders.
work=$(mktemp -d /var/tmp/fresh.XXXXXX)
# Nothing is mounted below it then: the mounts of `inside` end with its namespace.
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM

# What this machine needs to reach its mirrors, and no more of its environment.
carried=()
while IFS= read -r -d '' variable; do
    case ${variable%%=*} in
    http_proxy | https_proxy | ftp_proxy | all_proxy | no_proxy | HTTP_PROXY | HTTPS_PROXY | ALL_PROXY | NO_PROXY | \
        SSL_CERT_FILE | SSL_CERT_DIR | CURL_CA_BUNDLE | REQUESTS_CA_BUNDLE | GIT_SSL_CAINFO | \
        PIP_CERT | PIP_INDEX_URL | PIP_PROXY | RUSTUP_DIST_SERVER | RUSTUP_UPDATE_ROOT | \
        CARGO_HTTP_* | CARGO_NET_* | CARGO_SOURCE_* | CARGO_REGISTRIES_*)
        carried+=("$variable")
        ;;
    esac
done < <(env -0)

# The mirror of a distribution that apt has here; nothing if none.
mirror_of() { # ORIGIN
    apt-get indextargets --format '$(ORIGIN)|$(RELEASE)|$(REPO_URI)' 2>/dev/null |
        sed -n -e /-security/d -e "s/^$1|[^|]*|//p" | sort -u | sed -n 1p
}

make_root() { # SUITE ROOT
    local distribution=Debian components=main keyring=debian-archive-keyring
    case $1 in
    jammy | noble) distribution=Ubuntu components=main,universe keyring=ubuntu-archive-keyring ;;
    esac
    if [ ! -e "/usr/share/keyrings/$keyring.gpg" ]; then
        say "$1 is skipped: there are no keys to check its packages by; type, as root:  apt-get install -y $keyring"
        return 1
    fi
    # Its proxy, and the certificates that it trusts; mmdebstrap keeps them in the root.
    apt-config dump | grep -E '^Acquire::(.*::)?(Proxy|Proxy-Auto-Detect|CaInfo|Retries)(::| )' > "$work/apt.conf" || true
    local mirror
    mirror=$(mirror_of "$distribution")
    # Without a mirror mmdebstrap takes the distribution's own.
    if ! mmdebstrap --quiet --mode=root --variant=minbase --components="$components" --include=ca-certificates,git,make \
        --aptopt="$work/apt.conf" "$1" "$2" ${mirror:+"$mirror"} > "$work/log" 2>&1; then
        say "$1 is skipped: its packages cannot be had: $(grep -a -E '^(E|W): ' "$work/log" | head -n 1)"
        return 1
    fi
}

# The host's ways to the network, and its certificates.
carry_in() { # ROOT
    local file value
    cp --dereference --remove-destination /etc/resolv.conf /etc/hosts "$1/etc/"
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$1/etc/"
    mkdir -p "$1/usr/local/share/ca-certificates"
    cp -r /usr/local/share/ca-certificates/. "$1/usr/local/share/ca-certificates/" 2>/dev/null || true
    chroot "$1" update-ca-certificates > /dev/null 2>&1
    for value in "${carried[@]#*=}"; do
        file=$1/$value
        if [ -f "$value" ] && [ ! -e "$file" ]; then install -D -m 644 "$value" "$file"; fi
    done
}

# inside ROOT USER LINE: a line of the shell as that user, at home. The root is pivoted to, for in a chroot nobody may make user
# namespaces, as tests do. When the line ends so do all processes that it has left.
inside() {
    # shellcheck disable=SC2016 # for the inner shells
    unshare --mount --pid --fork --kill-child --propagation private sh -c '
        set -e
        root=$1 user=$2 line=$3
        shift 3
        mount --bind "$root" "$root"
        mount --rbind /dev "$root/dev"
        mount --rbind /sys "$root/sys"
        mount -t proc proc "$root/proc"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        mkdir -p "$root/host"
        cd "$root"
        pivot_root . host
        umount --lazy /host
        home=$(getent passwd "$user" | cut -d: -f6)
        cd "$home"
        # Not by exec: the first process of a namespace is the shell, which waits for any child.
        path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
        env -i "PATH=$path" "HOME=$home" "USER=$user" LANG=C.UTF-8 "$@" \
            setpriv --reuid "$user" --regid "$user" --init-groups sh -c "$line" || exit $?
    ' sh "$@" "${carried[@]}"
}

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
        if ! make_root "$suite" "$work/$suite"; then
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
