//! The journal, in a table beside that of the records.

mod row;
mod sql;
mod together;

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::{GenericClient, Row, ToStatement, Transaction, types::ToSql};

use self::{
    row::{summary, turned, unreadable, whole},
    together::Told,
};
pub(super) use self::{sql::Statements, together::Together};
use super::{PostgresStore, conclude, error};
use crate::store::{
    Ownership, StoreError, StoreErrorKind,
    journal::{
        CommandResult, Counts, Enqueued, Entry, EntryCommand, EntryId, Journal, LeaseRequest,
        LeaseToken, NewEntry, Outcome, Query, Settlement, Status, Timestamp, columns,
    },
    remote,
};

type Parameters<'a> = [&'a (dyn ToSql + Sync)];

impl PostgresStore {
    /// Queues an entry as part of your transaction: what you write and what must follow from it are
    /// committed together or not at all. Nobody can lease it before.
    ///
    /// An entry with a [`Dedup`](crate::store::journal::Dedup) that another transaction is queueing at the
    /// same time waits for that one to end.
    ///
    /// ```no_run
    /// use tower_reprise::{
    ///     error::BoxError,
    ///     store::{PostgresStore, journal::NewEntry},
    /// };
    ///
    /// async fn order(
    ///     store: &PostgresStore,
    ///     shop: &mut tokio_postgres::Client,
    /// ) -> Result<(), BoxError> {
    ///     let transaction = shop.transaction().await?;
    ///     transaction
    ///         .execute("INSERT INTO orders (article) VALUES ('teapot')", &[])
    ///         .await?;
    ///     let mail = NewEntry::new("mails", "your teapot is on its way");
    ///     store.enqueue_in(&transaction, mail).await?;
    ///     transaction.commit().await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The statement failed: the transaction is of no use any more, and the server will roll it
    /// back. When the commit itself fails, it is open whether it happened; repeat it with the same
    /// [id](NewEntry::id).
    pub async fn enqueue_in(
        &self,
        transaction: &Transaction<'_>,
        entry: NewEntry,
    ) -> Result<Enqueued, StoreError> {
        let Statements {
            enqueue, existing, ..
        } = &self.inner.journal;
        let row = enqueue_with(transaction, enqueue, existing, &entry).await;
        row.map_err(error::of_statement)
            .and_then(|row| enqueued(&row))
    }

    async fn try_enqueue(&self, deadline: Instant, new: &NewEntry) -> Result<Row, StoreError> {
        let Statements {
            enqueue, existing, ..
        } = &self.inner.journal;
        let client = self.client(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, async {
            let enqueue = client.prepare_cached(enqueue).await?;
            let existing = client.prepare_cached(existing).await?;
            enqueue_with(&**client, &enqueue, &existing, new).await
        });
        let answer = answer.await;
        conclude(client, answer)
    }

    /// All in one transaction; whether there was a turn to settle.
    async fn try_settle(
        &self,
        deadline: Instant,
        parameters: &Parameters<'_>,
        outbox: &[NewEntry],
    ) -> Result<bool, StoreError> {
        let statements = &self.inner.journal;
        let mut client = self.client(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, async {
            let settle = client.prepare_cached(&statements.settle).await?;
            let enqueue = client.prepare_cached(&statements.enqueue).await?;
            let existing = client.prepare_cached(&statements.existing).await?;
            let transaction = client.transaction().await?;
            if transaction.query(&settle, parameters).await?.is_empty() {
                return Ok(false);
            }
            for new in outbox {
                enqueue_with(&*transaction, &enqueue, &existing, new).await?;
            }
            transaction.commit().await?;
            Ok(true)
        });
        let answer = answer.await;
        conclude(client, answer)
    }

    async fn entries(
        &self,
        sql: &str,
        parameters: &Parameters<'_>,
        read: fn(&Row) -> Result<Entry, StoreError>,
    ) -> Result<Vec<Entry>, StoreError> {
        self.rows(sql, parameters).await?.iter().map(read).collect()
    }
}

