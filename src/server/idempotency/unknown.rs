use std::time::Duration;

use http::Response;

use super::limits::DAY;
use crate::{
    error::ConfigError,
    http::{header_filter::HeaderFilter, reply},
    store::{
        FencingToken, IdempotencyStore, OutcomeCursor, OutcomePage, RecordKey, Resolution,
        Resolved, StoreError, Stored, UnknownOutcome,
    },
    telemetry,
};

/// The operations of a store whose outcome is unknown, for the people and jobs that find out how they
/// ended.
///
/// With [`CrashPolicy::Unknown`](crate::store::CrashPolicy) repeats are told that the outcome is unknown
/// until the record expires, or until somebody resolves it: with the reply that every repeat gets from
/// then on, or as without effect, and the next repeat is executed. The former owner is fenced off: if it
/// comes back it has lost the record. An operation that runs under a lease can't be resolved.
///
/// Listed are operations that ended with an unknown outcome, and those whose owner vanished, repeated or
/// not. Resolve them before they expire ([`expires_in`](UnknownOutcome::expires_in)): a repeat is
/// executed after that.
///
/// ```
/// use http::{Response, StatusCode};
/// use tower_reprise::{
///     server::idempotency::UnknownOutcomes,
///     store::{IdempotencyStore, MemoryStore, Resolved},
/// };
/// # use std::time::Duration;
/// # use tower_reprise::store::{Claim, ClaimId, Claimed, CrashPolicy, Fingerprint, Note, RecordKey};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let claim = || Claim {
/// #     key: RecordKey::new([1; 32]),
/// #     fingerprint: Fingerprint::new([2; 32]),
/// #     id: ClaimId::random(),
/// #     lease: Duration::ZERO,
/// #     retention: Duration::from_secs(24 * 60 * 60),
/// #     crash_policy: CrashPolicy::Unknown,
/// #     note: Note::NONE,
/// #     resumes: None,
/// # };
/// let store = MemoryStore::new();
/// # // A server that vanishes.
/// # store.claim(claim()).await?;
/// let unknown_outcomes = UnknownOutcomes::new(store.clone());
/// for unknown in unknown_outcomes.list(None, 100).await?.outcomes {
///     // The bank's statement says that it was paid.
///     let mut paid = Response::new("paid");
///     *paid.status_mut() = StatusCode::CREATED;
///     let resolved = unknown_outcomes.resolve(&unknown, &paid).await?;
///     assert_eq!(resolved, Resolved::Made);
/// }
/// # assert!(matches!(store.claim(claim()).await?, Claimed::Done { .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct UnknownOutcomes<St> {
    store: St,
    retention: Duration,
    stored_headers: HeaderFilter,
}

impl<St: IdempotencyStore> UnknownOutcomes<St> {
    /// Works on the store of a layer, wrapped as the layer's is if it is `Sealed`.
    pub fn new(store: St) -> Self {
        Self {
            store,
            retention: DAY,
            stored_headers: HeaderFilter::default(),
        }
    }

    /// Sets for how long the reply of a resolved operation is kept: 24 hours by default.
    ///
    /// # Errors
    ///
    /// It is less than 24 hours (I-11).
    pub fn try_retention(mut self, retention: Duration) -> Result<Self, ConfigError> {
        let (field, long) = ("unknown_outcomes.retention", DAY..=Duration::MAX);
        ConfigError::within(field, retention, long, "at least 24h")?;
        self.retention = retention;
        Ok(self)
    }

    /// Lists unknown outcomes, page by page, in an order of the store's own.
    ///
    /// # Errors
    ///
    /// The store fails, or does not provide it.
    pub async fn list(
        &self,
        after: Option<OutcomeCursor>,
        limit: u32,
    ) -> Result<OutcomePage, StoreError> {
        self.store.unknown_outcomes(after, limit).await
    }

    /// Returns the operation with this key, if its outcome is unknown.
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list).
    pub async fn find(&self, key: RecordKey) -> Result<Option<UnknownOutcome>, StoreError> {
        self.store.unknown_outcome(key).await
    }

    /// Resolves an operation that took effect: repeats get this reply, marked as replayed, without the
    /// headers that the layer does not store.
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list).
    pub async fn resolve<B: AsRef<[u8]>>(
        &self,
        unknown: &UnknownOutcome,
        response: &Response<B>,
    ) -> Result<Resolved, StoreError> {
        let (mut head, ()) = Response::new(()).into_parts();
        head.status = response.status();
        head.headers = response.headers().clone();
        let body = response.body().as_ref();
        let reply = reply::encode(&head, None, body, &self.stored_headers);
        self.executed(unknown, Stored::Reply(reply)).await
    }

    /// Resolves an operation that took effect, and whose reply nobody knows: repeats are told that it
    /// was executed.
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list).
    pub async fn resolve_without_reply(
        &self,
        unknown: &UnknownOutcome,
    ) -> Result<Resolved, StoreError> {
        self.executed(unknown, Stored::NotRetained).await
    }

    /// Resolves an operation that had no effect: its key is free, and the next repeat is executed.
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list).
    pub async fn resolve_without_effect(
        &self,
        unknown: &UnknownOutcome,
    ) -> Result<Resolved, StoreError> {
        self.made(unknown, Resolution::NoEffect, "no_effect").await
    }

    /// Releases a key without a finding: the next repeat is executed, although the operation may have
    /// taken effect. For operations that are harmless to execute twice.
    ///
    /// # Errors
    ///
    /// As for [`list`](Self::list).
    pub async fn release(&self, unknown: &UnknownOutcome) -> Result<Resolved, StoreError> {
        self.made(unknown, Resolution::NoEffect, "released").await
    }

    async fn executed(
        &self,
        unknown: &UnknownOutcome,
        stored: Stored,
    ) -> Result<Resolved, StoreError> {
        let resolution = Resolution::Executed(stored, self.retention);
        self.made(unknown, resolution, "executed").await
    }

    async fn made(
        &self,
        unknown: &UnknownOutcome,
        resolution: Resolution,
        finding: &'static str,
    ) -> Result<Resolved, StoreError> {
        let (key, token): (_, FencingToken) = (unknown.key, unknown.token);
        let resolved = self.store.resolve(key, token, resolution).await?;
        if resolved == Resolved::Made {
            telemetry::outcome_resolved(key, finding);
        }
        Ok(resolved)
    }
}

opaque_debug! { UnknownOutcomes<St>, self, retention = self.retention }
