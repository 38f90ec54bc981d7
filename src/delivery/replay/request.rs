//! Requests as they are journaled: without credentials, and without headers of the connection.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, header};
use serde::{Deserialize, Serialize};

use super::{dialect::Description, options::HEADERS};
use crate::{
    delivery::{redact::is_secret, stored_message::StoredMessage, webhooks::UserHeaders},
    http::original_uri::{original_uri, set_original_uri},
};

/// The part of a request next to its headers and its body.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Meta {
    pub(super) method: String,
    pub(super) uri: String,
    /// The URI that it arrived with, if a router above the layer changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) original_uri: Option<String>,
    /// The reason why it was journaled.
    pub(super) reason: String,
    /// The caller's id of the request.
    pub(super) request_id: Option<String>,
    /// The version of the function that it calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) version: Option<String>,
    pub(super) callback: Option<Callback>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Callback {
    pub(super) url: String,
    pub(super) headers: Vec<(String, String)>,
    /// The queue that it goes to.
    #[serde(default = "default_queue")]
    pub(super) queue: String,
}

fn default_queue() -> String {
    "webhooks".to_owned()
}

impl Callback {
    pub(super) fn new(url: String, headers: &UserHeaders, queue: &str) -> Self {
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Self {
            url,
            headers: headers.iter().map(owned).collect(),
            queue: queue.to_owned(),
        }
    }
}

pub(super) type Stored = StoredMessage<Meta>;

impl Stored {
    pub(super) fn new(
        head: &Request<()>,
        body: Bytes,
        reason: &str,
        description: Description,
        key_header: &HeaderName,
        callback: Option<Callback>,
    ) -> Self {
        let headers = head.headers().iter();
        let original = Some(original_uri(head)).filter(|uri| *uri != head.uri());
        let kept = headers.filter(|(name, value)| *name == key_header || !is_left_out(name, value));
        Self {
            meta: Meta {
                method: head.method().as_str().to_owned(),
                uri: head.uri().to_string(),
                original_uri: original.map(Uri::to_string),
                reason: reason.to_owned(),
                request_id: description.request_id,
                version: description.version,
                callback,
            },
            headers: kept
                .map(|(name, value)| (name.clone(), value.clone()))
                .collect(),
            body,
        }
    }

    /// Returns what the status of a request tells once it was replayed: no URI, whose query may be
    /// personal, no header, no body, no callback.
    pub(super) fn summary(&self) -> Self {
        let Meta {
            reason,
            request_id,
            version,
            ..
        } = self.meta.clone();
        Self {
            meta: Meta {
                method: String::new(),
                uri: String::new(),
                original_uri: None,
                reason,
                request_id,
                version,
                callback: None,
            },
            headers: HeaderMap::new(),
            body: Bytes::new(),
        }
    }

    /// Rebuilds the request; `None` if the stored one is not valid.
    pub(super) fn request(&self) -> Option<Request<()>> {
        let mut request = Request::new(());
        *request.method_mut() = Method::from_bytes(self.meta.method.as_bytes()).ok()?;
        *request.uri_mut() = self.meta.uri.parse::<Uri>().ok()?;
        *request.headers_mut() = self.headers.clone();
        if let Some(original) = &self.meta.original_uri {
            set_original_uri(&mut request, original.parse().ok()?);
        }
        Some(request)
    }
}

/// Returns whether a header is a credential, of the connection, or for the layer alone.
fn is_left_out(name: &HeaderName, value: &HeaderValue) -> bool {
    const NAMES: [HeaderName; 10] = [
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::EXPECT,
        header::TE,
        header::TRAILER,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
        header::VIA,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    let known = NAMES.contains(name) || HEADERS.contains(&name.as_str());
    known || is_secret(name, value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::headers::IDEMPOTENCY_KEY;

    #[test]
    fn j_13_credentials_are_not_journaled() {
        let mut sensitive = HeaderValue::from_static("1");
        sensitive.set_sensitive(true);
        let request = Request::post("/orders?id=7")
            .header("x-customer", sensitive)
            .header("x-access-key", "1")
            .header("authorization", "Bearer 1")
            .header("cookie", "session=1")
            .header("x-api-key", "1")
            .header("x-auth-token", "1")
            .header("replay-callback", "https://a")
            .header("content-length", "3")
            .header("idempotency-key", "k")
            .header("x-request-id", "r-1")
            .header("accept", "a")
            .header("accept", "b")
            .body(())
            .unwrap();
        let description = Description {
            request_id: Some("r-1".to_owned()),
            ..Description::default()
        };
        let stored = Stored::new(
            &request,
            "abc".into(),
            "BECAUSE",
            description,
            &IDEMPOTENCY_KEY,
            None,
        );
        let stored = Stored::decode(stored.encode()).unwrap();
        let request = stored.request().unwrap();
        let mut names: Vec<_> = request.headers().keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "idempotency-key", "x-request-id"]);
        assert_eq!(request.headers().get_all("accept").iter().count(), 2);
        assert_eq!(
            (request.method(), request.uri().path()),
            (&Method::POST, "/orders")
        );
        assert_eq!(request.uri().query(), Some("id=7"));
        assert_eq!(
            (&*stored.body, &*stored.meta.reason),
            (&b"abc"[..], "BECAUSE")
        );
        assert_eq!(stored.meta.request_id.as_deref(), Some("r-1"));
    }

    /// I-19: below a nested router a replay goes by the same path as the request that it is of.
    #[cfg(feature = "axum")]
    #[test]
    fn i_19_the_path_above_a_nested_router_is_journaled_too() {
        let mut request = Request::post("/7").body(()).unwrap();
        set_original_uri(&mut request, Uri::from_static("/orders/7"));
        let description = Description::default();
        let stored = Stored::new(
            &request,
            Bytes::new(),
            "BECAUSE",
            description,
            &IDEMPOTENCY_KEY,
            None,
        );
        let stored = Stored::decode(stored.encode()).unwrap();
        let rebuilt = stored.request().unwrap();
        assert_eq!(rebuilt.uri(), "/7");
        assert_eq!(original_uri(&rebuilt), "/orders/7");
    }
}
