//! QP 1 of the calling process, for its connection manager.

use std::sync::Arc;
use vervain_hca::Result;
use vervain_hca::qp::table;
pub use vervain_qp1::{Client, claim, release, resolve, send, slot, wake};

/// Delivers this process's MADs to `client` from now on. EBUSY: another client is attached.
pub fn attach(client: Arc<dyn Client>) -> Result<()> {
    super::start_logging();
    vervain_roce::net::check_environment()?;
    vervain_qp1::attach(table::start(super::ways)?, client)
}
