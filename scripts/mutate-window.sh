#!/bin/bash
# Breaks one rule of the pairs of a window after the other and sees whether the simulation notices, or a unit test. Not part of any test
# run: it builds both once per rule. The table it prints has the rows of docs/simulation.md, and one for each other rule.
#
#   scripts/mutate-window.sh [NAME]...     all rules, or those named
#
# Each rule is a line of crates/base/window/src/pairs that is replaced by another. The work is done in a copy below target/.
set -euo pipefail
cd "$(dirname "$0")/.."
copy=target/mutate-window/copy
export CARGO_TARGET_DIR=$PWD/target/mutate-window/build
# Breaking is done often and run shortly.
export CARGO_PROFILE_CHECKED_OPT_LEVEL=1 CARGO_PROFILE_CHECKED_DEBUG=0 RUST_BACKTRACE=0
limit=${LIMIT:-120}
export VERVAIN_SEEDS=${VERVAIN_SEEDS:-300}
wanted=("$@")
work=$PWD/target/mutate-window
sources=$copy/crates/base/window/src/pairs
. scripts/mutate-rules.sh

rm -rf "$copy"
mkdir -p "$copy/crates" "$copy/tests"
# What the simulation needs, as a workspace of its own.
cp Cargo.lock "$copy"
sed 's|^members = .*|members = ["crates/*/*"]|' Cargo.toml > "$copy/Cargo.toml"
cp -r --parents crates/base/config crates/base/window "$copy"
cp -r tests/seeds tests/skip "$copy/tests"

# build: makes the test binaries of the copy; their paths.
build() {
    test_binaries vervain-window pairs
}

# run "PAIRS LIB": what sees the break: the seeds, else the unit tests.
run() {
    local pairs lib
    read -r pairs lib <<< "$1"
    seeds "$pairs" || tests "$lib" pairs:: || echo "**not seen**"
}

echo "| broken rule | file | seen by |"
echo "|---|---|---|"

# Messages.
rule "the tag is not put last" ring.rs \
    'else { self.channel.put(chain) }' \
    'else { self.channel.put(&chain[chain.len() - 1..]).and_then(|()| self.channel.put(&chain[..chain.len() - 1])) }'
rule "what is taken is told before it was read" ring.rs \
    '(self.told, self.bytes) = (self.taken, 0);
        self.taken' '(self.told, self.bytes) = (self.taken, 0);
        self.taken + 1'
rule "what was taken is not told" ring.rs \
    '(self.bytes > 0 || any && self.taken != self.told)' 'false'
rule "what the peer says it has taken is believed" ring.rs \
    'if taken > self.sent {' 'if false {'
rule "the source is the program's again early" ring.rs \
    'self.taken = taken;
        Ok(true)' 'self.taken = self.sent;
        Ok(true)'
rule "bytes are freed early" ring.rs \
    'for number in self.taken..taken {' 'for number in self.taken..self.sent {'
rule "bytes are never freed" ring.rs \
    'Place::Block => self.short.free_up_to(mark),' 'Place::Block => {}'
rule "requests take all slots" ring.rs \
    'self.sent - self.taken < block::SLOTS - class as u64' 'self.sent - self.taken < block::SLOTS'
rule "one message more than there are slots" ring.rs \
    'if self.sent - self.taken >= block::SLOTS {' 'if self.sent - self.taken > block::SLOTS {'
