use http::{Request, Uri};

/// Returns the URI that a request arrived with. Nested axum routers see only their own part of the
/// path; axum keeps the whole of it on the request.
pub(crate) fn original_uri(head: &Request<()>) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = head.extensions().get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    head.uri()
}

/// Sets the URI that a request arrived with, for one that is rebuilt.
#[cfg(feature = "delivery")]
pub(crate) fn set_original_uri(request: &mut Request<()>, original: Uri) {
    #[cfg(feature = "axum")]
    request
        .extensions_mut()
        .insert(axum::extract::OriginalUri(original));
    #[cfg(not(feature = "axum"))]
    let _ = (request, original);
}