/// Queues it, or finds what is in its way. What is found may be gone before it is looked at; then
/// there is room.
async fn enqueue_with<C: GenericClient, S: ToStatement + ?Sized + Sync + Send>(
    client: &C,
    enqueue: &S,
    existing: &S,
    new: &NewEntry,
) -> Result<Row, tokio_postgres::Error> {
    let key = new.dedup.as_ref().map(|dedup| &dedup.key.as_bytes()[..]);
    let fingerprint = new.dedup.as_ref();
    let fingerprint = fingerprint.map(|dedup| &dedup.fingerprint.as_bytes()[..]);
    let (id, queue) = (new.id.as_bytes().as_slice(), &*new.queue);
    let insert: [&(dyn ToSql + Sync); 11] = [
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
        &&*new.payload,
    ];
    loop {
        if let Some(row) = client.query_opt(enqueue, &insert).await? {
            return Ok(row);
        }
        let look: [&(dyn ToSql + Sync); 4] = [&id, &queue, &key, &fingerprint];
        let found = client.query(existing, &look).await?;
        if let Some(row) = found.into_iter().next() {
            return Ok(row);
        }
    }
}

/// A row of what was queued, or of what was in its way.
fn enqueued(row: &Row) -> Result<Enqueued, StoreError> {
    if row.columns().iter().all(|column| column.name() != "same") {
        return summary(row).map(Enqueued::New);
    }
    match row.try_get("same").map_err(unreadable)? {
        Some(true) => summary(row).map(Enqueued::Existing),
        _ => Ok(Enqueued::Mismatch),
    }
}

/// What is added to a time. More than the server takes is as good as forever.
fn micros(duration: Duration) -> i64 {
    let after = Timestamp::from_micros(0).after(duration);
    i64::try_from(after.as_micros()).unwrap_or(i64::MAX)
}

