//! Records and a journal in PostgreSQL, shared by many machines.
//!
//! The table's primary key decides between concurrent claims, on the server's clock, and an
//! acknowledged transition survives a crash of the server.
//!
//! A verb is one statement, which is a transaction of its own; a claim of a key that exists takes a
//! second one. Claims of new keys, completions and settlements that come in at the same time share a
//! statement and its commit; one that comes alone is sent at once. Connections are pooled and bounded,
//! and a verb waits for one, and for its result, no longer than its timeout. When a connection is lost
//! the verb is repeated on another one; its error says if the outcome stays unknown.
//!
//! ```no_run
//! use std::time::Duration;
//! use tower_reprise::store::PostgresStore;
//!
//! # async fn run() -> Result<(), tower_reprise::store::StoreError> {
//! let store = PostgresStore::builder("postgres://shop@db.internal/shop")
//!     .schema("reprise")
//!     .connections(32)
//!     .timeout(Duration::from_secs(3))
//!     .connect()
//!     .await?;
//! # let _ = store;
//! # Ok(())
//! # }
//! ```
//!
//! # Exactly once
//!
//! A handler that writes to the same database can commit its effect and the record in one
//! transaction, so that no crash leaves one without the other. See [`PostgresStore::complete_in`] and
//! the example `exactly_once`.
//!
//! # The journal
//!
//! A second table holds a [`Journal`](super::journal::Journal). Workers on any machine lease from it
//! without waiting for each other: each skips the rows that another one is taking. An index finds the
//! next entry of a lane, however many wait. Sequence numbers are drawn when an entry is queued, which
//! can be a little before it is committed: a list that is read meanwhile may miss it.
//!
//! Workers of all processes are told what was queued (`LISTEN`, on one connection more for a store with
//! workers), and poll for the rest: entries of your own transactions, those that are due later, and all
//! entries where the connections are those of a pool of yours or of a pooler in transaction mode.
//!
//! Your own transactions can enqueue entries: see [`PostgresStore::enqueue_in`].
//!
//! # Poolers
//!
//! Behind a pooler in session mode the store is as with direct connections. Behind one in transaction
//! mode (PgBouncer's `pool_mode = transaction`) set
//! [`transaction_pooling`](PostgresStoreBuilder::transaction_pooling): records and journal then keep
//! nothing in a session, neither settings nor prepared statements, and each statement is planned again.
//! Without it a verb fails as soon as the pooler gives it another session, with an error that says so.
//!
//! # Large tables
//!
//! One table serves a hundred million records: keys are hashes, rows are of one small size, pages leave
//! room for the next version of a row, and autovacuum comes after a fiftieth of changed rows and works at
//! five times its default pace (`autovacuum_vacuum_cost_limit` of each table; lower it where the disk is
//! slow). Partitions by the hash of the key are not offered, since each claim and completion would pay for
//! them: with 16 of them they take the server 10 to 20 % more time, for indexes that are one level less
//! deep at most.
//!
//! # Other drivers, other pools
//!
//! [`complete_statement`](PostgresStore::complete_statement) and
//! [`enqueue_statement`](PostgresStore::enqueue_statement) are SQL and parameters for a transaction of
//! sqlx, diesel or SeaORM: the [guide](crate::guide::transactions) shows each.
//! [`on_pool`](PostgresStore::on_pool) takes connections from a pool of deadpool that you have.
//!
//! # A full disk
//!
//! A server that can't extend its tables rejects new operations
//! ([`Full`](StoreErrorKind::Full)). What runs can be renewed and completed, in the room that pages
//! keep for that; a reply for which there is none is not retained. A server whose log has no room
//! stops: keep `pg_wal` on a disk of its own.
//!
//! # What it needs
//!
//! - PostgreSQL 12 or newer, and the right to create tables (and the schema) on first use. Tables of
//!   the next version of this crate are served, too: one step of an update at a time needs no pause. Two
//!   things wait until all processes are updated. Entries that [share an
//!   end](super::journal::SharedPayload): workers of the version before lease them, can't read them, and
//!   use up their attempts. And [counts](super::journal::Journal::counts), which may tell too few or too
//!   many entries as processing until a sweep finds at most 1000 in all queues that are not over.
//! - Direct connections or a pooler, which is told of if it is in transaction mode.
//! - For failover, a standby that has every acknowledged commit (`synchronous_standby_names`): with an
//!   asynchronous one, the last records are lost with the primary, and their operations are executed
//!   again. Sessions commit synchronously even where the server's default is off.

