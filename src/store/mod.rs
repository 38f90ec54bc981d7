//! Records and queues that outlive a request.
//!
//! An idempotent server has to decide between concurrent duplicates, keep replies for a day, and
//! recover from owners that vanish. This module does so with one record per operation and four
//! atomic verbs on it. There is no `get` and no `set`: a duplicate would slip in between.
//!
//! ```text
//!            claim                  complete
//!  (none) ─────────▶ in flight ─────────────────▶ done: a reply, "not retained" or "unknown"
//!     ▲               │  ▲  │ lease ran out, and then a claim
//!     │    release    │  │  ├─ CrashPolicy::Reexecute ─▶ in flight, with a greater token
//!     ├───────────────┘  │  └─ CrashPolicy::Unknown ───▶ done: "unknown"
//!     │                  renew
//!     └──────── any record, expired
//! ```
//!
//! | store | feature | shared by | survives |
//! | --- | --- | --- | --- |
//! | [`MemoryStore`] | `server` | the tasks of one process | nothing |
//! | `SqliteStore` | `sqlite` | the processes of one machine | kill, crash, power cut |
//! | `PostgresStore` | `postgres` | many machines | the same, and a failover to a synchronous standby |
//! | `RedisStore` | `redis` | many machines | as much as its `appendfsync` says |
//!
//! Where calls have a function and a version, as forrst's do, people find them beside their record:
//! SQLite has columns `function` and `version`, PostgreSQL a view `…_calls`.
//!
//! `Sealed` (feature `seal`) wraps any of them and encrypts replies. A store of your own implements
//! [`IdempotencyStore`]; the suite in [`conformance`] tests it.
//!
//! ```
//! use std::time::Duration;
//! use bytes::Bytes;
//! use tower_reprise::store::{
//!     Claim, ClaimId, Claimed, Fingerprint, IdempotencyStore, MemoryStore, Note, CrashPolicy, Ownership,
//!     RecordKey, Stored,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), tower_reprise::store::StoreError> {
//! let store = MemoryStore::new();
//! let day = Duration::from_secs(24 * 60 * 60);
//! let claim = || Claim {
//!     key: RecordKey::new([1; 32]),
//!     fingerprint: Fingerprint::new([2; 32]),
//!     id: ClaimId::random(),
//!     lease: Duration::from_secs(30),
//!     retention: day,
//!     crash_policy: CrashPolicy::Reexecute,
//!     note: Note::NONE,
//!     resumes: None,
//! };
//!
//! let Claimed::New(lease) = store.claim(claim()).await? else { unreachable!() };
//! assert!(matches!(store.claim(claim()).await?, Claimed::InFlight { .. }));
//!
//! let reply = Stored::Reply(Bytes::from_static(b"paid"));
//! let completed = store.complete(RecordKey::new([1; 32]), lease.token, reply.clone(), day).await?;
//! assert_eq!(completed, Ownership::Held);
//! assert_eq!(store.claim(claim()).await?, Claimed::done(reply));
//! # Ok(())
//! # }
//! ```

#[cfg(any(feature = "postgres", feature = "redis"))]
mod batcher;
pub mod conformance;
mod error;
pub mod journal;
mod memory;
mod outcome;
#[cfg(feature = "postgres")]
pub mod postgres;
mod record;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "postgres", feature = "redis"))]
mod remote;
#[cfg(feature = "seal")]
pub mod sealed;
#[cfg(feature = "sqlite")]
pub mod sqlite;
mod verbs;

use std::{future::Future, sync::Arc, time::Duration};

#[cfg(reprise_loom)]
pub(crate) use self::memory::models;
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresStore, PostgresStoreBuilder, SqlParameter, SqlStatement};
#[cfg(feature = "redis")]
pub use self::redis::{RedisStore, RedisStoreBuilder};
#[cfg(feature = "seal")]
pub use self::sealed::{SealKeys, Sealed};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteStore, SqliteStoreBuilder};
use self::verbs::verbs;
pub use self::{
    error::{StoreError, StoreErrorKind},
    memory::{MemoryStore, MemoryStoreBuilder},
    outcome::{InvalidHex, OutcomeCursor, OutcomePage, Resolution, Resolved, UnknownOutcome},
    record::{
        Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, Lease, Note, Ownership,
        RecordKey, Stored,
    },
};

