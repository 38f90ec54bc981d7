//! Cases of the notes that claims leave.

use super::{Case, LEASE, RETENTION, again, other_request, reply};
use crate::store::{
    Claim, Claimed, CrashPolicy, IdempotencyStore, Note, Ownership::Held, Stored,
    conformance::Backend,
};

impl<B: Backend<Store: IdempotencyStore>> Case<'_, B> {
    pub(super) async fn notes(&self) {
        self.a_note_is_told_in_every_state().await;
        self.a_note_of_any_bytes_comes_back().await;
        self.a_note_is_that_of_the_last_owner().await;
        self.an_orphan_of_unknown_outcome_keeps_its_note().await;
    }

    async fn a_note_is_told_in_every_state(&self) {
        for stored in [reply("paid"), Stored::NotRetained, Stored::Unknown] {
            let first = Claim {
                note: note("first"),
                ..self.claim()
            };
            let second = Claim {
                note: note("second"),
                ..again(&first)
            };
            let other = other_request(&second);
            let mismatch = Claimed::Mismatch {
                fingerprint: first.fingerprint,
                note: note("first"),
            };
            let token = self.own(&first).await;
            assert_eq!(self.renew(&first, token).await, Held);
            match self.try_claim(&second).await {
                Claimed::InFlight { note: left, .. } => assert_eq!(left, note("first")),
                other => panic!("a key in flight is {other:?}"),
            }
            assert_eq!(self.try_claim(&other).await, mismatch, "in flight");
            assert_eq!(self.complete(&first, token, stored.clone()).await, Held);
            let done = Claimed::Done {
                stored,
                note: note("first"),
            };
            assert_eq!(self.try_claim(&second).await, done);
            assert_eq!(self.try_claim(&other).await, mismatch, "done");
        }
    }

    async fn a_note_of_any_bytes_comes_back(&self) {
        let every_byte: Vec<u8> = (0..=u8::MAX).collect();
        for bytes in [
            &every_byte[..Note::MAX_LEN],
            &every_byte[1..],
            &[0],
            b"\0\xff",
            b"",
        ] {
            let claim = Claim {
                note: Note::new(bytes).expect("it is short"),
                ..self.claim()
            };
            let note = claim.note.clone();
            let token = self.own(&claim).await;
            let stored = reply("paid");
            assert_eq!(self.complete(&claim, token, stored.clone()).await, Held);
            let claimed = self.try_claim(&again(&claim)).await;
            assert_eq!(claimed, Claimed::Done { stored, note });
        }
    }

    async fn a_note_is_that_of_the_last_owner(&self) {
        let first = Claim {
            note: note("first"),
            ..self.claim()
        };
        self.own(&first).await;
        self.pass(LEASE + 1).await;
        let second = Claim {
            note: note("a longer second"),
            ..again(&first)
        };
        let token = self.own(&second).await;
        let stored = reply("paid");
        assert_eq!(self.complete(&second, token, stored.clone()).await, Held);
        let done = Claimed::Done {
            stored,
            note: second.note.clone(),
        };
        assert_eq!(self.try_claim(&again(&first)).await, done, "it took over");

        self.pass(RETENTION + 1).await;
        let token = self
            .own(&Claim {
                note: Note::NONE,
                ..again(&first)
            })
            .await;
        assert_eq!(self.complete(&first, token, reply("anew")).await, Held);
        self.assert_done(&first, reply("anew")).await;
    }

    async fn an_orphan_of_unknown_outcome_keeps_its_note(&self) {
        let claim = Claim {
            note: note("vanished"),
            ..self.claim()
        };
        self.own(&claim).await;
        self.pass(LEASE + 1).await;
        let careful = Claim {
            crash_policy: CrashPolicy::Unknown,
            note: note("careful"),
            ..again(&claim)
        };
        let unknown = Claimed::Done {
            stored: Stored::Unknown,
            note: note("vanished"),
        };
        assert_eq!(self.try_claim(&careful).await, unknown);
        assert_eq!(self.try_claim(&again(&careful)).await, unknown);
    }
}

fn note(text: &str) -> Note {
    Note::new(text).expect("it is short")
}
