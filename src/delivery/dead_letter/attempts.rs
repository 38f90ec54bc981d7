//! The attempts of a retry layer around a consumer. A journal writes down one settlement for all of
//! them, whose note has a line for each behind the reason: its time and its cause.

use std::fmt::Write as _;

use super::EventFailure;
use crate::store::journal::{EventKind, HistoryEvent, Timestamp};

/// Returns the note of a failure. The reason makes room for the attempts, since a journal cuts notes.
pub(super) fn note(failure: &EventFailure) -> String {
    let mut lines = String::new();
    for (at, cause) in failure.history() {
        let at = humantime::format_rfc3339_millis(at);
        let _ = write!(lines, "\n{at} {cause}");
    }
    let room = HistoryEvent::MAX_NOTE.saturating_sub(lines.len());
    let reason = HistoryEvent::cut_to(failure.reason(), room);
    format!("{reason}{lines}")
}

/// Returns a history with an event for each attempt, before that of their settlement.
pub(super) fn expand(history: Vec<HistoryEvent>) -> Vec<HistoryEvent> {
    let mut expanded = Vec::with_capacity(history.len());
    for mut event in history {
        let mut attempts = Vec::new();
        while let Some((reason, attempt)) = last_attempt(&event.note) {
            let length = reason.len();
            attempts.push(attempt);
            event.note.truncate(length);
        }
        expanded.extend(attempts.into_iter().rev());
        expanded.push(event);
    }
    expanded
}

/// Splits the last line off a note, if it is an attempt.
fn last_attempt(note: &str) -> Option<(&str, HistoryEvent)> {
    let (reason, line) = note.rsplit_once('\n')?;
    let (at, cause) = line.split_once(' ')?;
    let attempt = HistoryEvent {
        at: Timestamp::from(humantime::parse_rfc3339(at).ok()?),
        kind: EventKind::Settlement,
        note: cause.to_owned(),
    };
    Some((reason, attempt))
}
