//! ACP's messages between ranks: channels, segmented buffers, and workspaces over many ranks.

use vervain_acp::World;

/// The channels, segmented buffers and workspaces of this rank.
pub struct Channels<'w> {
    world: &'w World,
}

impl<'w> Channels<'w> {
    /// None are open.
    pub fn new(world: &'w World) -> Self {
        Self { world }
    }

    /// The world that they are of.
    pub fn world(&self) -> &'w World {
        self.world
    }
}
