//! A server of records that goes down and comes back, again and again, under many executions.
//!
//! Two rounds of each fault with 200 callers. `tests/run failover` is ten minutes with 2,000, and a
//! journal on the same server.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use http::{Request, Response};
use tokio::task::JoinSet;
use tower::{Layer, service_fn, util::BoxCloneSyncService};
use tower_reprise::store::{CrashPolicy, IdempotencyStore};

use crate::{
    setup::{Frames, Server, builder, post, send},
    support::database::{Restart, eventually},
};

/// Longer than any outage: no execution may be taken over.
const LEASE: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_millis(20);
const CALLERS: usize = 200;
const CHECKERS: usize = 32;
/// Each fault twice.
const ROUNDS: usize = 6;

#[derive(Default)]
struct Ledger {
    over: AtomicBool,
    refused: AtomicU64,
    /// The number of times that each operation took effect.
    effects: Mutex<HashMap<String, u32>>,
    acknowledged: Mutex<Vec<String>>,
}

impl Ledger {
    fn acknowledged(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }
}

fn serve<St: IdempotencyStore>(store: St, ledger: &Arc<Ledger>) -> Server {
    let layer = builder(store, CrashPolicy::Reexecute).lease(LEASE);
    let ledger = Arc::clone(ledger);
    let pay = service_fn(move |request: Request<Frames>| {
        let ledger = Arc::clone(&ledger);
        async move {
            let key = request.headers()["idempotency-key"].to_str().unwrap();
            *ledger
                .effects
                .lock()
                .unwrap()
                .entry(key.into())
                .or_default() += 1;
            tokio::task::yield_now().await;
            let reply = Frames::default().data(format!("paid {key}"));
            Ok::<_, Infallible>(Response::new(reply))
        }
    });
    BoxCloneSyncService::new(layer.build().unwrap().layer(pay))
}

/// Repeats a call until it is acknowledged.
async fn insist(server: &Server, ledger: &Ledger, key: &str) {
    loop {
        let answer = send(server, post(key)).await;
        match answer.status {
            200 => return assert_eq!(answer.body, format!("paid {key}")),
            409 | 503 => ledger.refused.fetch_add(1, Ordering::Relaxed),
            _ => panic!("{answer:?}"),
        };
        tokio::time::sleep(PAUSE).await;
    }
}

async fn fails_over<St: IdempotencyStore>(server: &mut impl Restart, store: St) {
    let ledger = Arc::new(Ledger::default());
    let service = serve(store, &ledger);
    let mut calls = JoinSet::new();
    for _ in 0..CALLERS {
        let (service, ledger) = (service.clone(), Arc::clone(&ledger));
        calls.spawn(async move {
            while !ledger.over.load(Ordering::Relaxed) {
                let key = format!("{:032x}", rand::random::<u128>());
                insist(&service, &ledger, &key).await;
                ledger.acknowledged.lock().unwrap().push(key);
            }
        });
    }
    let enough = 2 * CALLERS;
    for round in 0..ROUNDS {
        let before = ledger.acknowledged();
        eventually("work is done", async || {
            ledger.acknowledged() > before + enough
        })
        .await;
        match round % 3 {
            0 => server.shut_down().await,
            1 => server.stop().await,
            _ => server.kill().await,
        }
        let before = ledger.refused();
        eventually("calls are refused", async || {
            ledger.refused() > before + CALLERS as u64
        })
        .await;
        server.start().await;
    }
    let before = ledger.acknowledged();
    eventually("work is done again", async || {
        ledger.acknowledged() > before + enough
    })
    .await;
    ledger.over.store(true, Ordering::Relaxed);
    calls.join_all().await;

    let keys = std::mem::take(&mut *ledger.acknowledged.lock().unwrap());
    let operations = keys.len();
    let mut checks = JoinSet::new();
    for part in keys
        .chunks(operations.div_ceil(CHECKERS))
        .map(<[_]>::to_vec)
    {
        let (service, ledger) = (service.clone(), Arc::clone(&ledger));
        checks.spawn(async move {
            for key in part {
                insist(&service, &ledger, &key).await;
            }
        });
    }
    checks.join_all().await;
    let effects = ledger.effects.lock().unwrap();
    let lost = operations.saturating_sub(effects.len());
    let twice = effects.values().filter(|times| **times > 1).count();
    assert_eq!((lost, twice), (0, 0));
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i_21_i_22_postgres_fails_over_under_load() {
    use crate::support::postgres::Own;
    use tower_reprise::store::PostgresStore;

    let Some(mut server) = Own::new().await else {
        return;
    };
    let store = PostgresStore::connect(server.url()).await.unwrap();
    fails_over(&mut server, store).await;
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn i_21_i_22_redis_fails_over_under_load() {
    use crate::support::redis::Own;
    use tower_reprise::store::RedisStore;

    let Some(mut server) = Own::new(&["--appendfsync", "always"]).await else {
        return;
    };
    let store = RedisStore::connect(server.url()).await.unwrap();
    fails_over(&mut server, store).await;
}
