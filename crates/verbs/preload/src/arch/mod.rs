//! The parts that depend on the processor: two functions that must not have a frame of their own, and the C library's
//! oldest version.
//!
//! - dlopen(3): the real function takes its caller's DT_RUNPATH and namespace by the address that it returns to. Hence
//!   a jump there (`loading`).
//! - syscall(2): its system call may return twice or on another stack. It makes the call itself, as the C library's
//!   does, for it is called before that could be looked up (`sandbox`).

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!("the calling convention of variadic functions is known for Linux on x86-64 and AArch64 only");

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub use aarch64::OLDEST_GLIBC;
#[cfg(target_arch = "x86_64")]
pub use x86_64::OLDEST_GLIBC;
