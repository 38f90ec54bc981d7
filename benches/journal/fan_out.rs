//! One body for many entries: the time to queue them and the bytes that the store takes, with a copy in each
//! entry and with the body stored once.

use std::fs;

use bytes::Bytes;
use tokio::{runtime::Runtime, time::Instant};
use tower_reprise::store::{
    SqliteStore,
    journal::{Journal, NewEntry, SharedPayload},
};

use crate::{QUEUE, file::folder, report::Report};

const ENTRIES: usize = 10_000;
const BODY: usize = 16 << 10;
/// The most entries of a call: as many as `Webhooks::send_many` queues at once.
const CALL: usize = 1000;

pub(crate) fn run(report: &mut Report, quick: bool) {
    let entries = if quick { ENTRIES / 10 } else { ENTRIES };
    let runtime = Runtime::new().expect("a runtime");
    let folder = folder("journal-fan-out");
    let sqlite = [false, true].map(|shared| {
        let path = folder.join(format!("{shared}.db"));
        let store = SqliteStore::open(&path).expect("a store");
        let seconds = runtime.block_on(queue(&store, entries, shared));
        drop(store);
        let files = fs::read_dir(&folder).expect("a folder").flatten();
        let mine = files.filter(|file| {
            let name = file.file_name().into_string().unwrap_or_default();
            name.starts_with(&shared.to_string()) && !name.ends_with("-reserve")
        });
        let bytes = mine.map(|file| file.metadata().expect("a file").len());
        #[expect(clippy::cast_precision_loss, reason = "far below")]
        (seconds, bytes.sum::<u64>() as f64)
    });
    tell(report, "sqlite", sqlite);
    let _ = fs::remove_dir_all(&folder);
    #[cfg(feature = "postgres")]
    if let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") {
        let postgres =
            [false, true].map(|shared| runtime.block_on(postgres(&url, entries, shared)));
        tell(report, "postgres", postgres);
    }
}

fn tell(report: &mut Report, store: &str, [(slow, large), (fast, small)]: [(f64, f64); 2]) {
    report.note(&format!("{store}_fan_out_copies_seconds"), slow);
    report.note(&format!("{store}_fan_out_shared_seconds"), fast);
    report.note(
        &format!("{store}_fan_out_copies_mib"),
        large / f64::from(1 << 20),
    );
    report.note(
        &format!("{store}_fan_out_shared_mib"),
        small / f64::from(1 << 20),
    );
    report.at_most(&format!("{store}_fan_out_bytes"), small / large, 0.2);
    report.at_most(&format!("{store}_fan_out_time"), fast / slow, 0.8);
}

/// Queues the entries, and returns the seconds that takes.
async fn queue(store: &impl Journal, entries: usize, shared: bool) -> f64 {
    let mut body = vec![0; BODY];
    // Bytes that no store compresses.
    rand::fill(&mut body[..]);
    let body = SharedPayload::new(Bytes::from(body));
    let start = Instant::now();
    for first in (0..entries).step_by(CALL) {
        let call = (first..entries.min(first + CALL)).map(|n| {
            let mut entry = NewEntry::new(QUEUE, vec![b'h'; 120]).ending_in(&body);
            entry.lane = format!("https://endpoint-{n}.example");
            entry.shared = entry.shared.filter(|_| shared);
            entry
        });
        let enqueued = store.enqueue_many(call.collect()).await;
        enqueued.expect("enqueue_many");
    }
    start.elapsed().as_secs_f64()
}

/// Returns the seconds, and the bytes of all tables and indexes.
#[cfg(feature = "postgres")]
async fn postgres(url: &str, entries: usize, shared: bool) -> (f64, f64) {
    use tower_reprise::store::PostgresStore;

    let schema = format!("bench_{}_{shared}", std::process::id());
    let builder = PostgresStore::builder(url).schema(&schema);
    let store = builder.connect().await.expect("a store");
    let seconds = queue(&store, entries, shared).await;
    let connected = tokio_postgres::connect(url, tokio_postgres::NoTls).await;
    let (client, connection) = connected.expect("connect");
    tokio::spawn(connection);
    let bytes = "SELECT sum(pg_total_relation_size(oid))::float8 FROM pg_class \
                 WHERE relkind = 'r' AND relnamespace = $1::text::regnamespace";
    let bytes = client.query_one(bytes, &[&schema]).await.expect("sizes");
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    client.batch_execute(&drop).await.expect("drop");
    (seconds, bytes.get(0))
}
