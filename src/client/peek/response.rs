use bytes::Bytes;
use http::Response;
use http_body::Body;

use crate::http::{BufferedBody, response::ResponseHead};

/// A reply whose body can be looked into: `http::Response`, and with the `reqwest` feature
/// `reqwest::Response`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be looked into",
    note = "`PeekLayer` is for responses with a body of `Bytes` that is `Unpin`; put others into \
            a box first: `.map_response(|r| r.map(BodyExt::boxed_unsync))`"
)]
pub trait PeekResponse: ResponseHead + Sized {
    /// The body.
    type Body: Body<Data = Bytes> + Unpin;
    /// The reply with what was read in front of the rest of its body.
    type Peeked: ResponseHead;

    #[doc(hidden)]
    fn untouched(self) -> Self::Peeked;
    #[doc(hidden)]
    fn open(self) -> (Response<()>, BufferedBody<Self::Body>);
    #[doc(hidden)]
    fn close(head: Response<()>, body: BufferedBody<Self::Body>) -> Self::Peeked;
}

impl<B> PeekResponse for Response<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Body = B;
    type Peeked = Response<BufferedBody<B>>;

    #[inline]
    fn untouched(self) -> Self::Peeked {
        self.map(BufferedBody::untouched)
    }

    fn open(self) -> (Response<()>, BufferedBody<B>) {
        let (parts, body) = self.into_parts();
        (
            Response::from_parts(parts, ()),
            BufferedBody::untouched(body),
        )
    }

    fn close(head: Response<()>, body: BufferedBody<B>) -> Self::Peeked {
        head.map(|()| body)
    }
}
