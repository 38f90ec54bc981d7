use tokio::time::Instant;
use tokio_postgres::{Client, NoTls};
use tower_reprise::store::{
    PostgresStore, PostgresStoreBuilder,
    journal::{Journal, Status},
};

use crate::{QUEUE, drain::measure, middle::median, report::Report, wake};

const FINISHED: u64 = 5_000_000;

pub(crate) fn run(report: &mut Report, quick: bool) {
    let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") else {
        println!("left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let schema = format!("bench_{}", std::process::id());
        let builder = PostgresStore::builder(&url).schema(&schema);
        let store = builder.connect().await.expect("a store");
        measure("postgres", store, report, quick).await;
        wake::measure(&url, &schema, report, quick).await;
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        let drop = format!("DROP SCHEMA {schema} CASCADE");
        client.batch_execute(&drop).await.expect("drop");
        let builder = PostgresStore::builder(&url).schema(&schema);
        counts(&builder, &client, &schema, report, quick).await;
        client.batch_execute(&drop).await.expect("drop");
    });
}

/// The time to count a queue with nothing and with many entries that are over.
async fn counts(
    builder: &PostgresStoreBuilder,
    client: &Client,
    schema: &str,
    report: &mut Report,
    quick: bool,
) {
    let finished = if quick { FINISHED / 100 } else { FINISHED };
    let store = builder.clone().connect().await.expect("a store");
    let none = counting(&store).await;
    // The triggers count what they are told, a row at a time; here one statement does.
    let fill = format!(
        "SET session_replication_role = replica; \
         INSERT INTO {schema}.reprise_idempotency_journal (id, queue, lane, owner, label, priority, \
           status, turn, attempts, queued, due, expires, changed, leased, until, history, payload) \
         SELECT sha256(n::text::bytea), '{QUEUE}', '', '', '', 2, 2, 1, 1, 1, 1, 1, 1, 0, 1::bigint << 52, \
           '', '' FROM generate_series(1, {finished}) n; \
         INSERT INTO {schema}.reprise_idempotency_finished VALUES ('{QUEUE}', 2, {finished}); \
         RESET session_replication_role"
    );
    client.batch_execute(&fill).await.expect("fill");
    let vacuum = format!("VACUUM (ANALYZE) {schema}.reprise_idempotency_journal");
    client.batch_execute(&vacuum).await.expect("vacuum");
    let counted = store.counts(QUEUE).await.expect("counts");
    assert_eq!(counted.of(Status::Completed), finished);
    let many = counting(&store).await;
    report.note("postgres_counts_micros_0", none);
    report.at_most("postgres_counts_growth", many / none, 1.5);
}

/// In microseconds.
async fn counting(store: &PostgresStore) -> f64 {
    let mut took = Vec::new();
    for _ in 0..201 {
        let started = Instant::now();
        store.counts(QUEUE).await.expect("counts");
        took.push(started.elapsed().as_secs_f64() * 1e6);
    }
    median(took)
}
