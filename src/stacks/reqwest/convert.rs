//! A request of reqwest's, as one of `http`'s and back.

use std::{mem, time::Duration};

use bytes::Bytes;
use http::{
    Request, Uri,
    uri::{Authority, PathAndQuery},
};
use http_body::Body as _;
use reqwest::{Body, Error, Url};

/// Where the last request went. Most go there again, and then their URL is not parsed.
#[derive(Debug, Default)]
pub(super) struct UriCache {
    uri: Uri,
    /// The same as text. Where each URL was compared with the parts of the URI, a `RetryLayer` as a
    /// middleware added 3,390 instead of 3,290 instructions (callgrind).
    url: String,
    /// Whether it may be kept: it has no credentials, and is not very long.
    fit: bool,
    /// Whether the layers have it.
    lent: bool,
}

impl UriCache {
    /// Turns to a URL, unless that is no URI. What it has in common with the last one is not read
    /// again.
    #[inline]
    pub(super) fn turn_to(&mut self, url: &Url) -> Option<()> {
        match without_fragment(url) == self.url {
            true => Some(()),
            false => self.read(url),
        }
    }

    #[inline(never)]
    fn read(&mut self, url: &Url) -> Option<()> {
        let last = mem::take(&mut self.uri);
        let text = without_fragment(url);
        let near = || {
            let path = after(text, last.scheme_str()?, last.authority()?.as_str())?;
            let mut parts = last.into_parts();
            parts.path_and_query = Some(path_and_query(path)?);
            Uri::from_parts(parts).ok()
        };
        self.url.clear();
        self.uri = near().or_else(|| Uri::try_from(text).ok())?;
        self.url.push_str(text);
        self.fit = is_fit(&self.uri);
        Some(())
    }

    /// Notes that the layers get the URI.
    pub(super) fn lend(&mut self) {
        self.lent = true;
    }

    /// Takes the URI back. Returns whether it is still the one that was turned to.
    #[inline]
    pub(super) fn take_back(&mut self, uri: &Uri) -> bool {
        let rest = || {
            let rest = after(&self.url, uri.scheme_str()?, uri.authority()?.as_str())?;
            Some(rest == uri.path_and_query()?.as_str())
        };
        let same = rest() == Some(true);
        self.lent &= !same;
        same
    }

    /// Looks at where a request goes that was turned elsewhere.
    pub(super) fn turned(&mut self, uri: &Uri) {
        self.url.clear();
        self.fit = is_fit(uri);
    }

    /// Forgets what may not be kept.
    pub(super) fn clear(&mut self) {
        if !self.fit || self.lent {
            *self = Self::default();
        }
    }
}

fn is_fit(uri: &Uri) -> bool {
    const LONGEST: usize = 1024;
    let authority = uri.authority().map_or("", Authority::as_str);
    let path = uri.path_and_query().map_or("", PathAndQuery::as_str);
    path.len() <= LONGEST && !authority.contains('@')
}

fn path_and_query(path: &str) -> Option<PathAndQuery> {
    let path = path.starts_with('/').then_some(path)?;
    PathAndQuery::from_maybe_shared(Bytes::copy_from_slice(path.as_bytes())).ok()
}

/// Returns the part of a URL after this scheme and authority.
#[inline]
fn after<'a>(url: &'a str, scheme: &str, authority: &str) -> Option<&'a str> {
    let rest = url.strip_prefix(scheme)?.strip_prefix("://")?;
    rest.strip_prefix(authority)
}

#[inline]
fn without_fragment(url: &Url) -> &str {
    let fragment = url.fragment().map_or(0, |fragment| fragment.len() + 1);
    let text = url.as_str();
    text.get(..text.len() - fragment).unwrap_or(text)
}

/// Swaps what a request of reqwest's and one of `http`'s both have, where the URI of the latter is
/// kept. So one is taken apart, and put together again; what stays is its URL, parsed, and what
/// reqwest keeps to itself.
#[inline(never)] // There and back is the same code, which is half of what there is to fetch.
pub(super) fn swap(shell: &mut reqwest::Request, plain: &mut Request<Body>, last: &mut UriCache) {
    mem::swap(plain.uri_mut(), &mut last.uri);
    mem::swap(plain.method_mut(), shell.method_mut());
    mem::swap(plain.version_mut(), shell.version_mut());
    mem::swap(plain.headers_mut(), shell.headers_mut());
    let body = shell.body_mut().take().unwrap_or_default();
    let body = mem::replace(plain.body_mut(), body);
    // One without a body comes back as it was.
    *shell.body_mut() = (!body.is_end_stream()).then_some(body);
}

/// The parts of a reqwest request that a URI and its headers do not have.
#[derive(Debug, Default)]
pub(super) struct RequestTemplate {
    fragment: Option<String>,
    timeout: Option<Duration>,
}

impl RequestTemplate {
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
                let mut last = UriCache::default();
                last.turn_to(&before.parse().unwrap()).unwrap();
                last.clear();
                last.turn_to(&after.parse().unwrap()).unwrap();
                let fresh = Uri::try_from(after).unwrap();
                assert_eq!(last.uri, fresh, "after {before}");
            }
        }
    }

    #[test]
    fn s_3_a_uri_that_layers_keep_or_change_is_read_again() {
        let url: Url = "http://a.example/v1#part".parse().unwrap();
        let expected = Uri::from_static("http://a.example/v1");
        let other = Uri::from_static("http://a.example/v2");
        for (returned, same) in [
            (None, false),
            (Some(&other), false),
            (Some(&expected), true),
        ] {
            let mut last = UriCache::default();
            last.turn_to(&url).unwrap();
            let mut plain = mem::take(&mut last.uri);
            last.lend();
            if let Some(returned) = returned {
                plain.clone_from(returned);
                assert_eq!(last.take_back(&plain), same);
                last.uri = plain;
            }
            last.clear();
            last.turn_to(&url).unwrap();
            assert_eq!(last.uri, expected, "{returned:?}");
        }
    }

    #[test]
    fn s_2_credentials_of_a_url_are_not_kept() {
        let mut last = UriCache::default();
        last.turn_to(&"http://me:secret@a.example/v1".parse().unwrap());
        last.clear();
        assert_eq!(last.uri, Uri::default());
        last.turned(&Uri::from_static("http://me:secret@a.example/v1"));
        assert!(!last.fit);
    }
}
