//! The PostgreSQL store next to the bare client: as many connections, the same table, and for each
//! operation an insert and an update by key, nothing else. At 64 and at 256 concurrent requests, and
//! one transition after the other.

use std::{ops::Range, sync::Arc, time::Duration};

use tokio::{task::JoinSet, time::Instant};
use tokio_postgres::{Client, NoTls};
use tower_reprise::store::{Claimed, IdempotencyStore, Ownership, PostgresStore, Stored};

use crate::{
    bare::Bare,
    middle::median,
    report::Report,
    work::{RETENTION, claim, lower_quartile, reply, throughput},
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
/// One transition after the other: turns, and operations of each.
const TURNS: u64 = 40;
const IDLE: u64 = 125;
const REPLY: usize = 1024;

pub(crate) fn run(report: &mut Report) {
    run_with(report, &[SOME, MANY]);
}

/// One transition after the other only.
pub(crate) fn run_idle(report: &mut Report) {
    run_with(report, &[]);
}

fn run_with(report: &mut Report, loads: &[Load]) {
    let Ok(url) = std::env::var("REPRISE_TEST_POSTGRES") else {
        println!("left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)");
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(compare(&url, loads, report));
}

async fn compare(url: &str, loads: &[Load], report: &mut Report) {
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
    let mut ratio = async |load: &Load| {
        let (mut ratios, mut rates) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let operations = next..next + load.tasks * load.each;
            next = operations.end;
            let theirs = bare_loop(&bare, load.tasks, &schema, operations.clone(), &reply).await;
            let ours = throughput(&store, load.tasks, operations, &reply).await;
            let tasks = load.tasks;
            println!(
                "postgres, {tasks} requests at once: {ours:.0} transitions/s, bare client {theirs:.0}/s"
            );
            ratios.push(ours / theirs);
            rates.push(ours);
        }
        (median(ratios), median(rates))
    };
    if let [some, many] = loads {
        let (some, rate) = ratio(some).await;
        let (many, _) = ratio(many).await;
        report.note("postgres_transitions_per_second", rate);
        report.at_least(
            "postgres_hot_updates",
            hot_updates(&bare[0], &schema, next).await,
            0.95,
        );
        report.at_least("postgres_ratio", some, 0.7);
        report.at_least("postgres_claim_complete_ratio", many, 2.0);
    }
    idle(url, &schema, next, report).await;
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    bare[0].batch_execute(&drop).await.expect("drop");
}

/// Compares what one transition takes where nothing else is under way: of the store, and of the bare
/// client. They take turns, since others want the processor and the disk, too, and have new connections in
/// each: whether the server's process has the core of its client, or another one that has to be woken,
/// makes more of a difference than all that the store does.
async fn idle(url: &str, schema: &str, first: u64, report: &mut Report) {
    // A server always has a timer, its connections' say: the first one that is set wakes the runtime.
    let timer = tokio::spawn(async {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
    let mut took = [0.0; 4];
    for turn in 0..TURNS {
        let (url, schema) = (url.to_owned(), schema.to_owned());
        let store = async {
            let builder = PostgresStore::builder(&url).schema(&schema);
            builder.connect().await.expect("a store")
        };
        let (store, client) = match turn % 2 {
            0 => {
                let store = store.await;
                (store, connect(&url).await)
            }
            _ => {
                let client = connect(&url).await;
                (store.await, client)
            }
        };
        let first = first + turn * IDLE;
        // On a task, as the requests of a server are.
        let measured = tokio::spawn(async move {
            let bare = Bare::prepare(&client, &schema).await;
            let mut took = [const { Vec::new() }; 4];
            for n in first..first + IDLE {
                let note = |nth: usize, started: Instant| {
                    took[nth].push(started.elapsed().as_secs_f64() * 1e6);
                };
                one_of_each(&store, &bare, n, note).await;
            }
            took.map(lower_quartile)
        });
        let measured = measured.await.expect("a task");
        for (sum, turn) in took.iter_mut().zip(measured) {
            *sum += turn / TURNS as f64;
        }
    }
    timer.abort();
    let [claim, complete, bare_claim, bare_complete] = took;
    report.note("postgres_idle_claim_us", claim);
    report.note("postgres_idle_complete_us", complete);
    report.note("postgres_idle_bare_insert_us", bare_claim);
    report.note("postgres_idle_bare_update_us", bare_complete);
    let added = (claim + complete) / (bare_claim + bare_complete);
    report.at_most("postgres_added_latency_idle", added, 1.1);
}

async fn one_of_each(
    store: &PostgresStore,
    bare: &Bare<'_>,
    n: u64,
    mut note: impl FnMut(usize, Instant),
) {
    let (claim, reply) = (claim(n), reply(REPLY));
    let key = claim.key;
    let started = Instant::now();
    let claimed = store.claim(claim).await.expect("claim");
    note(0, started);
    let Claimed::New(lease) = claimed else {
        panic!("operation {n} is not new");
    };
    let stored = reply.clone();
    let started = Instant::now();
    let completed = store.complete(key, lease.token, stored, RETENTION);
    assert_eq!(completed.await.expect("complete"), Ownership::Held);
    note(1, started);
    let started = Instant::now();
    bare.claim(n).await;
    note(2, started);
    let started = Instant::now();
    bare.complete(n, &reply).await;
    note(3, started);
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
        tokio::time::sleep(Duration::from_millis(100)).await;
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
        running.spawn(async move {
            let bare = Bare::prepare(&client, &schema).await;
            for n in operations {
                bare.claim(n).await;
                bare.complete(n, &reply).await;
            }
        });
    }
    running.join_all().await;
    2.0 * count as f64 / started.elapsed().as_secs_f64()
}
