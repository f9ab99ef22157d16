//! Memory that is shared from birth (DESIGN decision 4a).

pub mod api;
