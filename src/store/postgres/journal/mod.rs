//! The journal, in a table beside that of the records.

mod enqueue_row;
mod row;
mod settle_row;
mod sql;
mod transactions;

use std::{sync::Arc, time::Duration};

use tokio::{sync::Notify, time::Instant};
use tokio_postgres::{Row, Transaction};

pub(super) use self::{enqueue_row::EnqueueRow, settle_row::SettleRow, sql::Statements};
use self::{
    row::{summary, unreadable, whole},
    transactions::{enqueue_with, enqueued},
};
use super::{
    PostgresStore,
    batcher::{BatchRow, Batched, batched},
    error,
    parameter::Parameter,
};
use crate::store::{
    Fingerprint, Ownership, RecordKey, StoreError, StoreErrorKind,
    journal::{
        CommandResult, Counts, Duplicate, Enqueued, Entry, EntryCommand, EntryId, Erased,
        EventKind, FEW_DUE, Journal, LeaseRequest, LeaseToken, NewEntry, Query, Settlement, Status,
        Timestamp, history, page_of_lanes,
    },
    remote,
};

/// The most entries of one call in one commit.
const COMMIT: usize = 1000;

type Parameters<'a> = [&'a dyn Parameter];

impl PostgresStore {
    /// Queues an entry as part of your transaction: your writes and the entry that follows from them
    /// are committed together or not at all. No worker can lease it before.
    ///
    /// The entry is stored as it is, with its whole payload: an end that it [shares](NewEntry::shared) would
    /// hold up all others with that end until your transaction ends. Where workers use a `Sealed` store, use
    /// that one's `enqueue_in`: they can't open what was not sealed.
    ///
    /// It is always taken: [bounds](NewEntry::bounds) would hold up all others of its queue until your
    /// transaction ends.
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
        let statements = &self.inner.journal;
        let entry = NewEntry {
            shared: None,
            ..entry
        };
        let put = enqueue_with(transaction, statements, &entry, None).await;
        put.map_err(error::of_statement)
            .and_then(|put| enqueued(&put))
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

/// Returns a duration as it is added to a time, at most what the server takes.
pub(super) fn micros(duration: Duration) -> i64 {
    let after = Timestamp::from_micros(0).after(duration);
    i64::try_from(after.as_micros()).unwrap_or(i64::MAX)
}

impl Journal for PostgresStore {
    async fn enqueue(&self, entry: NewEntry) -> Result<Enqueued, StoreError> {
        self.sweep_if_due();
        let row = EnqueueRow(entry.clone());
        let (left, in_doubt) = match batched(self, row).await? {
            Batched::Made(new) => {
                self.announce([&entry]);
                return Ok(Enqueued::New(new));
            }
            Batched::Alone { left, in_doubt } => (left, in_doubt),
        };
        let put = remote::with_retries(left, |deadline| self.try_enqueue(deadline, &entry)).await;
        self.announce([&entry]);
        put.map_err(|error| error.in_doubt_if(in_doubt))
            .and_then(|put| enqueued(&put))
    }

    async fn enqueue_many(&self, entries: Vec<NewEntry>) -> Result<Vec<Enqueued>, StoreError> {
        self.sweep_if_due();
        let mut enqueued = Vec::with_capacity(entries.len());
        let mut rows = entries.into_iter().map(EnqueueRow).peekable();
        while rows.peek().is_some() {
            let some: Vec<_> = rows.by_ref().take(COMMIT).collect();
            let deadline = Instant::now() + self.inner.timeout;
            let new = match EnqueueRow::send(self, deadline, &some).await {
                Ok(new) => new,
                Err(error) if error.is_transient() => return Err(error),
                // One that the server does not take, or that has no room.
                Err(_) => some.iter().map(|_| None).collect(),
            };
            self.announce(some.iter().map(|EnqueueRow(entry)| entry));
            for (EnqueueRow(entry), new) in some.into_iter().zip(new) {
                enqueued.push(match new {
                    Some(new) => Enqueued::New(new),
                    None => self.enqueue(entry).await?,
                });
            }
        }
        Ok(enqueued)
    }

