//! Mistakes, from the text of a plan to what its author reads.

use std::fmt::Write as _;

use super::*;

/// The message and place of each mistake, one line each: "LINE:COLUMN KEY: WHAT".
fn mistakes(text: &str) -> Vec<String> {
    let errors = parse("mine", text).expect_err(text);
    let line = |e: &PlanError| {
        let place = e.place.as_ref().expect("a place");
        format!("{}:{} {}: {}", place.line, place.column, e.key, e.what)
    };
    errors.errors.iter().map(line).collect()
}

#[test]
fn a_mistake_is_shown_with_its_place_its_key_and_its_line() {
    let text = "title = \"Mine\"\n\n[[case]]\noperation = \"wirte\"\nmeasure = \"latency\"\n";
    let errors = parse("mine.toml", text).expect_err("a mistake").to_string();
    let expected = concat!(
        "mine.toml:4:13: case[1].operation: expected send, send+imm, write, write+imm, read, faa, cas, put, get, copy, ping-pong, raw-put, jacobi, jacobi-calculation, jacobi-exchange or jacobi-allreduce, ",
        r#"found "wirte"; did you mean "write"?
  |
4 | operation = "wirte"
  |             ^^^^^^^"#
    );
    assert_eq!(errors, expected);
    assert!(GUIDE.contains(expected), "the guide shows another one");
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_lines() {
    let text =
        "rounds = 0\n[[case]]\nsize = \"8X\"\nmeasure = \"speed\"\n[[case]]\noperatoin = \"read\"\nqps = [1, 0]\n";
    let all = mistakes(text);
    let at: Vec<_> = all.iter().map(|m| m.split_once(": ").unwrap().0).collect();
    let expected = [
        "1:10 rounds",
        "2:1 case[1]",
        "3:8 case[1].size",
        "4:11 case[1].measure",
        "5:1 case[2]",
        "5:1 case[2]",
        "6:1 case[2].operatoin",
        "7:11 case[2].qps[2]",
    ];
    assert_eq!(at, expected);
}

/// The common part of many of the plans below.
fn whole(text: &str) -> String {
    let keys = "expected a key interface, operation, service, measure, size, depth, qps, placement, memory, interference, environment, \
                grid, iterations, full_iterations, only_full, warm_up, at_least, at_most, inline, signal_every or volume";
    let polled =
        "expected host for the latency of write, since the CPU polls that memory and cannot poll a GPU's, found gpu";
    text.replace("{SIZES}", r#"expected 1 B to 2 GiB, written 8, "64K", "8 MiB", "8..8M" or "8..8M by 4""#)
        .replace("{DEPTHS}", r#"expected 1 to 32768, written 8, "1..128" or "1..128 by 4""#)
        .replace("{BESIDE}", r#"expected "none" or a size and an operation, as "8 B write""#)
        .replace("{ONE}", "expected 1, since latency is that of one message at a time")
        .replace("{POLLED}", polled)
        .replace("{INLINE}", "expected \"auto\" or 0 with GPU memory, from which the CPU cannot copy a message")
        .replace("{OTHERS}", "other operations have a block of their own")
        .replace("{OTHER}", "bandwidth has a block of its own")
        .replace("{CARRIED}", "which UC QPs carry (IBA volume 1, table 38)")
        .replace("{UNITS}", r#"written "20ms" or "1.5s""#)
        .replace("{KEYS}", keys)
}

/// Mistakes of one key each: what is added to [`BLOCK`], whose lines are the first three, and what is said of it.
const OF_A_BLOCK: &[(&str, &str)] = &[
    ("size = 0", r#"4:8 case[1].size: {SIZES}, found 0"#),
    ("size = -8", r#"4:8 case[1].size: {SIZES}, found -8"#),
    ("size = 8.5", r#"4:8 case[1].size: {SIZES}, found 8.5"#),
    ("size = true", r#"4:8 case[1].size: {SIZES}, found true"#),
    ("size = \"64Q\"", r#"4:8 case[1].size: {SIZES}, found "64Q""#),
    ("size = [8, \"64..8\"]", r#"4:12 case[1].size[2]: {SIZES}, found "64..8""#),
    ("size = [[8]]", r#"4:9 case[1].size[1]: {SIZES}, found a list"#),
    ("size = []", r#"4:8 case[1].size: {SIZES}, found an empty list"#),
    ("size = { a = 1 }", r#"4:8 case[1].size: {SIZES}, found a table"#),
    ("size = 99999999999999999999", r#"4:8 case[1].size: {SIZES}, found 99999999999999999999"#),
    ("size = 2024-01-01", r#"4:8 case[1].size: {SIZES}, found 2024-01-01"#),
    ("depth = 32769", r#"4:9 case[1].depth: {DEPTHS}, found 32769"#),
    ("depth = \"1K\"", r#"4:9 case[1].depth: {DEPTHS}, found "1K""#),
    ("qps = 16385", r#"4:7 case[1].qps: expected 1 to 16384, written 8, "1..128" or "1..128 by 4", found 16385"#),
    ("service = \"dc\"", r#"4:11 case[1].service: expected rc, uc or ud, found "dc""#),
    ("service = \"RC\"", r#"4:11 case[1].service: expected rc, uc or ud, found "RC"; did you mean "rc"?"#),
    ("service = []", r#"4:11 case[1].service: expected rc, uc or ud, found an empty list"#),
    ("memory = \"vram\"", r#"4:10 case[1].memory: expected host or gpu, found "vram""#),
    ("placement = \"local\"", r#"4:13 case[1].placement: expected loopback or peer, found "local""#),
    (
        "interference = \"write 8\"",
        r#"4:16 case[1].interference: {BESIDE}, found "write 8"; did you mean "8 B write"?"#,
    ),
    ("interference = \"faa\"", r#"4:16 case[1].interference: {BESIDE}, found "faa"; did you mean "8 B faa"?"#),
    (
        "interference = \"8K cas\"",
        r#"4:16 case[1].interference: expected "8 B cas", found "8K cas"; atomics are of 8 bytes"#,
    ),
    (
        "interference = \"0 write\"",
        r#"4:16 case[1].interference: {BESIDE}, found "0 write"; did you mean "8 B write"?"#,
    ),
    (
        "interference = [\"none\", \"8 B raed\"]",
        r#"4:25 case[1].interference[2]: {BESIDE}, found "8 B raed"; did you mean "read"?"#,
    ),
    (
        "interference = \"8 B UD send\"",
        r#"4:16 case[1].interference: {BESIDE}, found "8 B UD send"; what runs beside is RC always"#,
    ),
    ("interference = { operation = \"write\", size = 8 }", r#"4:16 case[1].interference: {BESIDE}, found a table"#),
    ("interference = 8", r#"4:16 case[1].interference: {BESIDE}, found 8"#),
    ("iterations = 0", "4:14 case[1].iterations: expected 1 to 1000000000, found 0"),
    ("iterations = [1]", "4:14 case[1].iterations: expected 1 to 1000000000, found a list"),
    ("warm_up = -1", "4:11 case[1].warm_up: expected 0 to 1000000000, found -1"),
    ("at_least = 20", r#"4:12 case[1].at_least: expected a time from 0s to 1h, {UNITS}, found 20"#),
    (
        "at_least = \"20 parsecs\"",
        r#"4:12 case[1].at_least: expected a time from 0s to 1h, {UNITS}, found "20 parsecs""#,
    ),
    (
        "at_least = \"99999999999999999999h\"",
        r#"4:12 case[1].at_least: expected a time from 0s to 1h, {UNITS}, found "99999999999999999999h""#,
    ),
    ("at_most = \"0ms\"", r#"4:11 case[1].at_most: expected a time from 1ms to 1h, {UNITS}, found "0ms""#),
    ("inline = \"yes\"", r#"4:10 case[1].inline: expected "auto" or 0 B to 4 KiB, found "yes""#),
    ("inline = 4097", r#"4:10 case[1].inline: expected "auto" or 0 B to 4 KiB, found 4097"#),
    ("signal_every = 0", "4:16 case[1].signal_every: expected 1 to 32768, found 0"),
    ("sizes = 8", r#"4:1 case[1].sizes: {KEYS}, found sizes; did you mean "size"?"#),
    ("size.x = 8", r#"4:1 case[1].size: {SIZES}, found a table"#),
    // One key contradicts another.
    (
        "service = \"ud\"",
        "2:13 case[1].operation: expected send or send+imm, which UD QPs carry (IBA volume 1, table 38), found write",
    ),
    ("at_least = \"400ms\"", "4:12 case[1].at_least: expected at most 300ms, which is at_most here, found 400ms"),
    ("at_most = \"10ms\"", "4:11 case[1].at_most: expected at least 20ms, which is at_least here, found 10ms"),
    (
        "at_most = \"1s\"\nat_least = \"2s\"",
        "5:12 case[1].at_least: expected at most 1s, which is at_most here, found 2s",
    ),
    // Text that is not TOML.
    ("size = 8MiB", r#"4:8 case[1].size: expected text in quotes, as "8MiB", found 8MiB"#),
    ("size =", "4:7 case[1].size: expected a value, found nothing"),
    ("measure = \"latency\"", "4:1 case[1].measure: expected each key once, found measure again"),
    ("size = [8, 16", "4:14 case[1].size: expected TOML, found a mistake: unclosed array, expected `]`"),
    ("size 8", "4:6 case[1]: expected TOML, found a mistake: key with no value, expected `=`"),
];

/// Mistakes of whole texts.
const OF_A_PLAN: &[(&str, &[&str])] = &[
    ("", &["1:1 case: expected at least one block [[case]], found none"]),
    ("title = 'Mine'\n", &["2:1 case: expected at least one block [[case]], found none"]),
    ("case = []", &["1:8 case: expected blocks that begin with [[case]], found an empty list"]),
    ("case = 3", &["1:8 case: expected blocks that begin with [[case]], found 3"]),
    ("[case]\nsize = 8", &["1:1 case: expected blocks that begin with [[case]], found a table"]),
    (
        "case = [8]",
        &[
            "1:8 case: expected blocks that begin with [[case]], found a list",
            "1:9 case[1]: expected a block [[case]], found 8",
        ],
    ),
    (
        "[[case]]",
        &[
            "1:1 case[1]: expected the key measure, latency or bandwidth, found none",
            "1:1 case[1]: expected the key operation, send, send+imm, write, write+imm, read, faa, cas, put, get, copy, ping-pong, raw-put, jacobi, jacobi-calculation, jacobi-exchange or jacobi-allreduce, found none",
        ],
    ),
    (
        "[[case]]\ninterface = ['acp', 'mpich']\noperation = 'put'\nmeasure = ['latency', 'bandwidth']\nplacement = 'peer'",
        &[
            "3:13 case[1].operation: expected ping-pong, jacobi, jacobi-calculation, jacobi-exchange or jacobi-allreduce, which interface \"mpich\" has, found put",
            "4:23 case[1].measure[2]: expected latency with interface \"acp\", found 'bandwidth'",
            "4:23 case[1].measure[2]: expected latency with interface \"mpich\", found 'bandwidth'",
            "5:13 case[1].placement: expected loopback with interface \"acp\", found 'peer'",
            "5:13 case[1].placement: expected loopback with interface \"mpich\", found 'peer'",
        ],
    ),
    (
        "[[case]]\ninterface = 'mpich'\noperation = 'jacobi'\nmeasure = 'latency'\nsize = ['2M', '3M']",
        &[
            "3:13 case[1].operation: expected the key grid beside jacobi, as grid = \"1x2\", found none",
            "5:15 case[1].size[2]: expected the bytes of a grid of N x N x 2N cells with N a power of 2 from 4 to 256, as 2M, 16M or \
             128M, for jacobi, found 3 MiB",
        ],
    ),
    (
        "[[case]]\ninterface = 'mpich'\noperation = 'jacobi'\nmeasure = 'latency'\nsize = '2M'\ngrid = ['1x2', '2']\nonly_full = 1",
        &[
            "6:16 case[1].grid[2]: expected a grid of ranks as \"2x4\", up to 16x16, found '2'",
            "7:13 case[1].only_full: expected true or false, found 1",
        ],
    ),
    (
        "[[case]]\noperation = 'send'\nmeasure = 'latency'\ngrid = '1x2'",
        &["4:8 case[1].grid: expected no grid with send, which jacobi has, found '1x2'"],
    ),
    (
        "[[case]]\noperation = 'get'\nmeasure = 'latency'\nvolume = '1M'\ninterference = '8 B put'",
        &[
            "2:13 case[1].operation: expected send, send+imm, write, write+imm, read, faa or cas, which interface \"verbs\" has, \
             found get",
            "4:10 case[1].volume: expected no volume, since at_most bounds what is measured, with interface \"verbs\", found '1M'",
            "5:16 case[1].interference: expected \"none\" or a size and an operation, as \"8 B write\", found '8 B put'",
        ],
    ),
    (
        "[[case]]\noperation = 'faa'\nmeasure = 'latency'\nsize = [8, 16, '1K']",
        &["4:12 case[1].size[2]: expected 8 B, the size of faa, found 16 B; {OTHERS}"],
    ),
    (
        "[[case]]\noperation = 'read'\nservice = ['rc', 'uc']\nmeasure = 'latency'",
        &["2:13 case[1].operation: expected send, send+imm, write or write+imm, {CARRIED}, found read"],
    ),
    (
        "[defaults]\noperation = 'read'\n[[case]]\nservice = 'ud'\nmeasure = 'latency'",
        &["4:11 case[1].service: expected send or send+imm, which UD QPs carry (IBA volume 1, table 38), found read"],
    ),
    (
        "[[case]]\noperation = 'send'\nservice = 'ud'\nmeasure = 'latency'\nsize = ['4K', 4097]",
        &["5:15 case[1].size[2]: expected sizes up to 4 KiB, the longest datagram of UD, found 4097 B"],
    ),
    (
        "[defaults]\nsize = '8K'\n[[case]]\noperation = 'send'\nservice = 'ud'\nmeasure = 'latency'",
        &["5:11 case[1].service: expected sizes up to 4 KiB, the longest datagram of UD, found 8 KiB in [defaults]"],
    ),
    (
        "[[case]]\noperation = 'send'\nmeasure = ['bandwidth', 'latency']\ndepth = [1, 16]\nqps = 2",
        &["4:13 case[1].depth[2]: {ONE}, found 16; {OTHER}", "5:7 case[1].qps: {ONE}, found 2; {OTHER}"],
    ),
    (
        "[[case]]\noperation = ['read', 'write']\nmeasure = ['bandwidth', 'latency']\nmemory = ['host', 'gpu']",
        &["4:19 case[1].memory[2]: {POLLED}; write+imm needs no polling"],
    ),
    (
        "[defaults]\nmemory = 'gpu'\n[[case]]\noperation = 'write'\nmeasure = 'latency'",
        &["4:13 case[1].operation: {POLLED} in [defaults]; write+imm needs no polling"],
    ),
    (
        "[[case]]\noperation = 'read'\nmeasure = 'latency'\nmemory = 'gpu'\ninline = 64",
        &["5:10 case[1].inline: {INLINE}, found 64 B"],
    ),
    (
        "[defaults]\ninline = '1K'\n[[case]]\noperation = 'read'\nmeasure = 'latency'\nmemory = ['host', 'gpu']",
        &["6:19 case[1].memory[2]: {INLINE}, found 1 KiB in [defaults]"],
    ),
    (
        "[defaults]\nat_least = '1s'\nat_most = '2s'\n[[case]]\noperation = 'send'\n\
         measure = 'latency'\nat_most = '500ms'",
        &["7:11 case[1].at_most: expected at least 1s, which is at_least here, found 500ms"],
    ),
    (
        "[defaults]\nat_least = '1s'\n[[case]]\noperation = 'send'\nmeasure = 'latency'\n\
         [[case]]\noperation = 'send'\nmeasure = 'latency'\n",
        &["2:12 defaults.at_least: expected at most 300ms, which is at_most here, found 1s"],
    ),
    (
        "rounds = 1001\nseed = -1\nspread = '10%'\ntitle = ''\nname = 1\ndefaults = 1\n\
         pinning = []\n[[case]]\nmeasure = 'latency'\noperation = 'read'",
        &[
            "1:10 rounds: expected 1 to 1000, found 1001",
            "2:8 seed: expected 0 to 9223372036854775807, found -1",
            "3:10 spread: expected a share from 0.001 to 1, as 0.1 for 10 %, found '10%'",
            "4:9 title: expected one line of text, found ''",
            "5:1 name: expected a key title, rounds, seed, spread, pinning, environment, defaults or case, found name",
            "6:12 defaults: expected a table [defaults], found 1",
            "7:11 pinning: expected a table [pinning], found an empty list",
        ],
    ),
    (
        "[pinning]\nclient = 'cpu3'\nserver = 8192\nmemory_node = 1024\ngpu = 'first'\nclients = 1\n\
         [[case]]\nmeasure = 'latency'\noperation = 'read'",
        &[
            "2:10 pinning.client: expected \"auto\", \"free\" or the number of a CPU, 0 to 8191, found 'cpu3'",
            "3:10 pinning.server: expected \"auto\", \"free\" or the number of a CPU, 0 to 8191, found 8192",
            "4:15 pinning.memory_node: expected 0 to 1023, found 1024",
            "5:7 pinning.gpu: expected 0 to 1023, found 'first'",
            "6:1 pinning.clients: expected a key client, server, background_client, background_server, memory_node \
             or gpu, found clients; did you mean \"client\"?",
        ],
    ),
    // Mistakes that TOML recovers from hide no others.
    (
        "[[case]]\nmeasure = latency\noperation = 'read'\nsize = 8X\nsize = 4\nqps = 0\n",
        &[
            "2:11 case[1].measure: expected text in quotes, as \"latency\", found latency",
            "4:8 case[1].size: expected text in quotes, as \"8X\", found 8X",
            "5:1 case[1].size: expected each key once, found size again",
            "6:7 case[1].qps: expected 1 to 16384, written 8, \"1..128\" or \"1..128 by 4\", found 0",
        ],
    ),
];

#[test]
fn each_mistake_has_a_sentence_of_its_own() {
    let mut wrong = String::new();
    let mut check = |text: &str, expected: &[&str]| {
        let found = mistakes(text);
        let expected: Vec<_> = expected.iter().map(|text| whole(text)).collect();
        if found != expected {
            writeln!(wrong, "--- {text}\nexpected {expected:#?}\nfound {found:#?}").expect("a string takes it");
        }
    };
    for (line, expected) in OF_A_BLOCK {
        check(&format!("{BLOCK}{line}\n"), &[expected]);
    }
    for (text, expected) in OF_A_PLAN {
        check(text, expected);
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn a_plan_has_at_most_100000_cases() {
    // 32 sizes, 25 depths, 125 QPs: all different, 100,000 together.
    let block = |qps| format!("{BLOCK}size = [{}]\ndepth = [{}]\nqps = [{}]\n", list(32), list(25), list(qps));
    assert_eq!(cases(&block(125)).len(), 100_000);
    let said = |line, block, found| {
        [format!("{line}:1 case[{block}]: expected at most 100000 cases in the whole plan, found {found} up to here")]
    };
    assert_eq!(mistakes(&block(126)), said(1, 1, 100_800));
    assert_eq!(mistakes(&format!("{}memory = [\"host\", \"gpu\"]\n", block(63))), said(1, 1, 100_800));
    // Also in two blocks, and only once.
    let three = format!("{}{}{}", block(64), block(63), block(63));
    assert_eq!(mistakes(&three), said(7, 2, 101_600));
}

/// Mistakes of environments: a whole plan but for [`BLOCK`] behind it, and what is said.
const OF_ENVIRONMENTS: &[(&str, &str)] = &[
    ("environment = 8", "1:15 environment: expected tables [environment.NAME], found 8"),
    ("environment.a = 8", "1:17 environment.a: expected a table [environment.a], found 8"),
    (
        "[environment.none]",
        "1:14 environment.none: expected a name of 1 to 40 bytes on one line, but \"none\", found none",
    ),
    ("[environment.\"\"]", "1:14 environment.: expected a name of 1 to 40 bytes on one line, but \"none\", found \"\""),
    (
        "[environment.a]\nvaraibles = {}",
        "2:1 environment.a.varaibles: expected a key variables, note or paper, found varaibles; did you mean \"variables\"?",
    ),
    (
        "[environment.a]\nvariables = \"A=b\"",
        "2:13 environment.a.variables: expected a table of variables, as { NAME = \"value\" }, found \"A=b\"",
    ),
    (
        "[environment.a]\nvariables = { A = 1 }",
        "2:19 environment.a.variables.A: expected text, the variable's value, found 1",
    ),
    (
        "[environment.a]\nvariables = { \"A=B\" = \"1\" }",
        "2:15 environment.a.variables.A=B: expected the name of a variable, found \"A=B\"",
    ),
    (
        "[environment.a]\npaper = \"tca\"",
        "2:9 environment.a.paper: expected tca-cpu, tca-gpu, tca-host or tca-other, found \"tca\"; did you mean \"tca-gpu\"?",
    ),
    ("[environment.a]\nnote = \"\"", "2:8 environment.a.note: expected one line of text, found \"\""),
    (
        "[environment.board]\n[defaults]\nenvironment = [\"none\", \"borad\"]",
        "3:24 defaults.environment[2]: expected board or none, found \"borad\"; did you mean \"board\"?",
    ),
    (
        "[defaults]\nenvironment = \"board\"",
        "2:15 defaults.environment: expected none, found \"board\"; there is no table [environment.NAME]",
    ),
    (
        "[environment.a]\n[defaults]\nenvironment = \"a\"\nplacement = \"peer\"",
        "4:13 defaults.placement: expected loopback in an environment, whose workers are of this host, found peer",
    ),
];

#[test]
fn raw_puts_are_words_that_a_board_has_an_image_of() {
    let block = "[[case]]\ninterface = \"window\"\noperation = \"raw-put\"\nmeasure = \"latency\"\n";
    assert_eq!(cases(&format!("{block}size = \"8..64K\"\n")).len(), 14);
    let expected = "expected multiples of 8 B up to 64 KiB, which raw puts have, found";
    for (size, found) in [("12", "12 B"), ("[8, \"128K\"]", "128 KiB")] {
        let said = mistakes(&format!("{block}size = {size}\n"));
        assert!(said.len() == 1 && said[0].ends_with(&format!("{expected} {found}")), "{said:?}");
    }
    let said = mistakes(&format!("{block}volume = 8\nservice = \"ud\"\n"));
    assert!(said.iter().any(|said| said.contains("expected rc with interface \"window\"")), "{said:?}");
    assert!(said.iter().any(|said| said.contains("expected no volume")), "{said:?}");
}

/// Mistakes of a block of PM's, without its first two lines.
const OF_PM: &[(&str, &[&str])] = &[
    (
        "operation = 'ping-pong'\nmeasure = ['latency', 'bandwidth']",
        &["4:23 case[1].measure[2]: expected latency for ping-pong with interface \"pm\", found 'bandwidth'"],
    ),
    (
        "operation = ['read', 'send']\nmeasure = 'latency'",
        &["4:11 case[1].measure: expected bandwidth for read with interface \"pm\", found 'latency'"],
    ),
    (
        "operation = 'put'\nmeasure = 'bandwidth'",
        &["3:13 case[1].operation: expected ping-pong, send, write or read, which interface \"pm\" has, found put"],
    ),
    (
        "operation = 'send'\nmeasure = 'bandwidth'\nsize = ['8K', '16K']",
        &["5:15 case[1].size[2]: expected sizes up to 8 KiB, the longest message of PM, found 16 KiB"],
    ),
    (
        "operation = 'ping-pong'\nmeasure = 'latency'\nsize = 8193",
        &["5:8 case[1].size: expected sizes up to 8 KiB, the longest message of PM, found 8193 B"],
    ),
    (
        "operation = ['write', 'read']\nmeasure = 'bandwidth'\nsize = ['1G', '2G']",
        &["5:15 case[1].size[2]: expected sizes up to 1 GiB, the longest copy of PM, found 2 GiB"],
    ),
    (
        "operation = 'write'\nmeasure = 'bandwidth'\ndepth = 16\nqps = [1, 2]\nservice = 'uc'\nmemory = 'gpu'",
        &[
            "5:9 case[1].depth: expected 1, since PM decides how much is under way, with interface \"pm\", found 16",
            "6:11 case[1].qps[2]: expected 1, since PM decides how much is under way, with interface \"pm\", found 2",
            "7:11 case[1].service: expected rc with interface \"pm\", found 'uc'",
            "8:10 case[1].memory: expected host with interface \"pm\", found 'gpu'",
        ],
    ),
];

#[test]
fn mistakes_of_blocks_of_pm_are_told() {
    for (text, expected) in OF_PM {
        assert_eq!(mistakes(&format!("[[case]]\ninterface = \"pm\"\n{text}\n")), *expected, "{text}");
    }
}

#[test]
fn mistakes_of_environments_are_told() {
    for (text, expected) in OF_ENVIRONMENTS {
        assert_eq!(mistakes(&format!("{text}\n{BLOCK}")), [*expected], "{text}");
    }
    let text = format!("[environment.a]\n[defaults]\nplacement = \"peer\"\n{BLOCK}environment = \"a\"\n");
    let why = "whose workers are of this host";
    let expected =
        format!("7:15 case[1].environment: expected loopback in an environment, {why}, found peer in [defaults]");
    assert_eq!(mistakes(&text), [expected]);
}
