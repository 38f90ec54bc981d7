use std::{borrow::Cow, sync::Arc};

use http::{Request, header::HOST, uri::Authority};

use crate::{
    call::RetryOverride,
    classify::{KeysHonoured, Rules},
};

/// Tells which dependency a request goes to.
///
/// Names are compared without regard to case. Closures `Fn(&http::Request<B>) -> Cow<'_, str>`
/// implement it; a [`RetryOverride`] on the request comes before what they say.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell which dependency a `{Request}` goes to",
    note = "HTTP requests are located by their authority; for other requests give the registry a \
            closure: `Dependencies::builder(policy).with_locate_message(|_: &Event| \
            \"orders\".into())`"
)]
pub trait Locate<Request> {
    /// Returns the dependency's name.
    fn locate<'a>(&'a self, request: &'a Request) -> Cow<'a, str>;

    /// Returns whether the dependency has that name. Asked first, since most clients call the same
    /// dependency again and again.
    fn is(&self, request: &Request, name: &str) -> bool {
        self.locate(request).eq_ignore_ascii_case(name)
    }

    /// Returns whether a request is safe to repeat by what it is. Those that are located as HTTP
    /// requests keep the rules of HTTP, however they are sent again and classified.
    #[doc(hidden)]
    fn repeatable(&self, _rules: &Rules, _request: &Request) -> bool {
        true
    }
}

impl<F, B> Locate<Request<B>> for F
where
    F: for<'a> Fn(&'a Request<B>) -> Cow<'a, str>,
{
    fn locate<'a>(&'a self, request: &'a Request<B>) -> Cow<'a, str> {
        overridden(request).map_or_else(|| self(request), Cow::Borrowed)
    }

    #[inline]
    fn repeatable(&self, rules: &Rules, request: &Request<B>) -> bool {
        rules.repeatable(request, KeysHonoured::ByCaller)
    }
}

/// Locates messages, and all requests that are not HTTP's, by a closure.
#[derive(Debug, Clone, Copy)]
pub struct ByMessage<F>(pub(crate) F);

impl<F, Req> Locate<Req> for ByMessage<F>
where
    F: for<'a> Fn(&'a Req) -> Cow<'a, str>,
{
    fn locate<'a>(&'a self, request: &'a Req) -> Cow<'a, str> {
        (self.0)(request)
    }
}

/// Any locator of these requests, as a type that has a name.
///
/// # Clone
///
/// Clones share the locator.
pub struct BoxLocate<Request>(Arc<dyn Locate<Request> + Send + Sync>);

impl<Request> BoxLocate<Request> {
    /// Boxes a locator.
    pub fn new(locate: impl Locate<Request> + Send + Sync + 'static) -> Self {
        Self(Arc::new(locate))
    }
}

impl<Request> Locate<Request> for BoxLocate<Request> {
    fn locate<'a>(&'a self, request: &'a Request) -> Cow<'a, str> {
        self.0.locate(request)
    }

    fn is(&self, request: &Request, name: &str) -> bool {
        self.0.is(request, name)
    }

    fn repeatable(&self, rules: &Rules, request: &Request) -> bool {
        self.0.repeatable(rules, request)
    }
}

impl<Request> Clone for BoxLocate<Request> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

opaque_debug! { BoxLocate<Request> }

/// Locates by the URI's authority, without credentials, or by the `Host` header where it has none:
/// `payments.example:8443`. A [`RetryOverride`] on the request may name another.
#[derive(Debug, Clone, Copy, Default)]
pub struct ByAuthority;

impl<B> Locate<Request<B>> for ByAuthority {
    fn locate<'a>(&'a self, request: &'a Request<B>) -> Cow<'a, str> {
        Cow::Borrowed(overridden(request).unwrap_or_else(|| authority(request)))
    }

    #[inline(always)]
    fn is(&self, request: &Request<B>, name: &str) -> bool {
        let plain = request.uri().authority().map(Authority::as_str) == Some(name);
        let unmarked = request.extensions().is_empty();
        (plain && unmarked) || is_after_all(request, plain, name)
    }

    #[inline]
    fn repeatable(&self, rules: &Rules, request: &Request<B>) -> bool {
        rules.repeatable(request, KeysHonoured::ByCaller)
    }
}

/// Locates all requests at one name, for a client with one peer. A [`RetryOverride`] on the request
/// may name another.
#[derive(Debug, Clone)]
pub struct Named(pub(crate) Arc<str>);

impl<B> Locate<Request<B>> for Named {
    fn locate<'a>(&'a self, request: &'a Request<B>) -> Cow<'a, str> {
        Cow::Borrowed(overridden(request).unwrap_or(&self.0))
    }

    #[inline]
    fn is(&self, request: &Request<B>, name: &str) -> bool {
        let named = overridden(request).unwrap_or(&self.0);
        named == name || named.eq_ignore_ascii_case(name)
    }

    #[inline]
    fn repeatable(&self, rules: &Rules, request: &Request<B>) -> bool {
        rules.repeatable(request, KeysHonoured::ByCaller)
    }
}

/// Compares names where extensions, case or credentials need a second look.
#[inline(never)]
fn is_after_all<B>(request: &Request<B>, plain: bool, name: &str) -> bool {
    match overridden(request) {
        None => plain || authority(request).eq_ignore_ascii_case(name),
        Some(other) => other.eq_ignore_ascii_case(name),
    }
}

fn overridden<B>(request: &Request<B>) -> Option<&str> {
    request
        .extensions()
        .get::<RetryOverride>()?
        .dependency_name()
}

fn authority<B>(request: &Request<B>) -> &str {
    let authority = match request.uri().authority() {
        Some(authority) => authority.as_str(),
        None => {
            let host = request
                .headers()
                .get(HOST)
                .and_then(|host| host.to_str().ok());
            host.unwrap_or("unknown")
        }
    };
    authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locate(uri: &str) -> String {
        let request = Request::builder().uri(uri).body(()).unwrap();
        ByAuthority.locate(&request).into_owned()
    }

    #[test]
    fn g_2_dependencies_are_told_apart_by_authority() {
        assert_eq!(locate("http://a.example/x"), "a.example");
        assert_eq!(locate("http://a.example:8080/x"), "a.example:8080");
        assert_eq!(locate("https://[::1]:443/x"), "[::1]:443");
        assert_eq!(locate("http://[::1]/x"), "[::1]");
        assert_eq!(locate("/relative"), "unknown");
    }

    #[test]
    fn s_2_credentials_in_a_uri_never_name_a_dependency() {
        assert_eq!(locate("http://user:secret@a.example/"), "a.example");
    }

    #[test]
    fn g_2_the_quick_answer_agrees_with_the_name() {
        for (uri, name, same) in [
            ("http://a.example/", "a.example", true),
            ("http://A.example/", "a.example", true),
            ("http://u:p@a.example/", "a.example", true),
            ("http://a.example:1/", "a.example", false),
            ("/", "unknown", true),
        ] {
            let mut request = Request::builder().uri(uri).body(()).unwrap();
            assert_eq!(ByAuthority.is(&request, name), same, "{uri}");
            request
                .extensions_mut()
                .insert(RetryOverride::new().dependency("b"));
            assert!(!ByAuthority.is(&request, name), "{uri}");
            assert!(ByAuthority.is(&request, "b"), "{uri}");
        }
    }

    #[test]
    fn the_host_header_stands_in_for_the_authority() {
        let request = Request::builder()
            .uri("/")
            .header(HOST, "b.example")
            .body(())
            .unwrap();
        assert_eq!(ByAuthority.locate(&request), "b.example");
    }
}
