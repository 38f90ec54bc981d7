//! PostgreSQL with few records and with many: claims and completions a second, as a ratio.
//!
//! Runs by name only, since it takes minutes and a kilobyte of disk for each record:
//! `REPRISE_GROWTH_RECORDS` says how many; 2,000,000 without it.

use std::{ops::Range, sync::Arc};

use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};
use tower_reprise::store::PostgresStore;

use crate::{
    middle::median,
    report::Report,
    work::{reply, throughput},
};

const FEW: u64 = 1_000_000;
/// Records that one statement makes.
const STEP: u64 = 250_000;
const FILLERS: u64 = 2;
const ROUNDS: usize = 5;
const TASKS: u64 = 256;
const EACH: u64 = 50;
const REPLY: usize = 1024;

pub(crate) fn run(report: &mut Report) {
    let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") else {
        println!("left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)");
        return;
    };
    let many = std::env::var("REPRISE_GROWTH_RECORDS").ok();
    let many = many.map_or(2_000_000, |many| many.parse().expect("a number of records"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(compare(&url, many, report));
}

async fn compare(url: &str, many: u64, report: &mut Report) {
    let schema = format!("growth_{}", std::process::id());
    let builder = PostgresStore::builder(url).schema(&schema);
    let store = Arc::new(builder.connections(64).connect().await.expect("a store"));
    let (admin, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    let (mut next, mut there) = (0, 0);
    let mut rate = async |records: u64| {
        fill(url, &admin, &schema, there..records).await;
        there = records;
        let vacuum = format!(
            "VACUUM (ANALYZE) {schema}.reprise_idempotency; \
             VACUUM (ANALYZE) {schema}.reprise_idempotency_reply; CHECKPOINT"
        );
        for statement in vacuum.split("; ") {
            admin.batch_execute(statement).await.expect("vacuum");
        }
        let mut rates = Vec::new();
        for _ in 0..ROUNDS {
            let operations = next..next + TASKS * EACH;
            next = operations.end;
            rates.push(throughput(&store, TASKS, operations, &reply(REPLY)).await);
        }
        let rate = median(rates);
        println!("postgres, {records} records: {rate:.0} transitions/s");
        rate
    };
    let few = rate(FEW).await;
    let grown = rate(many).await;
    report.note("postgres_growth_records", many as f64);
    report.at_least("postgres_growth_100m", grown / few, 0.8);
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    admin.batch_execute(&drop).await.expect("drop");
}

/// Makes completed records: on several connections, and without indexes, which are made afterwards. That
/// of the keys gets pages that are as full as those of one that grew with random keys.
async fn fill(url: &str, admin: &Client, schema: &str, records: Range<u64>) {
    let indexes = "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = $1 \
                   AND tablename IN ('reprise_idempotency', 'reprise_idempotency_reply')";
    let indexes = admin.query(indexes, &[&schema]).await.expect("indexes");
    let indexes = indexes.iter().map(|row| (row.get(0), row.get(1)));
    let indexes: Vec<(String, String)> = indexes.collect();
    for table in ["reprise_idempotency", "reprise_idempotency_reply"] {
        let drop = format!("ALTER TABLE {schema}.{table} DROP CONSTRAINT IF EXISTS {table}_pkey");
        admin.batch_execute(&drop).await.expect("drop");
    }
    for (name, _) in &indexes {
        let drop = format!("DROP INDEX IF EXISTS {schema}.{name}");
        admin.batch_execute(&drop).await.expect("drop");
    }
    let mut filling = JoinSet::new();
    for filler in 0..FILLERS {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
        tokio::spawn(connection);
        let (schema, records) = (schema.to_owned(), records.clone());
        filling.spawn(async move {
            let unsafely = "SET synchronous_commit = off";
            client.batch_execute(unsafely).await.expect("set");
            let steps = (records.start + filler * STEP..records.end)
                .step_by(FILLERS as usize * STEP as usize);
            for from in steps {
                let step = completed(&schema, from, records.end.min(from + STEP));
                client.batch_execute(&step).await.expect("fill");
            }
        });
    }
    filling.join_all().await;
    let memory = "SET maintenance_work_mem = '1GB'";
    admin.batch_execute(memory).await.expect("set");
    for (name, index) in indexes {
        let random = name == "reprise_idempotency_pkey" && !index.contains("fillfactor");
        let pages = if random {
            " WITH (fillfactor = 70)"
        } else {
            ""
        };
        let create = format!("{index}{pages}");
        admin.batch_execute(&create).await.expect("index");
    }
}

/// Returns the statement that makes completed records, with keys that are spread as hashes are.
fn completed(schema: &str, from: u64, until: u64) -> String {
    let hour = 3_600_000_000_i64;
    format!(
        "WITH made AS ( \
           INSERT INTO {schema}.reprise_idempotency \
             (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, sweep_after) \
           SELECT sha256(n::text::bytea), sha256('one'), '\\x00112233445566778899aabbccddeeff'::bytea, \
             now, 1, false, now, now + 24 * {hour}, (now / {hour} + 25 + n % 24) * {hour} \
           FROM (SELECT n, (date_part('epoch', now()) * 1000000)::bigint + n AS now \
                 FROM generate_series({from}, {until} - 1) n) row \
           RETURNING key, token) \
         INSERT INTO {schema}.reprise_idempotency_reply (token, key, reply) \
         SELECT token, key, key FROM made"
    )
}
