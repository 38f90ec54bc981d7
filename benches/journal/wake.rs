//! The time from enqueueing an entry to the start of its handler in another process, whose worker is
//! idle, on PostgreSQL.

use std::{
    io::{BufRead, BufReader, Lines},
    process::{ChildStdout, Command, Stdio},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tower_reprise::{
    delivery::worker::{Handler, WorkerBuilder},
    store::{
        PostgresStore,
        journal::{Entry, Journal, NewEntry, Settlement},
    },
};

use crate::{QUEUE, middle::median, report::Report};

/// Set for the process with the worker: the schema.
const WORKER: &str = "REPRISE_BENCH_WORKER";
const ENTRIES: usize = 1000;
const KEEP: Duration = Duration::from_secs(3600);

/// Tells on stdout how many microseconds ago each entry was queued.
struct Tells;

impl Handler for Tells {
    async fn handle(&self, entry: Entry) -> Settlement {
        let queued = u64::from_le_bytes((&*entry.payload).try_into().expect("a time"));
        println!("{}", now() - queued);
        Settlement::completed(Bytes::new(), KEEP)
    }
}

fn now() -> u64 {
    let now = SystemTime::UNIX_EPOCH.elapsed().expect("a time");
    u64::try_from(now.as_micros()).expect("a number")
}

async fn store(url: &str, schema: &str) -> PostgresStore {
    let builder = PostgresStore::builder(url).schema(schema);
    builder.connect().await.expect("a store")
}

/// Runs the worker if this is its process.
pub(crate) fn is_worker() -> bool {
    let Ok(schema) = std::env::var(WORKER) else {
        return false;
    };
    let url = std::env::var("REPRISE_TEST_POSTGRES").expect("an address");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let store = store(&url, &schema).await;
        let _worker = WorkerBuilder::new(store, QUEUE, Tells)
            .start()
            .expect("a worker");
        std::future::pending().await
    })
}

/// `schema` has the tables already.
pub(crate) async fn measure(url: &str, schema: &str, report: &mut Report, quick: bool) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .env(WORKER, schema)
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let store = store(url, schema).await;
    // Until it listens.
    for _ in 0..5 {
        latency(&store, &mut lines).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let mut took = Vec::new();
    for _ in 0..if quick { ENTRIES / 5 } else { ENTRIES } {
        took.push(latency(&store, &mut lines).await);
        // Notices of one process have a pause between them, and the worker is idle again.
        tokio::time::sleep(Duration::from_millis(15)).await;
    }
    child.kill().expect("the process");
    let _ = child.wait();
    took.sort_by(f64::total_cmp);
    let p99 = took[took.len() * 99 / 100];
    report.note("postgres_start_p50_ms", median(took));
    report.at_most("postgres_start_p99_ms", p99, 20.0);
}

/// In milliseconds.
async fn latency(store: &PostgresStore, lines: &mut Lines<BufReader<ChildStdout>>) -> f64 {
    let queued = Bytes::copy_from_slice(&now().to_le_bytes());
    let new = NewEntry::new(QUEUE, queued);
    store.enqueue(new).await.expect("enqueue");
    // The line blocks this thread, and the notice is sent by another one.
    let line = tokio::task::block_in_place(|| lines.next());
    let micros = line.expect("a line").expect("a line");
    micros.parse::<f64>().expect("a number") / 1000.0
}
