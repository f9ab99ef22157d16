#!/bin/sh
# progress.sh LOG COMMAND...: runs COMMAND and appends what it prints to LOG; a terminal shows the last line of that meanwhile.
# Exit status: COMMAND's.
set -u
log=$1
shift
if [ -t 2 ]; then
    : >> "$log"
    # It ends by itself where a signal ends this shell.
    while sleep 0.5 && kill -0 $$ 2>/dev/null; do
        printf '\r\033[K  %s' "$(tail -n 1 "$log" | tr -cd '[:print:]' | cut -c 1-75)" >&2
    done &
    shows=$!
    trap 'kill $shows 2>/dev/null; wait $shows 2>/dev/null; printf "\r\033[K" >&2' EXIT
fi
"$@" >> "$log" 2>&1
