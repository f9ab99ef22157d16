//! The table of all variables.

use crate::choices::{LinkChoice, LinkLayer, LogLevel, MemoryWay, Share, Switch};
use crate::variable::{Opt, Reader, Setter, Syntax, Variable};

macro_rules! table {
    ($($constant:ident $name:literal {
        $(option: $long:literal $value:literal,)?
        syntax: $syntax:expr, default: $default:expr, meaning: $meaning:literal,
        set by $setter:ident, read by $($reader:ident)*
    })*) => {
        $(
            #[doc = concat!("`", $name, "`: ", $meaning, ".")]
            pub static $constant: Variable = Variable {
                // Bytes with a NUL behind them, and none before: the macro puts it there.
                name: match std::ffi::CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no NUL"),
                },
                option: table!(@option $($long $value)?),
                syntax: $syntax,
                default: $default,
                meaning: $meaning,
                setter: Setter::$setter,
                readers: &[$(Reader::$reader),*],
            };
        )*

        /// All variables, in the order in which they are listed.
        pub static TABLE: [&Variable; [$($name),*].len()] = [$(&$constant),*];
    };
    (@option) => { None };
    (@option $long:literal $value:literal) => { Some(Opt { long: $long, value: $value }) };
}

table! {
    DEVICES "VERVAIN_DEVICES" {
        option: "devices" "N",
        syntax: Syntax::Number { least: 1, most: 16 }, default: "1",
        meaning: "Number of devices",
        set by User, read by Library
    }
    PORTS "VERVAIN_PORTS" {
        option: "ports" "N",
        syntax: Syntax::Number { least: 1, most: 4 }, default: "1",
        meaning: "Number of ports of each device",
        set by User, read by Library
    }
    LINK_LAYER "VERVAIN_LINK_LAYER" {
        option: "link-layer" "LAYER",
        syntax: Syntax::Words(LinkLayer::CHOICES), default: LinkLayer::Ethernet.word(),
        meaning: "Link layer of the ports",
        set by User, read by Library
    }
    LINK "VERVAIN_LINK" {
        option: "link" "LINK",
        syntax: Syntax::Words(LinkChoice::CHOICES), default: LinkChoice::Auto.word(),
        meaning: "Way to peers",
        set by User, read by Library
    }
    INTERFACE "VERVAIN_INTERFACE" {
        option: "interface" "NAMES",
        syntax: Syntax::Text("names of network interfaces, separated by commas"), default: "all",
        meaning: "Network interfaces whose addresses become GIDs",
        set by User, read by Library
    }
    WINDOW "VERVAIN_WINDOW" {
        option: "window" "FILE",
        syntax: Syntax::Text("a name of a file, folder or /dev/daxN.M, ivshmem or ivshmem:DDDD:BB:DD.F, or peach2: and a name of a file, and behind it ,size=BYTES, ,node=N, ,heap=on or ,direct=off if wanted"), default: "none",
        meaning: "Memory by which nodes that share no network reach each other; what is not there is made, a folder for a name with / behind",
        set by User, read by Library Preload
    }
    LOG "VERVAIN_LOG" {
        option: "log" "LEVEL",
        syntax: Syntax::Words(LogLevel::CHOICES), default: LogLevel::Warn.word(),
        meaning: "Messages on standard error; `info` explains every failed call",
        set by User, read by Library
    }
    MEMORY "VERVAIN_MEMORY" {
        option: "memory" "WAY",
        syntax: Syntax::Words(MemoryWay::CHOICES), default: MemoryWay::Auto.word(),
        meaning: "Way to a peer's memory that is not mapped",
        set by User, read by Library
    }
    SHARE "VERVAIN_SHARE" {
        option: "share" "WHERE",
        syntax: Syntax::Words(Share::CHOICES), default: Share::Auto.word(),
        meaning: "Processes whose large and page-aligned memory is allocated from shared memory, so that peers map it",
        set by User, read by Library Preload
    }
    FORK_LIMIT "VERVAIN_FORK_LIMIT" {
        option: "fork-limit" "BYTES",
        syntax: Syntax::Bytes, default: "a quarter of the memory",
        meaning: "Most shared memory that a fork copies; if there is more, the child has none",
        set by User, read by Preload
    }
    ADOPT "VERVAIN_ADOPT" {
        option: "adopt" "SWITCH",
        syntax: Syntax::Words(Switch::CHOICES), default: Switch::Off.word(),
        meaning: "Move memory that peers cannot map onto shared pages while it is registered",
        set by User, read by Library Preload
    }
    FAULTS "VERVAIN_FAULTS" {
        option: "faults" "ITEMS",
        syntax: Syntax::Text("items such as drop=1%,delay=1ms..5ms, separated by commas"), default: "none",
        meaning: "Faults made on purpose on RoCE v2 packets",
        set by User, read by Library
    }
    PCAP "VERVAIN_PCAP" {
        option: "pcap" "FILE",
        syntax: Syntax::Text("a file name"), default: "none",
        meaning: "File that RoCE v2 packets are written to, for Wireshark; %p stands for the process id",
        set by User, read by Library
    }
    SYSFS_PATH "SYSFS_PATH" {
        syntax: Syntax::Text("a directory"), default: "/sys",
        meaning: "Directory that ibv_get_sysfs_path returns, as in rdma-core",
        set by User, read by Library
    }
    SYSFS "VERVAIN_SYSFS" {
        syntax: Syntax::Text("a directory"), default: "none",
        meaning: "Tree of files that the preload shows in place of /sys/class/infiniband and /dev/infiniband",
        set by Run, read by Library Preload
    }
    JOB_FD "VERVAIN_JOB_FD" {
        syntax: Syntax::Text("a number"), default: "none",
        meaning: "Descriptor of a rank's connection to the launcher",
        set by Launch, read by Ranks
    }
    JOB_RANK "VERVAIN_JOB_RANK" {
        syntax: Syntax::Text("a number"), default: "none",
        meaning: "Number of a rank in its job, from 0",
        set by Launch, read by Ranks
    }
    JOB_SIZE "VERVAIN_JOB_SIZE" {
        syntax: Syntax::Text("a number"), default: "none",
        meaning: "Number of ranks of the job",
        set by Launch, read by Ranks
    }
    JOB_ID "VERVAIN_JOB_ID" {
        syntax: Syntax::Text("hexadecimal digits"), default: "none",
        meaning: "Random name of the job",
        set by Launch, read by Ranks
    }
    BIN "VERVAIN_BIN" {
        syntax: Syntax::Text("a file name"), default: "that of the tests' own build",
        meaning: "Command that the whole-program tests run",
        set by Tester, read by Tests
    }
    SEED "VERVAIN_SEED" {
        syntax: Syntax::Text("a number"), default: "each test's own",
        meaning: "Seed of random tests; the simulations make that run alone and print what happens",
        set by Tester, read by Tests
    }
    SEEDS "VERVAIN_SEEDS" {
        syntax: Syntax::Text("a number"), default: "each one's own",
        meaning: "Runs that each simulation makes, of the transport, of pairs and of the mesh",
        set by Tester, read by Tests
    }
    SOAK_FROM "VERVAIN_SOAK_FROM" {
        syntax: Syntax::Text("a number"), default: "10000",
        meaning: "First seed of `make soak`",
        set by Tester, read by Tests
    }
    SOAK_SECONDS "VERVAIN_SOAK_SECONDS" {
        syntax: Syntax::Text("a number"), default: "600",
        meaning: "Seconds that `make soak` runs",
        set by Tester, read by Tests
    }
    HOSTILE_PACKETS "VERVAIN_HOSTILE_PACKETS" {
        syntax: Syntax::Text("a number"), default: "10000000",
        meaning: "Packets that the test of hostile packets makes",
        set by Tester, read by Tests
    }
    WRITE_SCHEMA "VERVAIN_WRITE_SCHEMA" {
        syntax: Syntax::Text("anything"), default: "none",
        meaning: "Has the test of the results' schema write the file anew",
        set by Tester, read by Tests
    }
}