impl Journal for PostgresStore {
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        self.sweep_if_due();
        let row = remote::with_retries(self.inner.timeout, |deadline| {
            self.try_enqueue(deadline, &entry)
        });
        enqueued(&row.await?)
    }

    async fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        let sql = match after {
            Some(_) => &self.inner.journal.lanes_after,
            None => &self.inner.journal.lanes_from,
        };
        let after = after.unwrap_or_default();
        let rows = self.rows(sql, &[&queue, &after, &i64::from(limit)]).await?;
        let lanes = rows.iter().map(|row| row.try_get(0).map_err(unreadable));
        lanes.collect()
    }

    async fn lease(&self, want: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        let parameters: [&(dyn ToSql + Sync); 5] = [
            &&*want.queue,
            &want.lane,
            &i64::from(want.limit),
            &micros(want.lease),
            &(want.through as i16),
        ];
        let lease = &self.inner.journal.lease;
        let answer = remote::with_retries(self.inner.timeout, async |deadline| {
            match self.attempt(deadline, lease, &parameters).await {
                // The answer got lost. Asking again would lease others, and leave these waiting.
                Err(error) if error.may_have_happened() => Ok(Err(error)),
                answer => answer.map(Ok),
            }
        });
        answer.await??.iter().map(whole).collect()
    }

    async fn extend(
        &self,
        id: EntryId,
        turn: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        let id = id.as_bytes().as_slice();
        let extend = &self.inner.journal.extend;
        self.owned(extend, &[&id, &turned(turn), &micros(lease)])
            .await
    }

    async fn settle(
        &self,
        id: EntryId,
        turn: LeaseToken,
        settle: Settlement,
    ) -> Result<Ownership, StoreError> {
        let (status, time) = match settle.outcome {
            Outcome::Completed(keep) => (Status::Completed, keep),
            Outcome::Failed(keep) => (Status::Failed, keep),
            Outcome::Expired(keep) => (Status::Expired, keep),
            Outcome::Retry(delay) | Outcome::Release(delay) => (Status::Queued, delay),
        };
        let note = (!settle.note.is_empty()).then(|| columns::framed(&settle.note));
        if settle.outbox.is_empty() {
            let told = Told {
                id: *id.as_bytes(),
                turn: turned(turn),
                status: status.number().into(),
                time: micros(time),
                releases: matches!(settle.outcome, Outcome::Release(_)),
                result: settle.result.clone(),
                note: note.clone(),
            };
            if self.settled_together(told).await {
                return Ok(Ownership::Held);
            }
        }
        let (id, turn) = (id.as_bytes().as_slice(), turned(turn));
        let parameters: [&(dyn ToSql + Sync); 7] = [
            &id,
            &turn,
            &i16::from(status.number()),
            &micros(time),
            &matches!(settle.outcome, Outcome::Release(_)),
            &settle.result.as_deref(),
            &note.as_deref().map(str::as_bytes),
        ];
        let statements = &self.inner.journal;
        let settled = match &settle.outbox[..] {
            [] => {
                let settled = self.owned(&statements.settle, &parameters).await?;
                settled == Ownership::Held
            }
            outbox => {
                let settle = |deadline| self.try_settle(deadline, &parameters, outbox);
                remote::with_retries(self.inner.timeout, settle).await?
            }
        };
        if settled {
            return Ok(Ownership::Held);
        }
        self.owned(&statements.turn, &[&id, &turn]).await
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        let statements = &self.inner.journal;
        let id = id.as_bytes().as_slice();
        let (cancelled, redriven) = (columns::framed("cancelled"), columns::framed("redriven"));
        let applies = match command {
            EntryCommand::Cancel(_) | EntryCommand::Trigger => Status::Queued,
            EntryCommand::Redrive(_) => Status::Failed,
        };
        loop {
            let rows = match command {
                EntryCommand::Cancel(keep) => {
                    let parameters: &Parameters<'_> = &[&id, &micros(keep), &cancelled.as_bytes()];
                    self.rows(&statements.cancel, parameters).await?
                }
                EntryCommand::Trigger => self.rows(&statements.trigger, &[&id]).await?,
                EntryCommand::Redrive(ttl) => {
                    let parameters: &Parameters<'_> = &[&id, &micros(ttl), &redriven.as_bytes()];
                    self.rows(&statements.redrive, parameters).await?
                }
            };
            if let Some(row) = rows.first() {
                let (applied, entry) = (true, summary(row)?);
                return Ok(Some(CommandResult { applied, entry }));
            }
            // Only now, since whoever was in the way may have just been committed.
            let found = self.rows(&statements.look, &[&id]).await?;
            let Some(row) = found.first() else {
                return Ok(None);
            };
            let (applied, entry) = (false, summary(row)?);
            // Somebody gave it back in between.
            if entry.status != applies {
                return Ok(Some(CommandResult { applied, entry }));
            }
        }
    }

    async fn find(&self, id: EntryId) -> Result<Option<Entry>, StoreError> {
        let id = id.as_bytes().as_slice();
        let found = self
            .entries(&self.inner.journal.find, &[&id], whole)
            .await?;
        Ok(found.into_iter().next())
    }

    async fn list(&self, query: Query) -> Result<Vec<Entry>, StoreError> {
        let sql = self.inner.journal.list(&query);
        let after = i64::try_from(query.after).unwrap_or(i64::MAX);
        let (queue, limit) = (&*query.queue, i64::from(query.limit));
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&queue, &after, &limit];
        for filter in [&query.owner, &query.label].into_iter().flatten() {
            parameters.push(filter);
        }
        self.entries(&sql, &parameters, summary).await
    }

    async fn counts(&self, queue: &str) -> Result<Counts, StoreError> {
        let rows = self.rows(&self.inner.journal.counts, &[&queue]).await?;
        let mut counts = Counts::default();
        for row in rows {
            let number: i16 = row.try_get(0).map_err(unreadable)?;
            let count: i64 = row.try_get(1).map_err(unreadable)?;
            let oldest: i64 = row.try_get(2).map_err(unreadable)?;
            let status = columns::status(number.into())?;
            counts.by_status[usize::from(status.number())] = count.unsigned_abs();
            if status == Status::Queued {
                let oldest = u64::try_from(oldest).unwrap_or_default();
                counts.oldest = Some(Duration::from_micros(oldest));
            }
        }
        Ok(counts)
    }

    async fn position(&self, id: EntryId, limit: u32) -> Result<Option<u32>, StoreError> {
        let (id, limit) = (id.as_bytes().as_slice(), i64::from(limit));
        let position = &self.inner.journal.position;
        let rows = self.rows(position, &[&id, &limit]).await?;
        let before = rows.first().map(|row| row.try_get::<_, i64>(0));
        let before = before.transpose().map_err(unreadable)?;
        Ok(before.map(|before| u32::try_from(before).unwrap_or(u32::MAX)))
    }

    async fn secret(&self) -> Result<[u8; 32], StoreError> {
        let rows = self.rows(&self.inner.journal.secret, &[]).await?;
        let secret = rows.first().map(|row| row.try_get::<_, &[u8]>(0));
        let secret = secret.transpose().map_err(unreadable)?.unwrap_or_default();
        secret.try_into().map_err(|_| {
            let message = "the journal's secret is not 32 bytes long";
            StoreError::new(StoreErrorKind::Corrupt, message)
        })
    }
}