mod builder;
mod connection;
mod error;
mod journal;
mod notices;
mod parameter;
mod password;
mod record_rows;
mod row;
mod schema;
mod sql;
mod statement;
mod unknown;

use std::{fmt, sync::Arc, time::Duration};

use deadpool_postgres::Pool;
use tokio::time::Instant;
use tokio_postgres::{Transaction, error::SqlState};

pub use self::{
    builder::PostgresStoreBuilder,
    statement::{SqlParameter, SqlStatement},
};
use self::{
    builder::Table,
    connection::{Session, Sessions},
    notices::{Connector, Notices},
    parameter::Parameter,
    record_rows::{ClaimRow, CompleteRow},
    row::{claimed, columns, micros, number},
    sql::Statements,
};
use super::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, IdempotencyStore, Lease, OutcomeCursor,
    OutcomePage, Ownership, RecordKey, Resolution, Resolved, StoreError, StoreErrorKind, Stored,
    UnknownOutcome,
    batcher::{self, Batched, Batcher, batched},
    remote::{self, Recurring},
    verbs::verbs,
};

/// The time between two sweeps of a store in use.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// The most rows that count entries, before a sweep replaces them by their sums.
const SUM_UP: i64 = 1000;
/// The most rows that one statement of a sweep removes.
const SWEEP_STEP: u32 = 1000;
/// The most entries without their shared end that one statement takes off the end's number.
const RELEASE_STEP: i64 = 10_000;

/// Records and a journal in tables of a PostgreSQL database. The [module](self) states its promises
/// and needs.
///
/// # Clone
///
/// Clones share the connections.
#[derive(Clone)]
pub struct PostgresStore {
    inner: Arc<Inner>,
}

struct Inner {
    pool: Pool,
    sessions: Sessions,
    table: Table,
    statements: Statements,
    journal: journal::Statements,
    claims: Batcher<ClaimRow>,
    completions: Batcher<CompleteRow>,
    enqueue_batcher: Batcher<journal::EnqueueRow>,
    settle_batcher: Batcher<journal::SettleRow>,
    timeout: Duration,
    sweeping: Recurring,
    notices: Notices,
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("table", &self.inner.table)
            .field("pool", &self.inner.pool.status())
            .finish_non_exhaustive()
    }
}

impl PostgresStore {
    /// Connects without TLS to a server like `postgres://user@host/database` with the default
    /// settings, and creates or migrates the tables.
    ///
    /// # Errors
    ///
    /// As for [`PostgresStoreBuilder::connect`].
    pub async fn connect(url: impl Into<String>) -> Result<Self, StoreError> {
        Self::builder(url).connect().await
    }

    /// Connects with other settings.
    pub fn builder(url: impl Into<String>) -> PostgresStoreBuilder {
        PostgresStoreBuilder::new(url.into())
    }

    /// Connects through a pool of yours, which other parts of the application can use, too. The store
    /// takes a connection for each verb, and one waits for another: leave it at least two more than
    /// your handlers hold at once.
    ///
    /// A pool of another kind stays beside the store's own: run
    /// [statements](Self::complete_statement) on its transactions.
    ///
    /// ```no_run
    /// use deadpool_postgres::Pool;
    /// use tower_reprise::store::{PostgresStore, StoreError};
    ///
    /// async fn store(pool: &Pool) -> Result<PostgresStore, StoreError> {
    ///     PostgresStore::on_pool(pool.clone()).schema("reprise").connect().await
    /// }
    /// ```
    pub fn on_pool(pool: Pool) -> PostgresStoreBuilder {
        PostgresStoreBuilder::on_pool(pool)
    }

