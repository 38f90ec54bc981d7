//! How server layers speak to the peer.

#[cfg(feature = "server")]
pub(crate) mod block;
pub(crate) mod problem;
#[cfg(feature = "server")]
pub(crate) mod read;
#[cfg(any(feature = "delivery", feature = "forrst"))]
pub(crate) mod span;
