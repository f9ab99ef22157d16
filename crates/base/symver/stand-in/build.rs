//! The build script of every stand-in: the package's exports.txt becomes its exports and its version nodes.

fn main() {
    vervain_symver::write_stand_in("exports.txt");
}
