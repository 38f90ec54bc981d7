//! T-7: the wrapper that seals replies, over the store in memory, and over a store that shows what
//! it was given.

mod journal;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use tower::{Layer, ServiceExt, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::{
    IdempotencyLayer,
    error::BoxError,
    server::idempotency::Execution,
    store::{
        Claim, Claimed, CrashPolicy, FencingToken, IdempotencyStore, Lease, MemoryStore, Ownership,
        RecordKey, SealKeys, Sealed, StoreError, StoreErrorKind, Stored,
        conformance::{self, Backend},
    },
};

use crate::support::records::{RETENTION, claim};

const SECRET: &[u8] = b"the reply's body, which nobody else may read";
const OLD: [u8; 32] = [1; 32];
const NEW: [u8; 32] = [2; 32];

fn keys() -> SealKeys {
    SealKeys::try_new("old", &OLD).unwrap()
}

struct Memory(MemoryStore);

impl Backend for Memory {
    type Store = Sealed<MemoryStore>;

    async fn open(&self) -> Sealed<MemoryStore> {
        Sealed::new(self.0.clone(), keys())
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }
}

/// Holds one reply, which is a reply to every claim.
#[derive(Clone, Default)]
struct Glass(Arc<Mutex<Option<Stored>>>);

impl Glass {
    fn holding(bytes: &[u8]) -> Self {
        let stored = Stored::Reply(Bytes::copy_from_slice(bytes));
        Self(Arc::new(Mutex::new(Some(stored))))
    }

    fn bytes(&self) -> Vec<u8> {
        match &*self.0.lock().unwrap() {
            Some(Stored::Reply(bytes)) => bytes.to_vec(),
            other => panic!("{other:?}"),
        }
    }
}

impl IdempotencyStore for Glass {
    async fn claim(&self, _: Claim) -> Result<Claimed, StoreError> {
        Ok(match &*self.0.lock().unwrap() {
            Some(stored) => Claimed::done(stored.clone()),
            None => Claimed::New(Lease {
                token: FencingToken::new(1),
                orphaned: false,
            }),
        })
    }

    async fn renew(
        &self,
        _: RecordKey,
        _: FencingToken,
        _: Duration,
        _: Duration,
    ) -> Result<Ownership, StoreError> {
        Ok(Ownership::Held)
    }

    async fn complete(
        &self,
        _: RecordKey,
        _: FencingToken,
        stored: Stored,
        _: Duration,
    ) -> Result<Ownership, StoreError> {
        *self.0.lock().unwrap() = Some(stored);
        Ok(Ownership::Held)
    }

