#!/bin/bash
# Breaks one rule of the lock-free protocols after the other and sees whether their models notice. Not part of any test run: it
# builds the models once per rule. The table it prints has the rows of docs/model.md, and one for each other rule.
#
#   scripts/mutate-model.sh [NAME]...     all rules, or those named
#
# Each rule is a line of crates/device/hca/src that is replaced by another. The barrier of a gate's owner is a line of the model, which does
# not include process/revocation.rs. The work is done in a copy below target/.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=target/mutate-model/copy
export CARGO_TARGET_DIR=$PWD/target/mutate-model/build
export CARGO_PROFILE_CHECKED_DEBUG=0 RUST_BACKTRACE=0
limit=${LIMIT:-300}
wanted=("$@")
work=$PWD/target/mutate-model
sources=$copy/crates/device/hca/src
. scripts/mutate-rules.sh

rm -rf "$copy"
mkdir -p "$copy/crates" "$copy/tests"
# What the models need, as a workspace of its own.
cp Cargo.lock "$copy"
sed 's|^members = .*|members = ["crates/base/config", "crates/protocols/iba", "tests/model"]|' Cargo.toml > "$copy/Cargo.toml"
cp -r --parents crates/base/config crates/protocols/iba crates/device/hca/src "$copy"
cp -r tests/model "$copy/tests"

# build: makes the test binary of the copy; its path.
build() {
    (cd "$copy" && cargo test --quiet --profile checked --package vervain-model --test protocols --no-run \
        --message-format=json 2>"$work/build.log") |
        sed -n 's/.*"executable":"\([^"]*protocols[^"]*\)".*/\1/p' | tail -1
}

# run BINARY: which models see the break, by their tests' names.
run() {
    local out status=0
    out=$(timeout "$limit" "$1" 2>&1) || status=$?
    if [ $status = 124 ]; then
        echo "does not end"
    elif [ $status != 0 ]; then
        sed -n 's/^test \(.*\) \.\.\. FAILED/`\1`/p' <<< "$out" | paste -sd, | sed 's/,/, /g'
    else
        echo "**not seen**"
    fi
}

echo "| broken rule | file | seen by |"
echo "|---|---|---|"

# The gate.
rule "the mark may be seen late" process/gate.rs \
    'barrier::light(*full);
        InFlight { lane }' 'let _ = full;
        InFlight { lane }'
rule "the owner looks without its barrier" ../../../../tests/model/src/gate.rs \
    'barrier::heavy();
    gates.which' 'gates.which'
rule "leaving releases nothing" process/gate.rs \
    'self.lane.gate.store(gate.wrapping_add(1), Ordering::Release);' \
    'self.lane.gate.store(gate.wrapping_add(1), Ordering::Relaxed);'
rule "entering anew releases nothing" process/gate.rs \
    'lane.gate.store(gate, Ordering::Release);' 'lane.gate.store(gate, Ordering::Relaxed);'
rule "the owner acquires nothing" process/gate.rs \
    'self.lane.gate.load(Ordering::Acquire)' 'self.lane.gate.load(Ordering::Relaxed)'
rule "the next name comes before the last access" process/gate.rs \
    'lane.key.store(key, Ordering::Release);' 'lane.key.store(key, Ordering::Relaxed);'
rule "a name may be seen late" process/gate.rs \
    'barrier::light(*full);
    !is_cut_off(lane)' 'let _ = full;
    !is_cut_off(lane)'
rule "the lane is not asked for" process/gate.rs \
    '&& lane.open.load(Ordering::Relaxed) != 0' ''
rule "a pause is not heeded" process/gate.rs \
    '&& !is_closed(switch)' ''
rule "the key is not looked at" arena/layout/mod.rs \
    'if self.key.load(Ordering::Acquire) != u64::from(key)
            || self.domain' 'if self.domain'
rule "the entry is read before its key" arena/layout/mod.rs \
    'if self.key.load(Ordering::Acquire) != u64::from(key)' 'if self.key.load(Ordering::Relaxed) != u64::from(key)'
rule "everything counts" process/gate.rs \
    'compiler_fence(Ordering::SeqCst);
    !is_cut_off(lane)' 'compiler_fence(Ordering::SeqCst);
    true'
