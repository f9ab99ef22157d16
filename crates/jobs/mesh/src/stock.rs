//! The objects of the devices that a mesh makes, without a job: for who wants to know what they cost.

use crate::error::Result;
use crate::options::Options;
use crate::port::{Pair, Port};

/// Open devices, and pairs of QPs as connections have them.
pub struct Stock {
    // First, since they use the ports' queues.
    pairs: Vec<Pair>,
    ports: Vec<Port>,
}

impl Stock {
    /// Opens the devices with what all connections share: CQs, an SRQ, a door.
    ///
    /// # Errors
    /// No usable device, or not the resources.
    pub fn open(options: &Options) -> Result<Stock> {
        Ok(Stock { pairs: Vec::new(), ports: Port::open_all(options)? })
    }

    /// Open devices.
    pub fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Makes a pair of QPs at the first device, with the receives for notices posted, as in a place of the pool.
    ///
    /// # Errors
    /// What verbs says.
    pub fn make(&mut self) -> Result<()> {
        let pair = self.ports[0].pair()?;
        self.ports[0].prepare(&pair, 0)?;
        self.pairs.push(pair);
        Ok(())
    }
}
