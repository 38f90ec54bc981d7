//! How server layers speak to the peer.

pub(crate) mod problem;
#[cfg(feature = "server")]
pub(crate) mod read;
