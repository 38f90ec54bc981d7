//! How server layers speak to the peer.

pub(crate) mod http;
#[cfg(feature = "server")]
pub(crate) mod problem;
