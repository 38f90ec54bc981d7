//! The PostgreSQL store next to the bare client: as many connections, the same table, and for each
//! operation an insert and an update by key, nothing else. At 64 and at 256 concurrent requests, and
//! one request after the other.

use std::{ops::Range, sync::Arc};

use tokio::{task::JoinSet, time::Instant};
use tokio_postgres::{Client, NoTls};
use tower_reprise::store::{PostgresStore, Stored};

use crate::{
    middle::median,
    report::Report,
    work::{claim, reply, throughput},
};

const CONNECTIONS: usize = 64;
const ROUNDS: u64 = 7;

/// A number of concurrent requests, and how many each makes one after the other.
struct Load {
    tasks: u64,
    each: u64,
}

const SOME: Load = Load {
    tasks: 64,
    each: 100,
};
const MANY: Load = Load {
    tasks: 256,
    each: 50,
};
const ONE: Load = Load {
    tasks: 1,
    each: 400,
};
const REPLY: usize = 1024;

pub(crate) fn run(report: &mut Report) {
    let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") else {
        println!("left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(compare(&url, report));
}

async fn compare(url: &str, report: &mut Report) {
    let schema = format!("bench_{}", std::process::id());
    let builder = PostgresStore::builder(url).schema(&schema);
    let builder = builder.connections(CONNECTIONS);
    let store = Arc::new(builder.clone().connect().await.expect("a store"));
    drop(builder.table("bare").connect().await.expect("a table"));
    let mut bare = Vec::new();
    for _ in 0..CONNECTIONS {
        bare.push(Arc::new(connect(url).await));
    }

    let reply = reply(REPLY);
    let mut next = 0;
    let mut ratio = async |name, load: Load| {
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let operations = next..next + load.tasks * load.each;
            next = operations.end;
            let theirs = bare_loop(&bare, load.tasks, &schema, operations.clone(), &reply).await;
            let ours = throughput(&store, load.tasks, operations, &reply).await;
            println!("postgres, {name}: {ours:.0} transitions/s, bare client {theirs:.0}/s");
            ratios.push(ours / theirs);
            rates.push(ours);
        }
        (median(ratios), median(rates))
    };
    let (some, rate) = ratio("64 requests at once", SOME).await;
    let (many, _) = ratio("256 requests at once", MANY).await;
    let (one, _) = ratio("one request at a time", ONE).await;
    report.note("postgres_transitions_per_second", rate);
    report.at_least(
        "postgres_hot_updates",
        hot_updates(&bare[0], &schema, next).await,
        0.95,
    );
    report.at_least("postgres_ratio", some, 0.7);
    report.at_least("postgres_claim_complete_ratio", many, 2.0);
    report.at_most("postgres_added_latency_idle", 1.0 / one, 1.1);
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    bare[0].batch_execute(&drop).await.expect("drop");
}

/// Returns the share of completions that stayed on their page, once the server has counted them all.
async fn hot_updates(client: &Client, schema: &str, completions: u64) -> f64 {
    let counted = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables \
                   WHERE schemaname = $1 AND relname = 'reprise_idempotency'";
    loop {
        let row = client.query_one(counted, &[&schema]).await.expect("a row");
        let (updates, hot): (i64, i64) = (row.get(0), row.get(1));
        if updates.unsigned_abs() >= completions {
            return hot as f64 / updates as f64;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    client
}

/// Transitions a second.
async fn bare_loop(
    clients: &[Arc<Client>],
    tasks: u64,
    schema: &str,
    operations: Range<u64>,
    reply: &Stored,
) -> f64 {
    let count = operations.end - operations.start;
    let started = Instant::now();
    let mut running = JoinSet::new();
    let step = usize::try_from(tasks).expect("a number");
    for (client, first) in clients.iter().cycle().zip(operations.start..).take(step) {
        let client = Arc::clone(client);
        let operations = (first..operations.end).step_by(step);
        let (schema, reply) = (schema.to_owned(), reply.clone());
        running.spawn(async move { one_by_one(&client, &schema, operations, &reply).await });
    }
    running.join_all().await;
    2.0 * count as f64 / started.elapsed().as_secs_f64()
}

async fn one_by_one(
    client: &Client,
    schema: &str,
    operations: impl Iterator<Item = u64>,
    reply: &Stored,
) {
    let Stored::Reply(reply) = reply else {
        panic!("a reply is stored");
    };
    let insert = format!(
        "INSERT INTO {schema}.bare \
           (key, fingerprint, claim_id, token, state, orphaned, lease_until, expires, sweep_after) \
         VALUES ($1, $2, $3, $4, 0, false, $5, $5, $5)"
    );
    let update = format!(
        "UPDATE {schema}.bare SET state = 1, reply = $3, expires = $4 WHERE key = $1 AND token = $2"
    );
    let insert = client.prepare(&insert).await.expect("a statement");
    let update = client.prepare(&update).await.expect("a statement");
    let (token, later) = (1_700_000_000_000_000_i64, 1_800_000_000_000_000_i64);
    for n in operations {
        let claim = claim(n);
        let key = claim.key.as_bytes().as_slice();
        let (fingerprint, id) = (claim.fingerprint, claim.id);
        let (fingerprint, id) = (fingerprint.as_bytes().as_slice(), id.as_bytes().as_slice());
        let inserted = client
            .execute(&insert, &[&key, &fingerprint, &id, &token, &later])
            .await;
        assert_eq!(inserted.expect("insert"), 1);
        let updated = client
            .execute(&update, &[&key, &token, &&**reply, &later])
            .await;
        assert_eq!(updated.expect("update"), 1);
    }
}
