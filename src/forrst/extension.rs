use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{EnvelopeError, envelope::present, error::at_its_place};
use crate::http::{Span, span::some_whole};

/// An extension in an envelope: its URN, with options in a request and data in a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Extension {
    /// The name.
    pub urn: Urn,
    /// The options of a request.
    #[serde(default, deserialize_with = "present")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Value>,
    /// The data of a response.
    #[serde(default, deserialize_with = "present")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Extension {
    /// Creates an extension of a request.
    #[must_use]
    pub fn with_options(urn: impl Into<Urn>, options: Value) -> Self {
        Self {
            urn: urn.into(),
            options: Some(options),
            data: None,
            other: Map::new(),
        }
    }

    /// Creates an extension of a response.
    #[must_use]
    pub fn with_data(urn: impl Into<Urn>, data: Value) -> Self {
        Self {
            urn: urn.into(),
            options: None,
            data: Some(data),
            other: Map::new(),
        }
    }
}

/// Returns the index of the only extension of this URN.
#[cfg(feature = "server")]
pub(super) fn only(extensions: &[Extension], urn: &str) -> Result<Option<usize>, EnvelopeError> {
    let mut places = (0..).zip(extensions).filter(|(_, e)| e.urn == *urn);
    let first = places.next().map(|(place, _)| place);
    match places.next() {
        Some((place, _)) => {
            let at = format!("extensions[{place}]");
            Err(EnvelopeError::new(at, format_args!("{urn} occurs twice")))
        }
        None => Ok(first),
    }
}

/// Reads one part of the first extension of this URN, if there is one.
pub(super) fn read<T: DeserializeOwned>(
    extensions: &[Extension],
    urn: &str,
    part: &str,
    of: impl Fn(&Extension) -> Option<&Value>,
) -> Result<Option<T>, EnvelopeError> {
    let found = extensions
        .iter()
        .enumerate()
        .find(|(_, extension)| extension.urn == *urn);
    match found.and_then(|(index, extension)| Some((index, of(extension)?))) {
        Some((index, value)) => at_its_place(&format!("extensions[{index}].{part}"), value),
        None => Ok(None),
    }
}

/// The name of an extension, in the shorter of forrst's two spellings.
///
/// ```
/// use tower_reprise::forrst::{Retry, Urn};
///
/// assert_eq!(Urn::from("urn:cline:forrst:ext:retry"), *Retry::URN);
/// assert_eq!(Urn::from("urn:acme:ext:audit").as_str(), "urn:acme:ext:audit");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct Urn(Cow<'static, str>);

impl Urn {
    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Returns a name in the shorter spelling.
pub(crate) fn short(urn: &str) -> Cow<'_, str> {
    match urn.strip_prefix("urn:cline:forrst:") {
        Some(rest) => format!("urn:forrst:{rest}").into(),
        None => urn.into(),
    }
}

impl From<&str> for Urn {
    fn from(urn: &str) -> Self {
        Self(short(urn).into_owned().into())
    }
}

impl From<String> for Urn {
    fn from(urn: String) -> Self {
        Self::from(urn.as_str())
    }
}

impl PartialEq<str> for Urn {
    fn eq(&self, other: &str) -> bool {
        self.0 == short(other)
    }
}

impl fmt::Display for Urn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Urn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from)
    }
}

/// The options of the idempotency extension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IdempotencyOptions {
    /// The operation's key, the same on every attempt.
    pub key: String,
    /// The time for which the result is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl IdempotencyOptions {
    /// The extension's URN.
    pub const URN: &str = IdempotencyData::URN;

    /// Creates options with this key, and the server's retention.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            ttl: None,
            other: Map::new(),
        }
    }
}

/// The data of the idempotency extension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IdempotencyData {
    /// The key of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `processed`, `cached`, `processing` or `conflict`.
    pub status: String,
    /// The id of the request that was executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_request_id: Option<String>,
    /// The time when the result was stored, in ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_at: Option<String>,
    /// The time when it expires, in ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl IdempotencyData {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:idempotency";

    #[cfg(feature = "server")]
    pub(super) fn new(key: Option<String>, status: &str, original: Option<&str>) -> Self {
        Self {
            key,
            status: status.to_owned(),
            original_request_id: original.map(str::to_owned),
            cached_at: None,
            expires_at: None,
            other: Map::new(),
        }
    }

    /// Whether a retry gets the reply again, which is stored or was executed under a key.
    pub(super) fn is_kept(&self) -> bool {
        self.is_cached() || self.status == "processed"
    }

    /// Whether the reply is a stored one, which a retry gets again.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.status == "cached"
    }
}

/// The data of the rate-limit extension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RateLimit {
    /// The allowed requests.
    #[serde(default, deserialize_with = "some_whole")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The remaining requests.
    #[serde(default, deserialize_with = "some_whole")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The time until all are allowed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<Span>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl RateLimit {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:rate-limit";
    /// The code of a call that was over the limit.
    pub(super) const CODE: &str = "RATE_LIMITED";

    /// Returns the wait for the reset of a limit that is used up, or that a call was over.
    pub(super) fn reached(&self, limited: bool) -> Option<std::time::Duration> {
        let reset = self.reset.filter(|_| limited || self.remaining == Some(0));
        reset.map(Span::duration)
    }
}