rule "only lanes on which nobody is are waited for" process/gate.rs \
    'lane.gate.load(Ordering::SeqCst) & 1 == 1' 'lane.gate.load(Ordering::SeqCst) & 1 == 0'

# Rings.
rule "the count releases nothing" cq/completion.rs \
    'produced.store(next, Ordering::Release);' 'produced.store(next, Ordering::Relaxed);'
rule "the count may be seen late" cq/completion.rs \
    'produced.store(next, Ordering::Release);
    barrier::light(*full);' 'produced.store(next, Ordering::Release);'
rule "the ready bit comes before the count" cq/completion.rs \
    'produced.store(next, Ordering::Release);
    barrier::light(*full);
    if mode.load(Ordering::Relaxed) != found::WATCHED {
        signal(cq, mode, ready_bit, full);
    }' 'if mode.load(Ordering::Relaxed) != found::WATCHED {
        signal(cq, mode, ready_bit, full);
    }
    produced.store(next, Ordering::Release);
    barrier::light(*full);'
rule "no ready bit" cq/completion.rs \
    'signal(cq, mode, ready_bit, full);' ''
rule "the summary comes before the ready bit" cq/completion.rs \
    'cq.ready[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
    cq.summary.fetch_or(1 << (bit / 64), Ordering::SeqCst);' \
    'cq.summary.fetch_or(1 << (bit / 64), Ordering::SeqCst);
    cq.ready[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);'
rule "the wish is looked at before the ready bit" cq/completion.rs \
    'set_ready(cq, ready_bit);
        // A program that asks for an event and then polls finds the bit, or what it has asked for is seen.
        barrier::light(*full);' 'let _ = full;
        set_ready(cq, ready_bit);'
rule "a ring rests without another look" cq/completion.rs \
    '!self.is_ready()
            ||' 'true
            ||'
rule "a ring rests without a fence" cq/completion.rs \
    'fence(Ordering::SeqCst);
        !self.is_ready()' '!self.is_ready()'
rule "a ring that rests stays signalled" cq/completion.rs \
    'pub(crate) fn rest(&self) -> bool {
        self.mode().store(found::QUIET, Ordering::SeqCst);' 'pub(crate) fn rest(&self) -> bool {'
rule "no barrier after watching" cq/completion.rs \
    'match self {
            Source::Receives(_) => barrier::heavy(),
            Source::Sends(_) => barrier::heavy_here(),
        }
        let idle' 'let idle'
rule "no look after watching" cq/completion.rs \
    'let idle = !self.is_ready();' 'let idle = true;'
rule "what did not fit is not findable" cq/rings.rs \
    'word.fetch_or(1 << b, Ordering::SeqCst);
                        shared.summary.fetch_or(1 << w, Ordering::SeqCst);' ''
rule "the summary forgets what did not fit" cq/rings.rs \
    'shared.summary.fetch_or(1 << w, Ordering::SeqCst);' ''
rule "a round leaves out the bits before its first" cq/rings.rs \
    'in round.chain(last) {' 'in round.chain(last.filter(|_| false)) {'
rule "a send is free before it is polled" cq/send_ring.rs \
    'let outcome = entry.outcome.load(Ordering::Relaxed);' \
    'consumer.freed.store(entry.count.load(Ordering::Relaxed), Ordering::Release);
            let outcome = entry.outcome.load(Ordering::Relaxed);'
rule "the poll acquires nothing" cq/send_ring.rs \
    'let n = (self.produced.0.load(Ordering::Acquire)' 'let n = (self.produced.0.load(Ordering::Relaxed)'
rule "a completion of a lane releases nothing" cq/recv_ring.rs \
    'cqe.published.store(next, Ordering::Release);' 'cqe.published.store(next, Ordering::Relaxed);'
rule "a completion of a lane is not acquired" cq/recv_ring.rs \
    'if cqe.published.load(Ordering::Acquire)' 'if cqe.published.load(Ordering::Relaxed)'
rule "one that stands in its receive releases nothing" cq/recv_ring.rs \
    'cqe(ring, produced).published.store(next, Ordering::Release);' 'cqe(ring, produced).published.store(next, Ordering::Relaxed);'
rule "a completed receive releases nothing" rq/exclusive.rs \
    'wqe.turn.store(turn | 1, Ordering::Release);' 'wqe.turn.store(turn | 1, Ordering::Relaxed);'
