//! The replay extension and the maintenance extension.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::http::{Span, span::some_whole};

/// The options of the replay extension, for a request that can't be served now.
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
    /// Whether the request may be replayed: yes by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// The longest that the request may wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Span>,
    /// The priority among replays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<ReplayPriority>,
    /// The webhook that is told the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<ReplayCallback>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ReplayOptions {
    /// The extension's URN.
    pub const URN: &str = ReplayData::URN;
}

/// The priority among replays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum ReplayPriority {
    /// Before normal ones.
    High,
    /// The default.
    #[default]
    Normal,
    /// After all others.
    Low,
}

/// A webhook that is told the result of a replay.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReplayCallback {
    /// The target.
    pub url: String,
    /// Additional headers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl ReplayCallback {
    /// Creates a callback without additional headers.
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
    /// `processed` if the request was served at once; otherwise the state of its replay: `queued`,
    /// `processing`, `completed`, `failed`, `expired` or `cancelled`.
    pub status: String,
    /// The id of the replay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_id: Option<String>,
    /// The reason why it was queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The time when it was queued.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_at: Option<String>,
    /// The time when it expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// The time when it was executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed_at: Option<String>,
    /// The number of attempts.
    #[serde(default, deserialize_with = "some_whole")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u64>,
    /// The number of replays before it.
    #[serde(default, deserialize_with = "some_whole")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    /// The estimated wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimated_replay: Option<Span>,
    /// Unknown members.
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
    /// The part in maintenance: `server` or `function`.
    pub scope: String,
    /// The reason, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The end, in ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Unknown members.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

impl MaintenanceData {
    /// The extension's URN.
    pub const URN: &str = "urn:forrst:ext:maintenance";
}
