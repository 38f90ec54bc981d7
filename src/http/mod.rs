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
#[cfg(feature = "server")]
pub(crate) mod original_uri;
pub(crate) mod problem;
#[cfg(feature = "server")]
pub(crate) mod read;
#[cfg(feature = "server")]
pub(crate) mod reply;
#[cfg(feature = "server")]
pub(crate) mod request_body;
pub(crate) mod response;
#[cfg(any(feature = "delivery", feature = "forrst"))]
pub(crate) mod span;

pub(crate) use self::buffered::UnreadBody;
#[cfg(feature = "server")]
pub use self::request_body::RequestBody;
#[cfg(any(feature = "delivery", feature = "forrst"))]
pub use self::span::{Span, Unit};
pub use self::{buffered::BufferedBody, grpc::GrpcCode, response::ResponseHead};
