//! T-10: a pool of the user's.

use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Pool, Runtime};
use tokio_postgres::NoTls;
use tower_reprise::store::{
    Claimed, IdempotencyStore, PostgresStore, StoreErrorKind,
    journal::{Enqueued, Journal, NewEntry},
};

use super::Postgres;
use crate::support::records::{claim, complete, own, reply};

pub(super) fn pool(
    postgres: &Postgres,
    connections: usize,
    runtime: bool,
    session: &'static str,
) -> Pool {
    let config = postgres.url.parse().unwrap();
    let manager = Manager::from_config(config, NoTls, ManagerConfig::default());
    let mut pool = Pool::builder(manager)
        .max_size(connections)
        .post_create(Hook::async_fn(move |client, _| {
            Box::pin(async move {
                let set = client.batch_execute(session).await;
                set.map_err(HookError::Backend)
            })
        }));
    if runtime {
        pool = pool.runtime(Runtime::Tokio1);
    }
    pool.build().unwrap()
}

/// With and without a runtime, which a pool that someone else built may lack.
#[tokio::test]
async fn t_10_a_store_lives_on_a_pool_of_the_users() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    for runtime in [true, false] {
        let pool = pool(&postgres, 2, runtime, "");
        let builder = PostgresStore::on_pool(pool.clone()).schema(&postgres.schema);
        let table = format!("on_pool_{runtime}");
        let builder = builder
            .table(table)
            .timeout(std::time::Duration::from_millis(200));
        let store = builder.connect().await.unwrap();
        let token = own(&store, claim(1)).await;
        complete(&store, 1, token, reply("paid")).await;
        let claimed = store.claim(claim(1)).await.unwrap();
        assert_eq!(claimed, Claimed::done(reply("paid")));
        let enqueued = store.enqueue(NewEntry::new("mails", "payload")).await;
        assert!(matches!(enqueued, Ok(Enqueued::New(_))));
        assert!(pool.status().size > 0, "connections are the pool's");

        // Where others hold all of it, a verb ends in time.
        let held = [pool.get().await.unwrap(), pool.get().await.unwrap()];
        let error = store.claim(claim(2)).await.unwrap_err();
        let expected = match runtime {
            true => StoreErrorKind::PoolExhausted,
            false => StoreErrorKind::Timeout,
        };
        assert_eq!(error.kind(), expected, "{error}");
        drop(held);
        own(&store, claim(2)).await;
    }
    postgres.drop().await;
}

#[tokio::test]
async fn t_10_sessions_that_break_promises_are_refused() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let serializable = "SET default_transaction_isolation = 'serializable'";
    let lazy = "SET synchronous_commit = off";
    let cases = [
        (
            serializable,
            "postgres.pool's default_transaction_isolation is serializable, allowed: read committed",
        ),
        (
            lazy,
            "postgres.pool's synchronous_commit is off, allowed: local, on, remote_write or \
             remote_apply",
        ),
    ];
    for (session, expected) in cases {
        let builder = PostgresStore::on_pool(pool(&postgres, 2, true, session));
        let error = builder.connect().await.unwrap_err();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        let shown = source.unwrap_or_else(|| error.to_string());
        assert!(shown.contains(expected), "{shown}");
    }
    postgres.drop().await;
}

/// The settings of the store's own sessions, for a pool that serves nothing but a store.
#[tokio::test]
async fn t_10_session_settings_can_be_made_by_a_hook() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let settings = postgres.builder().session_sql();
    let session: &'static str = settings.leak();
    let pool = pool(&postgres, 2, true, session);
    let show = pool.get().await.unwrap();
    let row = show.query_one("SHOW enable_seqscan", &[]).await.unwrap();
    assert_eq!(row.get::<_, &str>(0), "off");
    drop(show);
    let builder = PostgresStore::on_pool(pool).schema(&postgres.schema);
    own(&builder.connect().await.unwrap(), claim(1)).await;
    postgres.drop().await;
}

/// O-2: how busy the connections are, and how many transitions share a statement.
#[cfg(feature = "metrics")]
#[tokio::test]
async fn o_2_connections_and_batches_are_counted() {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let store = postgres.builder().connections(2).connect().await.unwrap();
    let claims = (0..20).map(|key| {
        let store = store.clone();
        async move { own(&store, claim(key)).await }
    });
    claims.collect::<tokio::task::JoinSet<_>>().join_all().await;
    let (mut busy, mut batches) = (None, Vec::new());
    for (key, .., value) in snapshotter.snapshot().into_vec() {
        match (key.key().name(), value) {
            ("postgres_connections_busy", DebugValue::Gauge(share)) => busy = Some(*share),
            ("store_batch_transitions", DebugValue::Histogram(sizes)) => {
                batches.extend(sizes.iter().map(|size| **size));
            }
            _ => {}
        }
    }
    assert!(
        busy.is_some_and(|busy| busy > 0.0 && busy <= 1.0),
        "{busy:?}"
    );
    assert_eq!(batches.iter().sum::<f64>(), 20.0, "{batches:?}");
    assert!(batches.len() < 20, "{batches:?}");
    let page = include_str!("../../../src/guide/operating.rs");
    let documented = crate::support::promql::documented(page);
    for (name, kind) in [
        ("postgres_connections_busy", "gauge"),
        ("store_batch_transitions", "histogram"),
    ] {
        let row = documented.iter().find(|row| row[0] == name);
        assert_eq!(row.map(|row| &*row[1]), Some(kind), "{name}");
    }
    postgres.drop().await;
}
