//! The environment variables that Vervain reads. [`TABLE`] has each of them with its values, its default and what it is
//! for: the library, the preload and the command parse by it, options, help and `vervain env --list` are made from it,
//! and docs/environment.md is held against it by a test.
//!
//! The library reads its variables once ([`Config::of_process`]). The preload reads one where it needs it, inside of
//! malloc too, so nothing here but [`Config`], [`WindowSpec`], [`Unknown`] and [`Variable::value`] allocates.

mod board;
mod choices;
mod config;
mod size;
mod table;
mod unknown;
mod variable;
mod window;

pub use board::{Links, Peach2, Without};
pub use choices::{LinkChoice, LinkLayer, LogLevel, MemoryWay, Share, Switch};
pub use config::{Config, is_log_level_chosen, log_level};
pub use size::bytes;
pub use table::*;
pub use unknown::{PREFIX, Unknown, nearest};
pub use variable::{Choice, Opt, Reader, Setter, Syntax, Variable, Wrong};
pub use window::{WindowSpec, WrongWord};
