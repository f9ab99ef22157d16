//! The variables whose values are words: an enum for each, with the words and what they mean.

use crate::variable::Choice;

macro_rules! choices {
    ($($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal, $meaning:literal;)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $(#[doc = $meaning] $variant),* }

        impl $name {
            /// The words, in the order in which they are listed.
            pub const CHOICES: &[Choice] = &[$(Choice { word: $word, meaning: $meaning }),*];

            /// The choice that a word stands for; case does not matter.
            pub fn of(text: &[u8]) -> Option<$name> {
                $(if text.eq_ignore_ascii_case($word.as_bytes()) {
                    return Some($name::$variant);
                })*
                None
            }

            /// The word.
            pub const fn word(self) -> &'static str {
                match self { $($name::$variant => $word),* }
            }
        }
    )* };
}

choices! {
    /// The link layer of the ports.
    LinkLayer {
        Ethernet = "ethernet", "RoCE v2: GIDs from the host's addresses";
        Infiniband = "infiniband", "LIDs, an SM LID and fe80:: GIDs";
    }

    /// How QPs reach their peers.
    LinkChoice {
        Auto = "auto", "Processes of this user on this host by memory, all others by RoCE v2 packets";
        Local = "local", "By memory only; no packet leaves the program";
        Roce = "roce", "By RoCE v2 packets only, on this host too";
        Window = "window", "Through the memory that VERVAIN_WINDOW names only, in which peers can write and not read";
    }

    /// The lowest level of messages that go to standard error.
    LogLevel {
        Off = "off", "Nothing";
        Error = "error", "Errors: no device, or something broken";
        Warn = "warn", "Warnings, too";
        Info = "info", "The reason for each failed verb and work request, too";
        Debug = "debug", "Events between processes and hosts, too";
        Trace = "trace", "All";
    }

    /// How a peer's memory that is not mapped is reached.
    MemoryWay {
        Auto = "auto", "process_vm calls, or copies by the owner if the kernel refuses them";
        Vm = "vm", "process_vm calls; if the kernel refuses them, the operation fails (remote operation error)";
        Owner = "owner", "Copies by the owner of the memory";
    }

    /// Which processes allocate from shared memory.
    Share {
        Auto = "auto", "Those that load the verbs library, from that moment on";
        Always = "always", "All, from their start";
        Off = "off", "None";
    }

    /// A thing that is done or not.
    Switch {
        On = "on", "Yes";
        Off = "off", "No";
    }
}
