#![allow(missing_docs, reason = "their names say what they show")]

use bytes::Bytes;
use loom::{sync::Arc, thread};

use super::*;
use crate::store::{ClaimId, Fingerprint, Note};

const MINUTE: Duration = Duration::from_secs(60);

fn key() -> RecordKey {
    RecordKey::new([7; 32])
}

fn claim(id: u8, fingerprint: u8) -> Claim {
    Claim {
        key: key(),
        fingerprint: Fingerprint::new([fingerprint; 32]),
        id: ClaimId::new([id; 16]),
        lease: MINUTE,
        retention: MINUTE,
        orphans: CrashPolicy::Reexecute,
        note: Note::NONE,
    }
}

fn reply() -> Stored {
    Stored::Reply(Bytes::from_static(b"paid"))
}

fn store() -> Arc<Shards> {
    Arc::new(Shards::new(8, 1024))
}

pub fn i_6_of_two_claims_at_once_one_executes() {
    loom::model(|| {
        let store = store();
        let other = Arc::clone(&store);
        let thread =
            thread::spawn(move || matches!(other.claim(&claim(1, 1)), Ok(Claimed::New(_))));
        let mine = matches!(store.claim(&claim(2, 1)), Ok(Claimed::New(_)));
        assert!(mine ^ thread.join().unwrap());
        assert_eq!(store.records(), 1);
    });
}

/// Whoever asks while the operation ends is told that it runs, or gets its reply.
pub fn i_6_a_claim_that_races_the_end_never_executes() {
    loom::model(|| {
        let store = store();
        let Ok(Claimed::New(lease)) = store.claim(&claim(1, 1)) else {
            panic!("the first claim is refused");
        };
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || other.complete(&key(), lease.token, reply(), MINUTE));
        match store.claim(&claim(2, 1)) {
            Ok(Claimed::InFlight { .. }) => {}
            Ok(Claimed::Done { stored, .. }) => assert_eq!(stored, reply()),
            other => panic!("{other:?}"),
        }
        assert_eq!(thread.join().unwrap().unwrap(), Ownership::Held);
        assert_eq!(store.bytes(), 4);
    });
}

/// A lease given back is taken by one of those who wait for it, and what is counted stays right.
pub fn i_6_a_released_claim_is_taken_once() {
    loom::model(|| {
        let store = store();
        let Ok(Claimed::New(lease)) = store.claim(&claim(1, 1)) else {
            panic!("the first claim is refused");
        };
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || other.release(&key(), lease.token));
        let early = matches!(store.claim(&claim(2, 1)), Ok(Claimed::New(_)));
        assert_eq!(thread.join().unwrap(), Ownership::Held);
        let late = matches!(store.claim(&claim(3, 1)), Ok(Claimed::New(_)));
        assert!(early ^ late);
        assert_eq!(store.records(), 1);
    });
}

/// Two that complete at once: what they reserve is counted once.
pub fn i_23_replies_at_once_are_counted_once() {
    loom::model(|| {
        let store = store();
        let Ok(Claimed::New(lease)) = store.claim(&claim(1, 1)) else {
            panic!("the first claim is refused");
        };
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || other.complete(&key(), lease.token, reply(), MINUTE));
        let mine = store.complete(&key(), lease.token, reply(), MINUTE);
        assert_eq!(mine.unwrap(), Ownership::Held);
        assert_eq!(thread.join().unwrap().unwrap(), Ownership::Held);
        assert_eq!(store.bytes(), 4);
    });
}
