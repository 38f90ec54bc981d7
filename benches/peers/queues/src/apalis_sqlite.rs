//! apalis with apalis-sqlite.
//!
//! Its `setup` asks for `synchronous = OFF`, on the one connection that runs it; here every
//! connection has WAL and `synchronous = FULL`, as ours, and only its migrations are run.

use ::apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use apalis::prelude::*;
use tokio::time::Instant;

use crate::{
    Queue,
    work::{HANDLED, PAYLOAD},
};

const CONCURRENCY: usize = 64;

pub(crate) struct Apalis {
    pool: SqlitePool,
    storage: SqliteStorage<String>,
}

impl Apalis {
    pub(crate) async fn open(path: &str, connections: u32) -> Self {
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .pragma("journal_mode", "WAL")
            .pragma("synchronous", "FULL");
        let pool = SqlitePoolOptions::new().max_connections(connections);
        let pool = pool.connect_with(options).await.expect("a file");
        let migrations = SqliteStorage::migrations();
        migrations.run(&pool).await.expect("a schema");
        let config = Config::default().queue("bench").batch_size(CONCURRENCY);
        let storage = SqliteStorage::new(&pool).with_config(config);
        Self { pool, storage }
    }

    async fn count(&self, sql: &'static str) -> i64 {
        let count = sqlx::query_scalar(sql).fetch_one(&self.pool).await;
        count.expect("a number")
    }

    async fn done(&self) -> i64 {
        self.count("SELECT count(*) FROM Jobs WHERE status = 'Done'")
            .await
    }
}

impl Queue for Apalis {
    fn enqueue(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut storage = self.storage.clone();
        async move { storage.push(PAYLOAD.clone()).await.expect("enqueue") }
    }

    async fn drain(&self, jobs: usize) -> f64 {
        assert_eq!(self.count("PRAGMA synchronous").await, 2, "not FULL");
        let before = self.done().await;
        HANDLED.expect(jobs);
        let started = Instant::now();
        let worker = WorkerBuilder::new(format!("worker-{before}"))
            .backend(self.storage.clone())
            .concurrency(CONCURRENCY)
            .build(handle);
        worker.run().await.expect("a worker");
        let took = started.elapsed();
        assert_eq!(
            self.done().await - before,
            i64::try_from(jobs).expect("a number")
        );
        took.as_secs_f64()
    }
}

async fn handle(_: String, worker: WorkerContext) -> Result<(), BoxDynError> {
    if HANDLED.one() {
        worker.stop()?;
    }
    Ok(())
}
