//! Cases of ownership while a lease runs and after it ran out.

use std::{sync::Arc, time::Duration};

use tokio::task::JoinSet;

use super::{Case, LEASE, RETENTION, again, other_request, reply};
use crate::store::{
    Claim, ClaimId, Claimed, CrashPolicy, IdempotencyStore,
    Ownership::{Held, Lost},
    Stored,
    conformance::Backend,
};

impl<B: Backend<Store: IdempotencyStore>> Case<'_, B> {
    pub(super) async fn leases(&self) {
        self.a_renewed_lease_holds().await;
        self.an_orphan_is_executed_again_with_a_greater_token()
            .await;
        self.a_stale_owner_changes_nothing().await;
        self.an_orphan_of_unknown_outcome_stays_so().await;
        self.a_lease_that_nobody_took_is_still_the_owners().await;
        self.a_late_completion_race_has_one_winner().await;
        self.an_orphan_is_kept_for_lease_and_retention().await;
        self.a_lease_of_no_time_has_run_out().await;
        self.a_suspended_execution_is_resumed_by_one_claim().await;
    }

    async fn a_suspended_execution_is_resumed_by_one_claim(&self) {
        let hold = self.unit * LEASE * 3;
        let retention = self.unit * RETENTION;
        for crash_policy in [CrashPolicy::Reexecute, CrashPolicy::Unknown] {
            let (claim, mut token) = self.owned().await;
            let id = ClaimId::random();
            let resuming = || Claim {
                resumes: Some(id),
                crash_policy,
                ..again(&claim)
            };
            // While the execution runs, its id is not the one to resume.
            let running = self.try_claim(&resuming()).await;
            assert!(matches!(running, Claimed::InFlight { .. }), "{running:?}");
            for units in [LEASE * 2, LEASE * 4] {
                let suspended = self.store.suspend(claim.key, token, id, hold, retention);
                assert_eq!(suspended.await.expect("suspend"), Held);
                if units < LEASE * 3 {
                    self.pass(units).await;
                    self.assert_in_flight(&claim).await;
                } else {
                    // The hold is over, and nobody else claimed the key.
                    self.pass(units).await;
                }
                let lease = self.lease(&resuming()).await;
                assert!(lease.orphaned, "it was executed before");
                assert!(lease.token > token, "{} after {token}", lease.token);
                let twice = self.try_claim(&resuming()).await;
                assert!(matches!(twice, Claimed::InFlight { .. }), "{twice:?}");
                let stale = self.store.suspend(claim.key, token, id, hold, retention);
                assert_eq!(stale.await.expect("suspend"), Lost);
                token = lease.token;
            }
            assert_eq!(self.complete(&claim, token, reply("paid")).await, Held);
            let done = self.try_claim(&resuming()).await;
            assert_eq!(done, Claimed::done(reply("paid")));
        }
    }

    async fn a_renewed_lease_holds(&self) {
        let (claim, token) = self.owned().await;
        for _ in 0..4 {
            self.pass(LEASE - 1).await;
            assert_eq!(self.renew(&claim, token).await, Held);
        }
        self.pass(LEASE - 1).await;
        self.assert_in_flight(&claim).await;
    }

    async fn an_orphan_is_executed_again_with_a_greater_token(&self) {
        let claim = self.claim();
        let first = self.lease(&claim).await;
        assert!(!first.orphaned, "a first claim is no orphan");
        let mut last = first.token;
        for _ in 0..3 {
            self.pass(LEASE + 1).await;
            let lease = self.lease(&again(&claim)).await;
            assert!(lease.orphaned, "the owner before vanished");
            assert!(lease.token > last, "{} after {last}", lease.token);
            last = lease.token;
        }
    }

    async fn a_stale_owner_changes_nothing(&self) {
        let (claim, stale) = self.owned().await;
        self.pass(LEASE + 1).await;
        let token = self.own(&again(&claim)).await;
        assert_eq!(self.renew(&claim, stale).await, Lost, "renew");
        assert_eq!(self.release(&claim, stale).await, Lost, "release");
        assert_eq!(self.complete(&claim, stale, reply("stale")).await, Lost);
        assert_eq!(self.complete(&claim, token, reply("paid")).await, Held);
        assert_eq!(self.complete(&claim, stale, reply("stale")).await, Lost);
        assert_eq!(self.release(&claim, stale).await, Lost, "release when done");
        self.assert_done(&claim, reply("paid")).await;
        let stale = self.try_claim(&claim).await;
        assert_eq!(stale, Claimed::done(reply("paid")), "by the stale id");
    }

    async fn an_orphan_of_unknown_outcome_stays_so(&self) {
        let (claim, token) = self.owned().await;
        self.pass(LEASE + 1).await;
        let unknown = Claimed::done(Stored::Unknown);
        let careful = Claim {
            crash_policy: CrashPolicy::Unknown,
            ..again(&claim)
        };
        assert_eq!(self.try_claim(&careful).await, unknown);
        assert_eq!(self.renew(&claim, token).await, Lost, "renew");
        assert_eq!(self.release(&claim, token).await, Lost, "release");
        assert_eq!(self.complete(&claim, token, reply("late")).await, Lost);
        self.pass(RETENTION - 1).await;
        self.assert_done(&claim, Stored::Unknown).await;
        self.pass(2).await;
        assert!(self.own(&again(&claim)).await > token, "past its time");
    }

    async fn a_lease_that_nobody_took_is_still_the_owners(&self) {
        let (claim, token) = self.owned().await;
        self.pass(LEASE + 1).await;
        assert_eq!(self.renew(&claim, token).await, Held);
        self.assert_in_flight(&claim).await;
        self.pass(LEASE + 1).await;
        assert_eq!(self.complete(&claim, token, reply("late")).await, Held);
        self.assert_done(&claim, reply("late")).await;

        let (claim, token) = self.owned().await;
        self.pass(LEASE + 1).await;
        assert_eq!(self.release(&claim, token).await, Held);
        let lease = self.lease(&again(&claim)).await;
        assert!(!lease.orphaned, "it was released");
    }

    /// A late owner completes while another one claims: either it was in time, and the claim gets its
    /// reply, or the claim took over, and it lost.
    async fn a_late_completion_race_has_one_winner(&self) {
        for _ in 0..20 {
            let (claim, token) = self.owned().await;
            self.pass(LEASE + 1).await;
            let (store, other) = (Arc::clone(&self.store), Arc::clone(&self.other));
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

    async fn an_orphan_is_kept_for_lease_and_retention(&self) {
        let (claim, token) = self.owned().await;
        let other = other_request(&claim);
        self.pass(LEASE - 1).await;
        assert_eq!(self.renew(&claim, token).await, Held);
        self.pass(LEASE + RETENTION - 1).await;
        let claimed = self.try_claim(&other).await;
        assert!(matches!(claimed, Claimed::Mismatch { .. }), "{claimed:?}");
        self.pass(2).await;
        assert_eq!(self.renew(&claim, token).await, Lost, "past its time");
        let lease = self.lease(&other).await;
        assert!(!lease.orphaned, "nothing is known of it any more");
        assert!(lease.token > token, "{} after {token}", lease.token);
    }

    async fn a_lease_of_no_time_has_run_out(&self) {
        let claim = Claim {
            lease: Duration::ZERO,
            ..self.claim()
        };
        let token = self.own(&claim).await;
        let lease = self.lease(&again(&claim)).await;
        assert!(lease.orphaned && lease.token > token, "{lease:?}");

        // The same for a lease that is renewed for no time.
        for crash_policy in [CrashPolicy::Reexecute, CrashPolicy::Unknown] {
            let held = self.claim();
            let token = self.own(&held).await;
            let none = Claim {
                lease: Duration::ZERO,
                ..held.clone()
            };
            assert_eq!(self.renew(&none, token).await, Held);
            let next = Claim {
                crash_policy,
                ..again(&held)
            };
            match (crash_policy, self.try_claim(&next).await) {
                (CrashPolicy::Reexecute, Claimed::New(lease)) => {
                    assert!(lease.orphaned && lease.token > token, "{lease:?}");
                }
                (_, claimed) => assert_eq!(claimed, Claimed::done(Stored::Unknown)),
            }
            assert_eq!(
                self.renew(&none, token).await,
                Lost,
                "another claim took it"
            );
        }
    }
}