/// A store of operation records with five atomic verbs, and three for the people who look after
/// unknown outcomes.
///
/// Every verb is one transition on the store's own clock, and is safe to repeat when its response
/// was lost. A store holds bytes and knows nothing of HTTP.
///
/// # Contract
///
/// - An expired record counts as absent, whether or not it was removed already. A live one is never
///   dropped, not even to make room.
/// - Tokens grow strictly with each new owner of a key, also over a release, an orphan or an
///   expired record, and are at most 2⁵³. The larger of "the last one plus one" and the store's
///   clock in microseconds satisfies this, and so does one counter for all keys.
/// - A claim of a taken key returns the [`Note`] of its current or last owner, byte for byte, and
///   the fingerprint, if that is another one.
/// - A lease that ran out changes nothing by itself: until another claim takes the key, its owner
///   can still renew, complete or release.
/// - Durations of any size are accepted; one that can't be represented counts as forever.
/// - Dropping a verb's future leaves open whether the transition happens, and nothing else.
///
/// The types of this module are exhaustive on purpose: a store must handle every state.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no store of idempotency records",
    note = "there are `MemoryStore`, and with the features of these names `SqliteStore::open(path)?`, \
            `PostgresStore::connect(url).await?` and `RedisStore::connect(url).await?`"
)]
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Claims a key, atomically:
    ///
    /// | the record is | result | change |
    /// | --- | --- | --- |
    /// | absent or expired | [`Claimed::New`] | in flight, kept for lease + retention |
    /// | of another fingerprint, whatever its state | [`Claimed::Mismatch`] | none |
    /// | in flight by this [`Claim::id`] | [`Claimed::New`], the same as before | lease anew |
    /// | suspended for [`Claim::resumes`], lease holds or not | [`Claimed::New`], a greater token, orphaned | in flight by this claim |
    /// | in flight, lease holds | [`Claimed::InFlight`] | none |
    /// | in flight, lease ran out, [`CrashPolicy::Reexecute`] | [`Claimed::New`], a greater token, orphaned | in flight by this claim |
    /// | in flight, lease ran out, [`CrashPolicy::Unknown`] | [`Claimed::Done`] with [`Stored::Unknown`] | done, kept for retention; the owner has lost it |
    /// | done | [`Claimed::Done`] | none |
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Restarts the lease, and keeps the record for `lease + retention` from now. A lease of zero
    /// has run out at once. Returns [`Ownership::Lost`] if the record is not in flight with this
    /// token.
    fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Suspends an execution that failed and will be attempted again: the record stays in flight, is
    /// kept as by [`renew`](Self::renew), and belongs to the claim that
    /// [resumes](Claim::resumes) this id. Returns [`Ownership::Lost`] if the record is not in flight
    /// with this token.
    ///
    /// A store that does not provide it ends the lease: the crash policy then decides for everybody.
    fn suspend(
        &self,
        key: RecordKey,
        token: FencingToken,
        resumed_by: ClaimId,
        lease: Duration,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        let _ = (resumed_by, lease);
        self.renew(key, token, Duration::ZERO, retention)
    }

    /// Stores the outcome of the operation and keeps it for `retention` from now. A repeat with the
    /// same token changes nothing and returns [`Ownership::Held`]: the first outcome stands. Returns
    /// [`Ownership::Lost`] if the record is neither in flight nor completed with this token.
    fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Gives the key back as if it had never been claimed, because nothing was executed. Returns
    /// [`Ownership::Lost`] if the record is not in flight with this token, which a repeat may get
    /// too.
    fn release(
        &self,
        key: RecordKey,
        token: FencingToken,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Lists operations whose outcome is unknown: those that are done with [`Stored::Unknown`], and
    /// those in flight whose last claim had [`CrashPolicy::Unknown`] and whose lease ran out.
    ///
    /// At most `limit`, in an order of the store's own, after the cursor of an earlier page. The cost
    /// grows with what is listed or in flight, not with what is settled. A cursor of another store is
    /// an error.
    ///
    /// A store that does not provide it fails with [`StoreErrorKind::Unsupported`].
    fn unknown_outcomes(
        &self,
        after: Option<OutcomeCursor>,
        limit: u32,
    ) -> impl Future<Output = Result<OutcomePage, StoreError>> + Send {
        let _ = (after, limit);
        async { Err(outcome::unsupported()) }
    }

    /// Returns the operation with this key if its outcome is unknown: it is done with
    /// [`Stored::Unknown`], or in flight and its lease ran out, whatever the policy of its claim.
    ///
    /// A store that does not provide it fails with [`StoreErrorKind::Unsupported`].
    fn unknown_outcome(
        &self,
        key: RecordKey,
    ) -> impl Future<Output = Result<Option<UnknownOutcome>, StoreError>> + Send {
        let _ = key;
        async { Err(outcome::unsupported()) }
    }

    /// Resolves an unknown outcome, that of the owner with this token: the record is done with an
    /// outcome, or the key is free. The former owner has lost the record, should it come back.
    ///
    /// Returns [`Resolved::Conflict`] if there is no such unknown outcome, which a repeat may get too.
    ///
    /// A store that does not provide it fails with [`StoreErrorKind::Unsupported`].
    fn resolve(
        &self,
        key: RecordKey,
        token: FencingToken,
        resolution: Resolution,
    ) -> impl Future<Output = Result<Resolved, StoreError>> + Send {
        let _ = (key, token, resolution);
        async { Err(outcome::unsupported()) }
    }

    /// Returns the outcome as [`complete`](Self::complete) would write it, for handlers that write it
    /// in a transaction of their own. A store that transforms replies, as `Sealed` does, overrides
    /// it.
    ///
    /// # Errors
    ///
    /// The transformation failed.
    fn as_stored(&self, key: RecordKey, stored: Stored) -> Result<Stored, StoreError> {
        let _ = key;
        Ok(stored)
    }
}

impl<S: IdempotencyStore> IdempotencyStore for Arc<S> {
    verbs! { self;
        claim(claim: Claim) -> Claimed = (**self).claim(claim);
        renew(key: RecordKey, token: FencingToken, lease: Duration, retention: Duration) -> Ownership
            = (**self).renew(key, token, lease, retention);
        suspend(
            key: RecordKey, token: FencingToken, by: ClaimId, lease: Duration, retention: Duration
        ) -> Ownership = (**self).suspend(key, token, by, lease, retention);
        complete(key: RecordKey, token: FencingToken, stored: Stored, retention: Duration)
            -> Ownership = (**self).complete(key, token, stored, retention);
        release(key: RecordKey, token: FencingToken) -> Ownership = (**self).release(key, token);
        unknown_outcomes(after: Option<OutcomeCursor>, limit: u32) -> OutcomePage
            = (**self).unknown_outcomes(after, limit);
        unknown_outcome(key: RecordKey) -> Option<UnknownOutcome> = (**self).unknown_outcome(key);
        resolve(key: RecordKey, token: FencingToken, resolution: Resolution) -> Resolved
            = (**self).resolve(key, token, resolution);
    }

    fn as_stored(&self, key: RecordKey, stored: Stored) -> Result<Stored, StoreError> {
        (**self).as_stored(key, stored)
    }
}