rule "a posted receive releases nothing" rq/exclusive.rs \
    'wqe.turn.store(posted(tail), Ordering::Release);' 'wqe.turn.store(posted(tail), Ordering::Relaxed);'

# Events.
rule "asking may be seen late" cq/notify.rs \
    'let armed = set(cq, solicited_only);
    fence(Ordering::SeqCst);' 'let armed = set(cq, solicited_only);'
rule "the first wish has no barrier" cq/notify.rs \
    'barrier::heavy();' ''
rule "the wish is looked at early" cq/completion.rs \
    'fence(Ordering::SeqCst);
        news.event' 'news.event'
rule "a new wish is taken away with the old one" cq/notify.rs \
    'raise();
    // Not over an arm that the program has set anew meanwhile.
    let _ = cq.armed.compare_exchange(armed, arm::NONE, Ordering::SeqCst, Ordering::Relaxed);' \
    'raise();
    cq.armed.store(arm::NONE, Ordering::SeqCst);'
rule "the wish is taken away before the event" cq/notify.rs \
    'raise();
    // Not over an arm that the program has set anew meanwhile.
    let _ = cq.armed.compare_exchange(armed, arm::NONE, Ordering::SeqCst, Ordering::Relaxed);' \
    'let _ = cq.armed.compare_exchange(armed, arm::NONE, Ordering::SeqCst, Ordering::Relaxed);
    if cq.armed.load(Ordering::SeqCst) == arm::NONE {
        raise();
    }'
rule "one that fires is relied on" cq/notify.rs \
    'if now - since > PATIENCE_NS {
            break;
        }' 'if now - since > PATIENCE_NS {
            return;
        }'
rule "nothing is told of what came before" cq/notify.rs \
    'polled && !granted && holds()' 'polled && !granted && holds() && false'
rule "solicited completions are not told from others" cq/notify.rs \
    '(wanted == arm::SOLICITED && !solicited_or_error)' '(wanted == arm::SOLICITED)'

# Receives.
rule "old entries are taken for new ones" rq/ring.rs \
    'if !self.is_posted(e, head) {' 'if entry_position(e) > in_entry(head & !AGAIN | self.bit) {'
rule "a claimer waits for another" rq/ring.rs \
    'if entry_claimer(e) != 0 {
                help(self.head, head);
                continue;' 'if entry_claimer(e) != 0 {
                return None;'
rule "claimed receives are claimed again" rq/ring.rs \
    'if entry_claimer(e) != 0 {
                help(self.head, head);
                continue;
            }' ''
rule "a claim is no exchange" rq/ring.rs \
    'if slot.compare_exchange(e, e | u64::from(me) & 0xff_ffff, Ordering::AcqRel, Ordering::Relaxed).is_ok() {' \
    'slot.store(e | u64::from(me) & 0xff_ffff, Ordering::Release);
            {'
rule "nobody moves the head" rq/ring.rs \
    'let _ = counter.compare_exchange(from, from.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed);' \
    'let _ = (counter, from);'
rule "a late claimer moves the head again" rq/ring.rs \
    'let _ = counter.compare_exchange(from, from.wrapping_add(1), Ordering::AcqRel, Ordering::Relaxed);' \
    'let _ = from;
    counter.fetch_add(1, Ordering::AcqRel);'
rule "a posted entry releases nothing" rq/mod.rs \
    'slot.store(entry(position | ring.bit, index, 0), Ordering::Release);' \
    'slot.store(entry(position | ring.bit, index, 0), Ordering::Relaxed);'
rule "a claim that is written over is forgotten" rq/mod.rs \
    'self.note_claim(state, old);' 'let _ = old;'
rule "what the dead had is looked for in the WQEs only" rq/mod.rs \
    'pub fn reap(&self, qpn: u32) -> Vec<u64> {
        let mut state = self.state.lock();
        self.note_claims(&state);' 'pub fn reap(&self, qpn: u32) -> Vec<u64> {
        let mut state = self.state.lock();'
rule "what is posted again stays claimed" rq/mod.rs \
    'wqe.claimer.store(0, Ordering::Release);
                self.enqueue' 'self.enqueue'
exit $survived
