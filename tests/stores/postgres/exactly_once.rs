//! Records that commit with their effect.

use std::convert::Infallible;
use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use tokio::task::JoinSet;
use tower::{ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::server::dialect::Scope;
use tower_reprise::store::{
    Claim, ClaimId, Claimed, CrashPolicy, FencingToken, IdempotencyStore, PostgresStore,
    StoreError, conformance::Backend,
};
use tower_reprise::{IdempotencyLayer, server::idempotency::Execution};

use super::{Postgres, client};
use crate::support::records::{LEASE, RETENTION, claim, complete, own, reply};

/// A ledger, and an owner of key 1.
async fn setup(postgres: &Postgres) -> (PostgresStore, FencingToken) {
    let store = postgres.store().await;
    postgres
        .execute("CREATE TABLE {schema}.ledger (entry text)")
        .await;
    let token = own(&store, claim(1)).await;
    (store, token)
}

async fn pay(
    postgres: &Postgres,
    store: &PostgresStore,
    token: FencingToken,
    commit: bool,
) -> Result<(), StoreError> {
    let mut client = client(&postgres.url).await;
    let transaction = client.transaction().await.unwrap();
    let insert = format!("INSERT INTO {}.ledger VALUES ('paid')", postgres.schema);
    transaction.execute(&insert, &[]).await.unwrap();
    let key = claim(1).key;
    let completed = store
        .complete_in(&transaction, key, token, reply("paid"), RETENTION)
        .await;
    // Whatever it said: that must be safe.
    if commit {
        transaction.commit().await.unwrap();
    }
    completed
}

async fn entries(postgres: &Postgres) -> i64 {
    postgres.count("SELECT count(*) FROM {schema}.ledger").await
}

/// T-10: a role with the rights that the guide names, and no others, completes.
#[tokio::test]
async fn t_10_a_completion_needs_few_rights() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (store, token) = setup(&postgres).await;
    let (role, schema) = (format!("role_{}", postgres.schema), &postgres.schema);
    let grant = format!(
        "CREATE ROLE {role}; GRANT USAGE ON SCHEMA {schema} TO {role}; \
         GRANT SELECT, UPDATE ON {schema}.reprise_idempotency TO {role}; \
         GRANT INSERT ON {schema}.reprise_idempotency_reply TO {role}"
    );
    postgres.admin.batch_execute(&grant).await.unwrap();
    let mut shop = client(&postgres.url).await;
    shop.batch_execute(&format!("SET ROLE {role}"))
        .await
        .unwrap();
    let transaction = shop.transaction().await.unwrap();
    let completed = store.complete_in(&transaction, claim(1).key, token, reply("paid"), RETENTION);
    completed.await.unwrap();
    transaction.commit().await.unwrap();
    let found = store.claim(claim(1)).await.unwrap();
    assert_eq!(found, Claimed::done(reply("paid")));
    let drop = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    postgres.admin.batch_execute(&drop).await.unwrap();
    postgres.drop().await;
}

#[tokio::test]
async fn i_15_effect_and_record_are_committed_together() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (store, token) = setup(&postgres).await;
    pay(&postgres, &store, token, true).await.unwrap();
    assert_eq!(entries(&postgres).await, 1);
    let done = Claimed::done(reply("paid"));
    assert_eq!(store.claim(claim(1)).await.unwrap(), done);
    // The layer completes as well, later: a repeat.
    complete(&store, 1, token, reply("other")).await;
    assert_eq!(store.claim(claim(1)).await.unwrap(), done);
    postgres.drop().await;
}

