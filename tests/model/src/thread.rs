//! Threads of a model.

use crate::memory::{self, View};

pub(crate) struct JoinHandle<T>(shuttle::thread::JoinHandle<(T, View)>);

/// Starts a thread, which knows what the caller knows.
pub(crate) fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let known = memory::known();
    JoinHandle(shuttle::thread::spawn(move || {
        memory::hear(&known);
        let result = f();
        (result, memory::known())
    }))
}

impl<T> JoinHandle<T> {
    /// Waits until it has ended.
    pub(crate) fn join(self) -> T {
        let (result, known) = self.0.join().expect("a model ends where it panics");
        memory::hear(&known);
        result
    }
}
