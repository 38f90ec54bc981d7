mod leases;
mod notes;
mod unknown;

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

/// Runs every case, one after the other. Keys are random, so the store need not be empty.
///
/// # Panics
///
/// If the store breaks the contract.
pub async fn run<B: Backend<Store: IdempotencyStore>>(backend: &B) {
    let case = &Case::new(backend).await;
    case.one_of_many_claims_wins().await;
    case.one_of_many_takes_over_an_orphan().await;
    case.replies_come_back_byte_for_byte().await;
    case.what_is_not_a_reply_comes_back_too().await;
    case.another_fingerprint_is_a_mismatch_in_every_state()
        .await;
    case.keys_are_independent().await;
    case.a_claim_can_be_repeated().await;
    case.a_completion_can_be_repeated().await;
    case.a_released_key_is_free().await;
    case.what_is_done_is_done().await;
    case.a_record_is_kept_for_its_time_and_no_longer().await;
    case.nobody_owns_what_is_not_there().await;
    case.any_duration_is_taken().await;
    case.leases().await;
    case.notes().await;
}

/// Runs the cases of unknown outcomes: how they are listed, found and resolved. Apart from [`run`],
/// since a store may do without these verbs.
///
/// # Panics
///
/// If the store breaks the contract, or does not provide them.
pub async fn unknown_outcomes<B: Backend<Store: IdempotencyStore>>(backend: &B) {
    Case::new(backend).await.unknown_outcomes().await;
}

struct Case<'a, B: Backend<Store: IdempotencyStore>> {
    backend: &'a B,
    store: Arc<B::Store>,
    /// The same records, through another handle.
    other: Arc<B::Store>,
    unit: Duration,
}

impl<'a, B: Backend<Store: IdempotencyStore>> Case<'a, B> {
    async fn new(backend: &'a B) -> Self {
        Self {
            store: Arc::new(backend.open().await),
            other: Arc::new(backend.open().await),
            backend,
            unit: backend.unit(),
        }
    }
}