    async fn open(
        pool: Pool,
        table: &Table,
        timeout: Duration,
        sessions: Sessions,
        connector: Option<Connector>,
    ) -> Result<Self, StoreError> {
        let store = Self {
            inner: Arc::new(Inner {
                pool,
                sessions,
                table: table.clone(),
                statements: Statements::new(table),
                journal: journal::Statements::new(table),
                claims: Batcher::new(timeout),
                completions: Batcher::new(timeout),
                enqueue_batcher: Batcher::new(timeout),
                settle_batcher: Batcher::new(timeout),
                timeout,
                sweeping: Recurring::new(SWEEP_EVERY),
                notices: Notices::new(table, connector),
            }),
        };
        remote::with_retries(timeout, |deadline| store.migrate(deadline)).await?;
        Ok(store)
    }

    /// Opens the tables. Changes of them are not bound by the timeout of a verb.
    async fn migrate(&self, deadline: Instant) -> Result<(), StoreError> {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut client = builder::client(&self.inner.pool, left).await?;
        let opened = tokio::time::timeout_at(deadline, async {
            let transaction = client.transaction().await.map_err(error::of_statement)?;
            let missing = schema::missing(&transaction, &self.inner.table).await?;
            Ok((transaction, missing))
        })
        .await;
        let (transaction, missing) = opened.unwrap_or_else(|_| {
            let message = "the tables could not be opened in time: another process may change them";
            Err(StoreError::new(StoreErrorKind::Timeout, message))
        })?;
        if !missing.is_empty() {
            schema::apply(&transaction, &missing).await?;
        }
        let (records, journal) = (&self.inner.statements, &self.inner.journal);
        let statements = [&*records.claim, &*records.complete, &*journal.lease];
        schema::check_layout(&transaction, &self.inner.table, statements).await?;
        transaction.commit().await.map_err(error::of_statement)
    }

