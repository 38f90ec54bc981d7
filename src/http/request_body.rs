use bytes::Bytes;
use http_body::Body;
use http_body_util::{
    BodyExt, Full,
    combinators::{BoxBody, UnsyncBoxBody},
};
use tower_http::{body::Limited, timeout::TimeoutBody};

use super::BufferedBody;

/// A request body that a server layer can read, and make anew for the service that it calls.
///
/// `Full`, the boxes of http-body-util and, with their features, the bodies of axum and tonic are made
/// anew as what they were. The bodies of other layers and of hyper's servers can't be: services below
/// get a [`BufferedBody`] of them, which those of axum and tonic take. tower-http's limits and timeouts
/// are such; any other body is put into one with `MapRequestBodyLayer::new(BufferedBody::new)`.
#[diagnostic::on_unimplemented(
    message = "a server layer can't make a request body of type `{Self}` anew",
    note = "put it into a `BufferedBody`, in the line above the layer: \
            `.layer(MapRequestBodyLayer::new(BufferedBody::new))` of tower-http, or \
            `.map_request(|r: Request<_>| r.map(BufferedBody::new))`",
    note = "the bodies of axum, tonic and hyper are known with the features of these names"
)]
pub trait RequestBody: Body + Sized {
    /// The body that the inner service gets.
    type Rebuilt: Body + 'static;

    /// Passes on a body of which nothing was read.
    fn untouched(self) -> Self::Rebuilt;

    /// Makes a body of the data that was read.
    fn rebuilt(data: Bytes) -> Self::Rebuilt;
}

/// Implements [`RequestBody`] for bodies that are made anew as what they were.
macro_rules! rebuilt_as_it_was {
    ($([$($param:ident: $($bound:path),+)?] $body:ty, $from:expr);+ $(;)?) => {$(
        impl$(<$param: $($bound +)+ 'static>)? $crate::http::RequestBody for $body {
            type Rebuilt = Self;

            fn untouched(self) -> Self {
                self
            }

            fn rebuilt(data: bytes::Bytes) -> Self {
                $from(data)
            }
        }
    )+};
}
#[cfg(any(feature = "axum", feature = "tonic"))]
pub(crate) use rebuilt_as_it_was;

fn full<E>(data: Bytes) -> impl Body<Data = Bytes, Error = E> {
    Full::new(data).map_err(|never| match never {})
}

rebuilt_as_it_was! {
    [] Full<Bytes>, Full::new;
    [B: Body] BufferedBody<B>, BufferedBody::from;
    [E: Send, Sync] BoxBody<Bytes, E>, |data| BodyExt::boxed(full(data));
    [E: Send] UnsyncBoxBody<Bytes, E>, |data| BodyExt::boxed_unsync(full(data));
}

/// Implements [`RequestBody`] for bodies that can't be made.
macro_rules! rebuilt_in_a_buffer {
    ($([$($param:ident)?] $body:ty);+ $(;)?) => {$(
        impl$(<$param: 'static>)? RequestBody for $body
        where
            Self: Body,
        {
            type Rebuilt = BufferedBody<Self>;

            fn untouched(self) -> BufferedBody<Self> {
                BufferedBody::new(self)
            }

            fn rebuilt(data: Bytes) -> BufferedBody<Self> {
                data.into()
            }
        }
    )+};
}

rebuilt_in_a_buffer! {
    [B] Limited<B>;
    [B] TimeoutBody<B>;
    [B] http_body_util::Limited<B>;
}
#[cfg(feature = "hyper")]
rebuilt_in_a_buffer!([] hyper::body::Incoming);
