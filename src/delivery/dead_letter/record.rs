use crate::{
    delivery::worker::alert,
    store::{
        StoreError, StoreErrorKind,
        journal::{Enqueued, EntryId, Journal, NewEntry, Settlement},
    },
    telemetry,
};

/// Stores a dead letter for an event that was never queued, in a lane of its own, together with its
/// alert. A second call with the same [`Dedup`](crate::store::journal::Dedup) changes nothing.
pub(crate) async fn record_dead_letter<J: Journal>(
    journal: &J,
    mut new: NewEntry,
    attempts: u32,
    settlement: Settlement,
) -> Result<EntryId, StoreError> {
    new.lane = new.id.to_string();
    let queue = new.queue.clone();
    let outcome = settlement.outcome;
    let (_, keep) = outcome.transition();
    let settlement = settlement.followed_by(alert(&queue, new.id, &new.owner, keep));
    match journal.bury(new, attempts, settlement).await? {
        Enqueued::New(entry) => {
            telemetry::settled(&queue, outcome.as_str(), outcome.is_failed());
            Ok(entry.id)
        }
        Enqueued::Existing(entry) => Ok(entry.id),
        Enqueued::Mismatch => {
            let message = "a dead letter of that id has another fingerprint";
            Err(StoreError::new(StoreErrorKind::Corrupt, message))
        }
        // A journal of the user's that bounds what no one asked it to bound.
        Enqueued::Full => Err(StoreError::new(StoreErrorKind::Full, "the queue is full")),
    }
}
