//! The state of a replay, in JSON.

use std::time::{Duration, SystemTime};

use serde::Serialize;

use super::{ReplayId, request::Stored};
use crate::{
    http::{Span, problem::Problem},
    store::journal::{Entry, Status, Timestamp},
};

/// The state of a replay.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ReplayStatus {
    /// Its name.
    pub replay_id: ReplayId,
    /// Its state: `queued`, `processing`, `completed`, `failed`, `expired` or `cancelled`.
    pub status: &'static str,
    /// The reason why it was journaled.
    pub reason: String,
    /// The caller's id of the request; lists leave it out, and so does a replay that is cancelled, but for
    /// the reply to the cancellation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub original_request_id: Option<String>,
    /// The function that it calls.
    pub function: String,
    /// The version of the function, where calls have one; left out like the
    /// [caller's id](Self::original_request_id).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The time at which it was journaled, by RFC 3339.
    pub queued_at: String,
    /// The time from which on it will not be started.
    pub expires_at: String,
    /// The number of attempts.
    #[serde(skip_serializing_if = "is_zero")]
    pub attempts: u32,
    /// The time at which it ended, if it was replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed_at: Option<String>,
    /// The time at which it was cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancelled_at: Option<String>,
    /// The time at which it was triggered, in the reply to that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub triggered_at: Option<String>,
    /// The number of entries before it, if it is queued and there are fewer than a thousand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
    /// The estimated time until it is replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub estimated_replay: Option<Span>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl ReplayStatus {
    pub(crate) fn is_over(&self) -> bool {
        !["queued", "processing"].contains(&self.status)
    }

    /// Returns the problem of a replay that ended without success.
    pub(crate) fn problem(&self) -> Option<Problem> {
        let id = self.replay_id;
        Some(match state(self.status)? {
            Status::Queued | Status::Processing | Status::Completed => return None,
            Status::Failed => {
                let detail = format!("The request was replayed as {id}, and failed for good.");
                Problem::REPLAY_FAILED.detail(detail)
            }
            Status::Expired => Problem::REPLAY_EXPIRED,
            Status::Cancelled => Problem::REPLAY_CANCELLED,
        })
    }

    pub(super) fn new(entry: &Entry, stored: Option<&Stored>) -> Self {
        let at = |is: bool| is.then(|| rfc3339(entry.changed_at));
        let replayed = matches!(entry.status, Status::Completed | Status::Failed);
        let meta = stored.map(|stored| &stored.meta);
        Self {
            replay_id: ReplayId(entry.id),
            status: entry.status.as_str(),
            reason: meta
                .map(|meta| &meta.reason)
                .or(entry.reason.as_ref())
                .cloned()
                .unwrap_or_default(),
            original_request_id: meta.and_then(|meta| meta.request_id.clone()),
            function: entry.label.clone(),
            version: meta.and_then(|meta| meta.version.clone()),
            queued_at: rfc3339(entry.queued_at),
            expires_at: rfc3339(entry.expires_at),
            attempts: entry.attempts,
            replayed_at: at(replayed),
            cancelled_at: at(entry.status == Status::Cancelled),
            triggered_at: None,
            position: None,
            estimated_replay: None,
        }
    }
}

/// All states, for people.
pub(crate) const STATES: &str = "queued, processing, completed, failed, expired or cancelled";

/// Returns the state of that name.
pub(crate) fn state(name: &str) -> Option<Status> {
    let mut all = Status::ALL.into_iter();
    all.find(|status| status.as_str() == name)
}

/// Writes a time in UTC, to the millisecond.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(at.as_micros());
    humantime::format_rfc3339_millis(at).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::journal::EntryId;

    /// A replay can end in any way while its caller asks for it once more.
    #[test]
    fn j_8_what_did_not_succeed_is_a_problem() {
        let problem = |status: Status| {
            let status = ReplayStatus {
                replay_id: EntryId::new([7; 16]).into(),
                status: status.as_str(),
                reason: String::new(),
                original_request_id: None,
                function: String::new(),
                version: None,
                queued_at: String::new(),
                expires_at: String::new(),
                attempts: 0,
                replayed_at: None,
                cancelled_at: None,
                triggered_at: None,
                position: None,
                estimated_replay: None,
            };
            let response = status.problem()?.response(false);
            Some(response.status().as_u16())
        };
        let all = Status::ALL.map(problem);
        assert_eq!(all, [None, None, None, Some(409), Some(410), Some(409)]);
    }

    #[test]
    fn j_1_times_are_those_of_rfc_3339() {
        let at = Timestamp::from_micros(1_705_314_600_123_456);
        assert_eq!(rfc3339(at), "2024-01-15T10:30:00.123Z");
        // As far as a journal can say.
        assert!(rfc3339(at.after(Duration::MAX)).starts_with("2255-"));
    }
}
