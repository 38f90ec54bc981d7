//! What claims leave for who finds the key taken.

use super::{Case, LEASE, RETENTION, again, reply};
use crate::store::{
    Claim, Claimed, CrashPolicy, Fingerprint, IdempotencyStore, Note, Ownership::Held, Stored,
    conformance::Backend,
};

pub(super) async fn run<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    a_note_is_told_in_every_state(case).await;
    a_note_of_any_bytes_comes_back(case).await;
    a_note_is_that_of_the_last_owner(case).await;
    an_orphan_of_unknown_outcome_keeps_its_note(case).await;
}

fn note(text: &str) -> Note {
    Note::new(text).expect("it is short")
}

async fn a_note_is_told_in_every_state<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    for stored in [reply("paid"), Stored::NotRetained, Stored::Unknown] {
        let first = Claim {
            note: note("first"),
            ..case.claim()
        };
        let second = Claim {
            note: note("second"),
            ..again(&first)
        };
        let other = Claim {
            fingerprint: Fingerprint::new([8; 32]),
            ..again(&second)
        };
        let mismatch = Claimed::Mismatch {
            fingerprint: first.fingerprint,
            note: note("first"),
        };
        let token = case.own(&first).await;
        assert_eq!(case.renew(&first, token).await, Held);
        match case.try_claim(&second).await {
            Claimed::InFlight { note: left, .. } => assert_eq!(left, note("first")),
            other => panic!("a key in flight is {other:?}"),
        }
        assert_eq!(case.try_claim(&other).await, mismatch, "in flight");
        assert_eq!(case.complete(&first, token, stored.clone()).await, Held);
        let done = Claimed::Done {
            stored,
            note: note("first"),
        };
        assert_eq!(case.try_claim(&second).await, done);
        assert_eq!(case.try_claim(&other).await, mismatch, "done");
    }
}

async fn a_note_of_any_bytes_comes_back<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
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
            ..case.claim()
        };
        let note = claim.note.clone();
        let token = case.own(&claim).await;
        // What follows the note in a record is not taken for part of it, and the other way round.
        let stored = reply("paid");
        assert_eq!(case.complete(&claim, token, stored.clone()).await, Held);
        let claimed = case.try_claim(&again(&claim)).await;
        assert_eq!(claimed, Claimed::Done { stored, note });
    }
}

async fn a_note_is_that_of_the_last_owner<B: Backend<Store: IdempotencyStore>>(case: &Case<'_, B>) {
    let first = Claim {
        note: note("first"),
        ..case.claim()
    };
    case.own(&first).await;
    case.pass(LEASE + 1).await;
    let second = Claim {
        note: note("a longer second"),
        ..again(&first)
    };
    let token = case.own(&second).await;
    let stored = reply("paid");
    assert_eq!(case.complete(&second, token, stored.clone()).await, Held);
    let done = Claimed::Done {
        stored,
        note: second.note.clone(),
    };
    assert_eq!(case.try_claim(&again(&first)).await, done, "it took over");

    case.pass(RETENTION + 1).await;
    let token = case
        .own(&Claim {
            note: Note::NONE,
            ..again(&first)
        })
        .await;
    assert_eq!(case.complete(&first, token, reply("anew")).await, Held);
    let done = Claimed::done(reply("anew"));
    assert_eq!(
        case.try_claim(&again(&first)).await,
        done,
        "nothing is left"
    );
}

async fn an_orphan_of_unknown_outcome_keeps_its_note<B: Backend<Store: IdempotencyStore>>(
    case: &Case<'_, B>,
) {
    let claim = Claim {
        note: note("vanished"),
        ..case.claim()
    };
    case.own(&claim).await;
    case.pass(LEASE + 1).await;
    let careful = Claim {
        orphans: CrashPolicy::Unknown,
        note: note("careful"),
        ..again(&claim)
    };
    let unknown = Claimed::Done {
        stored: Stored::Unknown,
        note: note("vanished"),
    };
    assert_eq!(case.try_claim(&careful).await, unknown);
    assert_eq!(case.try_claim(&again(&careful)).await, unknown);
}
