//! Long queues in PostgreSQL, filled by one statement each.

use tokio_postgres::{Client, NoTls};
use tower_reprise::store::PostgresStore;

use crate::QUEUE;

/// The schemas of the stores that were filled.
pub(crate) struct Schemas {
    url: String,
    client: Client,
    names: Vec<String>,
}

impl Schemas {
    pub(crate) async fn new() -> Option<Self> {
        let url = std::env::var("REPRISE_TEST_POSTGRES").ok()?;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        Some(Self {
            url,
            client,
            names: Vec::new(),
        })
    }

    /// A store with entries that wait for their next attempt, each in a lane of its own, and some that are
    /// due in another one.
    pub(crate) async fn with_lanes(&mut self, lanes: u32, due: u32) -> PostgresStore {
        self.filled(&[("'lane ' || n", 0, "later", lanes), ("''", 0, "now", due)])
            .await
    }

    pub(crate) async fn with_due(&mut self, due: u32) -> PostgresStore {
        self.filled(&[("''", 0, "now", due)]).await
    }

    pub(crate) async fn with_finished(&mut self, finished: u32) -> PostgresStore {
        self.filled(&[("''", 2, "now", finished)]).await
    }

    /// A store with so many entries of each lane, status and due time.
    async fn filled(&mut self, entries: &[(&str, u8, &str, u32)]) -> PostgresStore {
        let schema = format!("growth_{}_{}", std::process::id(), self.names.len());
        let builder = PostgresStore::builder(&self.url).schema(&schema);
        let store = builder.connect().await.expect("a store");
        let table = format!("{schema}.reprise_idempotency_journal");
        for (lane, status, due, count) in entries {
            let fill = format!(
                "INSERT INTO {table} (id, queue, lane, owner, label, priority, status, turn, attempts, \
                   queued, due, expires, changed, leased, until, history, payload) \
                 SELECT uuid_send(gen_random_uuid()), '{QUEUE}', {lane}, '', '', 2, {status}, 0, 0, \
                   now, {due}, later, now, 0, CASE WHEN {status} > 1 THEN later ELSE 0 END, '', '' \
                 FROM generate_series(1, {count}) n, \
                   (SELECT (date_part('epoch', now()) * 1000000)::bigint AS now, \
                      1::bigint << 52 AS later) times"
            );
            // One row counts those that are over, as after a sweep.
            let counted = format!(
                "ALTER TABLE {table} DISABLE TRIGGER reprise_idempotency_journal_ended; {fill}; \
                 ALTER TABLE {table} ENABLE TRIGGER reprise_idempotency_journal_ended; \
                 INSERT INTO {schema}.reprise_idempotency_finished (queue, status, entries) \
                 SELECT '{QUEUE}', {status}, {count} WHERE {status} > 1"
            );
            self.client.batch_execute(&counted).await.expect("fill");
        }
        let vacuum = format!("VACUUM (ANALYZE) {table}");
        self.client.batch_execute(&vacuum).await.expect("vacuum");
        self.names.push(schema);
        store
    }

    pub(crate) async fn drop(self) {
        for schema in self.names {
            let drop = format!("DROP SCHEMA {schema} CASCADE");
            self.client.batch_execute(&drop).await.expect("drop");
        }
    }
}
