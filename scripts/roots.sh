# roots.sh, for bash to source with `name` set: machines that have nothing yet, as directories that mmdebstrap makes of
# a distribution's packages, and processes in them. Needs root. All roots lie below $work, which is removed at the end.
# Network and apt are configured as on this machine, so that it works behind a mirror too.

export without_network=${without_network:-}
say() { echo "${name:?}: $*" >&2; }
[ "$(id -u)" = 0 ] || { say "making a root needs root: sudo make fresh"; exit 1; }
for tool in mmdebstrap unshare pivot_root setpriv; do
    command -v "$tool" >/dev/null && continue
    say "there is no $tool here; type, as root:  apt-get install -y mmdebstrap util-linux"
    exit 1
done

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
    # shellcheck disable=SC2016 # for apt-get
    apt-get indextargets --format '$(ORIGIN)|$(RELEASE)|$(REPO_URI)' 2>/dev/null |
        sed -n -e /-security/d -e "s/^$1|[^|]*|//p" | sort -u | sed -n 1p
}

# With architecture=arm64 set, of that one's packages, which are configured by an emulator (emulated.sh).
make_root() { # SUITE ROOT PACKAGE,…
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
    local mirror other=()
    mirror=$(mirror_of "$distribution")
    # mmdebstrap looks for the emulator in this machine's table, not in the namespace's. Emulated, usrmerge would take minutes for what its
    # hook does before there are files.
    [ -z "${architecture:-}" ] ||
        other=("--architectures=$architecture" --skip=check/qemu --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr)
    # Without a mirror mmdebstrap takes the distribution's own.
    if ! mmdebstrap --quiet "${other[@]}" --mode=root --variant=minbase --components="$components" --include="$3" \
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

# inside ROOT USER LINE: a line of the shell as that user, at home. The root is pivoted to, for in a chroot nobody may
# make user namespaces, as tests do. When the line ends so do all processes that it has left. With without_network=1
# there is the loopback interface only.
inside() {
    # shellcheck disable=SC2016 # for the inner shells
    unshare ${without_network:+--net} --mount --pid --fork --kill-child --propagation private sh -c '
        set -e
        root=$1 user=$2 line=$3
        shift 3
        [ -z "$without_network" ] || ip link set lo up
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

