use std::time::Duration;

use crate::{
    delivery::worker::alert,
    store::{
        StoreError, StoreErrorKind,
        journal::{Enqueued, EntryId, Journal, LeaseRequest, NewEntry, Settlement},
    },
    telemetry,
};

/// Makes a letter of what nobody ever had a chance with: queues it in a lane of its own, takes it
/// from there, and says that it failed. If that breaks off in between, whoever asked was not
/// answered, and comes here again; with the same [`Dedup`](crate::store::journal::Dedup) it is the
/// same letter. Until the lease of who began it has run out that is an error too: nobody knows
/// whether it will be one.
pub(crate) async fn bury<J: Journal>(
    journal: &J,
    mut new: NewEntry,
    settle: Settlement,
) -> Result<EntryId, StoreError> {
    new.lane = new.id.to_string();
    let queue = new.queue.clone();
    let entry = match journal.enqueue(new).await? {
        Enqueued::New(entry) | Enqueued::Existing(entry) => entry,
        Enqueued::Mismatch => {
            let message = "a letter of that id has another fingerprint, and there is but one";
            return Err(StoreError::new(StoreErrorKind::Corrupt, message));
        }
    };
    if !entry.status.is_over() {
        let want = LeaseRequest::new(queue.clone(), entry.lane, 1, Duration::from_secs(30));
        let leased = journal.lease(want).await?;
        if leased.is_empty() {
            let message = "somebody else is at work on that letter";
            return Err(StoreError::new(StoreErrorKind::Unavailable, message));
        }
        for leased in leased {
            let outcome = settle.outcome;
            let (_, keep) = outcome.transition();
            let alert = alert(&queue, leased.id, &leased.owner, keep);
            let settle = settle.clone().followed_by(alert);
            // If it is not ours any more, somebody works on it.
            let _ = journal
                .settle(leased.id, leased.lease_token, settle)
                .await?;
            telemetry::settled(&queue, outcome.as_str(), outcome.is_failed());
        }
    }
    Ok(entry.id)
}
