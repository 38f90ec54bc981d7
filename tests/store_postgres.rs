//! Records in PostgreSQL, on a real server: REPRISE_TEST_POSTGRES says where (`tests/run` starts
//! one).
#![cfg(feature = "postgres")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "the helpers are tests too"
)]

use std::{io::Write, time::Duration};

use bytes::Bytes;
use tokio_postgres::{Client, NoTls};
use tower_reprise::store::{
    Claim, ClaimId, Claimed, FencingToken, Fingerprint, IdempotencyStore, Orphans, Ownership,
    PostgresStore, RecordKey, StoreErrorKind, Stored,
    conformance::{self, Backend},
};

const LEASE: Duration = Duration::from_secs(30);
const RETENTION: Duration = Duration::from_secs(60 * 60);

/// A schema of its own for each test.
struct Postgres {
    url: String,
    schema: String,
    admin: Client,
}

impl Postgres {
    /// `None` if there is no server to test with.
    async fn new() -> Option<Self> {
        let url = std::env::var("REPRISE_TEST_POSTGRES").ok()?;
        let admin = client(&url).await;
        let schema = format!("test_{:016x}", rand::random::<u64>());
        Some(Self { url, schema, admin })
    }

    async fn store(&self) -> PostgresStore {
        let builder = PostgresStore::builder(&self.url).schema(&self.schema);
        builder.connect().await.expect("connect")
    }

    async fn execute(&self, sql: &str) -> u64 {
        let sql = sql.replace("{schema}", &self.schema);
        self.admin.execute(&sql, &[]).await.expect("execute")
    }

    async fn count(&self, sql: &str) -> i64 {
        let sql = sql.replace("{schema}", &self.schema);
        let row = self.admin.query_one(&sql, &[]).await.expect("query");
        row.get(0)
    }

    async fn drop(self) {
        self.execute("DROP SCHEMA IF EXISTS {schema} CASCADE").await;
    }
}

async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

impl Backend for Postgres {
    type Store = PostgresStore;

    async fn open(&self) -> PostgresStore {
        let builder = PostgresStore::builder(&self.url).schema(&self.schema);
        builder.connections(8).connect().await.expect("connect")
    }

    /// The server's clock can't be moved, but the records can: backwards.
    async fn pass(&self, time: Duration) {
        let micros = time.as_micros();
        self.execute(&format!(
            "UPDATE {{schema}}.reprise_idempotency \
             SET lease_until = lease_until - {micros}, expires = expires - {micros}"
        ))
        .await;
    }
}

fn claim(key: u8) -> Claim {
    Claim {
        key: RecordKey::new([key; 32]),
        fingerprint: Fingerprint::new([1; 32]),
        id: ClaimId::random(),
        lease: LEASE,
        retention: RETENTION,
        orphans: Orphans::Reexecute,
    }
}

fn reply(text: &'static str) -> Stored {
    Stored::Reply(Bytes::from_static(text.as_bytes()))
}

async fn own(store: &PostgresStore, claim: Claim) -> FencingToken {
    match store.claim(claim).await.expect("claim") {
        Claimed::New(lease) => lease.token,
        other => panic!("the key should be free, but is {other:?}"),
    }
}

#[test]
fn postgres_is_there_or_said_to_be_left_out() {
    if std::env::var_os("REPRISE_TEST_POSTGRES").is_none() {
        // Not `eprintln`, which is not shown for a test that passes.
        let message = "left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)";
        writeln!(std::io::stderr(), "{message}").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn t_1_t_2_t_3_i_6_the_contract() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    conformance::run(&postgres).await;
    postgres.drop().await;
}

#[tokio::test]
async fn t_1_t_2_the_model() {
    let Some(postgres) = Postgres::new().await else {
        return;
    };
    for seed in 0..20 {
        conformance::model(&postgres, seed, 150).await;
    }
    postgres.drop().await;
}
