//! A rank of the tests of the mesh: `vervain_tests::mesh`.

fn main() -> std::process::ExitCode {
    vervain_tests::mesh::main()
}
