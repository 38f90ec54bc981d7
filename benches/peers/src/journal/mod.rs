//! Jobs of 1 KiB that are queued durably and worked off by a handler with nothing to do: our
//! journal and worker on SQLite next to apalis, and on PostgreSQL next to graphile_worker and awa.
//!
//! Same files with the same durability (WAL, `synchronous = FULL`), same server, as many
//! connections, 64 jobs at a time. The others run in a process of their own (`queues`), which does
//! nothing while it is not its turn. The schemas stay behind on the server, so give it one of its own.
//!
//! Queues differ in what becomes of a finished job, so ours is measured in two ways on PostgreSQL: keeping
//! it for an hour, and removing it. `CONTRACTS` is printed with the figures.

mod other;
mod ours;

use std::{fs, path::Path, sync::Arc, time::Duration};

use tokio::runtime::Runtime;
use tower_reprise::store::{PostgresStore, SqliteStore, journal::Journal};

use self::{other::Other, ours::Ours};
use crate::report::{self, quantile};

/// The jobs of a round, and how many of them are queued one after the other.
struct Size {
    rounds: usize,
    jobs: usize,
    alone: usize,
}

/// The measurements of a round: name and title.
const MEASURED: [(&str, &str); 3] = [
    ("enqueue_one", "queued/s by one caller"),
    ("enqueue", "queued/s by 64 callers"),
    ("drain", "done/s, 64 at a time"),
];

const CONTRACTS: &str = "\
ours                  a job that is done is kept for an hour, with its result and its history
ours_removing         it is removed when it is done (kept for no time)
apalis                kept, with its result
graphile_worker       deleted; nothing is kept of it
awa                   kept for a day, as one row that says that it was done; measured until the last handler
                      runs, not until that is committed (at most 64 of the jobs)
All of them: an attempt is committed before its handler starts, and commits are synchronous.
";

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn run(quick: bool) {
    let size = match quick {
        true => Size {
            rounds: 3,
            jobs: 600,
            alone: 100,
        },
        false => Size {
            rounds: 9,
            jobs: 2_000,
            alone: 200,
        },
    };
    let runtime = Runtime::new().expect("a runtime");
    let mut values = Vec::new();
    println!("{CONTRACTS}");
    sqlite(&runtime, &size, &mut values);
    match std::env::var("REPRISE_TEST_POSTGRES") {
        Ok(url) => postgres(&runtime, &url, &size, &mut values),
        Err(_) => println!("left out: PostgreSQL (REPRISE_TEST_POSTGRES is not set)\n"),
    }
    report::json("journal", &values);
}

fn sqlite(runtime: &Runtime, size: &Size, values: &mut Vec<(String, f64)>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/journal");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).expect("a folder");
    let [one, ten] = ["one.db", "ten.db"].map(|name| folder.join(name));
    let [one, ten] = [&one, &ten].map(|path| path.to_str().expect("a path"));
    let store = SqliteStore::open(folder.join("ours.db")).expect("a store");
    // One connection leaves nobody waiting for SQLite's lock; ten are what a pool has by default.
    let others = vec![
        Other::start("apalis", &["apalis", one, "1"]),
        Other::start("apalis_pool_of_10", &["apalis", ten, "10"]),
    ];
    let store = Arc::new(store);
    let ours = vec![Ours::new(&store, "keeping", HOUR)];
    compare("SQLite", runtime, &ours, others, size, values);
    let _ = fs::remove_dir_all(&folder);
}

fn postgres(runtime: &Runtime, url: &str, size: &Size, values: &mut Vec<(String, f64)>) {
    let schema = format!("peers_{}", std::process::id());
    let builder = PostgresStore::builder(url).schema(schema).connections(64);
    let store = runtime.block_on(builder.connect()).expect("a store");
    // It holds as many jobs beside those that run as our worker does.
    let others = vec![
        Other::start("graphile", &["graphile", url, "128"]),
        Other::start("awa", &["awa", url]),
    ];
    let store = Arc::new(store);
    let ours = vec![
        Ours::new(&store, "keeping", HOUR),
        Ours::new(&store, "removing", Duration::ZERO),
    ];
    compare("PostgreSQL", runtime, &ours, others, size, values);
}

/// They take turns, and the median of the rounds' ratios counts.
fn compare<J: Journal>(
    title: &str,
    runtime: &Runtime,
    ours: &[Ours<J>],
    mut others: Vec<Other>,
    size: &Size,
    values: &mut Vec<(String, f64)>,
) {
    let names: Vec<_> = ["ours", "ours_removing"]
        .into_iter()
        .take(ours.len())
        .chain(others.iter().map(|other| other.name))
        .collect();
    let mut rates = vec![MEASURED.map(|_| Vec::new()); names.len()];
    // The first round is not counted.
    for round in 0..=size.rounds {
        for turn in 0..names.len() {
            let at = (turn + round) % names.len();
            let measured = match at.checked_sub(ours.len()) {
                None => runtime.block_on(ours[at].round(size.jobs, size.alone)),
                Some(at) => others[at].round(size.jobs, size.alone),
            };
            if round > 0 {
                for (rates, rate) in rates[at].iter_mut().zip(measured) {
                    rates.push(rate);
                }
            }
        }
    }
    let median = |rates: &[f64]| quantile(rates.to_vec(), 0.5);
    let server = title.to_lowercase();
    for (at, (key, head)) in MEASURED.into_iter().enumerate() {
        let mut rows = Vec::new();
        for (name, theirs) in names.iter().zip(&rates) {
            let theirs = &theirs[at];
            let mut row = vec![(*name).into(), format!("{:.0}", median(theirs))];
            let is_ours = rows.len() < ours.len();
            let prefix = match *name {
                "ours" => server.clone(),
                "ours_removing" => format!("{server}_removing"),
                other => other.to_owned(),
            };
            values.push((format!("{prefix}_{key}_per_second"), median(theirs)));
            for (ours, ratio) in rates
                .iter()
                .zip(["ratio", "removing_ratio"])
                .take(ours.len())
            {
                let ratios = ours[at].iter().zip(theirs);
                let ratios: Vec<_> = ratios.map(|(ours, theirs)| ours / theirs).collect();
                if is_ours {
                    row.push(String::new());
                    continue;
                }
                let [least, most] = [0.0, 1.0].map(|share| quantile(ratios.clone(), share));
                let median = median(&ratios);
                row.push(format!("{median:.2} ({least:.2} to {most:.2})"));
                values.push((format!("{name}_{key}_{ratio}"), median));
            }
            rows.push(row);
        }
        let head = ["queue", head, "ours to this", "ours_removing to this"];
        report::table(title, &head[..2 + ours.len()], &rows);
    }
}
