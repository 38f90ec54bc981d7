//! Access control of the admin port.
//!
//! A token, if there is one, is asked of everybody. Without one only this machine reaches the port,
//! and there a web page in an operator's browser is no operator: other origins are refused, changes
//! need the token that only the console's page holds, and names that are not this machine's are
//! refused, so that no page of another name becomes the same origin.

use std::{fmt::Write, net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{HeaderMap, HeaderName, StatusCode, header, uri::Authority},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};

use super::AdminError;

/// The console's proof that a change comes from its page.
const PAGE: HeaderName = HeaderName::from_static("x-reprise-page");
const FETCH_SITE: &str = "sec-fetch-site";

pub(crate) struct Guard {
    token: Option<String>,
    page: String,
}

impl Guard {
    pub(crate) fn new(token: Option<String>) -> Self {
        let mut page = String::new();
        for byte in rand::random::<[u8; 32]>() {
            let _ = write!(page, "{byte:02x}");
        }
        Self { token, page }
    }

    /// The proof that goes into the console's page.
    pub(super) fn page(&self) -> &str {
        &self.page
    }

    fn refuses(&self, request: &Request) -> Option<AdminError> {
        let headers = request.headers();
        let path = request.uri().path();
        if let Some(token) = &self.token {
            // Probes and the page itself, which holds nothing.
            let open = ["/healthz", "/readyz", "/", "/console.css", "/console.js"].contains(&path);
            let given = text(headers, header::AUTHORIZATION.as_str());
            let given = given.and_then(|value| value.strip_prefix("Bearer "));
            if !open && !given.is_some_and(|given| same(given, token)) {
                let why = "this needs `Authorization: Bearer` and the token of --admin-token-file";
                return Some(AdminError::new(StatusCode::UNAUTHORIZED, why));
            }
        } else if !text(headers, "host").is_some_and(is_local) {
            let why = "without a token, the Host is an address or localhost";
            return Some(AdminError::new(StatusCode::MISDIRECTED_REQUEST, why));
        }
        let site = text(headers, FETCH_SITE);
        let origin = text(headers, header::ORIGIN.as_str());
        if site.is_none() && origin.is_none() {
            return None;
        }
        let ours = origin.is_none_or(|origin| {
            let host = text(headers, "host").unwrap_or_default();
            origin.split_once("://").is_some_and(|(_, of)| of == host)
        });
        let safe = request.method().is_safe();
        let allowed = ours
            && match site {
                Some("none") => safe,
                Some("same-origin") | None => {
                    safe || text(headers, PAGE.as_str()).is_some_and(|page| same(page, &self.page))
                }
                Some(_) => false,
            };
        let refusal = || AdminError::new(StatusCode::FORBIDDEN, "not from a web page");
        (!allowed).then(refusal)
    }
}

pub(super) async fn check(
    State(guard): State<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    match guard.refuses(&request) {
        Some(trouble) => trouble.into_response(),
        None => next.run(request).await,
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Compares digests, so that time tells nothing of the secret.
fn same(one: &str, other: &str) -> bool {
    Sha256::digest(one) == Sha256::digest(other)
}

/// Whether a Host is an address, or this machine.
fn is_local(host: &str) -> bool {
    host.parse::<Authority>().is_ok_and(|authority| {
        let host = authority.host().trim_matches(['[', ']']);
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok()
    })
}
