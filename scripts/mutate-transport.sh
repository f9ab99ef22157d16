#!/bin/bash
# Breaks one rule of the transport after the other and sees whether the simulation notices, or a unit test. Not part of any test
# run: it builds both once per rule. The table it prints has the rows of docs/simulation.md, and one for each other rule.
#
#   scripts/mutate-transport.sh [NAME]...     all rules, or those named
#
# Each rule is a line of crates/protocols/transport/src that is replaced by another. The work is done in a copy below target/.
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
sources=$copy/crates/protocols/transport/src
. scripts/mutate-rules.sh

rm -rf "$copy"
mkdir -p "$copy/crates"
# The crates that the simulation needs, as a workspace of their own.
cp Cargo.lock "$copy"
sed 's|^members = .*|members = ["crates/*/*"]|' Cargo.toml > "$copy/Cargo.toml"
cp -r --parents crates/protocols/iba crates/protocols/wire crates/protocols/fault crates/protocols/transport "$copy"
mkdir "$copy/tests"
cp -r tests/seeds tests/skip "$copy/tests"

# build: makes the test binaries of the copy; their paths.
build() {
    test_binaries vervain-transport simulation
}

# run "SIMULATION LIB": what sees the break: the seeds, else the tests of single situations, else the unit tests.
run() {
    local simulation lib
    read -r simulation lib <<< "$1"
    seeds "$simulation" || tests "$simulation" directed || tests "$lib" || echo "**not seen**"
}

echo "| broken rule | file | seen by |"
echo "|---|---|---|"

# The responder.
rule "duplicates are executed" responder.rs \
    'if bth.psn == self.expected {' 'if bth.psn == self.expected || psn::is_before(bth.psn, self.expected) {'
rule "packets behind a gap are executed" responder.rs \
    'self.early(packet);' 'self.next_request(packet, host);'
rule "sequence NAK names the packet behind" responder.rs \
    'Refusal { psn: self.expected, syndrome, then: Then::Nothing }' \
    'Refusal { psn: psn::add(self.expected, 1), syndrome, then: Then::Nothing }'
rule "no sequence NAK at all" responder.rs \
    'let syndrome = Syndrome::Nak(NakCode::Sequence);' 'let syndrome = Syndrome::Nak(NakCode::Sequence); return;'
rule "after one sequence NAK never another" responder.rs \
    '(self.quiet, self.dropped) = (keeps_some, None);' 'self.dropped = None;'
rule "READ takes one PSN" responder.rs \
    'psn::add(self.expected, packets)' 'psn::add(self.expected, packets.min(1))'
rule "acknowledgement asked for is not sent" responder.rs \
    'self.ack_due |= packet.headers.bth.ack_request && is_posted' 'self.ack_due |= false && is_posted'
rule "RNR is not told" responder.rs \
    'Nak::Silence => {' 'Nak::Silence | Nak::ReceiverNotReady(_) => {'
rule "acknowledges one packet too many" responder/transmit.rs \
    'psn::add(self.expected, psn::MASK)' 'self.expected'
rule "acknowledges one packet too few" responder/transmit.rs \
    'psn::add(self.expected, psn::MASK)' 'psn::add(self.expected, psn::MASK - 1)'
rule "READ response goes on at the wrong address" responder/answer.rs \
    '*addr = addr.wrapping_add(u64::from(packets * mtu));' ''
rule "refused QP goes on" responder/transmit.rs \
    'self.ended = true;' ''
rule "duplicate SENDs and WRITEs are not acknowledged" responder.rs \
    'self.ack_due |= self.answers.acknowledge_again(psn, self.expected);' ''
rule "duplicate READs are not answered" responder.rs \
    'self.read_again(headers, &resource, host),' 'None,'
rule "duplicate READs are answered from their beginning" responder/duplicate.rs \
    'then_some(Body::Read { srqn, rkey, addr: reth.addr,' 'then_some(Body::Read { srqn, rkey, addr,'
rule "duplicate atomics are answered with 0" responder.rs \
    'packets: 1, body: resource.body,' 'packets: 1, body: if let Body::Word(_) = resource.body { Body::Word(0) } else { Body::Nothing },'
rule "one READ or atomic only is kept" responder/answer.rs \
    'usize::from(outstanding.max(1))' '1'
rule "range of a long WRITE is not checked first" responder/execute.rs \
    'if !is_last || takes_receive || bytes == 0 {' 'if false {'
rule "answers do not wait for their turn" responder/duplicate.rs \
    'place.unwrap_or(self.due.len())' 'place.map_or(0, |_| 0)'
rule "UC goes on behind a gap" responder.rs \
    'self.counters.out_of_sequence += 1;
            self.drop_message(host);' \
    'self.counters.out_of_sequence += 1;'
