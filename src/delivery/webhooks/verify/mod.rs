//! Verification of signed webhooks, for receivers.
//!
//! A [`Verifier`] checks the headers and the body of one message: that one of its keys signed them,
//! and lately. [`WebhookVerifyLayer`] does so in front of a router or of any other HTTP service, so
//! that no handler sees a message without a valid signature.
//!
//! # When to use it
//!
//! In front of every handler of webhooks that are signed by the Standard Webhooks scheme, as
//! [`Webhooks`](super::Webhooks) signs them.
//!
//! Not for senders with a scheme of their own (GitHub's, Stripe's). Not instead of authentication of
//! users: it proves which sender, and nothing else.
//!
//! # Defaults
//!
//! | setting | default | allowed |
//! | --- | --- | --- |
//! | [`tolerance`](Verifier::tolerance) | 5 min, either way | 1 s to 1 h |
//! | [`body_limit`](WebhookVerifyLayer::body_limit) | 1 MiB | |
//!
//! ```
//! use std::convert::Infallible;
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{ServiceBuilder, ServiceExt, service_fn};
//! use tower_reprise::delivery::webhooks::{
//!     MessageId, Signer,
//!     verify::{Verified, Verifier, WebhookVerifyLayer},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
//! let handler = service_fn(|request: Request<Full<Bytes>>| async move {
//!     let message = request.extensions().get::<Verified>().expect("a message that was verified");
//!     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(message.id().to_owned())))
//! });
//! let mut receiver = ServiceBuilder::new()
//!     .layer(WebhookVerifyLayer::new(Verifier::new(SECRET)?))
//!     .service(handler);
//!
//! let id = MessageId::new("msg_1")?;
//! let signed = Signer::new(SECRET)?.sign(&id, std::time::SystemTime::now(), b"paid");
//! let mut request = Request::new(Full::from("paid"));
//! signed.apply(request.headers_mut());
//! let response = (&mut receiver).oneshot(request).await?;
//! assert_eq!(response.status(), 200);
//!
//! let forged = Request::new(Full::from("paid"));
//! assert_eq!(receiver.oneshot(forged).await?.status(), 401);
//! # Ok(())
//! # }
//! ```
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | no handler sees a body that none of the keys signed, or that was signed too long ago | that a message comes once |
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | nothing behind it drops duplicates | a valid message comes twice: from a sender without a reply, or played back within the tolerance | an [`EventDedupLayer`](crate::server::idempotency::events::EventDedupLayer) behind it, by [`Verified::id`] |
//! | a layer above it that changes the body (decompression, normalisation) | no signature fits | verify first |
//! | a clock that is minutes off | every message is too old or too new | a clock that is kept; the tolerance is no remedy |

mod layer;

