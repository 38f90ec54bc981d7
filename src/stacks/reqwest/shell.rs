//! A request of reqwest's, as one of `http`'s and back.

use std::{cell::Cell, mem, time::Duration};

use bytes::Bytes;
use http::{
    Request, Uri,
    uri::{Authority, PathAndQuery},
};
use http_body::Body as _;
use reqwest::{Body, Error, Url};

thread_local! {
    /// Where the last request went.
    static LAST: Cell<Option<Uri>> = const { Cell::new(None) };
}

/// A URL as a URI, unless it is none. Most go where the last one went, and then only what comes
/// after the authority is read, or not even that, where one URL takes all calls.
pub(super) fn uri(url: &Url) -> Option<Uri> {
    let last = LAST.try_with(Cell::take).ok().flatten();
    let known = last.and_then(|last| {
        let path = after(url, last.scheme_str()?, last.authority()?.as_str())?;
        if Some(path) == last.path_and_query().map(PathAndQuery::as_str) {
            return Some(last);
        }
        let mut parts = last.into_parts();
        parts.path_and_query = Some(path_and_query(path)?);
        Uri::from_parts(parts).ok()
    });
    known.or_else(|| Uri::try_from(url.as_str()).ok())
}

/// Keeps a URI for the next request, unless it has credentials or is very long.
fn keep(uri: Uri) {
    const LONGEST: usize = 1024;
    let authority = uri.authority().map_or("", Authority::as_str);
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    if path.len() <= LONGEST && !authority.contains('@') {
        let _ = LAST.try_with(|last| last.set(Some(uri)));
    }
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
    keep(parts.uri);
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "this is a test")]
mod tests {
    use super::*;

    #[test]
    fn s_3_what_was_called_before_never_changes_where_a_request_goes() {
        let long = format!("http://a.example/{}", "x".repeat(2000));
        let urls = [
            "http://a.example/",
            "http://a.example/v1?q=1",
            "http://a.example/v1?q=12",
            "http://a.example/v1?q=1#part",
            "http://a.example.evil/v1?q=1",
            "http://a.example:8080/v1",
            "https://a.example/v1",
            "http://me:secret@a.example/v1",
            &long,
        ];
        for before in urls {
            for after in urls {
                keep(Uri::try_from(before).unwrap());
                let url: Url = after.parse().unwrap();
                assert_eq!(uri(&url), Uri::try_from(after).ok(), "after {before}");
            }
        }
    }

    #[test]
    fn s_2_credentials_of_a_url_are_not_kept() {
        keep(Uri::from_static("http://me:secret@a.example/v1"));
        assert!(LAST.with(Cell::take).is_none());
    }
}