rule "UC takes late packets" responder.rs \
    'const LATE: u32 = 1 << 16;' 'const LATE: u32 = 0;'

# The requester.
rule "an ACK acknowledges one packet more" requester/acknowledge.rs \
    'let behind = psn::add(psn, 1);' 'let behind = psn::add(psn, 2);'
rule "a NAK acknowledges its own packet" requester/acknowledge.rs \
    'Some(_) if !self.advance(now, psn, window, host)' 'Some(_) if !self.advance(now, psn::add(psn, 1), window, host)'
rule "an ACK that passes a READ ends it" requester/acknowledge.rs \
    'if is_answered(oldest.request.opcode) {' 'if false {'
rule "answers from the past are taken" requester/acknowledge.rs \
    'if !self.flights.is_outstanding(psn) {' 'if false {'
rule "answers of any PSN up to half are taken" requester/acknowledge.rs \
    'if !self.flights.is_outstanding(psn) {' 'if self.flights.distance(psn) >= 1 << 23 {'
rule "data of a READ is put at its start" requester/acknowledge.rs \
    'let offset = u64::from(psn::distance(oldest.first_psn, psn)) * u64::from(self.config.mtu);' 'let offset = 0;'
rule "sequence NAK is not heeded" requester/acknowledge.rs \
    'self.counters.sequence_naks += u64::from(self.missing(now, window));' ''
rule "a passed READ is not asked for again" requester/acknowledge.rs \
    'self.overtaken(now, behind, window);' ''
rule "a READ that a NAK passes is not asked for again" requester/acknowledge.rs \
    'self.counters.implied_naks += u64::from(self.missing(now, window));' ''
rule "requests end twice as fast" requester/flights.rs \
    'let ends = done + packets == oldest.packets;' 'let ends = done + packets >= oldest.packets / 2;'
rule "goes back to the start of the message" requester/flights.rs \
    'self.cursor = self.oldest_packet();' 'self.cursor = Cursor::default();'
rule "going back keeps the next PSN" requester/flights.rs \
    'self.next = self.unacknowledged;
        self.reads_sent = 0;' \
    'self.reads_sent = 0;'
rule "READs asked for again count twice" requester/flights.rs \
    'self.reads_sent = 0;' ''
rule "going back keeps the window" requester/flights.rs \
    'self.holes = None;
        self.release(window);' \
    'self.holes = None;'
rule "retries are not counted" requester/timers.rs \
    'self.retries_left = left;' ''
rule "retries are not renewed by progress" requester/timers.rs \
    'self.retries_left = self.retry_cnt;' ''
rule "RNR retry 7 is a number" requester/timers.rs \
    'if self.rnr_retry != FOR_EVER {' 'if true {'
rule "RNR retries are not renewed by progress" requester/timers.rs \
    'self.not_ready_left = self.rnr_retry;' ''
rule "RNR is not waited for" requester.rs \
    'match self.timers.is_waiting() {' 'match false {'
rule "RNR waits for ever" requester/timers.rs \
    'self.not_ready_until = None;' ''
rule "timers are not started" requester/transmit.rs \
    'self.timers.arm(now, window);' ''
rule "no probes" requester/timers.rs \
    'self.probe_at = now + window.rtt().probe_delay(self.probes).min(self.longest_probe);' 'self.probe_at = Nanos::MAX;'
rule "what lies in a ring is sent again" requester.rs \
    'if host.is_taken() {' 'if true {'
rule "room in a ring is waited for for ever" requester/transmit.rs \
    'self.timers.wait_for_room(now, self.flights.are_under_way(), window);' ''
rule "what waits in a lossless channel has asked for nothing" requester/transmit.rs \
    'self.since_request == 0 || !window.is_lossless()' 'true'
