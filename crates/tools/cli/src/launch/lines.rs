//! The output of the ranks: cut into lines, each behind the number of its rank, and written by a thread for each
//! stream, so that a slow reader stops neither signals nor the ranks' store.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// A line that is longer is cut: the launcher's memory is not for lines without an end.
const LONGEST: usize = 1 << 20;
/// Bytes that may wait to be written before ranks have to wait.
const MOST_WAITING: usize = 1 << 20;

/// Cuts what a rank writes into lines.
pub struct Lines {
    prefix: String,
    begun: Vec<u8>,
}

impl Lines {
    /// For a rank; without its number in front if `plain`.
    pub fn new(rank: u32, plain: bool) -> Lines {
        Lines { prefix: if plain { String::new() } else { format!("[{rank}] ") }, begun: Vec::new() }
    }

    /// The whole lines, ready to be written, after `bytes` have come.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut whole = Vec::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") || self.begun.len() >= LONGEST {
                self.line(&mut whole);
            }
        }
        whole
    }

    /// The rest after the rank has closed the stream. A last line without a newline gets one, so that the next rank's
    /// begins at the left, unless output is to stay as it is.
    pub fn end(&mut self) -> Vec<u8> {
        let mut whole = Vec::new();
        if !self.begun.is_empty() {
            self.line(&mut whole);
        }
        whole
    }

    fn line(&mut self, whole: &mut Vec<u8>) {
        whole.extend_from_slice(self.prefix.as_bytes());
        whole.append(&mut self.begun);
        if !self.prefix.is_empty() && !whole.ends_with(b"\n") {
            whole.push(b'\n');
        }
    }
}

/// A stream of the launcher's, with the thread that writes to it.
pub struct Writer {
    queue: Option<Sender<Vec<u8>>>,
    state: Arc<State>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    waiting: AtomicUsize,
    gone: AtomicBool,
}

impl Writer {
    /// Starts the thread that writes to `stream`.
    pub fn start(stream: impl Write + Send + 'static) -> io::Result<Writer> {
        let (queue, pieces) = channel();
        let state = Arc::new(State::default());
        let own = Arc::clone(&state);
        let thread = thread::Builder::new().name("output".into()).spawn(move || write(stream, &pieces, &own))?;
        Ok(Writer { queue: Some(queue), state, thread: Some(thread) })
    }

    /// Hands bytes to the thread, which writes them behind those of earlier calls.
    pub fn write(&self, bytes: Vec<u8>) {
        if let Some(queue) = self.queue.as_ref().filter(|_| !bytes.is_empty()) {
            self.state.waiting.fetch_add(bytes.len(), Ordering::Relaxed);
            // The thread ends after its queue.
            let _ = queue.send(bytes);
        }
    }

    /// Returns true if so much waits that no more is to be read for now.
    pub fn is_full(&self) -> bool {
        self.state.waiting.load(Ordering::Relaxed) >= MOST_WAITING
    }

    /// Returns true if nobody reads any more.
    pub fn is_gone(&self) -> bool {
        self.state.gone.load(Ordering::Relaxed)
    }
}

/// Waits until all is written.
impl Drop for Writer {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write(mut stream: impl Write, pieces: &Receiver<Vec<u8>>, state: &State) {
    for piece in pieces {
        if !state.gone.load(Ordering::Relaxed) && stream.write_all(&piece).and_then(|()| stream.flush()).is_err() {
            state.gone.store(true, Ordering::Relaxed);
        }
        state.waiting.fetch_sub(piece.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn lines_are_whole_and_have_the_ranks_number() {
        let mut lines = Lines::new(3, false);
        assert_eq!(lines.push(b"one\ntw"), b"[3] one\n");
        assert_eq!(lines.push(b"o\n\nthree"), b"[3] two\n[3] \n");
        assert_eq!(lines.end(), b"[3] three\n");
        assert_eq!(lines.end(), b"");
    }

    #[test]
    fn plain_output_is_what_the_rank_wrote() {
        let mut lines = Lines::new(3, true);
        assert_eq!(lines.push(b"one\ntw"), b"one\n");
        assert_eq!(lines.end(), b"tw");
    }

    #[test]
    fn a_line_without_an_end_is_cut() {
        let mut lines = Lines::new(0, false);
        let piece = vec![b'x'; LONGEST / 2];
        assert_eq!(lines.push(&piece), b"");
        assert_eq!(lines.push(&piece).len(), LONGEST + "[0] \n".len());
        assert_eq!(lines.end(), b"");
    }

    struct Kept(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut kept = self.0.lock().unwrap();
            if kept.len() >= self.1 {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            kept.extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn all_is_written_before_the_writer_is_gone_and_a_reader_that_has_gone_is_told() {
        let kept = Arc::default();
        let writer = Writer::start(Kept(Arc::clone(&kept), usize::MAX)).unwrap();
        for n in 0..1000 {
            writer.write(vec![n as u8]);
        }
        drop(writer);
        assert_eq!(kept.lock().unwrap().len(), 1000);

        let writer = Writer::start(Kept(Arc::default(), 1)).unwrap();
        for _ in 0..2 {
            writer.write(vec![0]);
        }
        while !writer.is_gone() {
            thread::yield_now();
        }
        assert!(!writer.is_full());
    }
}
