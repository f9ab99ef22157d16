//! How a Rust cdylib exports versioned symbols (`ibv_open_device@@IBVERBS_1.1`), and what an export does that Vervain
//! does not support.
//!
//! An unversioned library in the place of rdma-core's trips an assertion of ld.so (glibc 2.36), so versions are not a
//! nicety. Stable Rust cannot name a symbol's version; the assembler can. Each export is one jump to an ordinary
//! `extern "C"` function, and a linker script, which [`write_version_script`] makes for a build script, declares the
//! nodes. The linker must be lld, as rustc's own is on x86-64 Linux since 1.90: GNU ld refuses a second version script
//! beside the one that rustc passes. For other processors [`write_version_script`] asks for it.
//!
//! Used by the thin cdylibs: `libibverbs`, and the stand-ins for rdma-core's provider libraries. Cargo builds one
//! cdylib of a package, so each stand-in is a package; all that it has of its own is a [`Table`], and what turns that
//! into a library lies in the directory stand-in beside this crate's source. It knows nothing of verbs.

pub mod exports;
mod script;
mod table;
mod unsupported;

pub use script::{link_by_lld, write_stand_in, write_version_script};
pub use table::{ANSWERS, Table};
pub use unsupported::{absent_16, absent_24, is_false, minus_one, no_pointer, not_permitted, nothing, unsupported};

/// Exports functions under versioned names.
///
/// `default` is the version that the linker binds new programs to (`name@@NODE`), `compat` an older one beside it
/// (`name@NODE`). After `from`, each name is a function of that module; after `=>`, every name is the one function
/// given.
#[macro_export]
macro_rules! export {
    (default $node:literal from $module:ident: $($name:ident),+ $(,)?) => {
        $($crate::export!(@symbol $name "@@" $node, $module::$name);)+
    };
    (default $node:literal => $f:path: $($name:ident),+ $(,)?) => {
        $crate::export!(@same "@@" $node, [$f] $($name)+);
    };
    (compat $node:literal => $f:path: $($name:ident),+ $(,)?) => {
        $crate::export!(@same "@" $node, [$f] $($name)+);
    };
    (@same $at:literal $node:literal, $f:tt $($name:ident)+) => {
        $($crate::export!(@unwrap $name $at $node, $f);)+
    };
    (@unwrap $name:ident $at:literal $node:literal, [$f:path]) => {
        $crate::export!(@symbol $name $at $node, $f);
    };
    (@symbol $name:ident $at:literal $node:literal, $f:path) => {
        ::std::arch::global_asm!(
            ".pushsection .text.export,\"ax\",%progbits",
            concat!(".globl \"", stringify!($name), $at, $node, "\""),
            concat!(".type \"", stringify!($name), $at, $node, "\",%function"),
            concat!("\"", stringify!($name), $at, $node, "\":"),
            $crate::jump_to_f!(),
            concat!(".size \"", stringify!($name), $at, $node, "\", . - \"", stringify!($name), $at, $node, "\""),
            ".popsection",
            f = sym $f
        );
    };
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("Vervain knows x86-64 and AArch64 only");

/// The instruction that leaves for `f` without touching an argument.
#[doc(hidden)]
#[cfg(target_arch = "x86_64")]
#[macro_export]
macro_rules! jump_to_f {
    () => {
        "jmp {f}"
    };
}

/// The instruction that leaves for `f` without touching an argument.
#[doc(hidden)]
#[cfg(target_arch = "aarch64")]
#[macro_export]
macro_rules! jump_to_f {
    () => {
        "b {f}"
    };
}
