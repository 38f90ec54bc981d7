use std::time::Duration;

use crate::{
    delivery::worker::alert,
    store::{
        StoreError, StoreErrorKind,
        journal::{Enqueued, EntryId, Journal, LeaseRequest, NewEntry, Settlement},
    },
    telemetry,
};

/// Stores a dead letter for an event that was never queued: enqueues it in a lane of its own, leases
/// it, and settles it as failed.
///
/// An error in between leaves an entry that a second call with the same
/// [`Dedup`](crate::store::journal::Dedup) completes. Until the lease of the first call runs out the
/// second one fails, since the first may still settle the entry.
pub(crate) async fn record_dead_letter<J: Journal>(
    journal: &J,
    mut new: NewEntry,
    settlement: Settlement,
) -> Result<EntryId, StoreError> {
    new.lane = new.id.to_string();
    let queue = new.queue.clone();
    let entry = match journal.enqueue(new).await? {
        Enqueued::New(entry) | Enqueued::Existing(entry) => entry,
        Enqueued::Mismatch => {
            let message = "a dead letter of that id has another fingerprint";
            return Err(StoreError::new(StoreErrorKind::Corrupt, message));
        }
    };
    if !entry.status.is_over() {
        let request = LeaseRequest::new(queue.clone(), entry.lane, 1, Duration::from_secs(30));
        let leased = journal.lease(request).await?;
        if leased.is_empty() {
            let message = "another call holds the lease of that dead letter";
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        for leased in leased {
            let outcome = settlement.outcome;
            let (_, keep) = outcome.transition();
            let alert = alert(&queue, leased.id, &leased.owner, keep);
            let settlement = settlement.clone().followed_by(alert);
            // If the lease was lost, another call settles the entry.
            let _ = journal
                .settle(leased.id, leased.lease_token, settlement)
                .await?;
            telemetry::settled(&queue, outcome.as_str(), outcome.is_failed());
        }
    }
    Ok(entry.id)
}
