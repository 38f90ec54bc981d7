use http::{Extensions, HeaderMap, Response, StatusCode};

/// A reply with a head: `http::Response`, and with the `reqwest` feature `reqwest::Response`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no HTTP response",
    note = "this layer is for services that return `http::Response<_>`, or `reqwest::Response` with \
            the `reqwest` feature; for others see `RetryLayer::cloning`"
)]
pub trait ResponseHead {
    /// Returns the status.
    fn status(&self) -> StatusCode;
    /// Returns the headers.
    fn headers(&self) -> &HeaderMap;
    /// Returns the extensions.
    fn extensions(&self) -> &Extensions;
    /// Returns the extensions, to add to them.
    fn extensions_mut(&mut self) -> &mut Extensions;
}

macro_rules! reply {
    ($response:ty $(, $body:ident)?) => {
        impl$(<$body>)? $crate::http::response::ResponseHead for $response {
            #[inline]
            fn status(&self) -> http::StatusCode {
                <$response>::status(self)
            }

            #[inline]
            fn headers(&self) -> &http::HeaderMap {
                <$response>::headers(self)
            }

            #[inline]
            fn extensions(&self) -> &http::Extensions {
                <$response>::extensions(self)
            }

            #[inline]
            fn extensions_mut(&mut self) -> &mut http::Extensions {
                <$response>::extensions_mut(self)
            }
        }
    };
}

#[cfg(feature = "reqwest")]
pub(crate) use reply;

reply!(Response<B>, B);
