#!/bin/bash
# action.sh: the step of action.yml. Takes the package that INPUT_PACKAGE names, or downloads the tarball of release INPUT_VERSION;
# compares its SHA-256 with INPUT_SHA256, or else with SHA256SUMS beside it; installs it, and writes PATH, variables and outputs
# to the runner's files. A failure is one sentence, which the runner shows at the job.
set -euo pipefail

fail() {
    local text="$*"
    # As commands of the runner encode text.
    text=${text//'%'/%25} text=${text//$'\n'/%0A}
    echo "::error title=Vervain::$text"
    exit 1
}

# Each word is looked at before anything is installed.
case "$RUNNER_OS $RUNNER_ARCH" in
"Linux X64") machine=x86_64 ;;
"Linux ARM64") machine=aarch64 ;;
*) fail "There are packages for Linux on x86-64 and AArch64 only, and this runner is $RUNNER_OS on $RUNNER_ARCH." ;;
esac
case $INPUT_ENVIRONMENT in
none | libraries | all) ;;
*) fail "The input environment is none, libraries or all, not '$INPUT_ENVIRONMENT'." ;;
esac
expected=${INPUT_SHA256,,} where="the input sha256"
[[ -z $expected || $expected =~ ^[0-9a-f]{64}$ ]] || fail "The input sha256 has to have 64 hex digits: '$INPUT_SHA256'."
place=$(mktemp -d "$RUNNER_TEMP/vervain.XXXXXX")

if [ -n "$INPUT_PACKAGE" ] && [ -n "$INPUT_VERSION" ]; then
    fail "The inputs package and version exclude each other."
elif [ -n "$INPUT_PACKAGE" ]; then
    mapfile -t files < <(compgen -G "$INPUT_PACKAGE")
    [ "${#files[@]}" = 1 ] || fail "The input package has to name one file; ${#files[@]} match '$INPUT_PACKAGE'."
    package=$(realpath "${files[0]}")
elif [ -n "$INPUT_VERSION" ]; then
    version=${INPUT_VERSION#v}
    [[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?$ ]] || fail "The input version is not like 0.1.0: '$INPUT_VERSION'."
    [ -n "$ACTION_REPOSITORY" ] || fail "An action in the workspace has no releases: name a file by the input package."
    command -v curl > /dev/null || fail "There is no curl here to download a release by: name a file by the input package."
    name=vervain-$version-$machine-linux.tar.gz package=$place/$name
    for file in "$name" SHA256SUMS; do
        from=$GITHUB_SERVER_URL/$ACTION_REPOSITORY/releases/download/v$version/$file
        said=$(curl --fail --silent --show-error --location --retry 3 --output "$place/$file" "$from" 2>&1) ||
            fail "$from cannot be downloaded: $said"
    done
else
    fail "One of the inputs version and package is needed."
fi

sums=$(dirname "$package")/SHA256SUMS
if [ -z "$expected" ] && [ -e "$sums" ]; then
    where=$sums
    expected=$(awk -v name="$(basename "$package")" '$2 == name || $2 == "*" name { print $1; exit }' "$sums")
    [ -n "$expected" ] || fail "$sums does not list $(basename "$package")."
fi
found=$(sha256sum < "$package" | cut -d ' ' -f 1)
if [ -z "$expected" ]; then
    echo "SHA-256 $found, compared with nothing: there is no input sha256 and no $sums"
elif [ "$found" != "$expected" ]; then
    fail "The SHA-256 of $package is $found, and not $expected, as $where says."
fi

case $package in
*.deb)
    as_root=(env)
    [ "$(id -u)" = 0 ] || as_root=(sudo env)
    "${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$package"
    command=$(dpkg-query --listfiles vervain | grep '/bin/vervain$')
    ;;
*.tar.gz)
    mkdir "$place/vervain"
    tar -C "$place/vervain" --strip-components=1 -xzf "$package"
    command=$place/vervain/bin/vervain
    [ -x "$command" ] || fail "$package has no bin/vervain in its folder."
    dirname "$command" >> "$GITHUB_PATH"
    ;;
*) fail "A package is a .deb or a .tar.gz: $package" ;;
esac

said=$("$command" --version 2>&1) || fail "$command does not start on this system: $said"
echo "${said%%$'\n'*}, in $command"
version=${said%%$'\n'*} version=${version#vervain } version=${version%% *}
{
    echo "version=$version"
    echo "command=$command"
} >> "$GITHUB_OUTPUT"

# One line each, without quotes: the command refuses a value that has a newline.
case $INPUT_ENVIRONMENT in
libraries) "$command" env --no-preload --format github >> "$GITHUB_ENV" ;;
all) "$command" env --format github >> "$GITHUB_ENV" ;;
esac
