//! What the replay extension says, and the maintenance extension beside it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::http::{Span, span::some_whole};

/// The options of the replay extension: whether and how a request is to be replayed later if it
/// can't be served now.
///
/// ```
/// use std::time::Duration;
/// use tower_reprise::{forrst::{Extension, ReplayOptions, Request}, http::Span};
///
/// let mut call = Request::parse(br#"{"call":{"function":"orders.create"}}"#)?;
/// let mut options = ReplayOptions::default();
/// options.ttl = Some(Span::about(Duration::from_secs(86_400)));
/// call.extensions.push(Extension::with_options(
///     ReplayOptions::URN,
///     serde_json::to_value(&options).unwrap(),
/// ));
/// assert_eq!(call.options_of(ReplayOptions::URN)?, Some(options));
/// # Ok::<(), tower_reprise::forrst::EnvelopeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// Whether it is wanted: yes, if the extension is there and does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How long the request may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// What goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<ReplayPriority>,
    /// Who is to be told how it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<ReplayCallback>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ReplayOptions {
    /// The extension's URN.
    pub const URN: &str = ReplayData::URN;
}

/// Which replay goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ReplayPriority {
    /// Before what is normal.
    High,
    /// Unless something else is said.
    #[default]
    Normal,
    /// After all else.
    Low,
}

/// A webhook that is told how a replay ended.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReplayCallback {
    /// Where it is.
    pub url: String,
    /// What it needs to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ReplayCallback {
    /// This one, without headers of its own.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            headers: None,
            other: Map::new(),
        }
    }
}

/// Shows no values of headers, which often are credentials.
impl std::fmt::Debug for ReplayCallback {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<_> = self.headers.iter().flat_map(BTreeMap::keys).collect();
        f.debug_struct("ReplayCallback")
            .field("url", &self.url)
            .field("headers", &names)
            .finish_non_exhaustive()
    }
}

/// The data of the replay extension. Times are in ISO 8601.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReplayData {
    /// `processed` if the request was served at once; else where its replay stands: `queued`,
    /// `processing`, `completed`, `failed`, `expired` or `cancelled`.
    pub status: String,
    /// The replay's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_id: Option<String>,
    /// Why it was queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When it was queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<String>,
    /// From when on it is not replayed any more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// When it was replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed_at: Option<String>,
    /// How often that was attempted.
    #[serde(
        default,
        deserialize_with = "some_whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub attempts: Option<u64>,
    /// How many go before it.
    #[serde(
        default,
        deserialize_with = "some_whole",
        skip_serializing_if = "Option::is_none"
    )]
    pub position: Option<u64>,
    /// How long it will take until it is replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_replay: Option<Span>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ReplayData {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:replay";
}

/// The data of the maintenance extension.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MaintenanceData {
    /// What is in maintenance: `server`, or a `function`.
    pub scope: String,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Until when, in ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Members that are not known.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl MaintenanceData {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:maintenance";
}
