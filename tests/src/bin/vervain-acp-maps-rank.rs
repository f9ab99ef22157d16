//! A rank of the tests of ACP's hashed containers: `vervain_tests::acp_maps`.

fn main() -> std::process::ExitCode {
    vervain_tests::acp_maps::main()
}
