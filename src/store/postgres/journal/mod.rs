//! The journal, in a table beside that of the records.

mod row;
mod settle_batcher;
mod sql;

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::{GenericClient, Row, ToStatement, Transaction, types::ToSql};

use self::{
    row::{summary, unreadable, whole},
    settle_batcher::SettleRow,
};
pub(super) use self::{settle_batcher::SettleBatcher, sql::Statements};
use super::{PostgresStore, conclude, error};
use crate::store::{
    Fingerprint, Ownership, RecordKey, StoreError, StoreErrorKind,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, EventKind,
        Journal, LeaseRequest, LeaseToken, NewEntry, Query, Settlement, Status, Timestamp, history,
    },
    remote,
};

type Parameters<'a> = [&'a (dyn ToSql + Sync)];

impl PostgresStore {
    /// Queues an entry as part of your transaction: your writes and the entry that follows from them
    /// are committed together or not at all. No worker can lease it before.
    ///
    /// The entry is stored as it is. Where workers use a `Sealed` store, use that one's `enqueue_in`:
    /// they can't open what was not sealed.
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
    /// The statement failed, and the server will roll the transaction back. When the commit itself
    /// fails, it may have happened; repeat it with the same [id](NewEntry::id).
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

    /// Settles a lease and queues its outbox in one transaction, and returns whether there was such a
    /// lease.
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

