//! Idempotency records, as the tests of all stores claim and complete them.

use std::time::Duration;

use bytes::Bytes;
use tower_reprise::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Note,
    Ownership, RecordKey, Stored,
};

pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const RETENTION: Duration = Duration::from_secs(60 * 60);

/// A claim of a numbered key. The number is in the first bytes, which choose a shard.
pub(crate) fn claim(key: u64) -> Claim {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    claim_of(bytes)
}

pub(crate) fn claim_of(key: [u8; 32]) -> Claim {
    Claim {
        key: RecordKey::new(key),
        fingerprint: Fingerprint::new([1; 32]),
        id: ClaimId::random(),
        lease: LEASE,
        retention: RETENTION,
        crash_policy: CrashPolicy::Reexecute,
        note: Note::NONE,
        resumes: None,
    }
}

pub(crate) fn reply(text: &str) -> Stored {
    Stored::Reply(Bytes::copy_from_slice(text.as_bytes()))
}

/// Claims a key that is free.
pub(crate) async fn own(store: &impl IdempotencyStore, claim: Claim) -> FencingToken {
    match store.claim(claim).await.expect("claim") {
        Claimed::New(lease) => lease.token,
        other => panic!("the key should be free, but is {other:?}"),
    }
}

/// Completes a record that is owned.
pub(crate) async fn complete(
    store: &impl IdempotencyStore,
    key: u64,
    token: FencingToken,
    stored: Stored,
) {
    let completed = store.complete(claim(key).key, token, stored, RETENTION);
    assert_eq!(completed.await.expect("complete"), Ownership::Held);
}