    async fn release(&self, _: RecordKey, _: FencingToken) -> Result<Ownership, StoreError> {
        Ok(Ownership::Held)
    }
}

/// A handler that commits its reply with its effect writes to the store below the seal, and the
/// layer that is asked again reads it through the seal.
#[tokio::test(start_paused = true)]
async fn t_7_a_reply_that_its_handler_stored_is_sealed_too() {
    let glass = Glass::default();
    let layer = IdempotencyLayer::builder(Arc::new(Sealed::new(glass.clone(), keys())))
        .scope(Scope::new(|_| Some("alice")))
        .crash_policy(CrashPolicy::Unknown);
    let below = glass.clone();
    let handler = service_fn(move |request: Request<Full<Bytes>>| {
        let below = below.clone();
        async move {
            let execution: &Execution = request.extensions().get().unwrap();
            let (key, token) = (execution.key(), execution.token());
            let stored = execution.stored(&Response::new(SECRET)).unwrap();
            let completed = below.complete(key, token, stored, RETENTION).await;
            assert_eq!(completed.unwrap(), Ownership::Held);
            Err::<Response<Full<Bytes>>, _>(BoxError::from("died right after the commit"))
        }
    });
    let server = layer.build().unwrap().layer(handler);
    let post = async || {
        let post = Request::post("/").header("idempotency-key", "k");
        let response = server.clone().oneshot(post.body(Full::default()).unwrap());
        let response = response.await?;
        let status = response.status();
        let body = response.into_body().collect().await.unwrap();
        Ok::<_, BoxError>((status.as_u16(), body.to_bytes()))
    };
    post().await.unwrap_err();
    let bytes = glass.bytes();
    assert!(!bytes.windows(SECRET.len()).any(|part| part == SECRET));
    assert_eq!(post().await.unwrap(), (200, Bytes::from_static(SECRET)));
}

/// Returns the bytes that a store gets for a reply to record 1.
async fn seal(keys: SealKeys, reply: &[u8]) -> Vec<u8> {
    let glass = Glass::default();
    let stored = Stored::Reply(Bytes::copy_from_slice(reply));
    let completed = Sealed::new(glass.clone(), keys)
        .complete(claim(1).key, FencingToken::new(1), stored, RETENTION)
        .await;
    assert_eq!(completed.unwrap(), Ownership::Held);
    glass.bytes()
}

/// Claims a record from a store that holds these bytes.
async fn open(keys: SealKeys, record: u64, sealed: &[u8]) -> Result<Claimed, StoreError> {
    Sealed::new(Glass::holding(sealed), keys)
        .claim(claim(record))
        .await
}

fn secret() -> Claimed {
    Claimed::done(Stored::Reply(Bytes::from_static(SECRET)))
}

async fn refused(keys: SealKeys, record: u64, sealed: &[u8]) -> String {
    let error = open(keys, record, sealed).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    assert!(!error.is_transient());
    error.to_string()
}

#[tokio::test(start_paused = true)]
async fn t_7_a_sealed_store_keeps_the_contract() {
    conformance::run(&Memory(MemoryStore::new())).await;
    conformance::unknown_outcomes(&Memory(MemoryStore::new())).await;
    for seed in 0..20 {
        conformance::model(&Memory(MemoryStore::new()), seed, 500).await;
    }
}

#[tokio::test]
async fn t_7_the_store_never_sees_the_reply() {
    let sealed = seal(keys(), SECRET).await;
    for word in SECRET.split(|byte| *byte == b' ') {
        let seen = sealed.windows(word.len()).any(|window| window == word);
        assert!(!seen || word.len() < 3, "{word:?}");
    }
    assert_ne!(seal(keys(), SECRET).await, sealed, "each has its own nonce");
    assert_eq!(open(keys(), 1, &sealed).await.unwrap(), secret());
}

#[tokio::test]
async fn t_7_what_was_changed_is_refused() {
    let sealed = seal(keys(), SECRET).await;
    for at in 0..sealed.len() {
        for bit in 0..8 {
            let mut changed = sealed.clone();
            changed[at] ^= 1 << bit;
            refused(keys(), 1, &changed).await;
        }
    }
    for length in 0..sealed.len() {
        refused(keys(), 1, &sealed[..length]).await;
    }
    let longer = [&sealed[..], &[0]].concat();
    let message = refused(keys(), 1, &longer).await;
    assert!(message.contains("key 'old'"), "{message}");
}

#[tokio::test]
async fn t_7_a_reply_belongs_to_its_record() {
    let sealed = seal(keys(), SECRET).await;
    let message = refused(keys(), 2, &sealed).await;
    assert!(message.contains("changed or moved"), "{message}");
}

#[tokio::test]
async fn t_7_keys_are_rotated() {
    let both = || {
        SealKeys::try_new("new", &NEW)
            .unwrap()
            .try_opening("old", &OLD)
            .unwrap()
    };
    let old = seal(keys(), SECRET).await;
    assert_eq!(open(both(), 1, &old).await.unwrap(), secret());
    let new = seal(both(), SECRET).await;
    let only_new = SealKeys::try_new("new", &NEW).unwrap();
    assert_eq!(open(only_new.clone(), 1, &new).await.unwrap(), secret());

    // Too early, and too late.
    let message = refused(keys(), 1, &new).await;
    assert!(
        message.contains("key 'new', which is not among"),
        "{message}"
    );
    let message = refused(only_new, 1, &old).await;
    assert!(
        message.contains("key 'old', which is not among"),
        "{message}"
    );

    let impostor = SealKeys::try_new("old", &NEW).unwrap();
    let message = refused(impostor, 1, &old).await;
    assert!(message.contains("another key has that id"), "{message}");
}

#[tokio::test]
async fn t_7_what_was_never_sealed_is_refused() {
    let message = refused(keys(), 1, SECRET).await;
    assert!(message.contains("not sealed"), "{message}");
}

#[tokio::test]
async fn t_7_what_is_not_a_reply_passes() {
    for stored in [Stored::NotRetained, Stored::Unknown] {
        let store = Sealed::new(Glass::default(), keys());
        let completed = store
            .complete(
                claim(1).key,
                FencingToken::new(1),
                stored.clone(),
                RETENTION,
            )
            .await;
        assert_eq!(completed.unwrap(), Ownership::Held);
        let claimed = store.claim(claim(1)).await.unwrap();
        assert_eq!(claimed, Claimed::done(stored));
    }
}

#[test]
fn t_7_s_2_debug_shows_ids_and_no_keys() {
    let keys = SealKeys::try_new("2026", &[0xab; 32])
        .unwrap()
        .try_opening("2025", &[0xcd; 32])
        .unwrap();
    assert_eq!(format!("{keys:?}"), r#"SealKeys["2026", "2025"]"#);
    let store = format!("{:?}", Sealed::new((), keys));
    assert!(
        !store.contains("171") && !store.to_lowercase().contains("ab, ab"),
        "{store}"
    );
}

#[test]
fn t_7_ids_are_checked() {
    let long = "x".repeat(65);
    for id in ["", " ", "with blank", "ünï", "line\n", &long] {
        let error = SealKeys::try_new(id, &OLD).unwrap_err();
        assert_eq!(error.field(), "seal.key_id");
    }
    let error = keys().try_opening("old", &NEW).unwrap_err();
    let message = "seal.key_id is old, allowed: another id than those there are";
    assert_eq!(error.to_string(), message);
    assert!(SealKeys::try_new(&long[..64], &OLD).is_ok());
}

proptest! {
    #[test]
    fn t_7_s_3_any_bytes_are_refused_or_opened(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            refused(keys(), 1, &bytes).await;
            // Also past the header.
            let header = [&[1, 3], b"old".as_slice(), &bytes].concat();
            refused(keys(), 1, &header).await;
            let sealed = seal(keys(), &bytes).await;
            let reply = Stored::Reply(Bytes::copy_from_slice(&bytes));
            assert_eq!(open(keys(), 1, &sealed).await.unwrap(), Claimed::done(reply));
        });
    }
}
