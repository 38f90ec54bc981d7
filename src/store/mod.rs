//! What must outlive a request: which operations are being executed, and how they ended.
//!
//! An idempotent server has to decide between concurrent duplicates, remember replies for a day,
//! and get over owners that vanish. All of that is one record per operation and four verbs on it,
//! each one atomic: between "is there a record?" and "then I make one" a duplicate would slip
//! through, so there is no `get` and no `set`.
//!
//! ```text
//!            claim                  complete
//!  (none) ─────────▶ in flight ─────────────────▶ done: a reply, "not retained" or "unknown"
//!     ▲               │  ▲  │ lease ran out, and then a claim
//!     │    release    │  │  ├─ CrashPolicy::Reexecute ─▶ in flight, with a greater token
//!     ├───────────────┘  │  └─ CrashPolicy::Unknown ───▶ done: "unknown"
//!     │                  renew
//!     └──────── any record, past its time
//! ```
//!
//! [`MemoryStore`] is for one process that may forget on restart. With the feature `sqlite`, the
//! processes of one machine share a file; with `postgres` or `redis`, many machines share a server.
//! With `seal` any store can be wrapped so that replies can't be read in it. Whatever keeps the
//! contract of [`IdempotencyStore`] will do; [`conformance`] shows in one test whether it does.
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
//!     orphans: CrashPolicy::Reexecute,
//!     note: Note::NONE,
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

pub mod conformance;
mod error;
pub mod journal;
mod memory;
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

use std::{future::Future, sync::Arc, time::Duration};

#[cfg(reprise_loom)]
pub(crate) use self::memory::models;
#[cfg(feature = "postgres")]
pub use self::postgres::{PostgresStore, PostgresStoreBuilder};
#[cfg(feature = "redis")]
pub use self::redis::{RedisStore, RedisStoreBuilder};
#[cfg(feature = "seal")]
pub use self::sealed::{SealKeys, Sealed};
#[cfg(feature = "sqlite")]
pub use self::sqlite::{SqliteStore, SqliteStoreBuilder};
pub use self::{
    error::{StoreError, StoreErrorKind},
    memory::{MemoryStore, MemoryStoreBuilder},
    record::{
        Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, Lease, Note, Ownership,
        RecordKey, Stored,
    },
};

/// Records of operations, and the four things that can happen to one.
///
/// Every verb is one atomic transition on the store's own clock, and every verb can be repeated
/// when its answer got lost. A store holds bytes and knows nothing of HTTP.
///
/// # Contract
///
/// - A record that is past its time is as good as none, whether or not it was removed already.
///   One that is not past its time is never dropped, not even to make room.
/// - Tokens grow strictly with each new owner of a key, also over a release, an orphan or a
///   record past its time, and are at most 2⁵³. The larger of "the last one plus one" and the
///   store's clock in microseconds will do, and so will one counter for all keys.
/// - Whoever is told that a key is taken is told the [`Note`] of the claim that owns it or was the
///   last to own it, byte for byte; and the fingerprint, if that is another one.
/// - A lease that ran out changes nothing by itself: until somebody else claims the key, its owner
///   can still renew it, complete or release.
/// - Durations of any size are taken: what can't be represented is as good as forever.
/// - Dropping a verb's future leaves it open whether the transition happens, and nothing else.
///
/// The types of this module are exhaustive on purpose: a store must know every state there is.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no store of idempotency records",
    note = "there are `MemoryStore`, and with the features of these names `SqliteStore::open(path)?`, \
            `PostgresStore::connect(url).await?` and `RedisStore::connect(url).await?`"
)]
pub trait IdempotencyStore: Send + Sync + 'static {
    /// Claims a key, atomically:
    ///
    /// | the record is | answer | change |
    /// | --- | --- | --- |
    /// | none, or past its time | [`Claimed::New`] | in flight, kept for lease + retention |
    /// | of another fingerprint, whatever its state | [`Claimed::Mismatch`] | none |
    /// | in flight by this [`Claim::id`] | [`Claimed::New`], the same as before | lease anew |
    /// | in flight, lease holds | [`Claimed::InFlight`] | none |
    /// | in flight, lease ran out, [`CrashPolicy::Reexecute`] | [`Claimed::New`], a greater token, orphaned | in flight by this claim |
    /// | in flight, lease ran out, [`CrashPolicy::Unknown`] | [`Claimed::Done`] with [`Stored::Unknown`] | done, kept for retention; the owner has lost it |
    /// | done | [`Claimed::Done`] | none |
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send;

    /// Lets the lease start anew, and the record be kept for `lease + retention` from now. A lease
    /// of no time has run out at once. [`Ownership::Lost`] if the record is not in flight with this
    /// token.
    fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Says how the operation ended, to be kept for `retention` from now. [`Ownership::Lost`] if
    /// the record is neither in flight with this token nor was completed with it: in that last
    /// case it is a repeat, what was stored first stands, and the answer is [`Ownership::Held`].
    fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// Gives the key back as if it had never been claimed, since nothing was executed.
    /// [`Ownership::Lost`] if the record is not in flight with this token; a repeat may be told so
    /// too.
    fn release(
        &self,
        key: RecordKey,
        token: FencingToken,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send;

    /// What [`complete`](Self::complete) would write for this, for who writes it instead, as part of
    /// a transaction of their own. A store that changes replies on their way, as one that seals them
    /// does, changes them here too.
    ///
    /// # Errors
    ///
    /// It can't be changed as it should be.
    fn as_kept(&self, key: RecordKey, stored: Stored) -> Result<Stored, StoreError> {
        let _ = key;
        Ok(stored)
    }
}

impl<S: IdempotencyStore> IdempotencyStore for Arc<S> {
    fn claim(&self, claim: Claim) -> impl Future<Output = Result<Claimed, StoreError>> + Send {
        (**self).claim(claim)
    }

    fn renew(
        &self,
        key: RecordKey,
        token: FencingToken,
        lease: Duration,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        (**self).renew(key, token, lease, retention)
    }

    fn complete(
        &self,
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: Duration,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        (**self).complete(key, token, stored, retention)
    }

    fn release(
        &self,
        key: RecordKey,
        token: FencingToken,
    ) -> impl Future<Output = Result<Ownership, StoreError>> + Send {
        (**self).release(key, token)
    }

    fn as_kept(&self, key: RecordKey, stored: Stored) -> Result<Stored, StoreError> {
        (**self).as_kept(key, stored)
    }
}
