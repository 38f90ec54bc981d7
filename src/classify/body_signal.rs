use http::HeaderMap;

use crate::{
    classify::{Advice, CodeRule},
    http::response::ResponseHead,
};

/// The finding of a read body, in a response's extensions.
#[derive(Debug, Clone)]
pub(crate) enum BodySignal {
    /// The trailers of a gRPC response without a message.
    Trailers(HeaderMap),
    /// An error code.
    Code(CodeRule, Advice),
    /// Advice beside a code that is not known.
    Advice(Advice),
}

impl BodySignal {
    #[inline]
    pub(crate) fn of<R: ResponseHead>(response: &R) -> Option<&Self> {
        let extensions = response.extensions();
        if extensions.is_empty() {
            return None;
        }
        extensions.get()
    }
}
