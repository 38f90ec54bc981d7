//! A request of reqwest's, as one of `http`'s and back.

use std::{cell::RefCell, mem, time::Duration};

use bytes::Bytes;
use http::{
    Request, Uri,
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body::Body as _;
use reqwest::{Body, Error, Url};

thread_local! {
    /// Where the last request went: `https://stock.example`, in parts.
    static LAST: RefCell<Option<(Scheme, Authority)>> = const { RefCell::new(None) };
}

/// A URL as a URI, unless it is none. Most go where the last one went, and then only what comes
/// after the authority is read.
pub(super) fn uri(url: &Url) -> Option<Uri> {
    let known = |last: &RefCell<Option<(Scheme, Authority)>>| {
        let last = last.try_borrow().ok()?;
        let (scheme, authority) = last.as_ref()?;
        let path = after(url, scheme.as_str(), authority.as_str())?;
        let mut parts = http::uri::Parts::default();
        parts.path_and_query = Some(path_and_query(path)?);
        parts.scheme = Some(scheme.clone());
        parts.authority = Some(authority.clone());
        Uri::from_parts(parts).ok()
    };
    let known = LAST.try_with(known).ok().flatten();
    known.or_else(|| {
        let uri = Uri::try_from(url.as_str()).ok()?;
        // By itself, so that nothing else of the URL is kept, and without credentials.
        let (scheme, authority) = (uri.scheme()?, uri.authority()?.as_str());
        let last = Authority::try_from(authority)
            .ok()
            .filter(|_| !authority.contains('@'));
        let last = last.map(|authority| (scheme.clone(), authority));
        let _ = LAST.try_with(|known| known.try_borrow_mut().map(|mut known| *known = last));
        Some(uri)
    })
}

fn path_and_query(path: &str) -> Option<PathAndQuery> {
    let path = path.starts_with('/').then_some(path)?;
    PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(path.as_bytes())).ok()
}

/// What comes after the authority, if the scheme and the authority are these.
fn after<'a>(url: &'a Url, scheme: &str, authority: &str) -> Option<&'a str> {
    let rest = url.as_str().strip_prefix(scheme)?.strip_prefix("://")?;
    rest.strip_prefix(authority)
}

/// Takes a request apart: what one of `http`'s to this URI can hold comes out. What stays is its
/// URL, parsed, and what reqwest keeps to itself.
pub(super) fn empty(request: &mut reqwest::Request, uri: Uri) -> Request<Body> {
    let mut plain = Request::new(request.body_mut().take().unwrap_or_default());
    *plain.uri_mut() = uri;
    *plain.method_mut() = request.method().clone();
    *plain.version_mut() = request.version();
    mem::swap(plain.headers_mut(), request.headers_mut());
    plain
}

/// Puts a request together again.
pub(super) fn fill(shell: &mut reqwest::Request, plain: Request<Body>) {
    let (parts, body) = plain.into_parts();
    *shell.method_mut() = parts.method;
    *shell.version_mut() = parts.version;
    *shell.headers_mut() = parts.headers;
    // One without a body comes back as it was.
    *shell.body_mut() = (!body.is_end_stream()).then_some(body);
}

/// What makes another shell like the first one, since a URI has no fragment.
#[derive(Debug, Default)]
pub(super) struct Mould {
    fragment: Option<String>,
    timeout: Option<Duration>,
}

impl Mould {
    pub(super) fn of(request: &reqwest::Request) -> Self {
        Self {
            fragment: request.url().fragment().map(str::to_owned),
            timeout: request.timeout().copied(),
        }
    }

    pub(super) fn shell(&self, uri: &Uri) -> Result<reqwest::Request, Error> {
        let mut target = Request::new(Body::default());
        target.uri_mut().clone_from(uri);
        let mut request = reqwest::Request::try_from(target)?;
        if let Some(fragment) = &self.fragment {
            request.url_mut().set_fragment(Some(fragment));
        }
        if self.timeout.is_some() {
            *request.timeout_mut() = self.timeout;
        }
        Ok(request)
    }
}

/// Whether a URL without its fragment is this URI.
pub(super) fn is_same(url: &Url, uri: &Uri) -> bool {
    let rest = || {
        let rest = after(url, uri.scheme_str()?, uri.authority()?.as_str())?;
        rest.strip_prefix(uri.path_and_query()?.as_str())
    };
    rest().is_some_and(|rest| rest.is_empty() || rest.starts_with('#'))
}
