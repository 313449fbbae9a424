//! What the machine is and what it can do.

mod disk;
mod facts;
mod limits;

pub use disk::Disk;
pub use facts::Facts;
pub use limits::Limits;
