//! I-6 on every backend, through the layer: many at once, on two servers that share what is stored.

use std::time::Duration;

use tokio::{task::JoinSet, time::timeout};
use tower_reprise::store::{CrashPolicy, IdempotencyStore, MemoryStore};

use crate::setup::{Handler, builder, post, send};

/// Fifty requests to each of two servers, all with the same key.
const EACH: usize = 50;

/// One of a hundred is executed. The others are told so while it is, or wait for its reply.
async fn a_hundred_at_once<St: IdempotencyStore>(stores: [St; 2]) {
    let stores = stores.map(std::sync::Arc::new);
    for waits in [false, true] {
        let handler = Handler::held();
        let wait = Duration::from_secs(if waits { 60 } else { 0 });
        let servers = stores.clone().map(|store| {
            let builder = builder(store, CrashPolicy::Unknown).wait(wait);
            handler.count(builder.lease(Duration::from_secs(600)))
        });
        let key = format!("{:032x}", rand::random::<u128>());
        let mut calls = JoinSet::new();
        for server in servers.iter().cycle().take(2 * EACH) {
            let (server, key) = (server.clone(), key.clone());
            calls.spawn(async move { send(&server, post(&key)).await });
        }
        let mut answers = Vec::new();
        if !waits {
            // All are answered but the one that is executed.
            while answers.len() < 2 * EACH - 1 {
                let next = timeout(Duration::from_secs(60), calls.join_next()).await;
                let next = next.unwrap_or_else(|_| panic!("executed {} times", handler.runs()));
                answers.push(next.unwrap().unwrap());
            }
            for answer in answers.drain(..) {
                assert_eq!(answer.refusal(), (409, "processing".into()));
            }
        }
        while handler.runs() == 0 {
            tokio::task::yield_now().await;
        }
        handler.let_through(2);
        answers.extend(calls.join_all().await);
        assert_eq!(answers.len(), if waits { 2 * EACH } else { 1 });
        let replayed = answers.iter().filter(|answer| answer.is_replayed()).count();
        assert_eq!(replayed, answers.len() - 1);
        // And who asks later, whichever server.
        for server in &servers {
            answers.push(send(server, post(&key)).await);
        }
        for answer in answers {
            assert_eq!((answer.status, &*answer.body), (200, "run 1"));
        }
        assert_eq!((handler.runs(), handler.ends()), (1, 1));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_a_hundred_at_once_in_memory() {
    let store = MemoryStore::new();
    a_hundred_at_once([store.clone(), store]).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_a_hundred_at_once_in_one_file() {
    let folder = crate::support::database::Folder::new();
    let open = || {
        let path = folder.path().join("idempotency.db");
        tower_reprise::store::SqliteStore::open(path).unwrap()
    };
    a_hundred_at_once([open(), open()]).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_a_hundred_at_once_in_postgres() {
    use tower_reprise::store::PostgresStore;

    let variable = "REPRISE_TEST_POSTGRES";
    let Ok(url) = std::env::var(variable) else {
        return crate::support::database::left_out("the layer on PostgreSQL", variable);
    };
    let schema = format!("test_{:016x}", rand::random::<u64>());
    let connect = async || {
        let store = PostgresStore::builder(&url).schema(&schema);
        store.connections(8).connect().await.unwrap()
    };
    a_hundred_at_once([connect().await, connect().await]).await;
    let (admin, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    admin.batch_execute(&drop).await.unwrap();
}

#[cfg(feature = "redis")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_6_a_hundred_at_once_in_redis() {
    use tower_reprise::store::RedisStore;

    let variable = "REPRISE_TEST_REDIS";
    let Ok(url) = std::env::var(variable) else {
        return crate::support::database::left_out("the layer on Redis", variable);
    };
    let prefix = format!("test-{:016x}", rand::random::<u64>());
    let connect = async || {
        let store = RedisStore::builder(&url).prefix(&prefix);
        store.connect().await.unwrap()
    };
    a_hundred_at_once([connect().await, connect().await]).await;
}
