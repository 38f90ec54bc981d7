use std::{borrow::Cow, fmt};

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::{EnvelopeError, envelope::present, error::at_its_place};
use crate::http::{Span, span::some_whole};

/// An extension in an envelope: its URN, with options in a request and data in a response.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Extension {
    /// Which one it is.
    pub urn: Urn,
    /// What a request asks for.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub options: Option<Value>,
    /// What a response tells.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    pub data: Option<Value>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl Extension {
    /// An extension of a request.
    #[must_use]
    pub fn with_options(urn: impl Into<Urn>, options: Value) -> Self {
        Self {
            urn: urn.into(),
            options: Some(options),
            data: None,
            other: Map::new(),
        }
    }

    /// An extension of a response.
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

/// Where the extension of this URN stands, which is there once at most.
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

/// What one part of the first extension of this URN says, if it is there.
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

/// The name of an extension. Of the two spellings of forrst's own names it holds the shorter one.
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
    /// As it is written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The same name, in the spelling that is written.
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
    /// How long the result is to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl IdempotencyOptions {
    /// The extension's URN.
    pub const URN: &str = IdempotencyData::URN;

    /// This key, kept as long as the server likes.
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
    /// The id of the request that was processed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub original_request_id: Option<String>,
    /// When the result was kept, in ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_at: Option<String>,
    /// Until when it is, in ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Members that are not known.
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

    /// Whether a store answered, so that asking again brings the same.
    #[must_use]
    pub fn is_cached(&self) -> bool {
        self.status == "cached"
    }
}

/// The data of the rate-limit extension.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RateLimit {
    /// Requests that are allowed.
    #[serde(
        default,
        deserialize_with = "some_whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub limit: Option<u64>,
    /// Requests that are left.
    #[serde(
        default,
        deserialize_with = "some_whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub remaining: Option<u64>,
    /// How long until all are allowed again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<Span>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl RateLimit {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:rate-limit";
}