impl<B: Backend<Store: IdempotencyStore>> Case<'_, B> {
    fn claim(&self) -> Claim {
        Claim {
            key: RecordKey::new(rand::random()),
            fingerprint: Fingerprint::new([7; 32]),
            id: ClaimId::random(),
            lease: self.unit * LEASE,
            retention: self.unit * RETENTION,
            crash_policy: CrashPolicy::Reexecute,
            note: Note::NONE,
            resumes: None,
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

    /// Claims a new operation.
    async fn owned(&self) -> (Claim, FencingToken) {
        let claim = self.claim();
        let token = self.own(&claim).await;
        (claim, token)
    }

    /// Claims and completes a new operation.
    async fn completed(&self, stored: Stored) -> (Claim, FencingToken) {
        let (claim, token) = self.owned().await;
        assert_eq!(self.complete(&claim, token, stored).await, Held);
        (claim, token)
    }

    /// Checks that a claim by another owner gets this outcome.
    async fn assert_done(&self, claim: &Claim, stored: Stored) {
        let claimed = self.try_claim(&again(claim)).await;
        assert_eq!(claimed, Claimed::done(stored));
    }

    /// Checks that a claim by another owner finds the operation in flight.
    async fn assert_in_flight(&self, claim: &Claim) {
        let claimed = self.try_claim(&again(claim)).await;
        assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
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

impl<B: Backend<Store: IdempotencyStore>> Case<'_, B> {
    /// Claims through both handles at once. Returns the number of claims that may execute.
    async fn winners(&self, claim: &Claim) -> usize {
        let mut claims = JoinSet::new();
        for n in 0..100 {
            let store = Arc::clone(if n % 2 == 0 { &self.store } else { &self.other });
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

    async fn one_of_many_claims_wins(&self) {
        assert_eq!(self.winners(&self.claim()).await, 1, "executions");
    }

    async fn one_of_many_takes_over_an_orphan(&self) {
        let claim = self.claim();
        self.own(&claim).await;
        self.pass(LEASE + 1).await;
        assert_eq!(self.winners(&claim).await, 1, "executions");
    }

    async fn replies_come_back_byte_for_byte(&self) {
        let every_byte: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
        for bytes in [Bytes::new(), Bytes::from(every_byte)] {
            let (claim, _) = self.completed(Stored::Reply(bytes.clone())).await;
            for store in [&self.store, &self.other] {
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

    async fn what_is_not_a_reply_comes_back_too(&self) {
        for stored in [Stored::NotRetained, Stored::Unknown] {
            let (claim, _) = self.completed(stored.clone()).await;
            self.assert_done(&claim, stored).await;
        }
    }

    async fn another_fingerprint_is_a_mismatch_in_every_state(&self) {
        let claim = self.claim();
        let other = |crash_policy| Claim {
            fingerprint: Fingerprint::new([8; 32]),
            crash_policy,
            ..again(&claim)
        };
        let mismatch = Claimed::Mismatch {
            fingerprint: claim.fingerprint,
            note: Note::NONE,
        };
        let token = self.own(&claim).await;
        for (units, state) in [(0, "in flight"), (LEASE + 1, "orphaned")] {
            self.pass(units).await;
            for crash_policy in [CrashPolicy::Reexecute, CrashPolicy::Unknown] {
                let claimed = self.try_claim(&other(crash_policy)).await;
                assert_eq!(claimed, mismatch, "{state}");
            }
        }
        assert_eq!(
            self.complete(&claim, token, reply("paid")).await,
            Held,
            "a mismatch must not change the record"
        );
        let claimed = self.try_claim(&other(CrashPolicy::Reexecute)).await;
        assert_eq!(claimed, mismatch, "done");
        let same_id = Claim {
            id: claim.id,
            ..other(CrashPolicy::Reexecute)
        };
        assert_eq!(self.try_claim(&same_id).await, mismatch, "same id");
    }

    async fn keys_are_independent(&self) {
        let one = self.claim();
        let mut last = *one.key.as_bytes();
        last[31] ^= 1;
        let two = Claim {
            key: RecordKey::new(last),
            ..again(&one)
        };
        let token = self.own(&one).await;
        let other = self.own(&two).await;
        assert_eq!(self.complete(&one, token, reply("one")).await, Held);
        assert_eq!(self.release(&two, other).await, Held);
        self.assert_done(&one, reply("one")).await;
        self.own(&again(&two)).await;
    }

    async fn a_claim_can_be_repeated(&self) {
        let (claim, token) = self.owned().await;
        self.pass(LEASE - 1).await;
        assert_eq!(self.own(&claim).await, token, "while the lease holds");
        self.pass(LEASE - 1).await;
        self.assert_in_flight(&claim).await;
        self.pass(LEASE).await;
        assert_eq!(self.own(&claim).await, token, "after it ran out");

        self.pass(LEASE).await;
        let heir = again(&claim);
        let lease = self.lease(&heir).await;
        assert!(lease.orphaned && lease.token > token);
        let (claim, token) = (heir, lease.token);
        assert_eq!(self.lease(&claim).await, lease, "an orphan's too");
        assert_eq!(self.complete(&claim, token, reply("paid")).await, Held);
    }

    async fn a_completion_can_be_repeated(&self) {
        let (claim, token) = self.completed(reply("paid")).await;
        assert_eq!(self.complete(&claim, token, reply("paid")).await, Held);
        let other = self.complete(&claim, token, Stored::NotRetained).await;
        assert_eq!(other, Held, "the same owner");
        self.assert_done(&claim, reply("paid")).await;
    }

    async fn a_released_key_is_free(&self) {
        let claim = self.claim();
        let mut last = FencingToken::new(0);
        for n in 0..20 {
            let other = Claim {
                fingerprint: Fingerprint::new([n; 32]),
                ..again(&claim)
            };
            let lease = self.lease(&other).await;
            assert!(!lease.orphaned, "a released key is no orphan");
            assert!(lease.token > last, "{} after {last}", lease.token);
            assert_eq!(self.release(&other, last).await, Lost, "stale release");
            assert_eq!(self.release(&other, lease.token).await, Held);
            let late = self.complete(&other, lease.token, reply("late")).await;
            assert_eq!(late, Lost, "completion after the release");
            last = lease.token;
        }
    }

    async fn what_is_done_is_done(&self) {
        let (claim, token) = self.completed(reply("paid")).await;
        assert_eq!(self.renew(&claim, token).await, Lost, "renew");
        assert_eq!(self.release(&claim, token).await, Lost, "release");
        self.pass(LEASE + 1).await;
        self.assert_done(&claim, reply("paid")).await;
    }

    async fn a_record_is_kept_for_its_time_and_no_longer(&self) {
        let (claim, token) = self.owned().await;
        self.pass(LEASE - 1).await;
        assert_eq!(self.complete(&claim, token, reply("paid")).await, Held);
        self.pass(RETENTION - 1).await;
        self.assert_done(&claim, reply("paid")).await;
        self.pass(2).await;
        let lost = self.complete(&claim, token, reply("paid")).await;
        assert_eq!(lost, Lost, "past its time");
        let other = other_request(&claim);
        let lease = self.lease(&other).await;
        assert!(!lease.orphaned, "it was completed");
        assert!(lease.token > token, "{} after {token}", lease.token);
    }

    async fn nobody_owns_what_is_not_there(&self) {
        let claim = self.claim();
        let token = FencingToken::new(1);
        assert_eq!(self.renew(&claim, token).await, Lost, "renew");
        assert_eq!(self.complete(&claim, token, reply("?")).await, Lost);
        assert_eq!(self.release(&claim, token).await, Lost, "release");
        self.own(&claim).await;
    }

    async fn any_duration_is_taken(&self) {
        let forever = Claim {
            lease: Duration::MAX,
            retention: Duration::MAX,
            ..self.claim()
        };
        let token = self.own(&forever).await;
        assert!(token.get() <= 1 << 53, "{token} is too large a token");
        self.pass(RETENTION).await;
        self.assert_in_flight(&forever).await;
        assert_eq!(self.renew(&forever, token).await, Held);
        assert_eq!(self.complete(&forever, token, reply("paid")).await, Held);
        self.pass(RETENTION).await;
        self.assert_done(&forever, reply("paid")).await;
    }
}

/// Returns a claim of the same operation by another owner.
fn again(claim: &Claim) -> Claim {
    Claim {
        id: ClaimId::random(),
        ..claim.clone()
    }
}

/// Returns a claim of the same key for another request.
fn other_request(claim: &Claim) -> Claim {
    Claim {
        fingerprint: Fingerprint::new([8; 32]),
        ..again(claim)
    }
}

fn reply(text: &'static str) -> Stored {
    Stored::Reply(Bytes::from_static(text.as_bytes()))
}