/// The handler commits both and is gone before the layer hears of it: the next request gets
/// the reply, without a second execution and without waiting for the lease.
#[tokio::test]
async fn i_14_a_handler_that_dies_after_its_commit_has_replied() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (store, _) = setup(&postgres).await;
    let layer = IdempotencyLayer::builder(store.clone())
        .scope(Scope::new(|_| Some("alice")))
        .crash_policy(CrashPolicy::Unknown)
        .build()
        .unwrap();
    let url = postgres.url.clone();
    let insert = format!("INSERT INTO {}.ledger VALUES ('paid')", postgres.schema);
    let dies = true;
    let mut server = ServiceBuilder::new().layer(layer).service(service_fn(
        move |request: Request<Full<Bytes>>| {
            let (store, url, insert) = (store.clone(), url.clone(), insert.clone());
            async move {
                let execution = request.extensions().get::<Execution>().unwrap().clone();
                let mut client = client(&url).await;
                let transaction = client.transaction().await.unwrap();
                transaction.execute(&insert, &[]).await.unwrap();
                let response = Response::builder().status(201).body("paid").unwrap();
                let stored = execution.stored(&response).unwrap();
                let (key, token) = (execution.key(), execution.token());
                let completed = store.complete_in(&transaction, key, token, stored, 24 * RETENTION);
                completed.await.unwrap();
                transaction.commit().await.unwrap();
                assert!(!dies, "right after the commit");
                Ok::<_, Infallible>(response.map(Full::<Bytes>::from))
            }
        },
    ));
    let mut statuses = Vec::new();
    for _ in 0..2 {
        let request = Request::post("/payments")
            .header("idempotency-key", "one")
            .body(Full::default())
            .unwrap();
        let response = (&mut server).oneshot(request).await.unwrap();
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [500, 201]);
    assert_eq!(entries(&postgres).await, 1);
    postgres.drop().await;
}

#[tokio::test]
async fn i_14_a_crash_before_the_commit_leaves_neither() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (store, token) = setup(&postgres).await;
    pay(&postgres, &store, token, false).await.unwrap();
    postgres.pass(LEASE + Duration::from_secs(1)).await;
    let Claimed::New(lease) = store.claim(claim(1)).await.unwrap() else {
        panic!("nobody completed it");
    };
    assert!(lease.orphaned);
    assert_eq!(entries(&postgres).await, 0);
    pay(&postgres, &store, lease.token, true).await.unwrap();
    assert_eq!(entries(&postgres).await, 1);
    postgres.drop().await;
}

#[tokio::test]
async fn i_15_a_stale_owner_can_not_commit() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (store, stale) = setup(&postgres).await;
    postgres.pass(LEASE + Duration::from_secs(1)).await;
    let token = own(&store, claim(1)).await;
    let error = pay(&postgres, &store, stale, true).await.unwrap_err();
    assert!(error.to_string().contains("the lease was lost"), "{error}");
    assert!(!error.is_transient());
    assert_eq!(entries(&postgres).await, 0, "it was rolled back");
    pay(&postgres, &store, token, true).await.unwrap();
    assert_eq!(entries(&postgres).await, 1);
    postgres.drop().await;
}

/// Owners whose leases run out at once, each of which thinks it is the one: whatever the order,
/// one effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn i_15_of_many_owners_one_commits() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    let (store, first) = setup(&postgres).await;
    let postgres = Arc::new(postgres);
    let none = Claim {
        lease: Duration::ZERO,
        ..claim(1)
    };
    let mut owners = JoinSet::new();
    for n in 0..10 {
        let (postgres, store) = (Arc::clone(&postgres), store.clone());
        let claim = Claim {
            id: ClaimId::random(),
            ..none.clone()
        };
        owners.spawn(async move {
            postgres.pass(LEASE).await;
            let claimed = store.claim(claim).await;
            let token = match claimed.expect("claim") {
                Claimed::New(lease) => lease.token,
                _ if n == 0 => first,
                _ => return false,
            };
            pay(&postgres, &store, token, true).await.is_ok()
        });
    }
    let paid = owners.join_all().await.into_iter().filter(|paid| *paid);
    assert_eq!(paid.count(), 1);
    assert_eq!(entries(&postgres).await, 1);
    Arc::into_inner(postgres).unwrap().drop().await;
}