    async fn lanes(
        &self,
        queue: &str,
        after: Option<&str>,
        limit: u32,
    ) -> Result<Vec<String>, StoreError> {
        // Those past their time are due, too.
        let few = i64::from(FEW_DUE + 1);
        let rows = self
            .rows(&self.inner.journal.ready, &[&queue, &few])
            .await?;
        if rows.len() <= FEW_DUE as usize {
            let mut lanes = Vec::with_capacity(rows.len());
            for row in &rows {
                if row.try_get(1).map_err(unreadable)? {
                    lanes.push(row.try_get(0).map_err(unreadable)?);
                }
            }
            return Ok(page_of_lanes(lanes, after, limit));
        }
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
        let parameters: [&dyn Parameter; 5] = [
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
        let mut in_doubt = false;
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
                remainder: settlement.stored_remainder().cloned(),
            };
            in_doubt = match batched(self, row).await {
                Ok(Batched::Made(())) => return Ok(Ownership::Held),
                Ok(Batched::Alone { in_doubt, .. }) => in_doubt,
                Err(error) => error.may_have_happened(),
            };
        }
        let (id, lease_token) = (id.as_bytes().as_slice(), lease_token.column());
        let parameters: [&dyn Parameter; 10] = [
            &id,
            &lease_token,
            &i16::from(status.number()),
            &micros(time),
            &releases,
            &settlement.result.as_deref(),
            &note.as_deref().map(str::as_bytes),
            &settlement.stored_cause(),
            &settlement.keeps_place,
            &settlement.stored_remainder().map(|bytes| &**bytes),
        ];
        let statements = &self.inner.journal;
        let settled = match &settlement.outbox[..] {
            [] => {
                let settled = self.owned(&statements.settle, &parameters).await;
                settled.map_err(|error| error.in_doubt_if(in_doubt))? == Ownership::Held
            }
            outbox => {
                let settle = |deadline| self.try_settle(deadline, &parameters, outbox);
                remote::with_retries(self.inner.timeout, settle).await?
            }
        };
        if settled {
            self.announce(&settlement.outbox);
            return Ok(Ownership::Held);
        }
        let lease: [&dyn Parameter; 2] = [&id, &lease_token];
        let rows = self.rows(&statements.same_lease, &lease).await;
        let rows = rows.map_err(|error| error.in_doubt_if(in_doubt))?;
        let same_lease = rows.first().map(|row| row.try_get(0));
        let same_lease = same_lease.transpose().map_err(unreadable)?;
        // A batch whose answer got lost has removed what is completed and kept for no time.
        let removed = in_doubt && status == Status::Completed && micros(time) == 0;
        Ok(Ownership::held_if(same_lease.unwrap_or(removed)))
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
        let row = row.await?;
        self.announce(&settlement.outbox);
        enqueued(&row)
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
        let parameters: [&dyn Parameter; 3] = [&id, &time, &note];
        let (sql, parameters) = match command {
            EntryCommand::Cancel(_) => (&statements.cancel, &parameters[..]),
            EntryCommand::Trigger => (&statements.trigger, &parameters[..1]),
            EntryCommand::Redrive(_) => (&statements.redrive, &parameters[..]),
            EntryCommand::Purge => (&statements.purge, &parameters[..1]),
        };
        loop {
            if let Some(row) = self.rows(sql, parameters).await?.first() {
                let (applied, entry) = (true, summary(row)?);
                if matches!(command, EntryCommand::Trigger | EntryCommand::Redrive(_)) {
                    self.announce_queues([&*entry.queue]);
                }
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

    async fn erase(&self, queue: &str, owner: &str, limit: u32) -> Result<Erased, StoreError> {
        let statements = &self.inner.journal;
        let limit = i64::from(limit);
        let parameters: [&dyn Parameter; 3] = [&queue, &owner, &limit];
        let removed = self.rows(&statements.erase, &parameters).await?.len();
        let left = self.rows(&statements.left, &parameters).await?;
        let left = left.first().map(|row| row.try_get::<_, i64>(0));
        let left = left.transpose().map_err(unreadable)?.unwrap_or_default();
        Ok(Erased {
            removed: u32::try_from(removed).unwrap_or(u32::MAX),
            left: u32::try_from(left).unwrap_or(u32::MAX),
        })
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
        let mut parameters: Vec<&dyn Parameter> = vec![&queue, &after, &limit];
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

    fn watch(&self, queue: &str, wake: &Arc<Notify>) {
        self.watch_notices(queue, wake);
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
