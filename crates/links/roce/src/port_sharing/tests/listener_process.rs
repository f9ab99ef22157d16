//! For tests: a process that listens under a name, and does nothing else. It is this test binary again, asked for by a
//! variable of the environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use vervain_sockets::socket::Socket;

const VARIABLE: &str = "VERVAIN_TEST_LISTENER";
const LISTENS: &str = "#listens";

/// The process, until dropped.
pub struct ListenerProcess(Child);

impl ListenerProcess {
    /// Starts one, which listens under `name`; None: the name is taken.
    pub fn start(name: &str) -> Option<ListenerProcess> {
        let itself = "port_sharing::listener_process::the_process";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", itself, "--nocapture", "--test-threads=1"])
            .env(VARIABLE, name)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let listens = lines.map_while(Result::ok).any(|line| line == LISTENS);
        let process = ListenerProcess(child);
        listens.then_some(process)
    }

    /// Stops it.
    pub fn stop(&self) {
        // SAFETY: a signal to a child that has not been waited for; its report goes to a struct on this stack, for
        // which zeros are valid.
        unsafe {
            libc::kill(self.pid(), libc::SIGSTOP);
            libc::waitid(libc::P_PID, self.0.id(), &mut std::mem::zeroed(), libc::WSTOPPED);
        }
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        // SAFETY: as above.
        unsafe {
            libc::kill(self.pid(), libc::SIGCONT);
            libc::waitid(libc::P_PID, self.0.id(), &mut std::mem::zeroed(), libc::WCONTINUED);
        }
    }

    fn pid(&self) -> i32 {
        self.0.id().cast_signed()
    }
}

impl Drop for ListenerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The process, if this is one.
#[test]
fn the_process() {
    let Ok(name) = std::env::var(VARIABLE) else { return };
    let Ok(_listener) = Socket::listen(&name) else { return };
    std::io::stdout().write_all(format!("\n{LISTENS}\n").as_bytes()).unwrap();
    let _ = std::io::stdin().read(&mut [0]);
}
