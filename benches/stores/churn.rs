//! PostgreSQL under records that come and go: claims, completions and sweeps, with autovacuum on. Dead
//! rows must not become more, and completions must stay on their page.
//!
//! Runs by name only: `REPRISE_CHURN_SECONDS` says for how long; 600 without it. The server's clock is
//! made to run faster for the store, so that records expire within seconds and its own sweeps remove
//! them.

use std::{sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tokio_postgres::{Client, NoTls};
use tower_reprise::store::{Claimed, IdempotencyStore, Ownership, PostgresStore};

use crate::{
    report::Report,
    work::{claim, reply},
};

const TASKS: u64 = 64;
const REPLY: usize = 1024;
/// An hour takes five seconds.
const FASTER: u32 = 720;
const HOUR: Duration = Duration::from_secs(60 * 60);
const SAMPLE_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn run(report: &mut Report) {
    let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") else {
        println!("left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)");
        return;
    };
    let seconds = std::env::var("REPRISE_CHURN_SECONDS").ok();
    let seconds = seconds.map_or(600, |seconds| seconds.parse().expect("a number of seconds"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(churn(&url, Duration::from_secs(seconds), report));
}

/// The sizes of the tables at one moment.
struct Sample {
    dead: f64,
    bytes: f64,
}

async fn churn(url: &str, time: Duration, report: &mut Report) {
    let schema = format!("churn_{}", std::process::id());
    let (admin, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    make_clock(&admin, &schema).await;
    let separator = if url.contains('?') { '&' } else { '?' };
    // Names are looked for there before they are looked for among the server's own.
    let url = format!("{url}{separator}options=-c%20search_path%3D{schema}_clock,pg_catalog");
    let builder = PostgresStore::builder(url).schema(&schema);
    let store = Arc::new(builder.connections(16).connect().await.expect("a store"));

    let end = Instant::now() + time;
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let store = Arc::clone(&store);
        running.spawn(async move {
            let mut n = task;
            while Instant::now() < end {
                execute(&store, n).await;
                n += TASKS;
            }
            n / TASKS
        });
    }
    let mut samples = Vec::new();
    while Instant::now() < end {
        tokio::time::sleep(SAMPLE_EVERY).await;
        samples.push(sample(&admin, &schema).await);
    }
    let operations: u64 = running.join_all().await.into_iter().sum();

    let thirds: Vec<_> = samples.chunks(samples.len().div_ceil(3)).collect();
    let [_, middle, last] = thirds[..] else {
        panic!("too short: {time:?}");
    };
    let peak =
        |samples: &[Sample], of: fn(&Sample) -> f64| samples.iter().map(of).fold(1.0, f64::max);
    report.note(
        "postgres_churn_per_second",
        operations as f64 / time.as_secs_f64(),
    );
    report.note("postgres_churn_dead_rows", peak(last, |sample| sample.dead));
    report.note("postgres_churn_bytes", peak(last, |sample| sample.bytes));
    let growth = |of: fn(&Sample) -> f64| peak(last, of) / peak(middle, of);
    report.at_most(
        "postgres_churn_dead_growth",
        growth(|sample| sample.dead),
        1.5,
    );
    report.at_most(
        "postgres_churn_size_growth",
        growth(|sample| sample.bytes),
        1.5,
    );
    let swept = swept(&admin, &schema).await;
    report.at_least("postgres_churn_swept", swept / operations as f64, 0.3);
    report.at_least(
        "postgres_churn_hot_updates",
        hot_updates(&admin, &schema).await,
        0.95,
    );
    let drop = format!("DROP SCHEMA {schema} CASCADE; DROP SCHEMA {schema}_clock CASCADE");
    admin.batch_execute(&drop).await.expect("drop");
    look_for_dead_rows_every(&admin, "DEFAULT").await;
}

/// Makes a clock that runs faster, and has the server look for dead rows as often as a run has use for:
/// once a minute, as it is, would be a few times.
async fn make_clock(admin: &Client, schema: &str) {
    look_for_dead_rows_every(admin, "'5s'").await;
    let now = admin.query_one("SELECT clock_timestamp()::text", &[]).await;
    let now: String = now.expect("a time").get(0);
    let make = format!(
        "CREATE SCHEMA {schema}_clock; \
         CREATE FUNCTION {schema}_clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS \
           $$ SELECT pg_catalog.clock_timestamp() \
                + {FASTER} * (pg_catalog.clock_timestamp() - timestamptz '{now}') $$"
    );
    admin.batch_execute(&make).await.expect("a clock");
}

async fn look_for_dead_rows_every(admin: &Client, time: &str) {
    let set = format!("ALTER SYSTEM SET autovacuum_naptime = {time}");
    admin.batch_execute(&set).await.expect("a setting");
    let reload = "SELECT pg_reload_conf()";
    admin.batch_execute(reload).await.expect("a reload");
}

async fn execute(store: &PostgresStore, n: u64) {
    let mut claim = claim(n);
    (claim.lease, claim.retention) = (HOUR, HOUR);
    let key = claim.key;
    let Claimed::New(lease) = store.claim(claim).await.expect("claim") else {
        panic!("operation {n} is not new");
    };
    let completed = store.complete(key, lease.token, reply(REPLY), HOUR);
    assert_eq!(completed.await.expect("complete"), Ownership::Held);
}

const TABLES: &str = "FROM pg_stat_user_tables WHERE schemaname = $1 \
                      AND relname IN ('reprise_idempotency', 'reprise_idempotency_reply')";

async fn sample(admin: &Client, schema: &str) -> Sample {
    let sql = format!(
        "SELECT sum(n_dead_tup)::float8, sum(pg_total_relation_size(relid))::float8 {TABLES}"
    );
    let row = admin.query_one(&sql, &[&schema]).await.expect("a row");
    Sample {
        dead: row.get(0),
        bytes: row.get(1),
    }
}

/// Returns how many records were removed.
async fn swept(admin: &Client, schema: &str) -> f64 {
    let sql = format!("SELECT min(n_tup_del)::float8 {TABLES}");
    let row = admin.query_one(&sql, &[&schema]).await.expect("a row");
    row.get(0)
}

async fn hot_updates(admin: &Client, schema: &str) -> f64 {
    let sql = format!("SELECT sum(n_tup_hot_upd)::float8 / sum(n_tup_upd)::float8 {TABLES}");
    let row = admin.query_one(&sql, &[&schema]).await.expect("a row");
    row.get(0)
}
