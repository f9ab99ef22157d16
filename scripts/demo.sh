#!/bin/bash
# demo.sh VERVAIN: runs unmodified RDMA programs of Debian through `vervain run`, server and client as two processes, and
# prints one line for each. Exit status: 0 all that could be tried worked, 1 something failed or nothing could be tried.
set -u
vervain=$1
limit=60 # seconds for any one program
work=$(mktemp -d) || exit
server=
failed=0 tried=0

stop_server() {
    [ -z "$server" ] || kill "$server" 2>/dev/null
    wait 2>/dev/null
    server=
}
trap 'stop_server; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

row() { printf '  %-16s %-34s %s\n' "$1" "$2" "$3"; }

# fail NAME WHAT: the row, and the last lines of both logs, indented.
fail() {
    failed=1
    row "$1" "$2" "FAILED"
    for log in "$work/server" "$work/client"; do
        [ -s "$log" ] && tail -n 5 "$log" | sed "s/^/      $(basename "$log"): /"
    done
}

# have NAME PACKAGE WHAT: whether the program is installed; a row that says so if not.
have() {
    command -v "$1" >/dev/null && return 0
    row "$1" "$3" "skipped: Debian's $2 is not installed"
    return 1
}

# The states of TCP sockets are column 4 of /proc/net/tcp*, 0A is LISTEN; local addresses are column 2.
listens() {
    local hex
    hex=$(printf '%04X' "$1")
    cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk -v p=":$hex" '$4 == "0A" && $2 ~ p "$" { found = 1 } END { exit !found }'
}

free_port() {
    local port
    for _ in {1..100}; do
        port=$((20000 + RANDOM % 12000))
        listens "$port" || { echo "$port"; return; }
    done
}

# pair PORT SERVER-COMMAND -- CLIENT-COMMAND: both through `vervain run`, the client once the server listens.
pair() {
    local port=$1 command=() client rc=0
    shift
    while [ "$1" != -- ]; do command+=("$1"); shift; done
    shift
    : > "$work/client"
    timeout -k 5 $limit "$vervain" run -- "${command[@]}" > "$work/server" 2>&1 &
    server=$!
    for _ in {1..200}; do
        listens "$port" && break
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    timeout -k 5 $limit "$vervain" run -- "$@" > "$work/client" 2>&1 || rc=$?
    client=$rc
    [ $client = 0 ] || kill "$server" 2>/dev/null
    wait "$server" || rc=$?
    server=
    return $rc
}

devinfo() {
    local what="device, port, GIDs"
    have ibv_devinfo ibverbs-utils "$what" || return
    tried=1
    timeout -k 5 $limit "$vervain" run -- ibv_devinfo -v > "$work/client" 2>&1
    local rc=$? name
    name=$(awk '/hca_id:/ { print $2; exit }' "$work/client")
    if [ $rc = 0 ] && grep -q PORT_ACTIVE "$work/client"; then
        row ibv_devinfo "$what" "$name: PORT_ACTIVE, $(grep -c 'GID\[' "$work/client") GIDs"
    else
        fail ibv_devinfo "$what"
    fi
}

pingpong() {
    local what="1000 x 4 KiB send and receive, checked" port
    have ibv_rc_pingpong ibverbs-utils "$what" || return
    tried=1
    port=$(free_port)
    # On an Ethernet port RC needs a GRH, so the program wants a GID index.
    if pair "$port" ibv_rc_pingpong -g 0 -c -p "$port" -- ibv_rc_pingpong -g 0 -c -p "$port" 127.0.0.1; then
        row ibv_rc_pingpong "$what" "$(awk '/usec\/iter/ { print $(NF - 1) " us per round trip" }' "$work/client")"
    else
        fail ibv_rc_pingpong "$what"
    fi
}

# perf NAME WHAT SIZE COLUMN UNIT OPTION...: COLUMN of the line of SIZE in the client's table.
perf() {
    local name=$1 what=$2 size=$3 column=$4 unit=$5 port value
    shift 5
    have "$name" perftest "$what" || return
    tried=1
    port=$(free_port)
    if pair "$port" "$name" -F -p "$port" "$@" -- "$name" -F -p "$port" "$@" 127.0.0.1 \
        && value=$(awk -v s="$size" -v c="$column" '$1 == s && NF >= c { v = $c } END { print v; exit v == "" }' "$work/client"); then
        row "$name" "$what" "$value $unit"
    else
        fail "$name" "$what"
    fi
}

echo
echo "Unmodified programs of Debian, two processes each, through \`vervain run\`:"
echo
devinfo
pingpong
perf ib_write_lat "8 B RDMA write" 8 5 "us (median, half round trip)" -s 8
perf ib_send_bw "64 KiB send" 65536 4 "MiB/s (average)" -s 65536
perf ib_atomic_lat "8 B fetch and add" 8 5 "us (median)" -A FETCH_AND_ADD
echo
[ $tried = 1 ] || { echo "vervain: none of the programs is installed: apt-get install ibverbs-utils perftest" >&2; exit 1; }
exit $failed
