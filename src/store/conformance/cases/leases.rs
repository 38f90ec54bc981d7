//! Whose an operation is while its lease runs, and after that.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use super::{Case, LEASE, RETENTION, again, reply};
use crate::store::{
    Claim, Claimed, CrashPolicy, Fingerprint, IdempotencyStore,
    Ownership::{Held, Lost},
    Stored,
    conformance::Backend,
};

pub(super) async fn run<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    a_renewed_lease_holds(case).await;
    an_orphan_is_executed_again_with_a_greater_token(case).await;
    a_stale_owner_changes_nothing(case).await;
    an_orphan_of_unknown_outcome_stays_so(case).await;
    a_lease_that_nobody_took_is_still_the_owners(case).await;
    a_late_completion_race_has_one_winner(case).await;
    an_orphan_is_kept_for_lease_and_retention(case).await;
    a_lease_of_no_time_has_run_out(case).await;
}

async fn a_renewed_lease_holds<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    for _ in 0..4 {
        case.pass(LEASE - 1).await;
        assert_eq!(case.renew(&claim, token).await, Held);
    }
    case.pass(LEASE - 1).await;
    let claimed = case.try_claim(&again(&claim)).await;
    assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
}

async fn an_orphan_is_executed_again_with_a_greater_token<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    let claim = case.claim();
    let first = case.lease(&claim).await;
    assert!(!first.orphaned, "a first claim is no orphan");
    let mut last = first.token;
    for _ in 0..3 {
        case.pass(LEASE + 1).await;
        let lease = case.lease(&again(&claim)).await;
        assert!(lease.orphaned, "the owner before vanished");
        assert!(lease.token > last, "{} after {last}", lease.token);
        last = lease.token;
    }
}

async fn a_stale_owner_changes_nothing<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = case.claim();
    let stale = case.own(&claim).await;
    case.pass(LEASE + 1).await;
    let token = case.own(&again(&claim)).await;
    assert_eq!(case.renew(&claim, stale).await, Lost, "renew");
    assert_eq!(case.release(&claim, stale).await, Lost, "release");
    assert_eq!(case.complete(&claim, stale, reply("stale")).await, Lost);
    assert_eq!(case.complete(&claim, token, reply("paid")).await, Held);
    assert_eq!(case.complete(&claim, stale, reply("stale")).await, Lost);
    assert_eq!(case.release(&claim, stale).await, Lost, "release when done");
    let done = Claimed::done(reply("paid"));
    assert_eq!(case.try_claim(&again(&claim)).await, done);
    assert_eq!(
        case.try_claim(&claim).await,
        done,
        "by the stale claim's id"
    );
}

async fn an_orphan_of_unknown_outcome_stays_so<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    case.pass(LEASE + 1).await;
    let unknown = Claimed::done(Stored::Unknown);
    let careful = Claim {
        orphans: CrashPolicy::Unknown,
        ..again(&claim)
    };
    assert_eq!(case.try_claim(&careful).await, unknown);
    assert_eq!(case.renew(&claim, token).await, Lost, "renew");
    assert_eq!(case.release(&claim, token).await, Lost, "release");
    assert_eq!(case.complete(&claim, token, reply("late")).await, Lost);
    case.pass(RETENTION - 1).await;
    assert_eq!(
        case.try_claim(&again(&claim)).await,
        unknown,
        "whoever asks"
    );
    case.pass(2).await;
    assert!(case.own(&again(&claim)).await > token, "past its time");
}

async fn a_lease_that_nobody_took_is_still_the_owners<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    case.pass(LEASE + 1).await;
    assert_eq!(case.renew(&claim, token).await, Held);
    let claimed = case.try_claim(&again(&claim)).await;
    assert!(matches!(claimed, Claimed::InFlight { .. }), "{claimed:?}");
    case.pass(LEASE + 1).await;
    assert_eq!(case.complete(&claim, token, reply("late")).await, Held);
    let done = Claimed::done(reply("late"));
    assert_eq!(case.try_claim(&again(&claim)).await, done);

    let claim = case.claim();
    let token = case.own(&claim).await;
    case.pass(LEASE + 1).await;
    assert_eq!(case.release(&claim, token).await, Held);
    assert!(
        !case.lease(&again(&claim)).await.orphaned,
        "it was released"
    );
}

/// A late owner completes while others claim: either it was in time, and all of them get its
/// reply, or one of them took over, and it lost.
async fn a_late_completion_race_has_one_winner<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    for _ in 0..20 {
        let claim = case.claim();
        let token = case.own(&claim).await;
        case.pass(LEASE + 1).await;
        let (store, other) = (Arc::clone(&case.store), Arc::clone(&case.other));
        let mut claims = JoinSet::new();
        let taking_over = again(&claim);
        claims.spawn(async move {
            let claimed = other.claim(taking_over).await.expect("claim");
            matches!(claimed, Claimed::New(_))
        });
        claims.spawn(async move {
            let completed = store
                .complete(claim.key, token, reply("late"), claim.retention)
                .await;
            completed.expect("complete") == Held
        });
        let won = claims.join_all().await.into_iter().filter(|won| *won);
        assert_eq!(won.count(), 1, "winners");
    }
}

async fn an_orphan_is_kept_for_lease_and_retention<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    let claim = case.claim();
    let token = case.own(&claim).await;
    let other = Claim {
        fingerprint: Fingerprint::new([8; 32]),
        ..again(&claim)
    };
    case.pass(LEASE - 1).await;
    assert_eq!(case.renew(&claim, token).await, Held);
    case.pass(LEASE + RETENTION - 1).await;
    let claimed = case.try_claim(&other).await;
    assert!(matches!(claimed, Claimed::Mismatch { .. }), "{claimed:?}");
    case.pass(2).await;
    assert_eq!(case.renew(&claim, token).await, Lost, "past its time");
    let lease = case.lease(&other).await;
    assert!(!lease.orphaned, "nothing is known of it any more");
    assert!(lease.token > token, "{} after {token}", lease.token);
}

async fn a_lease_of_no_time_has_run_out<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let claim = Claim {
        lease: Duration::ZERO,
        ..case.claim()
    };
    let token = case.own(&claim).await;
    let lease = case.lease(&again(&claim)).await;
    assert!(lease.orphaned && lease.token > token, "{lease:?}");

    // Nor does one last that is renewed for no time.
    for orphans in [CrashPolicy::Reexecute, CrashPolicy::Unknown] {
        let held = case.claim();
        let token = case.own(&held).await;
        let none = Claim {
            lease: Duration::ZERO,
            ..held.clone()
        };
        assert_eq!(case.renew(&none, token).await, Held);
        let next = Claim {
            orphans,
            ..again(&held)
        };
        match (orphans, case.try_claim(&next).await) {
            (CrashPolicy::Reexecute, Claimed::New(lease)) => {
                assert!(lease.orphaned && lease.token > token, "{lease:?}");
            }
            (_, claimed) => assert_eq!(claimed, Claimed::done(Stored::Unknown)),
        }
        assert_eq!(case.renew(&none, token).await, Lost, "somebody took it");
    }
}
