#!/bin/sh
# install-completions.sh COMMAND SHARE_DIR: writes the completions of bash, zsh and fish where these shells look.
set -eu
command=$1 share=$2
mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
${CROSS_RUNNER:-} "$command" completions bash > "$share/bash-completion/completions/vervain"
${CROSS_RUNNER:-} "$command" completions zsh > "$share/zsh/site-functions/_vervain"
${CROSS_RUNNER:-} "$command" completions fish > "$share/fish/vendor_completions.d/vervain.fish"
