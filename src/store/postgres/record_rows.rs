//! Claims of new keys and completions as rows of a batch.

use std::collections::HashMap;

use tokio::time::Instant;
use tokio_postgres::Row;

use super::{
    PostgresStore,
    batcher::{BatchRow, Batcher},
    parameter::Parameter,
    row::{columns, micros, number},
};
use crate::store::{Claim, CrashPolicy, FencingToken, RecordKey, StoreError, Stored};

/// The claim of a key that is new, as nearly every claim is.
pub(super) struct ClaimRow {
    key: [u8; 32],
    fingerprint: [u8; 32],
    id: [u8; 16],
    lease: i64,
    retention: i64,
    note: Option<Box<[u8]>>,
    watched: bool,
}

impl ClaimRow {
    pub(super) fn new(claim: &Claim) -> Self {
        Self {
            key: *claim.key.as_bytes(),
            fingerprint: *claim.fingerprint.as_bytes(),
            id: *claim.id.as_bytes(),
            lease: micros(claim.lease),
            retention: micros(claim.retention),
            note: (!claim.note.is_empty()).then(|| claim.note.as_bytes().into()),
            watched: claim.crash_policy == CrashPolicy::Unknown,
        }
    }
}

impl BatchRow for ClaimRow {
    type Store = PostgresStore;
    type Answer = FencingToken;

    fn batcher(store: &PostgresStore) -> &Batcher<Self> {
        &store.inner.claims
    }

    fn bytes(&self) -> usize {
        self.note.as_ref().map_or(0, |note| note.len())
    }

    async fn send(
        store: &PostgresStore,
        deadline: Instant,
        rows: &[Self],
    ) -> Result<Vec<Option<FencingToken>>, StoreError> {
        let sorted = sorted(rows, |row| &row.key);
        let parameters: [&dyn Parameter; 7] = [
            &column(&sorted, |row| row.key.as_slice()),
            &column(&sorted, |row| row.fingerprint.as_slice()),
            &column(&sorted, |row| row.id.as_slice()),
            &column(&sorted, |row| row.lease),
            &column(&sorted, |row| row.retention),
            &column(&sorted, |row| row.note.as_deref()),
            &column(&sorted, |row| row.watched),
        ];
        let sql = &store.inner.statements.claim_new;
        let claimed = store.attempt(deadline, sql, &parameters).await?;
        let token = |row: &Row| {
            let id = row.try_get::<_, &[u8]>(0).ok()?;
            let token = u64::try_from(row.try_get::<_, i64>(1).ok()?).ok()?;
            Some((id.try_into().ok()?, FencingToken::new(token)))
        };
        let tokens: HashMap<[u8; 16], FencingToken> = claimed.iter().filter_map(token).collect();
        Ok(rows
            .iter()
            .map(|row| tokens.get(&row.id).copied())
            .collect())
    }

    async fn send_one(
        store: &PostgresStore,
        deadline: Instant,
        row: &Self,
    ) -> Result<Option<FencingToken>, StoreError> {
        let parameters: [&dyn Parameter; 7] = [
            &row.key.as_slice(),
            &row.fingerprint.as_slice(),
            &row.id.as_slice(),
            &row.lease,
            &row.retention,
            &row.note.as_deref(),
            &row.watched,
        ];
        let sql = &store.inner.statements.claim_one;
        let claimed = store.attempt(deadline, sql, &parameters).await?;
        let token = claimed.first().and_then(|row| row.try_get(0).ok());
        Ok(token.and_then(|token: i64| u64::try_from(token).ok().map(FencingToken::new)))
    }
}

/// The completion of an operation by its owner.
pub(super) struct CompleteRow {
    key: [u8; 32],
    token: i64,
    stored: Stored,
    retention: i64,
}

impl CompleteRow {
    pub(super) fn new(
        key: RecordKey,
        token: FencingToken,
        stored: Stored,
        retention: std::time::Duration,
    ) -> Self {
        Self {
            key: *key.as_bytes(),
            token: number(token),
            stored,
            retention: micros(retention),
        }
    }
}

impl BatchRow for CompleteRow {
    type Store = PostgresStore;
    type Answer = ();

    fn batcher(store: &PostgresStore) -> &Batcher<Self> {
        &store.inner.completions
    }

    fn bytes(&self) -> usize {
        columns(&self.stored).1.map_or(0, <[u8]>::len)
    }

    async fn send(
        store: &PostgresStore,
        deadline: Instant,
        rows: &[Self],
    ) -> Result<Vec<Option<()>>, StoreError> {
        let sorted = sorted(rows, |row| &row.key);
        let parameters: [&dyn Parameter; 5] = [
            &column(&sorted, |row| row.key.as_slice()),
            &column(&sorted, |row| row.token),
            &column(&sorted, |row| columns(&row.stored).0),
            &column(&sorted, |row| columns(&row.stored).1),
            &column(&sorted, |row| row.retention),
        ];
        let sql = &store.inner.statements.complete_batch;
        let completed = store.attempt(deadline, sql, &parameters).await?;
        let token = |row: &Row| {
            let key = row.try_get::<_, &[u8]>(0).ok()?;
            Some((key.try_into().ok()?, row.try_get(1).ok()?))
        };
        let tokens: HashMap<[u8; 32], i64> = completed.iter().filter_map(token).collect();
        let is_made = |row: &Self| tokens.get(&row.key) == Some(&row.token);
        Ok(rows.iter().map(|row| is_made(row).then_some(())).collect())
    }

    async fn send_one(
        store: &PostgresStore,
        deadline: Instant,
        row: &Self,
    ) -> Result<Option<()>, StoreError> {
        let Stored::Reply(reply) = &row.stored else {
            return Ok(None);
        };
        let parameters: [&dyn Parameter; 4] =
            [&row.key.as_slice(), &row.token, &&**reply, &row.retention];
        let sql = &store.inner.statements.complete_one;
        let completed = store.attempt(deadline, sql, &parameters).await?;
        Ok((!completed.is_empty()).then_some(()))
    }
}

/// Sorts rows by their keys. Statements lock rows in this order, so that two of them never wait for
/// each other.
fn sorted<R>(rows: &[R], key: impl Fn(&R) -> &[u8; 32]) -> Vec<&R> {
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort_unstable_by(|a, b| key(a).cmp(key(b)));
    sorted
}

fn column<'a, R, T>(rows: &[&'a R], get: impl Fn(&'a R) -> T) -> Vec<T> {
    rows.iter().map(|row| get(row)).collect()
}
