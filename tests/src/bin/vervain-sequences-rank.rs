//! A rank of the tests of vectors, deques and lists: `vervain_tests::sequences_rank`.

fn main() -> std::process::ExitCode {
    vervain_tests::sequences_rank::main()
}
