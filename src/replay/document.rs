//! What callers are told of a replay, in JSON.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{ReplayId, request::Stored};
use crate::store::journal::{Entry, Status, Timestamp};

/// Where a replay stands.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ReplayStatus {
    /// Its name.
    pub replay_id: ReplayId,
    /// Where it stands: `queued`, `processing`, `completed`, `failed`, `expired` or `cancelled`.
    pub status: &'static str,
    /// Why it was journaled.
    pub reason: String,
    /// What its caller calls the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_request_id: Option<String>,
    /// What it calls.
    pub function: String,
    /// When it was journaled, by RFC 3339.
    pub queued_at: String,
    /// From when on it will not be started.
    pub expires_at: String,
    /// How often it was attempted.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// When it ended, if it was replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_at: Option<String>,
    /// When it was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_at: Option<String>,
    /// How many go before it, if it is queued.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// How long it will take until it is replayed, if something is known about that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_replay: Option<Span>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A span of time, in a unit that suits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Span {
    /// How many of them.
    pub value: u64,
    /// `second`, `minute` or `hour`.
    pub unit: &'static str,
}

impl From<Duration> for Span {
    /// Rounded up, and at least a second.
    fn from(duration: Duration) -> Self {
        let seconds = duration.as_secs() + u64::from(duration.subsec_nanos() > 0);
        let (per, unit) = match seconds {
            0..=119 => (1, "second"),
            120..=7199 => (60, "minute"),
            _ => (3600, "hour"),
        };
        Self {
            value: seconds.div_ceil(per).max(1),
            unit,
        }
    }
}

impl ReplayStatus {
    pub(super) fn new(entry: &Entry, stored: Option<&Stored>) -> Self {
        let at = |is: bool| is.then(|| rfc3339(entry.changed_at));
        let replayed = matches!(entry.status, Status::Completed | Status::Failed);
        let meta = stored.map(|stored| &stored.meta);
        Self {
            replay_id: ReplayId(entry.id),
            status: entry.status.as_str(),
            reason: meta.map(|meta| meta.reason.clone()).unwrap_or_default(),
            original_request_id: meta.and_then(|meta| meta.request_id.clone()),
            function: entry.label.clone(),
            queued_at: rfc3339(entry.queued_at),
            expires_at: rfc3339(entry.expires_at),
            attempts: entry.attempts,
            replayed_at: at(replayed),
            cancelled_at: at(entry.status == Status::Cancelled),
            position: None,
            estimated_replay: None,
        }
    }
}

/// A moment in UTC, to the millisecond.
pub(super) fn rfc3339(at: Timestamp) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(at.as_micros());
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_rounded_up() {
        let span = |seconds| Span::from(Duration::from_secs_f64(seconds));
        for (seconds, value, unit) in [
            (0.0, 1, "second"),
            (1.2, 2, "second"),
            (119.0, 119, "second"),
            (121.0, 3, "minute"),
            (7201.0, 3, "hour"),
        ] {
            assert_eq!(span(seconds), Span { value, unit }, "{seconds}");
        }
    }

    #[test]
    fn j_1_times_are_those_of_rfc_3339() {
        let at = Timestamp::from_micros(1_705_314_600_123_456);
        assert_eq!(rfc3339(at), "2024-01-15T10:30:00.123Z");
        // As far as a journal can say.
        assert!(rfc3339(at.after(Duration::MAX)).starts_with("2255-"));
    }
}
