//! A server that goes away and comes back while there is work to do.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use tokio::task::JoinSet;
use tower_reprise::store::{Claimed, IdempotencyStore, Ownership, RecordKey, Stored};

use super::{
    database::{Restart, eventually},
    records::{RETENTION, claim_of},
};

const OUTAGES: usize = 2;
const TASKS: usize = 8;

fn reply(key: [u8; 32]) -> Stored {
    Stored::Reply(Bytes::copy_from_slice(&key[..8]))
}

#[derive(Default)]
struct Work {
    over: AtomicBool,
    errors: AtomicU64,
    /// The outcome of each operation that was acknowledged.
    acknowledged: Mutex<HashMap<[u8; 32], Stored>>,
}

impl Work {
    fn done(&self) -> usize {
        self.acknowledged.lock().expect("no panic").len()
    }

    fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }
}

/// Stops the server and starts it again, twice, while others work. Then:
///
/// - while it is down every verb is an error that says that it is down;
/// - the same handle works again when it is back;
/// - what was acknowledged is there.
pub(crate) async fn survives<S: IdempotencyStore>(server: &mut impl Restart, store: S) {
    let store = Arc::new(store);
    let work = Arc::new(Work::default());
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let (store, work) = (Arc::clone(&store), Arc::clone(&work));
        tasks.spawn(async move {
            while !work.over.load(Ordering::Relaxed) {
                one(&*store, &work).await;
            }
        });
    }
    for _ in 0..OUTAGES {
        let before = work.done();
        eventually("work is done", async || work.done() > before + 100).await;
        server.stop().await;
        let errors = work.errors();
        let error = store.claim(claim_of(rand::random())).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        let enough = errors + 2 * TASKS as u64;
        eventually("everybody is refused", async || work.errors() > enough).await;
        server.start().await;
    }
    let before = work.done();
    eventually("work is done again", async || work.done() > before + 100).await;
    work.over.store(true, Ordering::Relaxed);
    tasks.join_all().await;

    let acknowledged = std::mem::take(&mut *work.acknowledged.lock().expect("no panic"));
    for (key, stored) in acknowledged {
        let claimed = store.claim(claim_of(key)).await.expect("claim");
        assert_eq!(claimed, Claimed::done(stored), "it was acknowledged");
    }
}

async fn one<S: IdempotencyStore>(store: &S, work: &Work) {
    let key = rand::random();
    let claimed = store.claim(claim_of(key)).await;
    let completed = match claimed {
        Ok(Claimed::New(lease)) => {
            let name = RecordKey::new(key);
            store
                .complete(name, lease.token, reply(key), RETENTION)
                .await
        }
        Ok(other) => panic!("a new key is {other:?}"),
        Err(error) => Err(error),
    };
    match completed {
        Ok(Ownership::Held) => {
            let mut acknowledged = work.acknowledged.lock().expect("no panic");
            acknowledged.insert(key, reply(key));
        }
        Ok(Ownership::Lost) => panic!("nobody else wants this key"),
        Err(error) => {
            assert!(error.is_transient(), "{error}");
            work.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}
