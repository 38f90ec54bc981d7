//! The forrst protocol: envelopes, and the extensions for calls that are made more than once.
//!
//! forrst carries calls in JSON envelopes: a request names a function, a version and arguments, a
//! response holds a result or errors, and both carry *extensions*, each named by a URN. Three of them
//! concern repeated calls: `retry` tells a client whether and when to call again, `idempotency` makes
//! that harmless, `replay` executes the call later.
//!
//! [`Request`] and [`Response`] are the envelopes. They keep unknown members at every level, so that
//! an envelope can be read and sent on. URNs have two spellings, `urn:forrst:ext:*` and
//! `urn:cline:forrst:ext:*`: both are read, the first is written. An [`EnvelopeError`] names the
//! member that is wrong.
//!
//! ```
//! use std::time::Duration;
//! use tower_reprise::forrst::{Response, Retry, Strategy};
//!
//! let response = Response::parse(br#"{
//!     "protocol": { "name": "forrst", "version": "0.1.0" },
//!     "id": "req_123",
//!     "result": null,
//!     "errors": [{ "code": "UNAVAILABLE", "message": "Service temporarily unavailable" }],
//!     "extensions": [{
//!         "urn": "urn:forrst:ext:retry",
//!         "data": { "allowed": true, "strategy": "exponential", "after": { "value": 1, "unit": "second" } }
//!     }]
//! }"#)?;
//! let retry: Retry = response.data_of(Retry::URN)?.expect("guidance");
//! assert!(retry.allowed);
//! assert_eq!(retry.strategy, Some(Strategy::Exponential));
//! assert_eq!(retry.floor(2), Duration::from_secs(4)); // before the third retry
//!
//! let error = Response::parse(br#"{"errors": [{"code": 503}]}"#).unwrap_err();
//! assert_eq!(error.at(), "errors[0].code");
//! # Ok::<(), tower_reprise::forrst::EnvelopeError>(())
//! ```
//!
//! # When to use it
//!
//! In services and clients that speak forrst.
//!
//! Not for plain HTTP or gRPC: those need nothing of this module.
//!
//! # Defaults
//!
//! | setting | default |
//! | --- | --- |
//! | codes | [`Codes::forrst`](crate::classify::Codes::forrst): the table of the retry extension |
//! | envelopes that are read | up to 64 KiB |
//! | guidance without `after` | 1 s for `fixed` and `exponential`, 0 for `immediate` |
//! | URNs | both spellings are read, `urn:forrst:ext:*` is written |
//!
//! # The stack
//!
//! ```text
//! client                                              server
//! EnvelopeKeyLayer       one key per call             RetryGuidanceLayer  whether and when to call again
//!  └ IdempotencyKeyLayer   the same in the header      └ ReplayLayer        202 instead of 503
//!     └ RetryLayer           an id per attempt            └ IdempotencyLayer  a call is executed once
//!        └ PeekLayer           what replies say              └ your functions
//!           └ your client
//! ```
//!
//! A server gives guidance with a [`RetryGuidanceLayer`], and executes a call once with the `Forrst`
//! dialect of an `IdempotencyLayer` (feature `server`). A client obeys the guidance with
//! [`Codes::forrst`](crate::classify::Codes::forrst) and a [`PeekLayer`](crate::client::peek::PeekLayer).
//! An [`EnvelopeKeyLayer`] gives all attempts of a call one idempotency key, and a [`FreshId`] hook
//! gives each its own id. With the `delivery` feature, `replay` journals calls that can't be served
//! now. The examples `forrst_server` and `forrst_client` have all of it. Services without envelopes
//! need nothing of this module.
//!
//! # Promises
//!
//! | promised | not promised |
//! | --- | --- |
//! | unknown members of an envelope are kept, at every level | their bytes, in an envelope that is parsed and written again |
//! | both spellings of a URN are one extension | extensions of other URNs: they are kept, and not understood |
//! | any bytes are an envelope or an [`EnvelopeError`] that names the member | that arguments are what the function expects |
//!
//! Each layer's page has its own: [`guidance`], [`key`] and, on servers, `idempotency` and `replay`.
//!
//! # What goes wrong
//!
//! | mistake | what happens | instead |
//! | --- | --- | --- |
//! | [`Request`] and [`Response`] pass on what must stay byte for byte | members are kept as values: their order and the spelling of numbers may change, and integers of more than 64 bits become floating-point numbers | pass on the bytes |
//! | a client without [`Codes::forrst`](crate::classify::Codes::forrst) | guidance in envelopes is not read, and the status decides | that table in the policy, and a [`PeekLayer`](crate::client::peek::PeekLayer) |
//! | one envelope id for all attempts | replies and logs can't be told apart by attempt | a [`FreshId`] hook |

use http::{
    HeaderMap,
    header::{CONTENT_ENCODING, CONTENT_TYPE},
};

mod advice;
#[cfg(feature = "server")]
mod caller;
mod canonical;
mod codes;
mod envelope;
mod error;
mod extension;
mod fresh_id;
pub mod guidance;
#[cfg(feature = "server")]
pub mod idempotency;
pub mod key;
#[cfg(feature = "delivery")]
pub mod replay;
mod replay_extension;
mod retry;
mod splice;

#[cfg(feature = "server")]
pub use self::idempotency::Forrst;
pub use self::{
    canonical::{arguments_hash, canonical},
    envelope::{Call, Fault, Protocol, Request, Response},
    error::EnvelopeError,
    extension::{Extension, IdempotencyData, IdempotencyOptions, RateLimit, Urn},
    fresh_id::FreshId,
    guidance::RetryGuidanceLayer,
    key::EnvelopeKeyLayer,
    replay_extension::{
        MaintenanceData, ReplayCallback, ReplayData, ReplayOptions, ReplayPriority,
    },
    retry::{Retry, Strategy},
};

/// The most bytes of a body that are read by default.
const LIMIT: usize = 64 * 1024;

/// Whether a message may be a readable envelope: JSON without a content encoding.
fn may_be_read(headers: &HeaderMap) -> bool {
    let content_type = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .unwrap_or_default();
    crate::classify::codes::is_json(content_type.trim()) && !headers.contains_key(CONTENT_ENCODING)
}

/// Whether a change of the body would break a digest of the message.
fn is_fixed(headers: &HeaderMap) -> bool {
    let digests = ["content-digest", "repr-digest", "digest", "content-md5"];
    digests.iter().any(|name| headers.contains_key(*name))
}

/// Whether a message may be an envelope that can be changed.
fn may_be_envelope(headers: &HeaderMap) -> bool {
    may_be_read(headers) && !is_fixed(headers)
}
