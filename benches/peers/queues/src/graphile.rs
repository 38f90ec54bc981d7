//! graphile_worker, tuned as its docs say for many small jobs: with its local queue and its batched
//! completions. As it comes, a backlog is worked off at the pace of its polling, 64 jobs a second.

use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext,
    WorkerOptions, WorkerUtils,
};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::time::Instant;

use crate::{
    Queue,
    work::{HANDLED, PAYLOAD},
};

const CONCURRENCY: usize = 64;
const CONNECTIONS: u32 = 64;

pub(crate) struct Graphile {
    url: String,
    size: usize,
    utils: WorkerUtils,
    pool: PgPool,
}

impl Graphile {
    /// `size` is how many jobs its local queue holds.
    pub(crate) async fn open(url: &str, size: usize) -> Self {
        let utils = worker(url, size).await.create_utils();
        Self {
            url: url.to_owned(),
            size,
            utils,
            pool: PgPool::connect(url).await.expect("a server"),
        }
    }

    async fn is_busy(&self) -> bool {
        let sql = format!("SELECT EXISTS (SELECT FROM {}._private_jobs)", schema());
        let busy = sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(&self.pool);
        busy.await.expect("an answer")
    }
}

fn schema() -> String {
    format!("graphile_{}", std::process::id())
}

async fn worker(url: &str, size: usize) -> Worker {
    let options = WorkerOptions::default()
        .database_url(url)
        .max_pg_conn(CONNECTIONS)
        .schema(schema())
        .concurrency(CONCURRENCY)
        .listen_os_shutdown_signals(false)
        .local_queue(LocalQueueConfig::default().with_size(size))
        .complete_job_batch_delay(Duration::from_millis(2))
        .define_job::<Job>();
    options.init().await.expect("a worker")
}

impl Queue for Graphile {
    fn enqueue(&self) -> impl Future<Output = ()> + Send + 'static {
        let utils = self.utils.clone();
        async move {
            let data = PAYLOAD.clone();
            let added = utils.add_job(Job { data }, JobSpec::default()).await;
            added.expect("enqueue");
        }
    }

    /// Until the last one is gone from the table: completions may come after the handlers.
    async fn drain(&self, jobs: usize) -> f64 {
        let worker = worker(&self.url, self.size).await;
        HANDLED.expect(jobs);
        let started = Instant::now();
        let finish = async {
            HANDLED.all().await;
            while self.is_busy().await {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let took = started.elapsed();
            worker.request_shutdown();
            took
        };
        let (ran, took) = tokio::join!(worker.run(), finish);
        ran.expect("a worker");
        took.as_secs_f64()
    }
}

#[derive(Deserialize, Serialize)]
struct Job {
    data: String,
}

impl TaskHandler for Job {
    const IDENTIFIER: &'static str = "bench";

    async fn run(self, _: WorkerContext) -> impl IntoTaskHandlerResult {
        HANDLED.one();
        Ok::<(), String>(())
    }
}
