//! Models of the shards for loom.
#![allow(missing_docs, reason = "the names state the claims")]

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
        crash_policy: CrashPolicy::Reexecute,
        note: Note::NONE,
        resumes: None,
    }
}

fn reply() -> Stored {
    Stored::Reply(Bytes::from_static(b"paid"))
}

fn store() -> Arc<Shards> {
    Arc::new(Shards::new(8, 1024))
}

/// A store whose only key is in flight.
fn claimed() -> (Arc<Shards>, FencingToken) {
    let store = store();
    match store.claim(&claim(1, 1)) {
        Ok(Claimed::New(lease)) => (store, lease.token),
        other => panic!("the first claim is refused: {other:?}"),
    }
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

/// A claim during a completion finds the operation in flight, or its reply.
pub fn i_6_a_claim_that_races_the_end_never_executes() {
    loom::model(|| {
        let (store, token) = claimed();
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || other.complete(&key(), token, reply(), MINUTE));
        match store.claim(&claim(2, 1)) {
            Ok(Claimed::InFlight { .. }) => {}
            Ok(Claimed::Done { stored, .. }) => assert_eq!(stored, reply()),
            other => panic!("{other:?}"),
        }
        assert_eq!(thread.join().unwrap().unwrap(), Ownership::Held);
        assert_eq!(store.bytes(), 4);
    });
}

/// One claim takes a released key, and the counters stay right.
pub fn i_6_a_released_claim_is_taken_once() {
    loom::model(|| {
        let (store, token) = claimed();
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || other.release(&key(), token));
        let early = matches!(store.claim(&claim(2, 1)), Ok(Claimed::New(_)));
        assert_eq!(thread.join().unwrap(), Ownership::Held);
        let late = matches!(store.claim(&claim(3, 1)), Ok(Claimed::New(_)));
        assert!(early ^ late);
        assert_eq!(store.records(), 1);
    });
}

/// Two completions at once reserve the size of one reply.
pub fn i_23_replies_at_once_are_counted_once() {
    loom::model(|| {
        let (store, token) = claimed();
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || other.complete(&key(), token, reply(), MINUTE));
        let mine = store.complete(&key(), token, reply(), MINUTE);
        assert_eq!(mine.unwrap(), Ownership::Held);
        assert_eq!(thread.join().unwrap().unwrap(), Ownership::Held);
        assert_eq!(store.bytes(), 4);
    });
}
