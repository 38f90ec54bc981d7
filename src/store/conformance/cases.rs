mod leases;
mod notes;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::task::JoinSet;

use super::Backend;
use crate::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, Fingerprint, IdempotencyStore, Lease, Note,
    Ownership::{self, Held, Lost},
    RecordKey, Stored,
};

const LEASE: u32 = 5;
const RETENTION: u32 = 20;

/// Runs every case, one after the other. Keys are random, so that the store need not be empty.
///
/// # Panics
///
/// When the store breaks the contract.
pub async fn run<B: Backend<Store: IdempotencyStore>>(backend: &B) {
    let case = &Case {
        store: Arc::new(backend.open().await),
        other: Arc::new(backend.open().await),
        backend,
        unit: backend.unit(),
    };
    one_of_many_claims_wins(case).await;
    one_of_many_takes_over_an_orphan(case).await;
    replies_come_back_byte_for_byte(case).await;
    what_is_not_a_reply_comes_back_too(case).await;
    another_fingerprint_is_a_mismatch_in_every_state(case).await;
    keys_are_independent(case).await;
    a_claim_can_be_repeated(case).await;
    a_completion_can_be_repeated(case).await;
    a_released_key_is_free(case).await;
    what_is_done_is_done(case).await;
    a_record_is_kept_for_its_time_and_no_longer(case).await;
    nobody_owns_what_is_not_there(case).await;
    any_duration_is_taken(case).await;
    leases::run(case).await;
    notes::run(case).await;
}

struct Case<'a, B: Backend<Store: IdempotencyStore>> {
    backend: &'a B,
    store: Arc<B::Store>,
    /// The same records, through another handle.
    other: Arc<B::Store>,
    unit: Duration,
}

impl<B: Backend<Store: IdempotencyStore>> Case<'_, B> {
    fn claim(&self) -> Claim {
        Claim {
            key: RecordKey::new(rand::random()),
            fingerprint: Fingerprint::new([7; 32]),
            id: ClaimId::random(),
            lease: self.unit * LEASE,
            retention: self.unit * RETENTION,
            orphans: CrashPolicy::Reexecute,
            note: Note::NONE,
        }
    }

    async fn pass(&self, units: u32) {
        self.backend.pass(self.unit * units).await;
    }

    async fn try_claim(&self, claim: &Claim) -> Claimed {
        self.store.claim(claim.clone()).await.expect("claim")
    }

    async fn own(&self, claim: &Claim) -> FencingToken {
        self.lease(claim).await.token
    }

    async fn lease(&self, claim: &Claim) -> Lease {
        match self.try_claim(claim).await {
            Claimed::New(lease) => lease,
            other => panic!("the key should be free, but is {other:?}"),
        }
    }

    async fn renew(&self, claim: &Claim, token: FencingToken) -> Ownership {
        let renewed = self
            .store
            .renew(claim.key, token, claim.lease, claim.retention)
            .await;
        renewed.expect("renew")
    }

    async fn complete(&self, claim: &Claim, token: FencingToken, stored: Stored) -> Ownership {
        let completed = self
            .store
            .complete(claim.key, token, stored, claim.retention)
            .await;
        completed.expect("complete")
    }

    async fn release(&self, claim: &Claim, token: FencingToken) -> Ownership {
        self.store.release(claim.key, token).await.expect("release")
    }
}

/// The same operation, asked for by somebody else.
fn again(claim: &Claim) -> Claim {
    Claim {
        id: ClaimId::random(),
        ..claim.clone()
    }
}

fn reply(text: &'static str) -> Stored {
    Stored::Reply(Bytes::from_static(text.as_bytes()))
}