/// The variable of this name.
pub fn find(name: &str) -> Option<&'static Variable> {
    TABLE.into_iter().find(|variable| variable.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_default_is_a_value_where_values_are_known() {
        for variable in TABLE {
            if let Syntax::Words(_) | Syntax::Number { .. } = variable.syntax {
                assert!(variable.syntax.allows(variable.default.as_bytes()), "{}", variable.name());
            }
        }
    }

    #[test]
    fn names_and_options_are_there_once() {
        let names: BTreeSet<_> = TABLE.iter().map(|v| v.name()).collect();
        assert_eq!(names.len(), TABLE.len());
        let options: Vec<_> = TABLE.iter().filter_map(|v| v.option).map(|o| o.long).collect();
        assert_eq!(options.iter().collect::<BTreeSet<_>>().len(), options.len());
    }

    /// The constants are for code, the names for users: one follows from the other.
    #[test]
    fn every_variable_of_vervains_that_users_set_has_an_option_of_its_name() {
        for variable in TABLE.into_iter().filter(|v| v.setter == Setter::User) {
            let Some(name) = variable.name().strip_prefix("VERVAIN_") else { continue };
            let option = variable.option.map(|option| option.long.replace('-', "_").to_uppercase());
            assert_eq!(option.as_deref(), Some(name));
        }
    }
}
