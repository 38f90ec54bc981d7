//! T-10: PgBouncer in transaction mode, between the store and the server.

use std::{
    future::poll_fn,
    pin::pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::task::JoinSet;
use tower_reprise::store::{
    Claimed, FencingToken, IdempotencyStore, Ownership, PostgresStore, PostgresStoreBuilder,
    StoreErrorKind,
    conformance::{self, Backend},
    journal::{Journal, LeaseRequest, NewEntry, Settlement},
};

use super::Postgres;
use crate::support::{
    pgbouncer::{PgBouncer, pgbouncer},
    records::{claim, complete, own, reply},
};

/// Fewer than the connections of one store.
const SESSIONS: u32 = 3;

/// A store behind a pooler; the server's clock is moved past it.
struct Pooled {
    postgres: Postgres,
    pooler: PgBouncer,
}

impl Pooled {
    /// `None` if there is no server or no pooler to test with.
    async fn new() -> Option<Self> {
        let postgres = Postgres::new().await?;
        pgbouncer()?;
        let server = postgres.url.parse().unwrap();
        let pooler = PgBouncer::start(&server, SESSIONS).await;
        Some(Self { postgres, pooler })
    }

    fn builder(&self) -> PostgresStoreBuilder {
        let url = self.pooler.url(&self.postgres.url.parse().unwrap());
        let builder = PostgresStore::builder(url);
        builder.schema(&self.postgres.schema).connections(8)
    }

    async fn store(&self) -> PostgresStore {
        let builder = self.builder().transaction_pooling(true);
        builder.connect().await.expect("connect")
    }

    /// Returns how many sessions of the server have statements or settings of this store.
    async fn used_sessions(&self) -> usize {
        let url = self.pooler.url(&self.postgres.url.parse().unwrap());
        let mut used = 0;
        let mut held = Vec::new();
        for _ in 0..SESSIONS {
            held.push(super::client(&url).await);
        }
        let mut transactions = Vec::new();
        for client in &mut held {
            // Each holds a session of its own until it ends.
            transactions.push(client.transaction().await.unwrap());
        }
        for transaction in &transactions {
            let sql = "SELECT (SELECT count(*) FROM pg_prepared_statements) \
                       + (SELECT count(*) FROM pg_settings \
                          WHERE source = 'session' AND name IN ('enable_seqscan', 'plan_cache_mode', \
                            'statement_timeout', 'default_transaction_isolation'))";
            let row = transaction.query_typed_one(sql, &[]).await.unwrap();
            used += usize::from(row.get::<_, i64>(0) > 0);
        }
        used
    }
}

impl Backend for Pooled {
    type Store = PostgresStore;

    async fn open(&self) -> PostgresStore {
        self.store().await
    }

    async fn pass(&self, time: Duration) {
        self.postgres.pass(time).await;
    }
}

#[test]
fn pgbouncer_is_there_or_said_to_be_left_out() {
    if pgbouncer().is_none() {
        crate::support::database::left_out("PgBouncer", "it is not installed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_10_records_keep_their_contract_behind_a_pooler() {
    let Some(pooled) = Pooled::new().await else {
        return;
    };
    conformance::run(&pooled).await;
    conformance::unknown_outcomes(&pooled).await;
    conformance::model(&pooled, 7, 150).await;
    assert_eq!(
        pooled.used_sessions().await,
        0,
        "sessions are left as they were"
    );
    pooled.postgres.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_10_a_journal_keeps_its_contract_behind_a_pooler() {
    let Some(pooled) = Pooled::new().await else {
        return;
    };
    conformance::journal(&pooled).await;
    assert_eq!(
        pooled.used_sessions().await,
        0,
        "sessions are left as they were"
    );
    pooled.postgres.drop().await;
}

/// Two stores with eight connections each, over three of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_10_many_clients_share_few_sessions() {
    let Some(pooled) = Pooled::new().await else {
        return;
    };
    let stores = [pooled.store().await, pooled.store().await];
    let mut running = JoinSet::new();
    for n in 0..200 {
        let store = stores[usize::from(n % 2 == 0)].clone();
        running.spawn(async move {
            let token = own(&store, claim(n)).await;
            complete(&store, n, token, reply("paid")).await;
            let claimed = store.claim(claim(n)).await.unwrap();
            assert_eq!(claimed, Claimed::done(reply("paid")));
            let lane = format!("lane {}", n % 4);
            let entry = NewEntry {
                lane: lane.clone(),
                ..NewEntry::new("mails", "payload")
            };
            store.enqueue(entry).await.unwrap();
            let request = LeaseRequest::new("mails", &lane, 1, Duration::from_secs(60));
            for entry in store.lease(request).await.unwrap() {
                let mut done = Settlement::completed("", Duration::from_secs(60));
                done.outbox.push(NewEntry::new("sent", "payload"));
                let settled = store.settle(entry.id, entry.lease_token, done).await;
                assert_eq!(settled.unwrap(), Ownership::Held);
            }
        });
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
    let swept = stores[0].sweep(1000).await.unwrap();
    assert_eq!(swept, 0, "nothing has expired");
    assert_eq!(
        pooled.used_sessions().await,
        0,
        "sessions are left as they were"
    );
    pooled.postgres.drop().await;
}

/// A verb that its caller leaves holds no session, and leaves nothing in one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_10_cancelled_verbs_leave_sessions_as_they_were() {
    let Some(pooled) = Pooled::new().await else {
        return;
    };
    let store = pooled.store().await;
    for polls in 0..40 {
        let new = NewEntry::new("mails", "payload");
        store.enqueue(new).await.unwrap();
        let request = LeaseRequest::new("mails", "", 1, Duration::from_secs(60));
        let entry = store.lease(request).await.unwrap().pop().unwrap();
        let mut done = Settlement::completed("", Duration::from_secs(60));
        done.outbox.push(NewEntry::new("sent", "payload"));
        let mut settling = pin!(store.settle(entry.id, entry.lease_token, done));
        for _ in 0..polls {
            let poll =
                |context: &mut Context<'_>| Poll::Ready(settling.as_mut().poll(context).is_ready());
            if poll_fn(poll).await {
                break;
            }
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(
        pooled.used_sessions().await,
        0,
        "sessions are left as they were"
    );
    pooled.postgres.drop().await;
}

/// Without the setting, the error names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_10_a_pooler_that_nobody_told_of_is_named_by_the_error() {
    let Some(pooled) = Pooled::new().await else {
        return;
    };
    let store = pooled.builder().connect().await.unwrap();
    let mut running = JoinSet::new();
    for n in 0..100 {
        let store = store.clone();
        running.spawn(async move { store.release(claim(n).key, FencingToken::new(1)).await });
    }
    let errors = running.join_all().await.into_iter().filter_map(Result::err);
    let errors: Vec<_> = errors.collect();
    let named = |error: &&tower_reprise::store::StoreError| {
        error.to_string().contains("transaction_pooling")
    };
    let error = errors.iter().find(named).expect("an error that names it");
    assert_eq!(error.kind(), StoreErrorKind::Other);
    pooled.postgres.drop().await;
}
