//! Transitions of the journal that take several statements.

use tokio::time::Instant;
use tokio_postgres::Row;

use super::{
    Parameters, Statements, micros,
    row::{summary, unreadable},
};
use crate::store::{
    StoreError,
    journal::{Enqueued, EventKind, NewEntry, QueueBounds, Settlement, history},
    postgres::{PostgresStore, connection::Session, parameter::Parameter, schema::QUEUE_FULL},
};

impl PostgresStore {
    pub(super) async fn try_enqueue(
        &self,
        deadline: Instant,
        new: &NewEntry,
    ) -> Result<Put, StoreError> {
        let client = self.client(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, async {
            enqueue_with(&client, &self.inner.journal, new, new.bounds).await
        });
        let answer = answer.await;
        client.conclude(answer)
    }

    /// Settles a lease and queues its outbox in one transaction, and returns whether there was such a
    /// lease.
    pub(super) async fn try_settle(
        &self,
        deadline: Instant,
        parameters: &Parameters<'_>,
        outbox: &[NewEntry],
    ) -> Result<bool, StoreError> {
        let statements = &self.inner.journal;
        let mut client = self.client(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, async {
            let transaction = client.begin().await?;
            if transaction
                .rows(&statements.settle, parameters)
                .await?
                .is_empty()
            {
                return Ok(false);
            }
            for new in outbox {
                enqueue_with(&transaction, statements, new, None).await?;
            }
            transaction.commit().await?;
            Ok(true)
        });
        let answer = answer.await;
        client.conclude(answer)
    }

    /// Corrects the number of leased entries if no more than `most` are not over and no other process sweeps.
    pub(in super::super) async fn try_count_leased(
        &self,
        deadline: Instant,
        most: i64,
    ) -> Result<(), StoreError> {
        let statements = &self.inner.journal;
        let mut client = self.client(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, async {
            let transaction = client.begin().await?;
            // By itself: a statement that began before another process committed its correction, and
            // that got the lock after it, would correct again.
            let alone = transaction.rows(&statements.sweeps_alone, &[]).await?;
            let alone = alone.first().map(|row| row.try_get(0)).transpose()?;
            if alone == Some(true) {
                transaction.rows(&statements.count_leased, &[&most]).await?;
            }
            transaction.commit().await
        });
        let answer = answer.await;
        client.conclude(answer)
    }

    /// Queues an entry, dead-letters it and queues the outbox in one transaction.
    pub(super) async fn try_bury(
        &self,
        deadline: Instant,
        new: &NewEntry,
        attempts: u32,
        settlement: &Settlement,
    ) -> Result<Put, StoreError> {
        let (_, keep) = settlement.outcome.transition();
        let note = history::frame(EventKind::Settlement, &settlement.note);
        let parameters: [&dyn Parameter; 6] = [
            &new.id.as_bytes().as_slice(),
            &micros(keep),
            &i32::try_from(attempts).unwrap_or(i32::MAX),
            &settlement.stored_cause(),
            &settlement.result.as_deref(),
            &note.as_deref().map(str::as_bytes),
        ];
        let statements = &self.inner.journal;
        let mut client = self.client(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, async {
            let transaction = client.begin().await?;
            let put = enqueue_with(&transaction, statements, new, None).await?;
            if !matches!(&put, Put::Row(row) if is_new(row)) {
                return Ok(put);
            }
            for new in &settlement.outbox {
                enqueue_with(&transaction, statements, new, None).await?;
            }
            let buried = transaction.rows(&statements.bury, &parameters).await?;
            transaction.commit().await?;
            Ok(buried.into_iter().next().map_or(put, Put::Row))
        });
        let answer = answer.await;
        client.conclude(answer)
    }
}

/// The result of queuing an entry.
pub(super) enum Put {
    /// The row of the entry, or of the one that has its id or key.
    Row(Row),
    /// The bounds of the queue leave no room for it.
    Full,
}

/// Queues an entry, or returns the one that has its id or key. That one may be gone before it is
/// read; then the insert is tried again. Only `bounds` bound it, not those of the entry.
pub(super) async fn enqueue_with<S: Session>(
    session: &S,
    statements: &Statements,
    new: &NewEntry,
    bounds: Option<QueueBounds>,
) -> Result<Put, tokio_postgres::Error> {
    let key = new.dedup.as_ref().map(|dedup| &dedup.key.as_bytes()[..]);
    let fingerprint = new.dedup.as_ref();
    let fingerprint = fingerprint.map(|dedup| &dedup.fingerprint.as_bytes()[..]);
    let (id, queue) = (new.id.as_bytes().as_slice(), &*new.queue);
    let [in_all, per_owner] = columns(bounds);
    let (own, shared) = new.parts();
    let (shared_id, shared_bytes) = match shared {
        Some(shared) => (&shared.id()[..], &**shared.bytes()),
        None => Default::default(),
    };
    let insert: [&dyn Parameter; 17] = [
        &id,
        &queue,
        &new.lane,
        &new.owner,
        &new.label,
        &key,
        &fingerprint,
        &(new.priority as i16),
        &micros(new.delay),
        &micros(new.ttl),
        &own,
        &new.version,
        &new.reason,
        &in_all,
        &per_owner,
        &shared_id,
        &shared_bytes,
    ];
    let (enqueue, insert) = match shared {
        Some(_) => (&statements.enqueue_sharing, &insert[..]),
        None => (&statements.enqueue, &insert[..15]),
    };
    loop {
        match session.rows(enqueue, insert).await {
            Ok(rows) => {
                if let Some(row) = rows.into_iter().next() {
                    return Ok(Put::Row(row));
                }
            }
            Err(error) if error.code().is_some_and(|code| code.code() == QUEUE_FULL) => {
                return Ok(Put::Full);
            }
            Err(error) => return Err(error),
        }
        let look: [&dyn Parameter; 4] = [&id, &queue, &key, &fingerprint];
        let found = session.rows(&statements.existing, &look).await?;
        if let Some(row) = found.into_iter().next() {
            return Ok(Put::Row(row));
        }
    }
}

/// Returns bounds as the columns have them.
pub(super) fn columns(bounds: Option<QueueBounds>) -> [Option<i32>; 2] {
    let number = |number| i32::try_from(number).unwrap_or(i32::MAX);
    [
        bounds.map(|bounds| number(bounds.in_all)),
        bounds.map(|bounds| number(bounds.per_owner)),
    ]
}

/// Reads what became of an entry.
pub(super) fn enqueued(put: &Put) -> Result<Enqueued, StoreError> {
    match put {
        Put::Row(row) => enqueued_row(row),
        Put::Full => Ok(Enqueued::Full),
    }
}

/// Reads a row of the entry that was queued, or of the one that has its id or key.
fn enqueued_row(row: &Row) -> Result<Enqueued, StoreError> {
    if is_new(row) {
        return summary(row).map(Enqueued::New);
    }
    match row.try_get("same").map_err(unreadable)? {
        Some(true) => summary(row).map(Enqueued::Existing),
        _ => Ok(Enqueued::Mismatch),
    }
}

/// Returns whether a row is that of an entry that was queued.
fn is_new(row: &Row) -> bool {
    row.columns().iter().all(|column| column.name() != "same")
}
