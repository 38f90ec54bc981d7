//! How server layers speak to the peer.

pub(crate) mod problem;