rule "a slot is read twice" ring.rs \
    'if fits { Ok(' 'let payload = if place == Place::Slot { payload } else { named(0) };
        if fits { Ok('
rule "the place of a payload is not checked" ring.rs \
    'payload >= begin && payload <= end && len <= end - payload' 'len <= end.wrapping_sub(payload)'
rule "the length of a payload is not checked" ring.rs \
    '&& len <= end - payload && len' '&& len'
rule "tags are the same in each lap" slot.rs \
    '(before as u32).wrapping_add(1)' '(before as u32 % 64).wrapping_add(1)'
rule "bytes are handed out that are in use" byte_ring.rs \
    'if begin + len - tail > self.len {' 'if begin + len - tail > self.len + 1024 {'
rule "a payload goes on at the beginning" byte_ring.rs \
    'if place + len <= self.len { 0 } else { self.len - place }' '0'

# Who is there.
rule "the bell is read behind the doors" rendezvous.rs \
    'self.bell.seen.store(self.bell.rung(), Ordering::Relaxed);
        let me = self.announcer.me;
        for peer in all(self.announcer.layout()).filter(|peer| *peer != me) {
            self.receive(peer, memory, event);
        }' \
    'let me = self.announcer.me;
        for peer in all(self.announcer.layout()).filter(|peer| *peer != me) {
            self.receive(peer, memory, event);
        }
        self.bell.seen.store(self.bell.rung(), Ordering::Relaxed);'
rule "the bell is rung before there is something to hear" rendezvous.rs \
    'let _ = channel.put(&chain);' 'let _ = channel.put(&[chain[1], chain[0]]);'
rule "the bell is not rung" rendezvous.rs \
    'let _ = channel.put(&chain);' 'let _ = channel.put(&chain[..1]);'
rule "half a state is believed" door.rs \
    ' || last != check(&words[..WORDS - 1])' ' || last == 0'
rule "the incarnation is not looked at" rendezvous.rs \
    'let is_same = |with| with == state.from' 'let is_same = |with: End| with.pair == state.from.pair'
rule "the number of a pair is not looked at" rendezvous.rs \
    'let is_same = |with| with == state.from' 'let is_same = |with: End| with.incarnation == state.from.incarnation'
rule "that a pair has another block is not looked at" rendezvous.rs \
    ' && (self.theirs.is_none() || self.theirs == state.block)' ''
rule "a block for another end is used" rendezvous.rs \
    'is_some_and(|pair| state.to == mine(pair))' 'is_some_and(|pair| state.to == mine(pair) || state.to.pair != 0)'
rule "a block for any pair with this process is used" rendezvous.rs \
    'is_some_and(|pair| state.to == mine(pair))' 'is_some_and(|pair| state.to.incarnation == mine(pair).incarnation)'
rule "another end gets the same block" rendezvous.rs \
    'memory.give_back(pair.own, peer, incarnation);
        // A request that was not met stays.
        if pair.is_requested
            && let Some(own) = memory.take(peer)
        {
            pair.own = own;' \
    'if pair.is_requested {'
rule "who ends a pair does not say so" rendezvous.rs \
    'return self.announce(peer, false);
        }
        memory' 'return;
        }
        memory'
rule "who is not answered does not ask again" rendezvous.rs \
    'pair.next = now + pair.pause;' 'pair.next = u64::MAX;'
rule "who is asked does not answer" rendezvous.rs \
    'if has_changed || state.asks {' 'if has_changed {'
rule "who goes on with what is over is not told" rendezvous.rs \
    'if state.asks {
                self.announce(peer, false);
            }
            return;' 'return;'
rule "everybody is answered, also who does not ask" rendezvous.rs \
    'if state.asks {
                self.announce(peer, false);
            }
            return;' 'return self.announce(peer, false);'
rule "nobody is told of a new process" rendezvous.rs \
    'announcer.announce(peer, announcer.nothing());' 'let _ = peer;'
rule "who connects does not ask whether the peer is there" rendezvous.rs \
    'pair.is_answered = false;
        }' '}'
rule "who is dead gets a block" rendezvous.rs \
    'if !is_known && self' 'if false && self'

# Memory.
rule "blocks do not rest" memory.rs \
    'let until = if is_free {' 'let until = if true {'
rule "blocks are not wiped" memory.rs \
    '.for_each(|word| word.store(0, Ordering::Relaxed));' '.for_each(|_| ());'
rule "who comes often gets all memory" memory.rs \
    '>= RESTING_BLOCKS' '== usize::MAX'
rule "the ring of a process is the next one's" memory.rs \
    'let ring = self.long_rings.remove(&peer);' 'let ring = None::<Claim>;'
exit $survived
