//! A rank of the tests of `vervain launch`: `vervain_tests::rank`.

fn main() -> std::process::ExitCode {
    vervain_tests::rank::main()
}
