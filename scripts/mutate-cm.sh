#!/bin/bash
# Breaks one rule of the connection manager after the other and sees whether the simulation notices, or a conversation. Not part of any test
# run: it builds both once per rule. The table it prints has the rows of docs/simulation.md, and one for each other rule.
#
#   scripts/mutate-cm.sh [NAME]...     all rules, or those named
#
# Each rule is a line of crates/protocols/cm/src that is replaced by another. The work is done in a copy below target/.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=target/mutate-cm/copy
export CARGO_TARGET_DIR=$PWD/target/mutate-cm/build
# Breaking is done often and run shortly.
export CARGO_PROFILE_CHECKED_OPT_LEVEL=1 CARGO_PROFILE_CHECKED_DEBUG=0 RUST_BACKTRACE=0
limit=${LIMIT:-120}
export VERVAIN_SEEDS=${VERVAIN_SEEDS:-1000}
wanted=("$@")
work=$PWD/target/mutate-cm
sources=$copy/crates/protocols/cm/src/machine
. scripts/mutate-rules.sh

rm -rf "$copy"
mkdir -p "$copy/crates" "$copy/tests"
# What the simulation needs, as a workspace of its own.
cp Cargo.lock "$copy"
sed 's|^members = .*|members = ["crates/*/*"]|' Cargo.toml > "$copy/Cargo.toml"
cp -r --parents crates/protocols/wire crates/protocols/gsi crates/protocols/cm "$copy"
cp -r tests/seeds tests/skip "$copy/tests"

# build: makes the test binaries of the copy; their paths.
build() {
    (cd "$copy" && cargo test --quiet --profile checked --package vervain-cm --lib --test simulation --test conversation --no-run \
        --message-format=json 2>"$work/build.log") |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | sort | paste -s -d ' '
}

# run "CONVERSATION SIMULATION LIB": what sees the break: the seeds, else the conversations, else the unit tests.
run() {
    local conversation simulation lib
    read -r conversation simulation lib <<< "$1"
    seeds "$simulation" || tests "$conversation" || tests "$lib" || echo "**not seen**"
}

echo "| broken rule | file | seen by |"
echo "|---|---|---|"

# What the program wants.
rule "identifiers are used again while they are kept" ../machine.rs \
    'number != 0 && !self.conns.contains_key(&id)' 'number != 0'
rule "identifiers begin anew each time" ../machine.rs \
    'self.next = self.next.wrapping_add(1);' 'self.next %= 3;
            self.next += 1;'
rule "what is destroyed has events" ../machine.rs \
    'self.conns.get(&event.conn()).is_some_and(|conn| conn.owned) {' 'true {'
rule "a request is taken back in silence" ../machine.rs \
    'State::ReqSent => {
                let guid = conn.local_guid;
                self.refuse(now, id, reason::TIMEOUT, guid_as_ari(guid), [0; 148]);
            }' 'State::ReqSent => self.idle(id),'
rule "a connection is destroyed in silence" ../machine.rs \
    'State::Established => self.dreq(now, id, [0; 220]),
            State::DreqRcvd => self.drep' 'State::Established => self.idle(id),
            State::DreqRcvd => self.drep'
rule "a DREQ is sent once" ../machine.rs \
    'self.repeat(now, id, State::DreqSent, dreq.encode(tid));' \
    'self.repeat(now, id, State::DreqSent, dreq.encode(tid));
        self.conn(id).repetition = Repetition::default();'
rule "who is asked to end it does not answer when it is destroyed" ../machine.rs \
    'State::DreqRcvd => self.drep(now, id, [0; 224]),' 'State::DreqRcvd => self.idle(id),'
rule "a refusal is not kept" ../machine.rs \
    'self.rest(now, id, State::Rejected, Some(mad));' 'self.idle(id);'
rule "any number of refusals is kept" ../machine.rs \
    'self.resting.len() > RESTING' 'false'
rule "there is no timewait" ../machine.rs \
    'State::Timewait => time::of(conn.ack_timeout),' 'State::Timewait => 1,'
rule "an established connection has a deadline" ../machine.rs \
    'self.arm(id, None);
        let conn = self.conn(id);
        conn.state = State::Established;' 'let conn = self.conn(id);
        conn.state = State::Established;'
rule "the identifier of the other end is kept for ever" ../machine.rs \
    'forget(&mut self.by_id, (dgid, guid, remote_id), id);' ''
rule "who takes the place of another is forgotten with it" ../machine.rs \
    'if map.get(&key) == Some(&id) {' 'if map.contains_key(&key) && id > 0 {'
rule "XRC has its QP where others have it" ../machine.rs \
    'if conn.xrc { (0, params.qpn) }' 'if false { (0, params.qpn) }'

# What time brings.
rule "what is not answered is sent for ever" conn.rs \
    'self.left = self.left.checked_sub(1)?;' ''
rule "what is not answered is not sent again" timers.rs \
    'self.answer_again(id);' ''
rule "who gives up does not say so" timers.rs \
    'self.refuse(now, id, reason::TIMEOUT, guid_as_ari(guid), [0; 148]);' 'self.idle(id);'
