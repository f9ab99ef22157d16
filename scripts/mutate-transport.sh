#!/bin/bash
# Breaks one rule of the transport after the other and sees whether the simulation notices. Not part of any test run: it
# builds the simulation once per rule. The table it prints is the one in docs/simulation.md.
#
#   scripts/mutate-transport.sh [NAME]...     all rules, or those named
#
# Each rule is a line of crates/transport/src that is replaced by another. The work is done in a copy below target/.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=target/mutate/copy
export CARGO_TARGET_DIR=$PWD/target/mutate/build
# Breaking is done often and run shortly.
export CARGO_PROFILE_CHECKED_OPT_LEVEL=1 CARGO_PROFILE_CHECKED_DEBUG=0 RUST_BACKTRACE=0
limit=${LIMIT:-300}
# What fewer seeds do not see, 10,000 seldom do; the tests of single situations come after them.
export VERVAIN_SEEDS=${VERVAIN_SEEDS:-2500}
wanted=("$@")
work=$PWD/target/mutate
sources=$copy/crates/transport/src
. scripts/mutate-rules.sh

rm -rf "$copy"
mkdir -p "$copy/crates"
# The crates that the simulation needs, as a workspace of their own.
cp Cargo.lock "$copy"
sed 's|^members = .*|members = ["crates/*"]|' Cargo.toml > "$copy/Cargo.toml"
cp -r crates/iba crates/wire crates/fault crates/transport "$copy/crates"
mkdir "$copy/tests"
cp -r tests/skip "$copy/tests"

# build FILE: makes the test binary of the copy; its path.
build() {
    (cd "$copy" && cargo test --quiet --profile checked --package vervain-transport --test simulation --no-run \
        --message-format=json 2>"$work/build.log") |
        sed -n 's/.*"executable":"\([^"]*simulation[^"]*\)".*/\1/p' | tail -1
}

# run BINARY: what sees the break: the seeds, else the tests of single situations.
run() {
    local out status=0
    out=$(timeout "$limit" "$1" --nocapture every_seed 2>&1) || status=$?
    if [ $status = 124 ]; then
        echo "seeds: does not end"
    elif [ $status != 0 ]; then
        sed -n 's/.*\(seed [0-9]*: .*\) (crates.*/\1/p' <<< "$out" | head -1 | tr '|' '/' | cut -c1-150
    else
        status=0
        out=$(timeout "$limit" "$1" directed 2>&1) || status=$?
        if [ $status = 124 ]; then
            echo "directed: does not end"
        elif [ $status != 0 ]; then
            sed -n 's/^test directed::\(.*\) \.\.\. FAILED/\1/p' <<< "$out" | head -1
        else
            echo "**not seen**"
        fi
    fi
}

echo "| broken rule | file | seen by |"
echo "|---|---|---|"

# The responder.
rule "duplicates are executed" responder.rs \
    'if bth.psn == self.expected {' 'if bth.psn == self.expected || psn::is_before(bth.psn, self.expected) {'
rule "packets behind a gap are executed" responder.rs \
    'self.out_of_sequence(bth.psn);' 'self.next_request(packet, host);'
rule "sequence NAK names the packet that came" responder.rs \
    'Refusal { psn: self.expected, syndrome, then: Then::Nothing }' 'Refusal { psn, syndrome, then: Then::Nothing }'
rule "no sequence NAK at all" responder.rs \
    'let syndrome = Syndrome::Nak(NakCode::Sequence);' 'let syndrome = Syndrome::Nak(NakCode::Sequence); return;'
rule "after one sequence NAK never another" responder.rs \
    '(self.quiet, self.dropped) = (false, None);' 'self.dropped = None;'
rule "READ takes one PSN" responder.rs \
    'psn::add(before, packets)' 'psn::add(before, packets.min(1))'
rule "acknowledgement asked for is not sent" responder.rs \
    'self.ack_due |= packet.headers.bth.ack_request && is_posted' 'self.ack_due |= false && is_posted'
