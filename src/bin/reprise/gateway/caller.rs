//! The caller of a request: it owns its idempotency keys and replays.

use std::fmt::Write;

use http::{HeaderName, Request};
use sha2::{Digest, Sha256};
use tower_reprise::delivery::{is_credential, replay::Replayed};

/// Tells callers apart by a header.
#[derive(Clone)]
pub(crate) struct Callers {
    header: HeaderName,
    anonymous: Option<String>,
    /// The journal's, so that nobody can try out which credentials a hash is of.
    secret: [u8; 32],
}

/// An operator, who looks at the replays of this caller.
#[derive(Debug, Clone)]
pub(crate) struct Operator(pub(crate) String);

/// The caller whose replays an operator looks at.
pub(crate) fn operator(head: &Request<()>) -> Option<String> {
    head.extensions().get().map(|Operator(of)| of.clone())
}

impl Callers {
    pub(crate) fn new(header: HeaderName, anonymous: Option<String>, secret: [u8; 32]) -> Self {
        Self {
            header,
            anonymous,
            secret,
        }
    }

    /// Returns the caller's name, or `None` if it is unknown. Credentials end up in the journal
    /// only as a hash.
    pub(crate) fn who(&self, head: &Request<()>) -> Option<String> {
        if let Some(replayed) = head.extensions().get::<Replayed>() {
            return Some(replayed.owner.clone());
        }
        if let Some(of) = operator(head) {
            return Some(of);
        }
        let value = head.headers().get(&self.header);
        // Nothing is no name.
        let value = value.filter(|value| !value.as_bytes().trim_ascii().is_empty());
        let Some(value) = value else {
            return self
                .anonymous
                .as_ref()
                .map(|name| format!("anonymous/{name}"));
        };
        // Something that can be read and written down is a name; all else is only known again.
        let name = value.to_str().ok().filter(|name| {
            !is_credential(self.header.as_str()) && name.len() <= 128 && !name.is_empty()
        });
        Some(match name {
            Some(name) => format!("{}:{name}", self.header),
            None => {
                let mut text = format!("{}:sha256:", self.header);
                let digest = Sha256::new_with_prefix(self.secret).chain_update(value.as_bytes());
                for byte in digest.finalize() {
                    let _ = write!(text, "{byte:02x}");
                }
                text
            }
        })
    }
}
