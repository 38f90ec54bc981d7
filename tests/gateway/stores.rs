//! The same with stores that many gateways share.

use std::env;

#[cfg(feature = "postgres")]
use crate::support::pgbouncer::{PgBouncer, pgbouncer};
use crate::{
    gateway::Gateway,
    shop::Shop,
    support::database::{eventually, left_out},
};

/// Two gateways, one store: what one accepted the other does, once.
async fn shared(name: &str) {
    match env::var(name) {
        Ok(store) => shared_at(&store).await,
        Err(_) => left_out("gateways that share a store", &format!("{name} is not set")),
    }
}

async fn shared_at(store: &str) {
    let shop = Shop::open().await;
    let key = format!("{:032x}", rand::random::<u128>());
    let flags = ["--store", store];
    let one = Gateway::start(&shop.url(), &[&flags[..], &["--maintenance"]].concat()).await;
    let request = one.order(&key).header("replay", "true");
    let accepted = one.send(request, "x").await;
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    let id = accepted.json()["replay_id"].as_str().unwrap().to_owned();
    let other = Gateway::start(&shop.url(), &flags).await;
    eventually("the other does it", async || {
        let replay = other.look(&format!("/replays/{id}")).await;
        replay.json()["status"] == "completed"
    })
    .await;
    let again = other.send(other.order(&key), "x").await;
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(shop.keys()[&key], 1);
    assert_eq!(other.look("/readyz").await.status, 200);
}

#[tokio::test]
async fn t_1_postgres() {
    shared("REPRISE_TEST_POSTGRES").await;
}

#[tokio::test]
async fn t_1_redis() {
    shared("REPRISE_TEST_REDIS").await;
}

/// Its connections have prepared statements otherwise, which the pooler gives to others: both gateways
/// get one session of the server.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn t_10_postgres_behind_a_pooler() {
    let (Ok(url), Some(_)) = (env::var("REPRISE_TEST_POSTGRES"), pgbouncer()) else {
        return left_out(
            "gateways behind a pooler",
            "there is no server, or no PgBouncer",
        );
    };
    // The workers of all gateways on a database take turns, also those of other tests.
    let database = format!("gateways_{:016x}", rand::random::<u64>());
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
        .await
        .unwrap();
    tokio::spawn(connection);
    let sql = format!("CREATE DATABASE {database}");
    client.batch_execute(&sql).await.unwrap();
    let mut server: tokio_postgres::Config = url.parse().unwrap();
    server.dbname(&database);
    let pooler = PgBouncer::start(&server, 1).await;
    shared_at(&format!("{}?transaction_pooling=true", pooler.url(&server))).await;
    drop(pooler);
    let sql = format!("DROP DATABASE {database} WITH (FORCE)");
    client.batch_execute(&sql).await.unwrap();
}