rule "a DREQ that is not answered leaves no event" timers.rs \
    'State::DreqSent => self.disconnected(now, id, [0; 224], false),' 'State::DreqSent => self.idle(id),'
rule "two deadlines of an identifier" timers.rs \
    'self.deadlines.remove(&(old, id));' ''

# What the network brings.
rule "a REQ that comes again is a new one" receive.rs \
    'self.conn(id).asked == Some(asked)' 'false'
rule "another REQ with the same identifier is the same" receive.rs \
    'self.conn(id).asked == Some(asked)' 'true'
rule "a REP is not sent again for a REQ that comes again" receive.rs \
    'State::ReqRcvd | State::RepSent => self.answer_again(id),' 'State::ReqRcvd => self.answer_again(id), State::RepSent => {}'
rule "a stale connection is not noticed" receive.rs \
    'stale |= state.is_live();' ''
rule "a stale connection is not ended" receive.rs \
    'if state == State::Established {
                self.dreq' 'if false {
                self.dreq'
rule "what ends is stale too" conn.rs \
    'State::RepSent | State::Established)' 'State::RepSent | State::Established | State::DreqSent | State::DreqRcvd | State::Timewait)'
rule "REPs come from anywhere" receive.rs \
    'if conn.path.dgid == path.dgid {
                self.on_first_rep' 'if true {
                self.on_first_rep'
rule "all else comes from anywhere" receive.rs \
    'Some(conn) if conn.path.dgid != path.dgid => Named::Foreign,' ''
rule "REJs come from anywhere" receive.rs \
    'self.conns.get(&rej.remote_comm_id).filter(|conn| conn.path.dgid == path.dgid)?' 'self.conns.get(&rej.remote_comm_id)?'
rule "an MRA comes from anywhere" receive.rs \
    '.filter(|conn| conn.path.dgid == path.dgid) else' ' else'
rule "an MRA prolongs again and again" conn.rs \
    'std::mem::replace(&mut self.prolonged, true)' 'false'
rule "an MRA does not prolong" conn.rs \
    'self.wait = wait;
        Some(now.saturating_add(wait))' 'Some(now.saturating_add(self.wait))'
rule "an answered REQ is sent again" receive.rs \
    'self.arm(id, None);
        self.know(id, remote);' 'self.know(id, remote);'
rule "an RTU is not sent again" receive.rs \
    'Named::Conn(State::RepRcvd | State::Established | State::Rejected)' 'Named::Conn(State::RepRcvd | State::Rejected)'
rule "a REP for nobody is not answered" receive.rs \
    'Named::Nobody => self.nobody(path, tid, id, remote_id, answered::REP),' 'Named::Nobody => {}'
rule "an RTU for nobody is not answered" receive.rs \
    'Named::Nobody => self.nobody(path, tid, id, remote, answered::OTHER),' 'Named::Nobody => {}'
rule "an RTU for what was taken back is not answered" receive.rs \
    'Named::Conn(State::Rejected) => self.answer_again(id),
            Named' 'Named'
rule "an RTU establishes anything" receive.rs \
    'Named::Conn(State::RepSent) => self.establish' 'Named::Conn(State::RepSent | State::Established | State::Timewait) => self.establish'
rule "a timeout is not found by its adapter" receive.rs \
    'if rej.reason == reason::TIMEOUT
' 'if false
'
rule "a DREQ for nobody is not answered" receive.rs \
    'self.send(back(path), drep.encode(tid));' ''
rule "a DREQ for another QP ends the connection" receive.rs \
    'if conn.local_qpn != dreq.remote_qpn {' 'if false {'
rule "a DREQ before its RTU is no connection" receive.rs \
    'if state == State::RepSent {' 'if false {'
rule "a DREQ that crosses another is not answered" receive.rs \
    'self.tell(Event::Disconnected { conn: id, private_data: [0; 224], is_certain: true });
                self.drep(now, id, [0; 224]);' ''
rule "a DREQ in timewait is not answered" receive.rs \
    'State::Timewait if conn.mad.is_some() => self.answer_again(id),' 'State::Timewait if conn.mad.is_some() => {}'
rule "a DREP ends any connection" receive.rs \
    'if let Named::Conn(State::DreqSent) =' 'if let Named::Conn(_) ='
rule "a SIDR_REQ that comes again is a new one" receive.rs \
    'conn.tid == tid && conn.service_id == req.service_id' 'false'
rule "a SIDR_REP comes from anywhere" receive.rs \
    'conn.state == State::SidrReqSent && conn.path.dgid == path.dgid;' 'conn.state == State::SidrReqSent;'
rule "who is not there is asked again" receive.rs \
    'self.rejected(id, reason::INVALID_SERVICE_ID);
                    self.idle(id);' ''
rule "connections with the dead stay" receive.rs \
    'State::Established | State::DreqSent => self.disconnected(now, id, [0; 224], true),' 'State::Established | State::DreqSent => {}'
rule "the dead of another host are ours" receive.rs \
    'was_with(conn) && is_there(&conn.path)' 'was_with(conn)'

exit "$survived"
