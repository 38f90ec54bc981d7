use std::time::Duration;

use crate::store::journal::{EntryId, NewEntry};

/// The queue of alerts.
pub(crate) const ALERTS: &str = "reprise.alerts";

/// Returns the alert to queue together with a dead letter, in one settlement. An alert that failed
/// itself gets none.
pub(crate) fn alert(queue: &str, id: EntryId, owner: &str, keep: Duration) -> Option<NewEntry> {
    (queue != ALERTS).then(|| NewEntry {
        label: queue.to_owned(),
        owner: owner.to_owned(),
        ttl: keep,
        ..NewEntry::new(ALERTS, id.as_bytes().to_vec())
    })
}