    /// Completes the operation in your transaction: the effect and the record are committed together
    /// or not at all. A repeated request gets the stored reply even if this process ends right after
    /// the commit.
    ///
    /// Call it last. From here to the end of the transaction no other claim can take the operation
    /// over; if one did already, the server will not commit the transaction.
    ///
    /// Take the outcome from [`Execution::stored`](crate::server::idempotency::Execution::stored), which
    /// filters headers, and seals the reply if the layer's store is `Sealed`.
    ///
    /// Use a connection that is not one of this store's, which needs them to renew the lease
    /// meanwhile.
    ///
    /// ```no_run
    /// use http::Response;
    /// use tower_reprise::{error::BoxError, server::idempotency::Execution, store::PostgresStore};
    ///
    /// // A handler under an `IdempotencyLayer` finds its execution in the request's extensions.
    /// async fn pay(
    ///     store: &PostgresStore,
    ///     shop: &mut tokio_postgres::Client,
    ///     execution: &Execution,
    /// ) -> Result<Response<&'static str>, BoxError> {
    ///     let transaction = shop.transaction().await?;
    ///     transaction
    ///         .execute("UPDATE accounts SET balance = balance - 10 WHERE id = 7", &[])
    ///         .await?;
    ///     let response = Response::new("paid");
    ///     let (key, token) = (execution.key(), execution.token());
    ///     let (stored, kept_for) = (execution.stored(&response)?, execution.retention());
    ///     store.complete_in(&transaction, key, token, stored, kept_for).await?;
    ///     transaction.commit().await?;
    ///     Ok(response)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The lease was lost, or the statement failed. Either way the server rolls the transaction back:
    /// return, and let a repeat decide. If the commit itself fails its outcome is unknown, and a
    /// repeat finds out.
    pub async fn complete_in(
        &self,
        transaction: &Transaction<'_>,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<(), StoreError> {
        let complete = &self.inner.statements.complete_in;
        let (state, reply) = columns(&stored);
        let key = key.as_bytes().as_slice();
        let retention = micros(retention);
        let parameters: [&dyn Parameter; 5] = [&key, &number(token), &state, &reply, &retention];
        match transaction.rows(complete, &parameters).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(&SqlState::DIVISION_BY_ZERO) => {
                Err(StoreError::new(
                    StoreErrorKind::Other,
                    "the lease was lost: this transaction can't be committed",
                ))
            }
            Err(error) => Err(error::of_statement(error)),
        }
    }

    /// Removes up to `limit` expired rows and returns their number. A store in use sweeps by itself;
    /// call this to do it at a time of your own.
    ///
    /// # Errors
    ///
    /// The server is unreachable, or does not respond in time.
    pub async fn sweep(&self, limit: u32) -> Result<u64, StoreError> {
        self.sweep_beside(limit, true).await
    }

    /// Removes expired rows, or no records if another process is doing so and this one is not to do it
    /// beside.
    async fn sweep_beside(&self, limit: u32, beside: bool) -> Result<u64, StoreError> {
        let (records, journal) = (&self.inner.statements.sweep, &self.inner.journal.sweep);
        let limit = i64::from(limit);
        let swept = self.rows(records, &[&limit, &beside]).await?.len();
        let left = limit.saturating_sub_unsigned(swept as u64);
        let entries = self.rows(journal, &[&left]).await?.len();
        while self.release_ends(beside).await? >= RELEASE_STEP {}
        Ok(swept as u64 + entries as u64)
    }

    /// Takes entries off the numbers of the shared ends that they need no more, and returns how many.
    async fn release_ends(&self, beside: bool) -> Result<i64, StoreError> {
        let release = &self.inner.journal.release;
        let rows = self.rows(release, &[&beside, &RELEASE_STEP]).await?;
        let taken = rows.first().map(|row| row.try_get(0));
        let taken = taken.transpose().map_err(error::of_statement)?;
        Ok(taken.unwrap_or_default())
    }

    async fn sum_up(&self, most: i64) -> Result<(), StoreError> {
        // A process of a version before leases and settles without a word: that is made good once little
        // waits.
        let count = |deadline| self.try_count_leased(deadline, most);
        remote::with_retries(self.inner.timeout, count).await?;
        for sum_up in &self.inner.journal.sum_up {
            self.rows(sum_up, &[&most]).await?;
        }
        Ok(())
    }

    /// Sweeps on a task of its own if it is time: in steps, until one removes less than its limit. Of
    /// many processes one sweeps records at a time.
    fn sweep_if_due(&self) {
        if self.inner.sweeping.is_due() {
            let store = self.clone();
            tokio::spawn(async move {
                let step = u64::from(SWEEP_STEP);
                let sweep = async || store.sweep_beside(SWEEP_STEP, false).await;
                while matches!(sweep().await, Ok(swept) if swept == step) {}
                while matches!(store.unwatch(SWEEP_STEP).await, Ok(step) if step == SWEEP_STEP) {}
                let _ = store.sum_up(SUM_UP).await;
            });
        }
    }

    /// Restarts a lease, and hands the record over to another claim if one is given.
    async fn restart(
        &self,
        key: RecordKey,
        token: FencingToken,
        resumed_by: Option<ClaimId>,
        lease: Duration,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let (lease, retention) = (micros(lease), micros(retention));
        let (key, id) = (key.as_bytes().as_slice(), resumed_by.as_ref());
        let id = id.map(|id| id.as_bytes().as_slice());
        let renew = &self.inner.statements.renew;
        self.owned(renew, &[&key, &number(token), &lease, &retention, &id])
            .await
    }

    async fn finish(
        &self,
        time: Duration,
        key: RecordKey,
        token: FencingToken,
        stored: &Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let complete = &self.inner.statements.complete;
        let (state, reply) = columns(stored);
        let (key, retention) = (key.as_bytes().as_slice(), micros(retention));
        let token = number(token);
        let parameters: [&dyn Parameter; 5] = [&key, &token, &state, &reply, &retention];
        let finish = |deadline| self.attempt(deadline, complete, &parameters);
        let rows = remote::with_retries(time, finish).await?;
        Ok(Ownership::held_if(!rows.is_empty()))
    }
}