/// Claims through both handles at once; how many were told to execute.
async fn winners<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>, claim: &Claim) -> usize {
    let mut claims = JoinSet::new();
    for n in 0..100 {
        let store = Arc::clone(if n % 2 == 0 { &case.store } else { &case.other });
        let claim = again(claim);
        claims.spawn(async move { store.claim(claim).await.expect("claim") });
    }
    let claimed = claims.join_all().await;
    let (new, others): (Vec<_>, Vec<_>) = claimed
        .into_iter()
        .partition(|claimed| matches!(claimed, Claimed::New(_)));
    for other in others {
        let Claimed::InFlight { remaining, .. } = other else {
            panic!("a key in flight is {other:?}");
        };
        assert!(
            remaining > Duration::ZERO && remaining <= claim.lease,
            "{remaining:?} remain of a lease of {:?}",
            claim.lease
        );
    }
    new.len()
}

async fn one_of_many_claims_wins<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    assert_eq!(winners(case, &case.claim()).await, 1, "executions");
}

async fn one_of_many_takes_over_an_orphan<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    case.own(&claim).await;
    case.pass(LEASE + 1).await;
    assert_eq!(winners(case, &claim).await, 1, "executions");
}

async fn replies_come_back_byte_for_byte<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let every_byte: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
    for bytes in [Bytes::new(), Bytes::from(every_byte)] {
        let claim = case.claim();
        let token = case.own(&claim).await;
        let stored = Stored::Reply(bytes.clone());
        assert_eq!(case.complete(&claim, token, stored).await, Held);
        for store in [&case.store, &case.other] {
            match store.claim(again(&claim)).await.expect("claim") {
                Claimed::Done {
                    stored: Stored::Reply(kept),
                    ..
                } => assert!(kept == bytes, "other bytes"),
                other => panic!("a completed key is {other:?}"),
            }
        }
    }
}

async fn what_is_not_a_reply_comes_back_too<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    for stored in [Stored::NotRetained, Stored::Unknown] {
        let claim = case.claim();
        let token = case.own(&claim).await;
        assert_eq!(case.complete(&claim, token, stored.clone()).await, Held);
        assert_eq!(case.try_claim(&again(&claim)).await, Claimed::done(stored));
    }
}

async fn another_fingerprint_is_a_mismatch_in_every_state<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    let claim = case.claim();
    let other = |orphans| Claim {
        fingerprint: Fingerprint::new([8; 32]),
        orphans,
        ..again(&claim)
    };
    let mismatch = Claimed::Mismatch {
        fingerprint: claim.fingerprint,
        note: Note::NONE,
    };
    let token = case.own(&claim).await;
    for orphans in [CrashPolicy::Reexecute, CrashPolicy::Unknown] {
        let claimed = case.try_claim(&other(orphans)).await;
        assert_eq!(claimed, mismatch, "in flight");
    }
    case.pass(LEASE + 1).await;
    for orphans in [CrashPolicy::Reexecute, CrashPolicy::Unknown] {
        let claimed = case.try_claim(&other(orphans)).await;
        assert_eq!(claimed, mismatch, "orphaned");
    }
    assert_eq!(
        case.complete(&claim, token, reply("paid")).await,
        Held,
        "a mismatch must not change the record"
    );
    let claimed = case.try_claim(&other(CrashPolicy::Reexecute)).await;
    assert_eq!(claimed, mismatch, "done");
    let same_id = Claim {
        id: claim.id,
        ..other(CrashPolicy::Reexecute)
    };
    assert_eq!(case.try_claim(&same_id).await, mismatch, "same id");
}

async fn keys_are_independent<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let one = case.claim();
    let mut last = *one.key.as_bytes();
    last[31] ^= 1;
    let two = Claim {
        key: RecordKey::new(last),
        ..again(&one)
    };
    let token = case.own(&one).await;
    let other = case.own(&two).await;
    assert_eq!(case.complete(&one, token, reply("one")).await, Held);
    assert_eq!(case.release(&two, other).await, Held);
    let done = Claimed::done(reply("one"));
    assert_eq!(case.try_claim(&again(&one)).await, done);
    case.own(&again(&two)).await;
}

