//! Declares libpm's name and version node to the linker.

fn main() {
    // A context's thread runs this library's code, and so do the handlers of fork(2) and of the program's end: dlclose
    // must not unmap it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // The interface is PM's second version.
    vervain_symver::write_version_script("libpm.so.2", &[("PM_2.0", "")]);
}
