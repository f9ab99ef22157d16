//! An end of the tests of processes whose addresses change: `vervain_tests::moved`.

fn main() -> std::process::ExitCode {
    vervain_tests::moved::main()
}
