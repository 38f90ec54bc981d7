//! Cases of unknown outcomes and of those who resolve them.

use std::{collections::BTreeSet, time::Duration};

use super::{Case, LEASE, RETENTION, again, reply};
use crate::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, IdempotencyStore, Note,
    Ownership::{Held, Lost},
    RecordKey, Resolution, Resolved, Stored, UnknownOutcome,
    conformance::Backend,
};

impl<B: Backend<Store: IdempotencyStore>> Case<'_, B> {
    pub(super) async fn unknown_outcomes(&self) {
        self.unknown_outcomes_are_listed().await;
        self.what_is_known_or_runs_is_not_listed().await;
        self.what_was_suspended_for_nothing_is_listed().await;
        self.a_list_of_unknown_outcomes_has_pages().await;
        self.an_unknown_outcome_is_resolved_with_a_reply().await;
        self.an_unknown_outcome_is_resolved_as_without_effect()
            .await;
        self.what_runs_or_is_done_is_not_resolved().await;
        self.an_unknown_outcome_is_resolved_once().await;
    }

    /// A claim whose vanished owner leaves an unknown outcome.
    fn careful(&self) -> Claim {
        Claim {
            crash_policy: CrashPolicy::Unknown,
            note: Note::new("request 7").expect("it is short"),
            ..self.claim()
        }
    }

    /// Claims, and vanishes.
    async fn orphaned(&self) -> (Claim, FencingToken) {
        let claim = self.careful();
        let token = self.own(&claim).await;
        self.pass(LEASE + 1).await;
        (claim, token)
    }

    /// Each way to an unknown outcome.
    async fn unknowns(&self) -> Vec<(Claim, FencingToken)> {
        let executed = self.careful();
        let token = self.own(&executed).await;
        let stored = Stored::Unknown;
        assert_eq!(self.complete(&executed, token, stored).await, Held);
        let bold = Claim {
            crash_policy: CrashPolicy::Reexecute,
            ..self.careful()
        };
        let bold_token = self.own(&bold).await;
        let completed = self.complete(&bold, bold_token, Stored::Unknown).await;
        assert_eq!(completed, Held);
        let found = self.careful();
        self.own(&found).await;
        let orphan = self.orphaned().await;
        let claimed = self.try_claim(&again(&found)).await;
        assert!(
            matches!(
                claimed,
                Claimed::Done {
                    stored: Stored::Unknown,
                    ..
                }
            ),
            "{claimed:?}"
        );
        let found_token = self.unknown(found.key).await.expect("unknown").token;
        vec![
            (executed, token),
            (bold, bold_token),
            orphan,
            (found, found_token),
        ]
    }

    async fn unknown(&self, key: RecordKey) -> Option<UnknownOutcome> {
        self.other.unknown_outcome(key).await.expect("find")
    }

    /// Lists all, page by page.
    async fn list(&self, limit: u32) -> Vec<UnknownOutcome> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let page = self.other.unknown_outcomes(after, limit).await;
            let page = page.expect("list");
            assert!(page.outcomes.len() <= limit as usize, "more than asked for");
            all.extend(page.outcomes);
            match page.next {
                Some(next) => after = Some(next),
                None => return all,
            }
        }
    }

    async fn lists(&self, key: RecordKey) -> bool {
        let listed = self.list(100).await;
        listed.iter().any(|unknown| unknown.key == key)
    }

    async fn resolve(
        &self,
        claim: &Claim,
        token: FencingToken,
        resolution: Resolution,
    ) -> Resolved {
        let resolved = self.store.resolve(claim.key, token, resolution).await;
        resolved.expect("resolve")
    }

    fn executed(&self, stored: Stored) -> Resolution {
        Resolution::Executed(stored, self.unit * RETENTION)
    }

    async fn unknown_outcomes_are_listed(&self) {
        for (claim, token) in self.unknowns().await {
            let listed = self.list(100).await;
            let mut of_key = listed.iter().filter(|unknown| unknown.key == claim.key);
            let unknown = of_key.next().expect("it is listed");
            assert!(of_key.next().is_none(), "listed twice");
            assert_eq!(unknown.token, token);
            assert_eq!(unknown.note, claim.note);
            let longest = self.unit * (LEASE + 1 + RETENTION);
            assert!(unknown.unknown_for <= longest, "{unknown:?}");
            let left = unknown.expires_in;
            assert!(left > Duration::ZERO && left <= longest, "{unknown:?}");
            let found = self.unknown(claim.key).await.expect("it is found");
            assert_eq!((found.token, &found.note), (token, &claim.note));
        }
        let (claim, _) = self.orphaned().await;
        self.pass(RETENTION).await;
        assert!(!self.lists(claim.key).await, "past its time");
        assert_eq!(self.unknown(claim.key).await, None, "past its time");
    }

    async fn what_is_known_or_runs_is_not_listed(&self) {
        let running = self.careful();
        let token = self.own(&running).await;
        let released = self.careful();
        let released_token = self.own(&released).await;
        assert_eq!(self.release(&released, released_token).await, Held);
        let done = self.careful();
        let done_token = self.own(&done).await;
        assert_eq!(self.complete(&done, done_token, reply("paid")).await, Held);
        for claim in [&running, &released, &done, &self.claim()] {
            assert!(!self.lists(claim.key).await);
            assert_eq!(self.unknown(claim.key).await, None);
        }
        // A lease that ran out and was renewed since is no end.
        self.pass(LEASE + 1).await;
        assert!(self.lists(running.key).await);
        assert_eq!(self.renew(&running, token).await, Held);
        assert!(!self.lists(running.key).await);
        assert_eq!(self.unknown(running.key).await, None);
        assert_eq!(self.complete(&running, token, reply("late")).await, Held);
        // One that may be executed again is no question for people; it can be settled all the same.
        let claim = self.claim();
        let token = self.own(&claim).await;
        self.pass(LEASE + 1).await;
        assert!(!self.lists(claim.key).await);
        let found = self.unknown(claim.key).await.expect("it is found");
        assert_eq!(found.token, token);
    }

    /// A settlement whose answer got lost is repeated.
    async fn what_was_suspended_for_nothing_is_listed(&self) {
        let hold = self.unit * LEASE;
        let retention = self.unit * RETENTION;
        let claim = self.careful();
        let token = self.own(&claim).await;
        let id = ClaimId::random();
        for _ in 0..2 {
            let suspended = self.store.suspend(claim.key, token, id, hold, retention);
            assert_eq!(suspended.await.expect("suspend"), Held);
            assert!(!self.lists(claim.key).await, "it is to be resumed");
        }
        self.pass(LEASE + 1).await;
        assert!(self.lists(claim.key).await, "nobody came");
    }

    async fn a_list_of_unknown_outcomes_has_pages(&self) {
        let mut keys = BTreeSet::new();
        for _ in 0..7 {
            let claim = self.careful();
            self.own(&claim).await;
            keys.insert(claim.key);
        }
        self.pass(LEASE + 1).await;
        for limit in [1, 2, 7, 1000] {
            let listed = self.list(limit).await;
            let all: Vec<_> = listed.iter().map(|unknown| unknown.key).collect();
            let each: BTreeSet<_> = all.iter().copied().collect();
            assert_eq!(all.len(), each.len(), "one is listed twice");
            assert!(
                each.is_superset(&keys),
                "one is missing of pages of {limit}"
            );
        }
    }

    async fn an_unknown_outcome_is_resolved_with_a_reply(&self) {
        for (claim, token) in self.unknowns().await {
            for stored in [reply("paid by hand"), Stored::NotRetained] {
                let other = FencingToken::new(token.get() - 1);
                let stale = self.resolve(&claim, other, self.executed(stored)).await;
                assert_eq!(stale, Resolved::Conflict, "another owner's");
            }
            let paid = || self.executed(reply("paid by hand"));
            assert_eq!(self.resolve(&claim, token, paid()).await, Resolved::Made);
            let _either = self.resolve(&claim, token, paid()).await;
            let done = Claimed::Done {
                stored: reply("paid by hand"),
                note: claim.note.clone(),
            };
            assert_eq!(self.try_claim(&again(&claim)).await, done);
            assert!(!self.lists(claim.key).await);
            // The former owner comes back.
            assert_eq!(self.renew(&claim, token).await, Lost);
            assert_eq!(self.release(&claim, token).await, Lost);
            assert_eq!(self.complete(&claim, token, reply("late")).await, Lost);
            assert_eq!(self.try_claim(&again(&claim)).await, done);
        }
    }

    async fn an_unknown_outcome_is_resolved_as_without_effect(&self) {
        for (claim, token) in self.unknowns().await {
            let free = Resolution::NoEffect;
            let other = FencingToken::new(token.get() - 1);
            let stale = self.resolve(&claim, other, free.clone()).await;
            assert_eq!(stale, Resolved::Conflict, "another owner's");
            assert_eq!(self.resolve(&claim, token, free).await, Resolved::Made);
            assert!(!self.lists(claim.key).await);
            let lease = self.lease(&again(&claim)).await;
            assert!(!lease.orphaned, "it had no effect");
            assert!(lease.token > token, "{} after {token}", lease.token);
            assert_eq!(self.complete(&claim, token, reply("late")).await, Lost);
            let completed = self.complete(&claim, lease.token, reply("paid")).await;
            assert_eq!(completed, Held);
        }
    }

    async fn what_runs_or_is_done_is_not_resolved(&self) {
        let running = self.careful();
        let token = self.own(&running).await;
        let (done, done_token) = self.completed(reply("paid")).await;
        let nothing = (self.claim(), FencingToken::new(1));
        for (claim, token) in [
            (running.clone(), token),
            (done.clone(), done_token),
            nothing,
        ] {
            for resolution in [self.executed(reply("by hand")), Resolution::NoEffect] {
                let resolved = self.resolve(&claim, token, resolution).await;
                assert_eq!(resolved, Resolved::Conflict);
            }
        }
        assert_eq!(self.complete(&running, token, reply("paid")).await, Held);
        self.assert_done(&done, reply("paid")).await;
    }

    /// Of an operator and a repeat that executes again, and of two operators, one wins.
    async fn an_unknown_outcome_is_resolved_once(&self) {
        let claim = self.claim();
        let token = self.own(&claim).await;
        self.pass(LEASE + 1).await;
        let heir = again(&claim);
        let lease = self.lease(&heir).await;
        for token in [token, lease.token] {
            let resolved = self.resolve(&claim, token, Resolution::NoEffect).await;
            assert_eq!(resolved, Resolved::Conflict, "it is executed again");
        }
        assert_eq!(self.complete(&heir, lease.token, reply("paid")).await, Held);

        let (claim, token) = self.orphaned().await;
        let first = self.executed(reply("first"));
        assert_eq!(self.resolve(&claim, token, first).await, Resolved::Made);
        for second in [self.executed(reply("second")), Resolution::NoEffect] {
            let resolved = self.resolve(&claim, token, second).await;
            assert_eq!(resolved, Resolved::Conflict);
        }
        let claimed = self.try_claim(&again(&claim)).await;
        assert!(
            matches!(&claimed, Claimed::Done { stored, .. } if *stored == reply("first")),
            "{claimed:?}"
        );
    }
}
