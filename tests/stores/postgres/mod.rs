//! Records in PostgreSQL, on a real server: REPRISE_TEST_POSTGRES says where (`tests/run` starts
//! one).

mod contract;
mod counts;
mod exactly_once;
mod full;
mod journal;
mod notices;
mod pooler;
mod pools;
mod schema;
mod sharing;
mod statements;
mod sweep;
mod trouble;

use std::time::Duration;

use tokio_postgres::{Client, NoTls};
use tower_reprise::store::{PostgresStore, PostgresStoreBuilder, conformance::Backend};

use crate::support::crash;

pub(crate) fn address() -> Option<String> {
    std::env::var("REPRISE_TEST_POSTGRES").ok()
}

/// A schema of its own for each test.
pub(crate) struct Postgres {
    pub(crate) url: String,
    pub(crate) schema: String,
    pub(crate) admin: Client,
}

impl Postgres {
    /// `None` if there is no server to test with.
    pub(crate) async fn new() -> Option<Self> {
        let url = address()?;
        let admin = client(&url).await;
        let schema = format!("test_{:016x}", rand::random::<u64>());
        Some(Self { url, schema, admin })
    }

    pub(crate) fn builder(&self) -> PostgresStoreBuilder {
        let builder = PostgresStore::builder(&self.url);
        builder.schema(&self.schema).connections(8)
    }

    pub(crate) async fn store(&self) -> PostgresStore {
        self.builder().connect().await.expect("connect")
    }

    pub(crate) async fn execute(&self, sql: &str) -> u64 {
        let sql = sql.replace("{schema}", &self.schema);
        self.admin.execute(&sql, &[]).await.expect("execute")
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        let sql = sql.replace("{schema}", &self.schema);
        let row = self.admin.query_one(&sql, &[]).await.expect("query");
        row.get(0)
    }

    /// Returns how the server would run a query, a line a step.
    pub(crate) async fn plan(&self, sql: &str) -> String {
        let sql = format!("EXPLAIN {}", sql.replace("{schema}", &self.schema));
        let rows = self.admin.query(&sql, &[]).await.expect("explain");
        let lines = rows.iter().map(|row| row.get::<_, String>(0));
        lines.collect::<Vec<_>>().join("\n")
    }

    pub(crate) async fn drop(self) {
        self.execute("DROP SCHEMA IF EXISTS {schema} CASCADE").await;
    }
}

pub(crate) async fn client(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

impl Backend for Postgres {
    type Store = PostgresStore;

    async fn open(&self) -> PostgresStore {
        self.store().await
    }

    /// The server's clock can't be moved, but the records can: backwards.
    async fn pass(&self, time: Duration) {
        let micros = time.as_micros();
        self.execute(&format!(
            "UPDATE {{schema}}.reprise_idempotency \
             SET lease_until = lease_until - {micros}, expires = expires - {micros}, \
               sweep_after = expires - {micros}"
        ))
        .await;
        self.execute(&format!(
            "UPDATE {{schema}}.reprise_idempotency_journal \
             SET queued = queued - {micros}, due = due - {micros}, expires = expires - {micros}, \
               changed = changed - {micros}, until = until - {micros}, \
               leased = CASE WHEN leased > 0 THEN greatest(leased - {micros}, 1) ELSE 0 END"
        ))
        .await;
    }
}

/// The address holds the name of a schema, too.
impl crash::Shared for Postgres {
    type Store = PostgresStore;

    const CHILD: &'static str = "postgres::contract::child";

    async fn open(address: &str) -> PostgresStore {
        let (url, schema) = address.split_once(' ').expect("a schema");
        let builder = PostgresStore::builder(url).schema(schema);
        builder.connect().await.expect("connect")
    }
}
