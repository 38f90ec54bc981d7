//! Parts of HTTP messages that several layers share: bodies, headers, gRPC's words, stored replies
//! and problem documents.

pub(crate) mod buffered;
#[cfg(feature = "server")]
pub(crate) mod codec;
#[cfg(feature = "server")]
pub(crate) mod digest;
pub(crate) mod grpc;
#[cfg(feature = "server")]
pub(crate) mod header_filter;
pub(crate) mod headers;
pub(crate) mod problem;
#[cfg(feature = "server")]
pub(crate) mod read;
#[cfg(feature = "server")]
pub(crate) mod reply;
pub(crate) mod response;
#[cfg(any(feature = "delivery", feature = "forrst"))]
pub(crate) mod span;

pub(crate) use self::buffered::UnreadBody;
#[cfg(any(feature = "delivery", feature = "forrst"))]
pub use self::span::{Span, Unit};
pub use self::{buffered::BufferedBody, grpc::GrpcCode, response::ResponseHead};
