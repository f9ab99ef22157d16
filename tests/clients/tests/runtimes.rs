//! Large runtimes whose memory is allocated from shared memory: numpy, and a JVM.

use std::process::Command;
use std::time::Duration;

use vervain_tests::{Finished, Job, have, skip, under_vervain};

/// Debian's own, whose modules are Debian's packages.
const PYTHON: &str = "/usr/bin/python3";
const LIMIT: Duration = Duration::from_secs(60);

fn end(command: &mut Command) -> Finished {
    Job::start(command).finish(LIMIT)
}

/// A program under `vervain run` whose memory is shared although it does not use verbs.
fn served(program: &str) -> Command {
    let mut command = under_vervain(program);
    command.env("VERVAIN_SHARE", "always");
    command
}

#[test]
fn numpy_computes_the_same() {
    if !Command::new(PYTHON).args(["-c", "import numpy"]).output().is_ok_and(|end| end.status.success()) {
        skip("this machine has no numpy (package python3-numpy)");
        return;
    }
    let script = "import numpy as np\na = np.arange(1 << 22, dtype=float).reshape(2048, 2048)\n\
                  for _ in range(20): a[1:-1, 1:-1] = (a[:-2, 1:-1] + a[2:, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:]) / 4\n\
                  print(float(a.sum()), float(np.linalg.norm(a[:300, :300] @ a[:300, :300])))";
    let expected = end(Command::new(PYTHON).args(["-c", script]));
    let got = end(served(PYTHON).args(["-c", script]));
    assert!(expected.success() && got.success(), "{}", got.describe());
    assert_eq!(got.output, expected.output);
}

#[test]
fn a_jvm_collects_its_garbage() {
    if !have(&["java", "javac"]) {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let source = "public class Share { public static void main(String[] a) throws Exception { long s = 0; \
                  for (int i = 0; i < 2000; i++) { byte[] b = new byte[300000 + i]; b[i] = 1; s += b.length + b[i]; } \
                  java.nio.ByteBuffer d = java.nio.ByteBuffer.allocateDirect(8 << 20); d.put(5, (byte) 3); \
                  Process p = new ProcessBuilder(\"echo\", \"child\").inheritIO().start(); p.waitFor(); \
                  System.out.println(\"sum \" + s + \" \" + d.get(5)); } }";
    std::fs::write(dir.path().join("Share.java"), source).expect("a source file");
    let compiled = end(Command::new("javac").arg(dir.path().join("Share.java")));
    assert!(compiled.success(), "{}", compiled.describe());
    let got = end(served("java").args(["-Xmx64m", "-cp"]).arg(dir.path()).arg("Share"));
    assert!(got.success() && got.output.contains("sum 602001000 3"), "{}", got.describe());
}
