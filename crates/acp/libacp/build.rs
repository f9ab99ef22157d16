//! Declares libacp's name and version nodes to the linker.

fn main() {
    // The progress thread runs this library's code, and so does the handler of fork(2): dlclose must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The binary interface is the types and constants of acp.h, version 3, and ends with that. It is not that of the
    // original's libacpbl_*.so.2, which programs load by other names. The basic layer came first; what stands above it
    // has the node that follows.
    vervain_symver::write_version_script("libacp.so.3", &[("ACP_3.0", ""), ("ACP_3.1", "ACP_3.0")]);
}
