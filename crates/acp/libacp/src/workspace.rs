//! Workspaces.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use vervain_acp::{Error, GlobalAddress, Result, World};
use vervain_acp_channel::Workspace;

use crate::error;
use crate::process::{self, Libraries};

/// `struct acp_wsditem`: what a program can read of a workspace. Nothing here reads it again.
#[repr(C)]
pub struct Item {
    size_ws: usize,
    size_default: usize,
    size_remainder: usize,
    ngas: usize,
    key_data: u64,
    ga_data: u64,
    keys: *const u64,
    gas: *const u64,
    procs: *const c_int,
    sizes: *const c_int,
    data: *mut c_void,
}

/// `ACP_WSD_NULL`.
fn null() -> *mut Item {
    ptr::without_provenance_mut(usize::MAX)
}

/// A workspace and what C sees of it.
struct Descriptor {
    item: Item,
    addresses: Vec<u64>,
    ranks: Vec<c_int>,
    sizes: Vec<c_int>,
    workspace: Arc<Workspace<'static>>,
}

// SAFETY: the pointers lead into the vectors beside them, which nobody changes, and to memory that is shared by all
// ranks.
unsafe impl Send for Descriptor {}

/// The workspaces of this rank.
pub struct Workspaces {
    maker: vervain_acp_channel::Workspaces<'static>,
    /// By the addresses that C has.
    made: Mutex<HashMap<usize, Box<Descriptor>>>,
}

impl Workspaces {
    /// None so far.
    pub fn new(world: &'static World) -> Self {
        Self { maker: vervain_acp_channel::Workspaces::new(world), made: Mutex::default() }
    }

    fn find(&self, item: *const Item) -> Result<Arc<Workspace<'static>>> {
        let all = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&item.addr()).map(|descriptor| descriptor.workspace.clone());
        found.ok_or_else(|| Error::refused("there is no such workspace"))
    }
}

/// Creates a workspace.
pub extern "C" fn acp_create_ws(size: usize) -> *mut Item {
    let Some(libraries) = process::libraries_for("acp_create_ws") else { return null() };
    match create(libraries, size) {
        Ok(item) => item,
        Err(error) => {
            error::note("acp_create_ws", error::reason(&error));
            null()
        }
    }
}

fn create(libraries: &'static Libraries, size: usize) -> Result<*mut Item> {
    let workspace = libraries.workspaces.maker.create(size)?;
    let world = libraries.channels.world();
    let blocks = workspace.blocks();
    let addresses: Vec<u64> = blocks.iter().map(|block| block.start.0).collect();
    let ranks: Vec<c_int> = blocks.iter().map(|block| block.rank.cast_signed()).collect();
    // A block has less than 2^31 bytes.
    let sizes: Vec<c_int> = blocks.iter().map(|block| block.size as c_int).collect();
    let own = blocks.iter().find(|block| block.rank == world.rank()).map_or(0, |block| block.start.0);
    let item = Item {
        size_ws: size,
        size_default: workspace.block_size(),
        size_remainder: size % workspace.block_size(),
        ngas: blocks.len(),
        // The key of a region is the address of its first byte.
        key_data: own,
        ga_data: own,
        keys: addresses.as_ptr(),
        gas: addresses.as_ptr(),
        procs: ranks.as_ptr(),
        sizes: sizes.as_ptr(),
        data: world.address(GlobalAddress(own)).unwrap_or(ptr::null_mut()),
    };
    let mut descriptor = Box::new(Descriptor { item, addresses, ranks, sizes, workspace: Arc::new(workspace) });
    debug_assert_eq!(descriptor.addresses.len(), descriptor.ranks.len().min(descriptor.sizes.len()));
    let pointer = &raw mut descriptor.item;
    libraries.workspaces.made.lock().unwrap_or_else(PoisonError::into_inner).insert(pointer.addr(), descriptor);
    Ok(pointer)
}

/// 0, or 1 and the reason.
fn status(function: &str, f: impl FnOnce(&'static Libraries) -> Result<()>) -> c_int {
    let Some(libraries) = process::libraries_for(function) else { return 1 };
    match f(libraries) {
        Ok(()) => 0,
        Err(error) => {
            error::note(function, error::reason(&error));
            1
        }
    }
}

/// Says what the next workspaces are like.
pub extern "C" fn acp_setparams_ws(proc_start: usize, size_default: usize) -> c_int {
    status("acp_setparams_ws", |libraries| libraries.workspaces.maker.set(proc_start, size_default))
}

/// Destroys a workspace.
pub extern "C" fn acp_destroy_ws(wsd: *mut Item) {
    status("acp_destroy_ws", |libraries| {
        let removed = libraries.workspaces.made.lock().unwrap_or_else(PoisonError::into_inner).remove(&wsd.addr());
        let descriptor = removed.ok_or_else(|| Error::refused("there is no such workspace"))?;
        match Arc::try_unwrap(descriptor.workspace) {
            Ok(workspace) => workspace.destroy(),
            Err(_) => Err(Error::broken("a workspace is destroyed while another thread uses it")),
        }
    });
}

/// Reads from a workspace.
pub extern "C" fn acp_read_ws(wsd: *mut Item, ga: u64, size: usize, offset: usize) -> c_int {
    status("acp_read_ws", |libraries| libraries.workspaces.find(wsd)?.read(GlobalAddress(ga), size, offset))
}

/// Writes to a workspace.
pub extern "C" fn acp_write_ws(wsd: *mut Item, ga: u64, size: usize, offset: usize) -> c_int {
    status("acp_write_ws", |libraries| libraries.workspaces.find(wsd)?.write(GlobalAddress(ga), size, offset))
}