rule "RNR is not told" responder.rs \
    'Nak::Silence => {' 'Nak::Silence | Nak::ReceiverNotReady(_) => {'
rule "acknowledges one packet too many" responder/transmit.rs \
    'psn::add(self.expected, psn::MASK)' 'self.expected'
rule "acknowledges one packet too few" responder/transmit.rs \
    'psn::add(self.expected, psn::MASK)' 'psn::add(self.expected, psn::MASK - 1)'
rule "READ response goes on at the wrong address" responder/transmit.rs \
    '*addr = addr.wrapping_add(u64::from(sent * self.config.mtu));' ''
rule "refused QP goes on" responder/transmit.rs \
    'self.ended = true;' ''
rule "duplicate SENDs and WRITEs are not acknowledged" responder/duplicate.rs \
    'self.ack_due = true;' ''
rule "duplicate READs are not answered" responder/duplicate.rs \
    'self.read_again(packet, &resource, host),' 'None,'
rule "duplicate READs are answered from their beginning" responder/duplicate.rs \
    'body: Body::Read { srqn, rkey, addr: reth.addr,' 'body: Body::Read { srqn, rkey, addr,'
rule "duplicate atomics are answered with 0" responder/duplicate.rs \
    'packets: 1, body: resource.body,' 'packets: 1, body: if let Body::Word(_) = resource.body { Body::Word(0) } else { Body::Nothing },'
rule "one READ or atomic only is kept" responder/execute.rs \
    'usize::from(self.config.max_dest_rd_atomic.max(1))' '1'
rule "range of a long WRITE is not checked first" responder/execute.rs \
    'if !is_last || takes_receive || bytes == 0 {' 'if false {'
rule "answers do not wait for their turn" responder/duplicate.rs \
    'place.unwrap_or(self.answers.len())' 'place.map_or(0, |_| 0)'
rule "UC goes on behind a gap" responder/unreliable.rs \
    'self.drop_message(host);' ''
rule "UC takes late packets" responder/unreliable.rs \
    'const LATE: u32 = 1 << 16;' 'const LATE: u32 = 0;'

# The requester.
rule "an ACK acknowledges one packet more" requester/acknowledge.rs \
    'self.advance(now, psn::add(psn, 1), window, host)' 'self.advance(now, psn::add(psn, 2), window, host)'
rule "a NAK acknowledges its own packet" requester/acknowledge.rs \
    'Some(_) if !self.advance(now, psn, window, host)' 'Some(_) if !self.advance(now, psn::add(psn, 1), window, host)'
rule "an ACK that passes a READ ends it" requester/acknowledge.rs \
    'if is_answered(oldest.request.operation) {' 'if false {'
rule "answers from the past are taken" requester/acknowledge.rs \
    'if ahead >= psn::distance(self.unacknowledged, self.highest) {' 'if false {'
rule "answers of any PSN up to half are taken" requester/acknowledge.rs \
    'if ahead >= psn::distance(self.unacknowledged, self.highest) {' 'if ahead >= 1 << 23 {'
rule "data of a READ is put at its start" requester/acknowledge.rs \
    'let offset = u64::from(psn::distance(oldest.first_psn, psn)) * u64::from(self.config.mtu);' 'let offset = 0;'
rule "sequence NAK is not heeded" requester/acknowledge.rs \
    'self.counters.sequence_naks += u64::from(self.missing(now, window));' ''
rule "a passed READ is not asked for again" requester/acknowledge.rs \
    'self.counters.implied_naks += u64::from(self.missing(now, window));' ''
rule "requests end twice as fast" requester/acknowledge.rs \
    'let ends = done + packets == oldest.packets;' 'let ends = done + packets >= oldest.packets / 2;'
