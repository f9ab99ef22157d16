//! A rank of the tests of ACP: `vervain_tests::acp_rank`.

fn main() -> std::process::ExitCode {
    vervain_tests::acp_rank::main()
}