    /// Queues an entry, dead-letters it and queues the outbox in one transaction.
    async fn try_bury(
        &self,
        deadline: Instant,
        new: &NewEntry,
        attempts: u32,
        settlement: &Settlement,
    ) -> Result<Row, StoreError> {
        let statements = &self.inner.journal;
        let (_, keep) = settlement.outcome.transition();
        let note = history::frame(EventKind::Settlement, &settlement.note);
        let parameters: [&(dyn ToSql + Sync); 6] = [
            &new.id.as_bytes().as_slice(),
            &micros(keep),
            &i32::try_from(attempts).unwrap_or(i32::MAX),
            &settlement.stored_cause(),
            &settlement.result.as_deref(),
            &note.as_deref().map(str::as_bytes),
        ];
        let mut client = self.client(deadline).await?;
        let answer = tokio::time::timeout_at(deadline, async {
            let bury = client.prepare_cached(&statements.bury).await?;
            let enqueue = client.prepare_cached(&statements.enqueue).await?;
            let existing = client.prepare_cached(&statements.existing).await?;
            let transaction = client.transaction().await?;
            let row = enqueue_with(&*transaction, &enqueue, &existing, new).await?;
            if !is_new(&row) {
                return Ok(row);
            }
            for new in &settlement.outbox {
                enqueue_with(&*transaction, &enqueue, &existing, new).await?;
            }
            let row = transaction.query_one(&bury, &parameters).await?;
            transaction.commit().await?;
            Ok(row)
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

/// Queues an entry, or returns the one that has its id or key. That one may be gone before it is
/// read; then the insert is tried again.
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
    let insert: [&(dyn ToSql + Sync); 12] = [
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
        &new.version,
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

/// Reads a row of the entry that was queued, or of the one that has its id or key.
fn enqueued(row: &Row) -> Result<Enqueued, StoreError> {
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

/// Returns a duration as it is added to a time, at most what the server takes.
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

    async fn lease(&self, request: LeaseRequest) -> Result<Vec<Entry>, StoreError> {
        let parameters: [&(dyn ToSql + Sync); 5] = [
            &&*request.queue,
            &request.lane,
            &i64::from(request.limit),
            &micros(request.lease),
            &(request.through as i16),
        ];
        let lease = match request.in_order {
            true => &self.inner.journal.lease_in_order,
            false => &self.inner.journal.lease,
        };
        let answer = remote::with_retries(self.inner.timeout, async |deadline| {
            match self.attempt(deadline, lease, &parameters).await {
                // The answer got lost. A repeat would lease others, and leave these waiting.
                Err(error) if error.may_have_happened() => Ok(Err(error)),
                answer => answer.map(Ok),
            }
        });
        answer.await??.iter().map(whole).collect()
    }

    async fn extend(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        lease: Duration,
    ) -> Result<Ownership, StoreError> {
        let id = id.as_bytes().as_slice();
        let extend = &self.inner.journal.extend;
        self.owned(extend, &[&id, &lease_token.column(), &micros(lease)])
            .await
    }

    async fn settle(
        &self,
        id: EntryId,
        lease_token: LeaseToken,
        settlement: Settlement,
    ) -> Result<Ownership, StoreError> {
        let (status, time) = settlement.outcome.transition();
        let releases = settlement.outcome.is_release();
        let note = history::frame(EventKind::Settlement, &settlement.note);
        if settlement.outbox.is_empty() {
            let row = SettleRow {
                id: *id.as_bytes(),
                lease_token: lease_token.column(),
                status: status.number().into(),
                time: micros(time),
                releases,
                result: settlement.result.clone(),
                note: note.clone(),
                cause: settlement.stored_cause().map(str::to_owned),
                keeps: settlement.keeps_place,
            };
            if self.settle_batched(row).await {
                return Ok(Ownership::Held);
            }
        }
        let (id, lease_token) = (id.as_bytes().as_slice(), lease_token.column());
        let parameters: [&(dyn ToSql + Sync); 9] = [
            &id,
            &lease_token,
            &i16::from(status.number()),
            &micros(time),
            &releases,
            &settlement.result.as_deref(),
            &note.as_deref().map(str::as_bytes),
            &settlement.stored_cause(),
            &settlement.keeps_place,
        ];
        let statements = &self.inner.journal;
        let settled = match &settlement.outbox[..] {
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
        self.owned(&statements.same_lease, &[&id, &lease_token])
            .await
    }

    async fn bury(
        &self,
        entry: NewEntry,
        attempts: u32,
        settlement: Settlement,
    ) -> Result<Enqueued, StoreError> {
        let row = remote::with_retries(self.inner.timeout, |deadline| {
            self.try_bury(deadline, &entry, attempts, &settlement)
        });
        enqueued(&row.await?)
    }

    async fn command(
        &self,
        id: EntryId,
        command: EntryCommand,
    ) -> Result<Option<CommandResult>, StoreError> {
        let statements = &self.inner.journal;
        let id = id.as_bytes().as_slice();
        let (time, note) = command.time_and_note();
        let (time, note) = (micros(time), history::frame(EventKind::Command, note));
        let note = note.as_deref().map(str::as_bytes);
        let parameters: [&(dyn ToSql + Sync); 3] = [&id, &time, &note];
        let (sql, parameters) = match command {
            EntryCommand::Cancel(_) => (&statements.cancel, &parameters[..]),
            EntryCommand::Trigger => (&statements.trigger, &parameters[..1]),
            EntryCommand::Redrive(_) => (&statements.redrive, &parameters[..]),
        };
        loop {
            if let Some(row) = self.rows(sql, parameters).await?.first() {
                let (applied, entry) = (true, summary(row)?);
                return Ok(Some(CommandResult { applied, entry }));
            }
            // Only now, since a transaction that held the row may have just been committed.
            let found = self.rows(&statements.look, &[&id]).await?;
            let Some(row) = found.first() else {
                return Ok(None);
            };
            let (applied, entry) = (false, summary(row)?);
            // In a state for the command after all: its worker gave it back in between.
            if entry.status != command.applies_to() {
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

    async fn find_duplicate(
        &self,
        queue: &str,
        key: RecordKey,
    ) -> Result<Option<Duplicate>, StoreError> {
        let sql = &self.inner.journal.find_duplicate;
        let rows = self
            .rows(sql, &[&queue, &key.as_bytes().as_slice()])
            .await?;
        let duplicate = |row: &Row| {
            let fingerprint: &[u8] = row.try_get("fingerprint").map_err(unreadable)?;
            let message = "a fingerprint is not 32 bytes long";
            let corrupt = || StoreError::new(StoreErrorKind::Corrupt, message);
            Ok(Duplicate {
                entry: summary(row)?,
                fingerprint: Fingerprint::new(fingerprint.try_into().map_err(|_| corrupt())?),
            })
        };
        rows.first().map(duplicate).transpose()
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
            let status = Status::from_number(number.into())?;
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
