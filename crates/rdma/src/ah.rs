//! Address handles: where a datagram goes.

use vervain_abi::ibv_ah;

use crate::error::{Error, Result};
use crate::path::{Endpoint, PathOptions};
use crate::pd::Pd;

/// The bytes in front of every datagram that is received, whether a GRH is in them or not; IBA volume 1, 11.4.1.2.
pub const GRH_BYTES: usize = 40;

/// An address handle; `ibv_create_ah(3)`. A device reads it while a datagram is posted; what is still under way when it
/// is dropped may be lost, as datagrams may.
pub struct Ah {
    pub(crate) raw: *mut ibv_ah,
    pub(crate) pd: Pd,
}

// SAFETY: the functions of libibverbs may be called from any thread; a handle does not change once it is made.
unsafe impl Send for Ah {}
// SAFETY: as above.
unsafe impl Sync for Ah {}

impl Ah {
    /// A handle for `remote` over the path `path`, for the UD QPs of this domain.
    ///
    /// # Errors
    /// A path that cannot lead there: a GID on one side only. Else what the driver says, as ETIMEDOUT where the
    /// address cannot be resolved.
    pub fn new(pd: &Pd, remote: &Endpoint, path: &PathOptions) -> Result<Ah> {
        let mut vector = path.address(remote)?;
        // SAFETY: an allocated domain and an address vector of the layout that the call reads.
        let raw = unsafe { (pd.context().0.library.0.create_ah)(pd.0.raw, &mut vector) };
        if raw.is_null() {
            let to = remote.gid.map_or_else(|| format!("LID {}", remote.lid), |gid| gid.to_string());
            return Err(Error::last("ibv_create_ah", format!("{to} from {}", pd.context().name())));
        }
        Ok(Ah { raw, pd: pd.clone() })
    }
}

impl Drop for Ah {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once; requests that name it borrow it, and are read when they are posted.
        unsafe { (self.pd.context().0.library.0.destroy_ah)(self.raw) };
    }
}
