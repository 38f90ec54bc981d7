//! awa, with its queue storage, in a database of its own: its schema has a fixed name.

use std::time::Duration;

use awa::{Client, InsertOpts, JobArgs, JobResult, QueueConfig, insert_with, model::migrations};
use serde::{Deserialize, Serialize};
use sqlx_08::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};
use tokio::time::Instant;

use crate::{
    Queue,
    work::{HANDLED, PAYLOAD},
};

const CONCURRENCY: u32 = 64;
const CONNECTIONS: u32 = 64;
const QUEUE: &str = "bench";
const SHUTDOWN: Duration = Duration::from_secs(10);

pub(crate) struct Awa {
    pool: PgPool,
}

impl Awa {
    pub(crate) async fn open(url: &str) -> Self {
        let server: PgConnectOptions = url.parse().expect("an address");
        let database = format!("awa_{}", std::process::id());
        let admin = PgPool::connect_with(server.clone())
            .await
            .expect("a server");
        let create = format!("CREATE DATABASE {database}");
        sqlx_08::query(&create)
            .execute(&admin)
            .await
            .expect("a database");
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .connect_with(server.database(&database))
            .await
            .expect("the database");
        migrations::run(&pool).await.expect("a schema");
        let awa = Self { pool };
        // The first worker of a new schema puts its queue storage into service.
        let client = awa.client();
        client.start().await.expect("a worker");
        client.shutdown(SHUTDOWN).await;
        awa
    }

    /// As its benchmarks configure it, with as many jobs at a time as the others.
    fn client(&self) -> Client {
        let config = QueueConfig {
            max_workers: CONCURRENCY,
            poll_interval: Duration::from_millis(50),
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        };
        Client::builder(self.pool.clone())
            .queue(QUEUE, config)
            .register::<Job, _, _>(|_, _| async {
                HANDLED.one();
                Ok(JobResult::Completed)
            })
            .build()
            .expect("a worker")
    }
}

impl Queue for Awa {
    fn enqueue(&self) -> impl Future<Output = ()> + Send + 'static {
        let pool = self.pool.clone();
        async move {
            let data = PAYLOAD.clone();
            let options = InsertOpts {
                queue: QUEUE.into(),
                ..InsertOpts::default()
            };
            let added = insert_with(&pool, &Job { data }, options).await;
            added.expect("enqueue");
        }
    }

    /// From when its worker has started until the last handler runs, whose completion may still be under
    /// way: at most 64 of the jobs.
    async fn drain(&self, jobs: usize) -> f64 {
        let client = self.client();
        HANDLED.expect(jobs);
        client.start().await.expect("a worker");
        let started = Instant::now();
        HANDLED.all().await;
        let took = started.elapsed();
        client.shutdown(SHUTDOWN).await;
        took.as_secs_f64()
    }
}

#[derive(Deserialize, JobArgs, Serialize)]
struct Job {
    data: String,
}