impl IdempotencyStore for PostgresStore {
    async fn claim(&self, claim: Claim) -> Result<Claimed, StoreError> {
        self.sweep_if_due();
        let (mut left, mut in_doubt) = (self.inner.timeout, false);
        // A claim that resumes an operation finds its record.
        if claim.resumes.is_none() {
            match batched(self, ClaimRow::new(&claim)).await? {
                Batched::Made(token) => {
                    return Ok(Claimed::New(Lease {
                        token,
                        orphaned: false,
                    }));
                }
                Batched::Alone {
                    left: time,
                    in_doubt: doubt,
                } => (left, in_doubt) = (time, doubt),
            }
        }
        let (key, fingerprint) = (claim.key.as_bytes().as_slice(), claim.fingerprint);
        let note = (!claim.note.is_empty()).then_some(claim.note.as_bytes());
        let resumes = claim.resumes.as_ref().map(|id| id.as_bytes().as_slice());
        let parameters: [&dyn Parameter; 8] = [
            &key,
            &fingerprint.as_bytes().as_slice(),
            &claim.id.as_bytes().as_slice(),
            &micros(claim.lease),
            &micros(claim.retention),
            &note,
            &(claim.crash_policy == CrashPolicy::Unknown),
            &resumes,
        ];
        let sql = &self.inner.statements.claim;
        let claimed = remote::with_retries(left, async |deadline| {
            loop {
                let rows = self.attempt(deadline, sql, &parameters).await?;
                if let Some(row) = rows.first() {
                    return claimed(row);
                }
            }
        });
        claimed.await.map_err(|error| error.in_doubt_if(in_doubt))
    }

    verbs! { self;
        renew(key: RecordKey, token: FencingToken, lease: Duration, retention: Duration) -> Ownership
            = self.restart(key, token, None, lease, retention);
        suspend(
            key: RecordKey, token: FencingToken, by: ClaimId, lease: Duration, retention: Duration
        ) -> Ownership = self.restart(key, token, Some(by), lease, retention);
    }

    async fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> Result<Ownership, StoreError> {
        let row = CompleteRow::new(key, token, stored.clone(), retention);
        let (left, in_doubt) = match batched(self, row).await? {
            Batched::Made(()) => return Ok(Ownership::Held),
            Batched::Alone { left, in_doubt } => (left, in_doubt),
        };
        let completed = self.finish(left, key, token, &stored, retention).await;
        let completed = completed.map_err(|error| error.in_doubt_if(in_doubt));
        match (&stored, completed) {
            // A row without a reply has room where the one in flight was: its operation is not
            // executed again because of a full disk.
            (Stored::Reply(_), Err(error)) if error.kind() == StoreErrorKind::Full => {
                let time = self.inner.timeout;
                self.finish(time, key, token, &Stored::NotRetained, retention)
                    .await
            }
            (_, completed) => completed,
        }
    }

    async fn release(&self, key: RecordKey, token: FencingToken) -> Result<Ownership, StoreError> {
        let release = &self.inner.statements.release;
        let key = key.as_bytes().as_slice();
        self.owned(release, &[&key, &number(token)]).await
    }

    verbs! { self;
        unknown_outcomes(after: Option<OutcomeCursor>, limit: u32) -> OutcomePage
            = self.list_unknown(after, limit);
        unknown_outcome(key: RecordKey) -> Option<UnknownOutcome> = self.find_unknown(key);
        resolve(key: RecordKey, token: FencingToken, resolution: Resolution) -> Resolved
            = self.resolve_unknown(key, token, resolution);
    }
}
