//! Registration of the program's memory: with the device, then under the key by which peers name it. A key that peers
//! may remember is given out again only after a round in which they forget it.

use std::ffi::c_void;

use crate::address::GlobalAddress;
use crate::error::{Error, Result};
use crate::memory::Rights;
use crate::progress::Progress;
use crate::table::{KeyFor, Table};

impl Progress {
    /// Registers memory for peers to read and write. Waits for a round if no key is free.
    ///
    /// # Safety
    /// As of [`World::register_foreign`](crate::World::register_foreign).
    pub unsafe fn register(&self, start: *mut c_void, len: usize, color: u32) -> Result<GlobalAddress> {
        loop {
            // SAFETY: handed on to the caller.
            if let Some(key) = unsafe { self.register_if(start, len, color, Rights::Write, Table::key)? } {
                return Ok(key);
            }
            self.wait(|engine| Ok((!engine.in_round()).then_some(())))?;
        }
    }

    /// Registers memory for color 0. Refused if it would have to wait for a round, which then begins.
    ///
    /// # Safety
    /// As of [`World::register_foreign`](crate::World::register_foreign).
    pub unsafe fn register_at_once(&self, start: *mut c_void, len: usize, rights: Rights) -> Result<GlobalAddress> {
        self.with(|engine| {
            if engine.memory().table.wants_round() {
                engine.begin_round();
            }
        });
        // SAFETY: handed on to the caller.
        let key = unsafe { self.register_if(start, len, 0, rights, Table::key_at_once)? };
        key.ok_or_else(|| Error::refused("other ranks may remember what was registered before"))
    }

    /// Registers memory under a key that `key` yields. None if peers have to forget others first: the round has begun.
    ///
    /// # Safety
    /// As of [`World::register_foreign`](crate::World::register_foreign).
    unsafe fn register_if(
        &self,
        start: *mut c_void,
        len: usize,
        color: u32,
        rights: Rights,
        key: impl FnOnce(&mut Table) -> Result<KeyFor>,
    ) -> Result<Option<GlobalAddress>> {
        let (colors, most) = self.with(|engine| (engine.mesh().colors(), engine.memory().layout.max_region_size()));
        if color >= colors {
            return Err(Error::refused(format!("there is no color {color}: this rank has {colors}")));
        }
        if start.is_null() || len == 0 {
            return Err(Error::refused(format!("{len} bytes from {start:p} on are no memory")));
        }
        if len as u64 > most {
            return Err(Error::refused(format!(
                "a region of {len} bytes is too large: {most} are the most in a job of this size"
            )));
        }
        // SAFETY: handed on to the caller.
        let registration = self.with(|engine| unsafe { engine.register(start, len, color, rights) })?;
        let key = self.with(|engine| {
            // A peer that remembers another region by this number must not reach the new one.
            let table = &mut engine.memory_mut().table;
            if table.remembers(registration.rkey) { Ok(KeyFor::AfterRound) } else { key(table) }
        });
        match key {
            Ok(KeyFor::Key(key)) => {
                Ok(Some(self.with(|engine| engine.memory_mut().table.insert(key, registration, color))))
            }
            Ok(KeyFor::AfterRound) => {
                if !registration.deregister() {
                    let kept = format!("the device does not let go of {len} bytes from {start:p} on");
                    return Err(Error::refused(kept).held_unless(false));
                }
                self.with(|engine| engine.begin_round());
                Ok(None)
            }
            Err(error) => Err(error.held_unless(registration.deregister())),
        }
    }
}