rule "a lossless channel is probed" requester/timers.rs \
    'if window.is_lossless() {
            return;' \
    'if false {
            return;'
rule "a lossless window closes" window.rs \
    'if self.is_lossless() || now < self.quiet_until {' 'if now < self.quiet_until {'
rule "fence is ignored by WRITEs" requester/transmit.rs \
    'if self.waits_for_reads(flight) {' 'if false {'
rule "any number of READs and atomics" requester/transmit.rs \
    'if self.flights.reads_sent >= usize::from(self.config.max_rd_atomic) && !self.may_read_ahead() {' 'if false {'
rule "resent packets are not marked" requester/transmit.rs \
    'let again = self.flights.goes_again();
            let credit' \
    'let again = false;
            let credit'
rule "READ pieces overlap" requester/transmit.rs \
    'reth.addr = reth.addr.wrapping_add(offset);' ''
rule "the last packet does not ask for an acknowledgement" requester/transmit.rs \
    'let asks = is_last' 'let asks = false'
rule "credits are not heeded" requester/receives.rs \
    'let Some(granted) = self.granted else { return Credit::Enough };' 'let Some(granted) = None::<u32> else { return Credit::Enough };'
rule "without credits nothing is tried" requester/receives.rs \
    '1 if takes_now => Credit::Probe,' '1 if takes_now && false => Credit::Probe,'

# What stands for many packets, and what is announced.
rule "a packet that stands for many takes one PSN" responder/execute.rs \
    'packet.payload.length().div_ceil(self.config.mtu as usize).max(1) as u32' '1'
rule "an acknowledgement names the first of many packets" responder/transmit.rs \
    'self.packets(packet) - 1' '0'
rule "UC takes one PSN for a packet that stands for many" responder.rs \
    'psn::add(bth.psn, self.packets(packet))' 'psn::add(bth.psn, 1)'
rule "many packets that go as one take one PSN" requester/flights.rs \
    'self.next = psn::add(self.next, packets);' 'self.next = psn::add(self.next, 1);'
rule "over UC many packets that go as one take one PSN" requester/flights.rs \
    'self.highest = psn::add(self.highest, packets);' 'self.highest = psn::add(self.highest, 1);'
rule "what was sent up to is forgotten where it is cut otherwise" requester/flights.rs \
    'if at_end || psn::is_before(self.highest, self.next) {' 'if at_end {'
rule "an answer that stands for many packets takes one PSN" responder/transmit.rs \
    'packet += packets;' 'packet += 1;'
rule "an answer that stands for many packets is taken for one" requester/acknowledge.rs \
    'if data.has_landed() {' 'if false {'
rule "an announced receive is not used" responder/execute.rs \
    'Some(announced) => announced,' 'Some(_) if false => unreachable!(),
                    Some(_) => {
                        let (receive, room) = host.claim(srqn)?;
                        Message { srqn, done: 0, target: Target::Receive { receive, room } }
                    }'
rule "a message that is announced again claims again" responder/execute.rs \
    'self.announced.filter(|_| opcode::is_send(code))' 'self.announced.filter(|_| false)'
rule "an announced receive is used twice" responder/execute.rs \
    'self.announced = None;
        message.done' 'message.done'
rule "an announced receive is not given back" responder/execute.rs \
    'self.message.take().or(self.announced.take())' 'self.message.take()'
rule "an announced receive goes to the next message" responder/execute.rs \
    'if self.announced.is_some() && !opcode::is_send(code) {' 'if false {'
rule "an announced receive of another SRQ is used" responder/execute.rs \
    'self.announced.is_some_and(|announced| announced.srqn != srqn)' 'false'
rule "an announced receive goes back when nothing can be put into it" responder/execute.rs \
    'if self.message.is_none() && self.announced.is_none() {' 'self.announced = None;
                if self.message.is_none() {'
rule "any message is announced" responder/execute.rs \
    'headers.bth.psn == self.expected && code ==' 'code =='
rule "a message is announced in the midst of others" responder/execute.rs \
    'self.refusal.is_some() || self.message.is_some() || !self.answers.is_empty()' 'false'
rule "a message too long for its receive is announced" responder/execute.rs \
    'if length > room {
            host.unclaim(srqn, receive);
            return None;
        }' ''
rule "a Write is announced by any key" responder/execute.rs \
    'host.check(srqn, reth.rkey, reth.addr, length, Right::Write).ok()?;' ''
rule "what has landed may have any length" responder/execute.rs \
    '(_, false) if has_landed => length.is_multiple_of(mtu) && length != 0,' '(_, false) if has_landed => true,'
rule "what has not landed may be longer than the MTU" responder/execute.rs \
    'let has_landed = packet.payload.has_landed();' 'let has_landed = true;'
rule "what is missing of a packet that stands for many is not told" responder.rs \
    'if !psn::is_before(last, self.expected) {' 'if false {'

# Both.
rule "PSNs do not wrap" psn.rs \
    'psn.wrapping_add(packets) & MASK' 'psn.wrapping_add(packets)'
rule "nothing is before the wrap" psn.rs \
    'distance(psn, other).wrapping_sub(1) < HALF' 'psn < other'
rule "the window never closes" window.rs \
    'own == 0 || bytes <= self.room(own)' 'true'
rule "loss does not close the window" window.rs \
    'self.size = self.size.min(before * 8 / 10).max(LEAST_PACKETS * self.packet);' ''
rule "one QP takes the whole window" window.rs \
    'own == 0 || bytes' 'bytes'
exit $survived