async fn a_claim_can_be_repeated<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    case.pass(LEASE - 1).await;
    assert_eq!(case.own(&claim).await, token, "while the lease holds");
    case.pass(LEASE - 1).await;
    let claimed = case.try_claim(&again(&claim)).await;
    assert!(matches!(claimed, Claimed::InFlight { .. }), "lease anew");
    case.pass(LEASE).await;
    assert_eq!(case.own(&claim).await, token, "after it ran out");

    case.pass(LEASE).await;
    let heir = again(&claim);
    let lease = case.lease(&heir).await;
    assert!(lease.orphaned && lease.token > token);
    let (claim, token) = (heir, lease.token);
    assert_eq!(case.lease(&claim).await, lease, "an orphan's too");
    assert_eq!(case.complete(&claim, token, reply("paid")).await, Held);
}

async fn a_completion_can_be_repeated<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    assert_eq!(case.complete(&claim, token, reply("paid")).await, Held);
    assert_eq!(case.complete(&claim, token, reply("paid")).await, Held);
    let other = case.complete(&claim, token, Stored::NotRetained).await;
    assert_eq!(other, Held, "the same owner");
    let done = Claimed::done(reply("paid"));
    assert_eq!(
        case.try_claim(&again(&claim)).await,
        done,
        "the first stands"
    );
}

async fn a_released_key_is_free<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    let mut last = FencingToken::new(0);
    for n in 0..20 {
        let other = Claim {
            fingerprint: Fingerprint::new([n; 32]),
            ..again(&claim)
        };
        let lease = case.lease(&other).await;
        assert!(!lease.orphaned, "a released key is no orphan");
        assert!(lease.token > last, "{} after {last}", lease.token);
        assert_eq!(case.release(&other, last).await, Lost, "stale release");
        assert_eq!(case.release(&other, lease.token).await, Held);
        let late = case.complete(&other, lease.token, reply("late")).await;
        assert_eq!(late, Lost, "completion after the release");
        last = lease.token;
    }
}

async fn what_is_done_is_done<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    assert_eq!(case.complete(&claim, token, reply("paid")).await, Held);
    assert_eq!(case.renew(&claim, token).await, Lost, "renew");
    assert_eq!(case.release(&claim, token).await, Lost, "release");
    let done = Claimed::done(reply("paid"));
    case.pass(LEASE + 1).await;
    assert_eq!(case.try_claim(&again(&claim)).await, done);
}

async fn a_record_is_kept_for_its_time_and_no_longer<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    case.pass(LEASE - 1).await;
    assert_eq!(case.complete(&claim, token, reply("paid")).await, Held);
    case.pass(RETENTION - 1).await;
    let done = Claimed::done(reply("paid"));
    assert_eq!(case.try_claim(&again(&claim)).await, done);
    case.pass(2).await;
    let lost = case.complete(&claim, token, reply("paid")).await;
    assert_eq!(lost, Lost, "past its time");
    let other = Claim {
        fingerprint: Fingerprint::new([8; 32]),
        ..again(&claim)
    };
    let lease = case.lease(&other).await;
    assert!(!lease.orphaned, "it was completed");
    assert!(lease.token > token, "{} after {token}", lease.token);
}

async fn nobody_owns_what_is_not_there<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    let token = FencingToken::new(1);
    assert_eq!(case.renew(&claim, token).await, Lost, "renew");
    assert_eq!(case.complete(&claim, token, reply("?")).await, Lost);
    assert_eq!(case.release(&claim, token).await, Lost, "release");
    case.own(&claim).await;
}

async fn any_duration_is_taken<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let forever = Claim {
        lease: Duration::MAX,
        retention: Duration::MAX,
        ..case.claim()
    };
    let token = case.own(&forever).await;
    assert!(token.get() <= 1 << 53, "{token} is too large a token");
    case.pass(RETENTION).await;
    let claimed = case.try_claim(&again(&forever)).await;
    assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
    assert_eq!(case.renew(&forever, token).await, Held);
    assert_eq!(case.complete(&forever, token, reply("paid")).await, Held);
    case.pass(RETENTION).await;
    let done = Claimed::done(reply("paid"));
    assert_eq!(case.try_claim(&again(&forever)).await, done);
}