rule "goes back to the start of the message" requester/recovery.rs \
    'let packet = self.flights.front().map_or(0, |oldest| psn::distance(oldest.first_psn, self.unacknowledged));
        self.cursor = Cursor { index: 0, packet };
        self.next = self.unacknowledged;
        self.reads_sent = 0;' \
    'self.cursor = Cursor { index: 0, packet: 0 };
        self.next = self.unacknowledged;
        self.reads_sent = 0;'
rule "going back keeps the next PSN" requester/recovery.rs \
    'self.next = self.unacknowledged;' ''
rule "READs asked for again count twice" requester/recovery.rs \
    'self.reads_sent = 0;' ''
rule "going back keeps the window" requester/recovery.rs \
    'self.release(window);' ''
rule "retries are not counted" requester/recovery.rs \
    'self.timers.retries_left -= 1;' ''
rule "retries are not renewed by progress" requester/recovery.rs \
    'timers.retries_left = self.config.retry_cnt;' ''
rule "RNR retry 7 is a number" requester/recovery.rs \
    'if self.config.rnr_retry != FOR_EVER {' 'if true {'
rule "RNR retries are not renewed by progress" requester/recovery.rs \
    'timers.not_ready_left = self.config.rnr_retry;' ''
rule "RNR is not waited for" requester.rs \
    'match self.timers.is_waiting() {' 'match false {'
rule "RNR waits for ever" requester/recovery.rs \
    'self.timers.not_ready_until = None;' ''
rule "timers are not started" requester/transmit.rs \
    'self.arm(now, window);' ''
rule "no probes" requester/recovery.rs \
    'self.probe_at = now + window.rtt().probe_delay(self.probes).min(self.longest_probe);' 'self.probe_at = Nanos::MAX;'
rule "what lies in a ring is sent again" requester/recovery.rs \
    'if host.is_taken() {' 'if true {'
rule "room in a ring is waited for for ever" requester/transmit.rs \
    'self.wait_for_room(now, window);' ''
rule "what waits in a lossless channel has asked for nothing" requester/transmit.rs \
    'self.since_request == 0 || !window.is_lossless()' 'true'
rule "a lossless channel is probed" requester/recovery.rs \
    'if window.is_lossless() {
            return;' 'if false {
            return;'
rule "a lossless window closes" window.rs \
    'if self.lossless || now < self.quiet_until {' 'if now < self.quiet_until {'
rule "fence is ignored by WRITEs" requester/transmit.rs \
    '&& self.cursor.packet == 0 && flight.request.fence && !self.reads.is_empty()' '&& false'
rule "any number of READs and atomics" requester/transmit.rs \
    'if self.reads_sent >= usize::from(self.config.max_rd_atomic) {' 'if false {'
rule "resent packets are not marked" requester/transmit.rs \
    'let again = self.next != self.highest;
            let credit' 'let again = false;
            let credit'
rule "READ pieces overlap" requester/transmit.rs \
    'reth.addr = reth.addr.wrapping_add(offset);' ''
rule "the last packet does not ask for an acknowledgement" requester/transmit.rs \
    'let asks = packet == last' 'let asks = false'
rule "credits are not heeded" requester/transmit.rs \
    'let Some(granted) = self.receives_granted else { return Credit::Enough };' 'let Some(granted) = None::<u32> else { return Credit::Enough };'
rule "without credits nothing is tried" requester/transmit.rs \
    '1 if takes_now => Credit::Probe,' '1 if takes_now && false => Credit::Probe,'

# Both.
rule "PSNs do not wrap" psn.rs \
    'psn.wrapping_add(packets) & MASK' 'psn.wrapping_add(packets)'
rule "nothing is before the wrap" psn.rs \
    'distance(psn, other).wrapping_sub(1) < HALF' 'psn < other'
rule "the window never closes" window.rs \
    'own == 0 || bytes <= self.room(own)' 'true'
rule "loss does not close the window" window.rs \
    'self.size = (self.size * 8 / 10).max(LEAST_PACKETS * self.packet);' ''
rule "one QP takes the whole window" window.rs \
    'own == 0 || bytes' 'bytes'
exit $survived
