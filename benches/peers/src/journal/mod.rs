//! Jobs of 1 KiB that are queued durably and worked off by a handler with nothing to do: our
//! journal and worker on SQLite next to apalis, and on PostgreSQL next to graphile_worker and awa.
//!
//! Same files with the same durability (WAL, `synchronous = FULL`), same server, as many
//! connections, 64 jobs at a time. The others run in a process of their own (`queues`), which does
//! nothing while it is not its turn. What is not compared: ours and apalis keep what is done, with
//! its result, and ours also its history; graphile_worker deletes it; awa keeps that it was done, for a
//! day, and is measured until its last handler runs, not until that is committed. The schemas stay behind
//! on the server, so give it one of its own.

mod other;
mod ours;

use std::{fs, path::Path};

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
    compare("SQLite", runtime, Ours::new(store), others, size, values);
    let _ = fs::remove_dir_all(&folder);
}

fn postgres(runtime: &Runtime, url: &str, size: &Size, values: &mut Vec<(String, f64)>) {
    let schema = format!("peers_{}", std::process::id());
    let builder = PostgresStore::builder(url).schema(schema).connections(64);
    let store = runtime.block_on(builder.connect()).expect("a store");
    // With its local queue and its batched completions. As it comes, a backlog is worked off at the
    // pace of its polling.
    let others = vec![
        Other::start("graphile", &["graphile-tuned", url]),
        Other::start("graphile_untuned", &["graphile", url]),
        Other::start("awa", &["awa", url]),
    ];
    compare(
        "PostgreSQL",
        runtime,
        Ours::new(store),
        others,
        size,
        values,
    );
}

/// They take turns, and the median of the rounds' ratios counts.
fn compare<J: Journal>(
    title: &str,
    runtime: &Runtime,
    ours: Ours<J>,
    mut others: Vec<Other>,
    size: &Size,
    values: &mut Vec<(String, f64)>,
) {
    let mut rates = vec![MEASURED.map(|_| Vec::new()); others.len() + 1];
    // The first round is not counted.
    for round in 0..=size.rounds {
        for turn in 0..=others.len() {
            let at = (turn + round) % (others.len() + 1);
            let measured = match at.checked_sub(1) {
                None => runtime.block_on(ours.round(size.jobs, size.alone)),
                Some(at) => others[at].round(size.jobs, size.alone),
            };
            if round > 0 {
                for (rates, rate) in rates[at].iter_mut().zip(measured) {
                    rates.push(rate);
                }
            }
        }
    }
    for (at, (key, head)) in MEASURED.into_iter().enumerate() {
        let ours = &rates[0][at];
        let median = |rates: &[f64]| quantile(rates.to_vec(), 0.5);
        let mut rows = vec![vec![
            "ours".into(),
            format!("{:.0}", median(ours)),
            String::new(),
            String::new(),
        ]];
        let server = title.to_lowercase();
        values.push((format!("{server}_{key}_per_second"), median(ours)));
        for (other, rates) in others.iter().zip(&rates[1..]) {
            let theirs = &rates[at];
            let ratios: Vec<_> = ours
                .iter()
                .zip(theirs)
                .map(|(ours, theirs)| ours / theirs)
                .collect();
            let spread = [0.0, 1.0].map(|share| quantile(ratios.clone(), share));
            rows.push(vec![
                other.name.into(),
                format!("{:.0}", median(theirs)),
                format!("{:.2}", median(&ratios)),
                format!("{:.2} to {:.2}", spread[0], spread[1]),
            ]);
            values.push((format!("{}_{key}_per_second", other.name), median(theirs)));
            values.push((format!("{}_{key}_ratio", other.name), median(&ratios)));
        }
        let head = ["queue", head, "ours to this", "in single rounds"];
        report::table(title, &head, &rows);
    }
}