use std::{
    error::Error,
    fmt,
    ops::RangeInclusive,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http::HeaderMap;

pub use self::layer::{WebhookVerify, WebhookVerifyFuture, WebhookVerifyLayer};
use super::{
    key::{Key, MAX_KEYS, Presented, Signed},
    sign::{ID, SIGNATURE, TIMESTAMP, is_id},
};
use crate::error::ConfigError;

/// The most signatures of a message that are checked.
const MAX_SIGNATURES: usize = 16;

const TOLERANCE: Duration = Duration::from_secs(5 * 60);
const TOLERANCES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(60 * 60);

/// Checks signatures with one key, or with several during a rotation.
///
/// `Debug` hides the keys, and dropping wipes them from memory.
#[derive(Clone)]
#[must_use]
pub struct Verifier {
    keys: Vec<Key>,
    tolerance: Duration,
}

impl Verifier {
    /// Accepts signatures by a secret (`whsec_`), or by the private key of a public one (`whpk_`).
    ///
    /// # Errors
    ///
    /// The key can't be read, or is a private one. The error does not show it.
    pub fn new(key: impl AsRef<str>) -> Result<Self, ConfigError> {
        let none = Self {
            keys: Vec::new(),
            tolerance: TOLERANCE,
        };
        none.also(key)
    }

    /// Accepts signatures by another key, too.
    ///
    /// # Errors
    ///
    /// The key can't be read, is a private one, or is the ninth.
    pub fn also(mut self, key: impl AsRef<str>) -> Result<Self, ConfigError> {
        const FIELD: &str = "verifier.key";
        let key = Key::parse(FIELD, key.as_ref())?;
        if matches!(key, Key::Private(_)) {
            let allowed = "the private key is the sender's; give the public one (whpk_)";
            return Err(ConfigError::new(None, FIELD, "", allowed));
        }
        if self.keys.len() >= MAX_KEYS {
            return Err(ConfigError::new(None, "verifier.keys", "9", "1 to 8"));
        }
        self.keys.push(key);
        Ok(self)
    }

    /// Sets how far the time of a message may be from now, either way: five minutes by default.
    ///
    /// # Errors
    ///
    /// Less than a second, or more than an hour.
    pub fn tolerance(mut self, tolerance: Duration) -> Result<Self, ConfigError> {
        ConfigError::within("verifier.tolerance", tolerance, TOLERANCES, "1 s to 1 h")?;
        self.tolerance = tolerance;
        Ok(self)
    }

    /// Verifies a message with these headers and this body, as received.
    ///
    /// # Errors
    ///
    /// Returns the first check that failed.
    pub fn verify(&self, headers: &HeaderMap, body: &[u8]) -> Result<Verified, VerifyError> {
        self.verify_at(headers, body, SystemTime::now())
    }

    /// Verifies a message as [`verify`](Self::verify) does, at another time.
    ///
    /// # Errors
    ///
    /// Returns the first check that failed.
    pub fn verify_at(
        &self,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Result<Verified, VerifyError> {
        let verified = self.head(headers, now)?;
        self.body(&verified, headers, body)?;
        Ok(verified)
    }

    /// Checks all but the signature, and returns the claimed id and time.
    fn head(&self, headers: &HeaderMap, now: SystemTime) -> Result<Verified, VerifyError> {
        let id = one(headers, ID)?;
        if !is_id(id.as_bytes()) {
            return Err(VerifyError::Malformed(ID));
        }
        let text = one(headers, TIMESTAMP)?;
        // Digits only, since the text itself is signed.
        let plain = text.len() <= 19 && text.bytes().all(|byte| byte.is_ascii_digit());
        let timestamp = text.parse().ok().filter(|_| plain);
        let timestamp = timestamp.ok_or(VerifyError::Malformed(TIMESTAMP))?;
        if !headers.contains_key(SIGNATURE) {
            return Err(VerifyError::Missing(SIGNATURE));
        }
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        let then = Duration::from_secs(timestamp);
        if now.saturating_sub(then) > self.tolerance {
            return Err(VerifyError::TooOld);
        }
        // In whole seconds, as the sender's clock is.
        let now = Duration::from_secs(now.as_secs());
        if then.saturating_sub(now) > self.tolerance {
            return Err(VerifyError::TooNew);
        }
        Ok(Verified {
            id: id.into(),
            text: text.into(),
            timestamp,
        })
    }

    /// Checks that one of the keys made one of the signatures.
    fn body(
        &self,
        claimed: &Verified,
        headers: &HeaderMap,
        body: &[u8],
    ) -> Result<(), VerifyError> {
        let signed = Signed {
            id: &claimed.id,
            timestamp: &claimed.text,
            body,
        };
        let mut presented = headers
            .get_all(SIGNATURE)
            .iter()
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b' '))
            .filter(|text| !text.is_empty())
            .take(MAX_SIGNATURES)
            .filter_map(Presented::parse);
        let any = |signature| self.keys.iter().any(|key| key.verifies(signed, &signature));
        match presented.any(any) {
            true => Ok(()),
            false => Err(VerifyError::NoMatch),
        }
    }
}

opaque_debug! { Verifier, self, keys = self.keys.len(), tolerance = self.tolerance }

/// Returns the only value of a header.
fn one<'a>(headers: &'a HeaderMap, name: &'static str) -> Result<&'a str, VerifyError> {
    let mut lines = headers.get_all(name).iter();
    let line = lines.next().ok_or(VerifyError::Missing(name))?;
    match (line.to_str(), lines.next()) {
        (Ok(text), None) => Ok(text),
        _ => Err(VerifyError::Malformed(name)),
    }
}

/// A verified message. A [`WebhookVerifyLayer`] puts it into the extensions of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verified {
    id: Box<str>,
    /// The timestamp as it was sent.
    text: Box<str>,
    timestamp: u64,
}

impl Verified {
    /// Returns the id of the message, the same for each delivery.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the time of this delivery, in seconds since 1970.
    #[must_use]
    pub fn timestamp(&self) -> u64 {
        self.timestamp
    }
}

/// The reason why a message is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyError {
    /// The header is missing.
    Missing(&'static str),
    /// The header can't be read, or occurs twice.
    Malformed(&'static str),
    /// The message was sent too long ago.
    TooOld,
    /// The message is from the future: one of the clocks is wrong.
    TooNew,
    /// No key made one of the signatures.
    NoMatch,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(header) => write!(f, "header {header} is missing"),
            Self::Malformed(header) => write!(f, "header {header} is malformed"),
            Self::TooOld => f.write_str("the message was sent too long ago"),
            Self::TooNew => f.write_str("the message is from the future"),
            Self::NoMatch => f.write_str("no signature of the message is valid"),
        }
    }
}

impl Error for VerifyError {}
