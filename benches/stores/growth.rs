//! PostgreSQL with few records and with many: claims and completions a second, as a ratio.
//!
//! Runs by name only, since it takes long and half a kilobyte of disk for each record:
//! `REPRISE_GROWTH_RECORDS` says how many; 2,000,000 without it.

use std::sync::Arc;

use tokio_postgres::NoTls;
use tower_reprise::store::PostgresStore;

use crate::{
    middle::median,
    report::Report,
    work::{reply, throughput},
};

const FEW: u64 = 1_000_000;
/// Records that one statement makes.
const STEP: u64 = 250_000;
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
        while there < records {
            let until = records.min(there + STEP);
            admin
                .batch_execute(&fill(&schema, there, until))
                .await
                .expect("fill");
            there = until;
        }
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

/// Returns the statement that makes completed records, with keys that are spread as hashes are.
fn fill(schema: &str, from: u64, until: u64) -> String {
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
