use http::Response;
use http_body::Body;

use crate::http::{BufferedBody, response::ResponseHead};

/// A reply whose body can be looked into: `http::Response`, and with the `reqwest` feature
/// `reqwest::Response`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't be looked into",
    note = "`PeekLayer` is for `http::Response<_>` with a body, and for `reqwest::Response` with the \
            `reqwest` feature"
)]
pub trait PeekResponse: ResponseHead + Sized {
    /// The body.
    type Body: Body;
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
    B: Body,
{
    type Body = B;
    type Peeked = Response<BufferedBody<B>>;

    #[inline]
    fn untouched(self) -> Self::Peeked {
        self.map(BufferedBody::new)
    }

    fn open(self) -> (Response<()>, BufferedBody<B>) {
        let (parts, body) = self.into_parts();
        (Response::from_parts(parts, ()), BufferedBody::new(body))
    }

    fn close(head: Response<()>, body: BufferedBody<B>) -> Self::Peeked {
        head.map(|()| body)
    }
}
