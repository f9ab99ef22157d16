//! A rank of the tests of MPI's launchers: `vervain_tests::rank`.

fn main() -> std::process::ExitCode {
    vervain_tests::rank::main()
}
